//! Values: encoding and decoding.

use latchwork_disk::Simulated;
use latchwork_store::{Mode, Table, Value, ValueError};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use crate::stage::begin;

fn bytes<V: Value>(value: &V::Of<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    V::encode(value, &mut bytes);
    bytes
}

/// A value decodes to itself after encoding.
fn comes_back<V: Value<Owned: PartialEq + core::fmt::Debug>>(value: &V::Owned) {
    let written = bytes::<V>(&V::lend(value));
    assert_eq!(V::WIDTH.unwrap_or(written.len()), written.len());
    assert_eq!(V::decode(&written).as_ref(), Ok(value));
}

/// Bytes either fail to decode, or encode to the same bytes again.
fn is_one_or_none<V: Value>(found: &[u8]) {
    if let Ok(value) = V::decode(found) {
        assert_eq!(bytes::<V>(&V::lend(&value)), found);
    }
}

type Fixed = (u128, (bool, [u8; 3]), i64, ());
type Mixed = (String, Option<u16>, (Vec<u8>, Option<String>), bool);
type Six = (u8, &'static str, (), &'static [u8], (i128,), Option<Option<bool>>);

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn tuples_and_options_are_read_as_written(
        fixed in (any::<u128>(), any::<(bool, [u8; 3])>(), any::<i64>(), Just(())),
        mixed in (".{0,3}", of(any::<u16>()), (vec(any::<u8>(), 0..4), of(".{0,3}")), any::<bool>()),
        wide in any::<i128>(),
        maybe in of(of(any::<bool>())),
    ) {
        comes_back::<Fixed>(&fixed);
        comes_back::<Mixed>(&mixed);
        comes_back::<Option<Fixed>>(&Some(fixed));
        comes_back::<Six>(&(7, mixed.0, (), mixed.2.0, (wide,), maybe));
    }

    #[test]
    fn any_bytes_are_a_value_in_one_way_or_an_error(
        found in vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..40),
    ) {
        is_one_or_none::<Fixed>(&found);
        is_one_or_none::<Mixed>(&found);
        is_one_or_none::<Six>(&found);
        is_one_or_none::<(String,)>(&found);
        is_one_or_none::<(Option<bool>, Option<()>)>(&found);
        is_one_or_none::<Option<(String, Vec<u8>)>>(&found);
        is_one_or_none::<i128>(&found);
        is_one_or_none::<bool>(&found);
    }
}

#[test]
fn a_width_covers_all_parts() {
    assert_eq!((Fixed::WIDTH, Mixed::WIDTH), (Some(16 + 1 + 3 + 8), None));
    assert_eq!((<(u64, i64)>::WIDTH, <()>::WIDTH, <Option<u8>>::WIDTH), (Some(16), Some(0), None));
    // No length is stored where the width is fixed, nor before the last part.
    assert_eq!(bytes::<(u8, &str)>(&(1, "ab")), b"\x01ab");
    assert_eq!(bytes::<(&str, u8)>(&("ab", 1)), b"\x02\0\0\0ab\x01");
    assert_eq!(bytes::<Option<&str>>(&Some("")), b"\x01");
}

#[test]
fn wrong_bytes_are_an_error() {
    let length = |found, wanted| ValueError::Length { found, wanted };
    assert_eq!(Option::<u8>::decode(b""), Err(length(0, 1)));
    assert_eq!(Option::<u8>::decode(b"\0\0"), Err(length(2, 1)));
    assert_eq!(Option::<u8>::decode(b"\x01"), Err(length(0, 1)));
    assert_eq!(Option::<u8>::decode(b"\x02"), Err(ValueError::Option { found: 2 }));
    assert_eq!(<(u32, u8)>::decode(b"\0\0\0"), Err(length(3, 5)));
    assert_eq!(<(u32, u8)>::decode(&[0; 6]), Err(length(6, 5)));
    assert_eq!(<(String, u8)>::decode(b"\x01"), Err(length(1, 4)));
    assert_eq!(<(String, u8)>::decode(b"\xff\xff\xff\xffa"), Err(length(1, 0xffff_ffff)));
    assert_eq!(<(String, u8)>::decode(b"\x01\0\0\0\xff\0"), Err(ValueError::Utf8));
}

/// Values in a table, where a range follows the keys' order.
#[test]
fn a_table_stores_typed_values() {
    type Key = (Option<i128>, [u8; 2]);
    type Entry = (&'static str, Option<u64>, bool);
    const ENTRIES: Table<Key, Entry> = Table::new("entries");
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let keys =
        [(None, [0xff; 2]), (Some(i128::MIN), [0, 0]), (Some(-1), [0, 0]), (Some(0), [0, 1])];
    store
        .write(|tx| {
            keys.iter()
                .rev()
                .try_for_each(|key| tx.put(&ENTRIES, *key, ("x", key.0.map(|_| 7), true)))
        })
        .unwrap();
    let found = store.read(|tx| tx.range(&ENTRIES, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    let expected = keys.map(|key| (key, ("x".to_owned(), key.0.map(|_| 7), true)));
    assert_eq!(found, expected);
    let above = (Some(-1), [0, 0])..;
    assert_eq!(store.read(|tx| tx.count(&ENTRIES, above)), Ok(2));
    let changed = store.write(|tx| {
        tx.update(&ENTRIES, keys[0], |old| old.map(|(name, count, _)| (name, count, false)))
    });
    assert_eq!(changed, Ok(Some(("x".to_owned(), None, false))));
}
