//! Keys: bytes in the keys' order, and back again.

use latchwork_store::{Key, KeyError, Uuid};
use proptest::collection::vec;
use proptest::prelude::*;

fn bytes<K: Key>(key: &K::Of<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    K::encode(key, &mut bytes);
    bytes
}

/// Numbers near the edges of their lengths, and any.
fn integers() -> impl Strategy<Value = i64> {
    let edge = (0u32..64, -2i64..=2, any::<bool>());
    let edge = edge.prop_map(|(bit, near, minus)| {
        let edge = (1i64 << bit).wrapping_add(near);
        if minus { edge.wrapping_neg() } else { edge }
    });
    prop_oneof![edge, any::<i64>()]
}

/// Few different bytes, zero among them, so that prefixes and escapes are frequent.
fn texts() -> impl Strategy<Value = String> {
    vec(prop_oneof![Just('\0'), Just('\u{1}'), Just('a'), Just('\u{7ff}')], 0..6)
        .prop_map(|chars| chars.into_iter().collect())
}

fn blobs() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..6)
}

type Wide = ((&'static str, i64), Option<&'static [u8]>, bool);

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn integers_keep_their_order(a in integers(), b in integers()) {
        prop_assert_eq!(a.cmp(&b), bytes::<i64>(&a).cmp(&bytes::<i64>(&b)));
        prop_assert_eq!(i64::decode(&bytes::<i64>(&a)), Ok(a));
        // A wider or narrower type reads the same bytes, if the number fits.
        let narrow = i32::decode(&bytes::<i64>(&a));
        prop_assert_eq!(narrow, i32::try_from(a).map_err(|_| KeyError::Range));
    }

    #[test]
    fn unsigned_ones_too(a: u64, b: u64) {
        prop_assert_eq!(a.cmp(&b), bytes::<u64>(&a).cmp(&bytes::<u64>(&b)));
        prop_assert_eq!(u64::decode(&bytes::<u64>(&a)), Ok(a));
    }

    #[test]
    fn floats_keep_their_total_order(a: f64, b: f64, c: f32) {
        prop_assert_eq!(a.total_cmp(&b), bytes::<f64>(&a).cmp(&bytes::<f64>(&b)));
        prop_assert_eq!(f64::decode(&bytes::<f64>(&a)).map(f64::to_bits), Ok(a.to_bits()));
        prop_assert_eq!(f32::decode(&bytes::<f32>(&c)).map(f32::to_bits), Ok(c.to_bits()));
    }

    #[test]
    fn tuples_keep_the_order_of_their_parts(
        a in (texts(), integers(), proptest::option::of(blobs()), any::<bool>()),
        b in (texts(), integers(), proptest::option::of(blobs()), any::<bool>()),
    ) {
        fn key(of: &(String, i64, Option<Vec<u8>>, bool)) -> Vec<u8> {
            bytes::<Wide>(&((&of.0, of.1), of.2.as_deref(), of.3))
        }
        prop_assert_eq!(a.cmp(&b), key(&a).cmp(&key(&b)), "{:?} {:?}", a, b);
        let back = Wide::decode(&key(&a));
        prop_assert_eq!(back, Ok(((a.0.clone(), a.1), a.2.clone(), a.3)));
    }

    #[test]
    fn any_bytes_are_a_key_in_one_way_or_an_error(found in vec(any::<u8>(), 0..24)) {
        // What is read is written as it was: no two byte strings are the same key.
        if let Ok(((text, number), blob, is)) = Wide::decode(&found) {
            let again = bytes::<Wide>(&((&text, number), blob.as_deref(), is));
            prop_assert_eq!(again, found.clone());
        }
        if let Ok(number) = i64::decode(&found) {
            prop_assert_eq!(bytes::<i64>(&number), found.clone());
        }
        if let Ok(text) = String::decode(&found) {
            prop_assert_eq!(bytes::<String>(&text.as_str()), found);
        }
    }
}

/// The examples of FoundationDB's specification.
#[test]
fn the_codes_are_foundationdbs() {
    assert_eq!(bytes::<(Option<u8>,)>(&(None,)), b"\x00");
    assert_eq!(bytes::<&[u8]>(&b"foo\x00bar".as_slice()), b"\x01foo\x00\xffbar\x00");
    assert_eq!(bytes::<&str>(&"F\u{d4}O\0bar"), b"\x02F\xc3\x94O\x00\xffbar\x00");
    assert_eq!(bytes::<i64>(&-5_551_212), b"\x11\xab\x4b\x93");
    assert_eq!(bytes::<f32>(&-42.0), b"\x20\x3d\xd7\xff\xff");
    let nested = bytes::<((&[u8], Option<u8>, (Option<u8>,)), bool)>(&(
        (b"foo\x00bar".as_slice(), None, (None,)),
        true,
    ));
    assert_eq!(nested, b"\x05\x01foo\x00\xffbar\x00\x00\xff\x05\x00\xff\x00\x00\x27");
    assert_eq!(bytes::<Uuid>(&Uuid([7; 16])), [&[0x30][..], &[7; 16]].concat());
}

#[test]
fn wrong_bytes_are_told() {
    assert_eq!(i64::decode(b""), Err(KeyError::Short));
    assert_eq!(i64::decode(b"\x16\x01"), Err(KeyError::Short));
    assert_eq!(i64::decode(b"\x16\x00\x01"), Err(KeyError::Unusual));
    assert_eq!(i64::decode(b"\x15\x01\x00"), Err(KeyError::Long));
    assert_eq!(i64::decode(b"\x02a\x00"), Err(KeyError::Type { found: 2 }));
    assert_eq!(u8::decode(b"\x16\x01\x00"), Err(KeyError::Range));
    assert_eq!(u8::decode(b"\x13\xfe"), Err(KeyError::Range), "below zero");
    assert_eq!(String::decode(b"\x02\xff\x00"), Err(KeyError::Utf8));
    assert_eq!(String::decode(b"\x02abc"), Err(KeyError::Short));
}
