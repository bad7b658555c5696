//! The store's interface for other languages: types that are known at run time, ranges that are
//! read by parts, commits that a transaction survives, and commits that are waited for later.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::task::{Context, Poll, Waker};

use latchwork_check::random::Random;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Key, Mode, Raw, Store, Table, TxnOptions, Type, Uuid, Value};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");

#[test]
fn descriptions_of_types_are_parsed() {
    let texts = [
        <(&str, u64) as Key>::TYPE.to_string(),
        <(u8,) as Key>::TYPE.to_string(),
        <() as Value>::TYPE.to_string(),
        <Option<(Uuid, [u8; 16])> as Key>::TYPE.to_string(),
        <(bool, (f32, f64), i128) as Key>::TYPE.to_string(),
        Type::Struct(&[("name", &Type::Name("str")), ("age", &Type::Name("u16"))]).to_string(),
        Type::Enum(&[
            (0, "Red", &Type::Tuple(&[])),
            (3, "Green", &Type::Tuple(&[&Type::Name("u64")])),
            (4, "Blue", &Type::Struct(&[("x", &Type::Name("u8"))])),
            (-2, "Grey", &Type::Tuple(&[&Type::Name("u8"), &Type::Bytes(3)])),
        ])
        .to_string(),
        Type::Own("city").to_string(),
        Type::Format("json", "shop::Order").to_string(),
        Type::Sized("plain", "order", 24).to_string(),
    ];
    for text in &texts {
        let parsed = Type::parse(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(parsed.to_string(), *text);
    }
    assert_eq!(Type::parse("any"), Some(Type::Any));
    let deep = "(".repeat(10_000);
    let wrong =
        ["", "u65", "str ", "(str", "(str)", "(str,u64", "opt()", "opt", "bytes()", "<>", "{a}"];
    for text in wrong.into_iter().chain([&deep[..], "u64)", "(u64,,)", "own()"]) {
        assert_eq!(Type::parse(text), None, "{text}");
    }
}

#[test]
fn a_range_read_by_parts_is_the_whole_range() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    let mut random = Random(7);
    for _ in 0..30 {
        let mut map = BTreeMap::new();
        store
            .write(|tx| {
                map.clear();
                tx.remove_range(&ROWS, ..)?;
                for _ in 0..random.below(400) {
                    let (key, value) = (random.below(500), random.below(9));
                    tx.put(&ROWS, key, value)?;
                    map.insert(key, value);
                    if random.below(3) == 0 {
                        let key = random.below(500);
                        tx.remove(&ROWS, key)?;
                        map.remove(&key);
                    }
                }
                let (from, to) = (random.below(250), 250 + random.below(250));
                let (back, most) = (random.below(2) == 1, 1 + random.below(60) as usize);
                let mut seen = Vec::new();
                let mut ends = (Bound::Included(from), Bound::Excluded(to));
                loop {
                    let before = seen.len();
                    let whole = tx.scan_some(&ROWS, ends, back, most, &mut |key, value| {
                        seen.push((ROWS.key_of(key)?, ROWS.value_of(value)?));
                        Ok(true)
                    })?;
                    assert!(seen.len() - before <= most, "no other transaction writes");
                    let Some((last, _)) = seen.last().filter(|_| !whole) else { break };
                    *(if back { &mut ends.1 } else { &mut ends.0 }) = Bound::Excluded(*last);
                }
                let mut wanted: Vec<_> = map.range(from..to).map(|(k, v)| (*k, *v)).collect();
                if back {
                    wanted.reverse();
                }
                assert_eq!(seen, wanted);
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn a_commit_that_fails_can_be_tried_again() {
    let store = begin(&Simulated::default(), Mode::Full).unwrap();
    store.put(&ROWS, 1, 10).unwrap();
    let no_wait = TxnOptions { time: std::time::Duration::ZERO, ..TxnOptions::default() };
    let mut reader = store.begin().unwrap();
    assert_eq!(reader.range(&ROWS, ..).unwrap().count(), 1);
    let mut writer = store.begin_with(&no_wait).unwrap();
    // A last write meets the range that another one has read when it is made: with the commit.
    writer.with(|tx| tx.put_final(&ROWS, 2, 20)).unwrap();
    let failed = writer.try_commit().unwrap_err();
    assert!(failed.is_retryable(), "{failed}");
    reader.roll_back().unwrap();
    writer.restart_within(std::time::Duration::from_secs(10)).unwrap();
    assert!(writer.failure().is_none());
    writer.put(&ROWS, 2, 21).unwrap();
    assert!(writer.try_commit().unwrap().is_some());
    assert_eq!(store.get(&ROWS, 2).unwrap(), Some(21));
    let over = writer.try_commit().unwrap_err();
    assert!(!over.is_retryable(), "{over}");
}

#[test]
fn a_commit_is_visible_before_it_is_durable() {
    let store: Store<Native> = begin(&Simulated::default(), Mode::Full).unwrap();
    let mut tx = store.begin().unwrap();
    tx.put(&ROWS, 1, 10).unwrap();
    let durable = tx.commit_later().unwrap();
    // Its locks are released: another transaction writes the same record.
    let mut other = store.begin().unwrap();
    assert_eq!(other.get_for_update(&ROWS, 1).unwrap(), Some(10));
    other.roll_back().unwrap();
    let mut durable = std::pin::pin!(durable);
    let mut context = Context::from_waker(Waker::noop());
    let at = loop {
        match durable.as_mut().poll(&mut context) {
            Poll::Ready(at) => break at.unwrap(),
            Poll::Pending => std::thread::yield_now(),
        }
    };
    assert!(at.is_some());
    assert_eq!(store.get(&ROWS, 1).unwrap(), Some(10));
}

#[test]
fn described_types_are_compared_with_those_of_rust() {
    let store = begin(&Simulated::default(), Mode::None).unwrap();
    let described = |key, value| {
        let (key, value) = (Type::parse(key).unwrap(), Type::parse(value).unwrap());
        Table::<Raw, Raw>::new("rows").described(key, value)
    };
    let (right, wrong) = (described("u64", "u64"), described("u64", "i64"));
    store.put(&right, &ROWS.key(&5).unwrap(), &6_u64.to_le_bytes()).unwrap();
    assert_eq!(store.get(&ROWS, 5).unwrap(), Some(6));
    let is_refused =
        |table: &Table<Raw, Raw>| matches!(store.get(table, b""), Err(Error::TableType { .. }));
    assert!(is_refused(&wrong) && !is_refused(&right));
    assert!(is_refused(&right.with_version(1)) && !is_refused(&right.with_version(0)));
    let infos = store.table_infos().unwrap();
    assert_eq!(infos[0].key.as_deref(), Some("u64"));
    // One session distinguishes two tables of one name and different types.
    for _ in 0..3 {
        assert!(is_refused(&wrong) && !is_refused(&right));
    }
}
