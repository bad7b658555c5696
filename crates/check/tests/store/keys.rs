//! Keys: encoding in the keys' order, and decoding.

use latchwork_disk::Simulated;
use latchwork_store::{AnyKey, KEY_MAX, Key, KeyError, KeyPart, Mode, Table, Uuid};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::stage::begin;

fn bytes<K: Key>(key: &K::Of<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    K::encode(key, &mut bytes);
    bytes
}

/// Numbers near the limits of encoded lengths, and random ones.
fn integers() -> impl Strategy<Value = i64> {
    let edge = (0u32..64, -2i64..=2, any::<bool>());
    let edge = edge.prop_map(|(bit, near, minus)| {
        let edge = (1i64 << bit).wrapping_add(near);
        if minus { edge.wrapping_neg() } else { edge }
    });
    prop_oneof![edge, any::<i64>()]
}

/// The same, of 128 bits.
fn wide() -> impl Strategy<Value = i128> {
    let edge = (0u32..128, -2i128..=2, any::<bool>());
    let edge = edge.prop_map(|(bit, near, minus)| {
        let edge = (1i128 << bit).wrapping_add(near);
        if minus { edge.wrapping_neg() } else { edge }
    });
    prop_oneof![edge, any::<i128>(), integers().prop_map(i128::from)]
}

/// Any number of leading parts of a key of up to six parts.
#[test]
fn a_key_of_many_parts_has_prefixes_of_each_length() {
    type Six = (u8, u8, u8, &'static str, u8, u8);
    const SIX: Table<Six, ()> = Table::new("six");
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store
        .write(|tx| {
            (0..64u8).try_for_each(|bits| {
                let [a, b, c, d, e, f] = [5, 4, 3, 2, 1, 0].map(|bit| bits >> bit & 1);
                tx.put(&SIX, (a, b, c, ["a", "ab"][usize::from(d)], e, f), ())
            })
        })
        .unwrap();
    let counts = store
        .read(|tx| {
            Ok([
                tx.prefix::<u8, _, _>(&SIX, 1)?.count(),
                tx.prefix::<(u8, u8), _, _>(&SIX, (1, 0))?.count(),
                tx.prefix::<(u8, u8, u8), _, _>(&SIX, (1, 0, 1))?.count(),
                tx.prefix::<(u8, u8, u8, &str), _, _>(&SIX, (1, 0, 1, "a"))?.count(),
                tx.prefix::<(u8, u8, u8, &str, u8), _, _>(&SIX, (1, 0, 1, "a", 0))?.count(),
            ])
        })
        .unwrap();
    assert_eq!(counts, [32, 16, 8, 4, 2]);
}

/// Few different characters, among them zero, so that prefixes and escapes are frequent.
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
        // A wider or narrower type reads the same bytes if the number fits.
        let narrow = i32::decode(&bytes::<i64>(&a));
        prop_assert_eq!(narrow, i32::try_from(a).map_err(|_| KeyError::Range));
    }

    #[test]
    fn unsigned_integers_keep_their_order(a: u64, b: u64) {
        prop_assert_eq!(a.cmp(&b), bytes::<u64>(&a).cmp(&bytes::<u64>(&b)));
        prop_assert_eq!(u64::decode(&bytes::<u64>(&a)), Ok(a));
    }

    #[test]
    fn integers_of_128_bits_keep_their_order(a in wide(), b in wide()) {
        prop_assert_eq!(a.cmp(&b), bytes::<i128>(&a).cmp(&bytes::<i128>(&b)));
        prop_assert_eq!(i128::decode(&bytes::<i128>(&a)), Ok(a));
        let (c, d) = (a as u128, b as u128);
        prop_assert_eq!(c.cmp(&d), bytes::<u128>(&c).cmp(&bytes::<u128>(&d)));
        prop_assert_eq!(u128::decode(&bytes::<u128>(&c)), Ok(c));
        let same = i128::try_from(c).map_err(|_| KeyError::Range);
        prop_assert_eq!(i128::decode(&bytes::<u128>(&c)), same);
        let (signed, plain) = (i64::decode(&bytes::<i128>(&a)), u64::decode(&bytes::<i128>(&a)));
        prop_assert_eq!(signed, i64::try_from(a).map_err(|_| KeyError::Range));
        prop_assert_eq!(plain, u64::try_from(a).map_err(|_| KeyError::Range));
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
    fn tuples_of_each_length_keep_their_order(
        a in (blobs(), wide(), proptest::option::of(texts()), any::<[u8; 2]>()),
        b in (blobs(), wide(), proptest::option::of(texts()), any::<[u8; 2]>()),
    ) {
        type Four = (&'static [u8], i128, Option<&'static str>, [u8; 2]);
        fn four(of: &(Vec<u8>, i128, Option<String>, [u8; 2])) -> Vec<u8> {
            bytes::<Four>(&(&of.0, of.1, of.2.as_deref(), of.3))
        }
        prop_assert_eq!(a.cmp(&b), four(&a).cmp(&four(&b)), "{:?} {:?}", a, b);
        prop_assert_eq!(Four::decode(&four(&a)), Ok(a.clone()));
        // Parts that differ only in length, first and last.
        let (c, d) = ((&a.0[..], a.2.as_deref()), (&b.0[..], b.2.as_deref()));
        type Two = (&'static [u8], Option<&'static str>);
        prop_assert_eq!(c.cmp(&d), bytes::<Two>(&c).cmp(&bytes::<Two>(&d)));
        type Three = (bool, (Option<&'static str>,), &'static [u8]);
        let (e, f) = ((a.1 < 0, (c.1,), c.0), (b.1 < 0, (d.1,), d.0));
        prop_assert_eq!(e.cmp(&f), bytes::<Three>(&e).cmp(&bytes::<Three>(&f)));
    }

    /// As in FoundationDB's tuple encoding, for any length: several bytes are escaped at a time.
    #[test]
    fn each_byte_is_escaped_separately(
        blob in vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..140),
    ) {
        let mut escaped = vec![1];
        for byte in &blob {
            escaped.push(*byte);
            escaped.extend((*byte == 0).then_some(0xff));
        }
        escaped.push(0);
        prop_assert_eq!(bytes::<&[u8]>(&&blob[..]), escaped);
        prop_assert_eq!(<&[u8]>::decode(&bytes::<&[u8]>(&&blob[..])), Ok(blob));
    }

    #[test]
    fn options_and_arrays_keep_their_order(
        a in proptest::option::of(any::<[u8; 3]>()), b in proptest::option::of(any::<[u8; 3]>()),
    ) {
        type Maybe = Option<[u8; 3]>;
        prop_assert_eq!(a.cmp(&b), bytes::<Maybe>(&a).cmp(&bytes::<Maybe>(&b)));
        prop_assert_eq!(Maybe::decode(&bytes::<Maybe>(&a)), Ok(a));
        if let Some(array) = a {
            prop_assert_eq!(bytes::<[u8; 3]>(&array), bytes::<&[u8]>(&&array[..]));
            let other = Err(KeyError::Length { found: 3, wanted: 4 });
            prop_assert_eq!(<[u8; 4]>::decode(&bytes::<[u8; 3]>(&array)), other);
        }
    }

    #[test]
    fn any_bytes_are_a_key_in_one_way_or_an_error(found in vec(any::<u8>(), 0..24)) {
        // A decoded key encodes to the same bytes: no two byte strings are one key.
        if let Ok(((text, number), blob, is)) = Wide::decode(&found) {
            let again = bytes::<Wide>(&((&text, number), blob.as_deref(), is));
            prop_assert_eq!(again, found.clone());
        }
        if let Ok(number) = i64::decode(&found) {
            prop_assert_eq!(bytes::<i64>(&number), found.clone());
        }
        for begin in [&[][..], &[0x0b, 0xf6], &[0x0b, 0xef], &[0x1d, 9], &[0x1d, 16], &[0x1d]] {
            let found = [begin, &found].concat();
            if let Ok(number) = i128::decode(&found) {
                prop_assert_eq!(bytes::<i128>(&number), found.clone());
            }
            if let Ok(number) = u128::decode(&found) {
                prop_assert_eq!(bytes::<u128>(&number), found);
            }
        }
        if let Ok(three) = <([u8; 1], Option<bool>, f32)>::decode(&found) {
            prop_assert_eq!(bytes::<([u8; 1], Option<bool>, f32)>(&three), found.clone());
        }
        if let Ok(text) = String::decode(&found) {
            prop_assert_eq!(bytes::<String>(&text.as_str()), found.clone());
        }
        if let Ok(key) = AnyKey::decode(&found) {
            prop_assert_eq!(bytes::<AnyKey>(&&key.0[..]), found);
        }
    }

    #[test]
    fn keys_of_all_types_are_decoded_without_their_type(
        (text, number, blob) in (texts(), wide(), blobs()), is: Option<bool>, float: f64,
    ) {
        type Of = ((&'static str, i128, (Option<bool>,)), &'static [u8], f64);
        let typed = bytes::<Of>(&((&text, number, (is,)), &blob, float));
        let key = AnyKey::decode(&typed).unwrap();
        prop_assert_eq!(bytes::<AnyKey>(&&key.0[..]), typed);
        let is = is.map_or(KeyPart::Null, KeyPart::Bool);
        let first = [KeyPart::Text(text), KeyPart::Integer(number), KeyPart::Tuple(vec![is])];
        prop_assert_eq!(&key.0[0], &KeyPart::Tuple(first.to_vec()));
        prop_assert_eq!(&key.0[1], &KeyPart::Bytes(blob));
        prop_assert_eq!(key.0.len(), 3);
        let large = u128::MAX - number.unsigned_abs();
        let found = AnyKey::decode(&bytes::<u128>(&large)).unwrap();
        let small = i128::try_from(large).map(KeyPart::Integer);
        prop_assert_eq!(found.0, [small.unwrap_or(KeyPart::Large(large))]);
    }
}

/// The examples of FoundationDB's specification.
#[test]
fn codes_equal_those_of_foundationdb() {
    assert_eq!(bytes::<(Option<u8>,)>(&(None,)), b"\x00");
    assert_eq!(bytes::<&[u8]>(&b"foo\x00bar".as_slice()), b"\x01foo\x00\xffbar\x00");
    assert_eq!(bytes::<&str>(&"F\u{d4}O\0bar"), b"\x02F\xc3\x94O\x00\xffbar\x00");
    assert_eq!(bytes::<i64>(&-5_551_212), b"\x11\xab\x4b\x93");
    let above = [&[0x1d, 9, 1][..], &[0; 8]].concat();
    assert_eq!(bytes::<u128>(&(1 << 64)), above);
    let below = [&[0x0b, 0xf6, 0xfe][..], &[0xff; 8]].concat();
    assert_eq!(bytes::<i128>(&-(1 << 64)), below);
    assert_eq!(bytes::<f32>(&-42.0), b"\x20\x3d\xd7\xff\xff");
    let nested = bytes::<((&[u8], Option<u8>, (Option<u8>,)), bool)>(&(
        (b"foo\x00bar".as_slice(), None, (None,)),
        true,
    ));
    assert_eq!(nested, b"\x05\x01foo\x00\xffbar\x00\x00\xff\x05\x00\xff\x00\x00\x27");
    assert_eq!(bytes::<Uuid>(&Uuid([7; 16])), [&[0x30][..], &[7; 16]].concat());
}

#[test]
fn keys_of_any_type_are_printed() {
    let told = |bytes: &[u8]| AnyKey::decode(bytes).unwrap().to_string();
    assert_eq!(told(&bytes::<&str>(&"pear")), "pear");
    assert_eq!(told(&bytes::<(&str, u64)>(&("ann", 8))), "(ann, 8)");
    assert_eq!(told(&bytes::<(&[u8], f32)>(&(&[7, 255], -0.5))), "(0x07ff, -0.5)");
    let nested = bytes::<((Option<u8>, bool), i8)>(&((None, true), -3));
    assert_eq!(told(&nested), "((none, true), -3)");
    let uuid = "07070707-0707-0707-0707-070707070707";
    assert_eq!(told(&bytes::<Uuid>(&Uuid([7; 16]))), uuid);
    assert_eq!(told(b""), "()");
    // Bytes of a file that would nest without end.
    assert_eq!(AnyKey::decode(&[5; 4000]), Err(KeyError::Type { found: 5 }));
    // A key that nests deeper than decoding allows is longer than the limit of a stored key.
    let mut part = KeyPart::Null;
    for levels in 1..300 {
        part = KeyPart::Tuple(vec![part]);
        let written = bytes::<AnyKey>(&&[part.clone()][..]);
        match AnyKey::decode(&written) {
            Ok(read) => assert_eq!(read.0, [part.clone()], "{levels}"),
            Err(_) => assert!(levels > 100 && written.len() > KEY_MAX, "{levels}"),
        }
    }
    assert_eq!(AnyKey::decode(b"\x05\x15\x07"), Err(KeyError::Short));
}

#[test]
fn wrong_bytes_are_an_error() {
    assert_eq!(i64::decode(b""), Err(KeyError::Short));
    assert_eq!(i64::decode(b"\x16\x01"), Err(KeyError::Short));
    assert_eq!(i64::decode(b"\x16\x00\x01"), Err(KeyError::Unusual));
    assert_eq!(u128::decode(b"\x1d\x08\x01\0\0\0\0\0\0\0"), Err(KeyError::Unusual));
    assert_eq!(u128::decode(b"\x1d\x09\0\x01\0\0\0\0\0\0\0"), Err(KeyError::Unusual));
    assert_eq!(u128::decode(&[&[0x1d, 17, 1][..], &[0; 16]].concat()), Err(KeyError::Range));
    assert_eq!(u128::decode(b"\x1d\x09\x01"), Err(KeyError::Short));
    assert_eq!(u128::decode(b"\x1d"), Err(KeyError::Short));
    assert_eq!(i64::decode(b"\x15\x01\x00"), Err(KeyError::Long));
    assert_eq!(i64::decode(b"\x02a\x00"), Err(KeyError::Type { found: 2 }));
    assert_eq!(u8::decode(b"\x16\x01\x00"), Err(KeyError::Range));
    assert_eq!(u8::decode(b"\x13\xfe"), Err(KeyError::Range), "below zero");
    assert_eq!(String::decode(b"\x02\xff\x00"), Err(KeyError::Utf8));
    assert_eq!(String::decode(b"\x02abc"), Err(KeyError::Short));
}
