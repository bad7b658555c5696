//! The space that long values take.

use latchwork_store::{Mode, Store, Table, TxnOptions};

use crate::stage::{Place, options};

const BLOBS: Table<u64, &[u8]> = Table::new("blobs");

fn put(store: &Store, key: u64, value: &[u8]) {
    let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    store.write_with(&patience, |tx| tx.put(&BLOBS, key, value)).unwrap();
}

#[test]
fn a_long_value_takes_little_more_than_its_bytes() {
    let place = Place::new("long");
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    for (from, length) in [(0, 1 << 20), (10, 100_000)] {
        let before = store.space().unwrap().used;
        (from..from + 10).for_each(|key| put(&store, key, &vec![key as u8; length]));
        let bytes = (store.space().unwrap().used - before) * 8192;
        let share = bytes as f64 / (10 * length) as f64;
        println!("{length}: {share}");
        assert!((1.0..1.1).contains(&share), "{share} bytes for each of values of {length}");
    }
    assert_eq!(store.get(&BLOBS, 3).unwrap().unwrap(), vec![3; 1 << 20]);
}

/// A value that is overwritten repeatedly reuses the pages of its earlier versions.
#[test]
fn an_overwritten_long_value_reuses_its_pages() {
    for (length, times, most) in [(30_000, 600, 400), (100_000, 200, 1500), (1 << 20, 60, 8000)] {
        let place = Place::new("long-again");
        let store = Store::open_with(place.at("one"), &options()).unwrap();
        let mut half = 0;
        for round in 0..times {
            put(&store, 1, &vec![round as u8; length]);
            if round == times / 2 {
                half = store.space().unwrap().pages;
            }
        }
        let space = store.space().unwrap();
        println!("{times} times {length}: {space:?}");
        assert!(space.pages < most, "{length}: {space:?}");
        assert!(space.pages < half + half / 4, "{length}: from {half} it grows to {space:?}");
    }
}
