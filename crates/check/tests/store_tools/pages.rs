//! Pages that do not match the log: older, of another store, truncated, or newer.

use std::fs;
use std::os::unix::fs::FileExt;

use latchwork_store::{Error, Refusal, Store, Table, discard_shared_memory, restore};

use crate::left::{LATE, killed};
use crate::open::refused;
use crate::stage::{
    COUNT, EACH, Place, ROWS, copy, fill, length, open, options, sum, transfer, why,
};

/// Checks that the open is refused because of the pages, which are not changed, and that the store
/// opens again with `pages`.
fn is_refused_for_its_pages(place: &Place, pages: &[u8], what: &str) {
    let data = place.at("one/data");
    let before = fs::read(&data).unwrap_or_default();
    let refusal = refused(place.at("one"));
    assert!(matches!(refusal, Refusal::Damaged { file: "data", .. }), "{what}: {refusal:?}");
    let after = fs::read(&data).unwrap_or_default();
    assert!(after.starts_with(&before), "{what}: the pages were overwritten");
    fs::write(&data, pages).unwrap();
    let store = open(place.at("one"));
    store.verify().unwrap();
    assert_eq!(sum(&store), COUNT as i64 * EACH, "{what}");
}

/// Closes a store, opens and closes it again with a transfer. Returns the pages from in between.
fn closed_twice(place: &Place) -> Vec<u8> {
    let store = open(place.at("one"));
    fill(&store, 300);
    drop(store);
    let early = fs::read(place.at("one/data")).unwrap();
    let store = open(place.at("one"));
    transfer(&store, 1, 2);
    drop(store);
    early
}

/// After a clean close nothing is redone: missing pages, or pages of another time, must not be
/// opened as a store with fewer or other records.
#[test]
fn pages_of_another_log_are_refused() {
    let place = Place::new("pages");
    let data = place.at("one/data");
    let early = closed_twice(&place);
    let pages = fs::read(&data).unwrap();

    fs::remove_file(&data).unwrap();
    is_refused_for_its_pages(&place, &pages, "gone");
    let (half, most) = (pages.len() as u64 / 2, pages.len() as u64 - 8192);
    for length in [0, 1, 4095, 8191, 8192, half & !8191, most] {
        let pages = fs::read(&data).unwrap();
        fs::File::options().write(true).open(&data).unwrap().set_len(length).unwrap();
        is_refused_for_its_pages(&place, &pages, &format!("cut off at {length}"));
    }
    let pages = fs::read(&data).unwrap();
    fs::write(&data, vec![0; pages.len()]).unwrap();
    is_refused_for_its_pages(&place, &pages, "zeros");

    let pages = fs::read(&data).unwrap();
    fs::write(&data, &early).unwrap();
    is_refused_for_its_pages(&place, &pages, "of before");
    fill(&open(place.at("two")), 300);
    let pages = fs::read(&data).unwrap();
    fs::copy(place.at("two/data"), &data).unwrap();
    is_refused_for_its_pages(&place, &pages, "another store's");

    // A copy cannot be created inside a store, where it would be removed.
    let store = open(place.at("one"));
    let within = |end: Result<(), Error>| assert_eq!(why(end.unwrap_err()), Refusal::WithinStore);
    within(store.backup(place.at("one/copy"), &mut |_| {}).map(drop));
    within(store.compact_into(place.at("one/log/copy"), &mut |_| {}).map(drop));
    drop(store);

    // The same for a copy.
    open(place.at("one")).backup(place.at("copy"), &mut |_| {}).unwrap();
    let copied = fs::read(place.at("copy/data")).unwrap();
    for bytes in [&[][..], &early, &vec![0; copied.len()]] {
        fs::write(place.at("copy/data"), bytes).unwrap();
        let end = restore(place.at("copy"), place.at("again"), &mut |_| {});
        assert!(end.is_err(), "{} bytes: {end:?}", bytes.len());
        assert!(!place.at("again").exists());
    }
    fs::write(place.at("copy/data"), copied).unwrap();
    restore(place.at("copy"), place.at("again"), &mut |_| {}).unwrap();
    assert_eq!(sum(&open(place.at("again"))), COUNT as i64 * EACH);
}

/// Pages after an unreadable page are not counted as absent.
#[test]
fn pages_are_not_counted_past_a_damaged_one() {
    let place = Place::new("pages-count");
    let store = open(place.at("one"));
    fill(&store, 1500);
    let roots: Vec<_> = store.pages().unwrap().iter().map(|table| u64::from(table.root)).collect();
    drop(store);
    let leaf = (21..).find(|page| !roots.contains(page)).unwrap();
    let data = fs::File::options().write(true).open(place.at("one/data")).unwrap();
    data.write_all_at(&[0x5a; 64], leaf * 8192 + 100).unwrap();
    let why = open(place.at("one")).pages().unwrap_err();
    let is_damage =
        matches!(&why, Error::Pool(latchwork_pool::Error::Checksum { page, .. }) if *page == leaf);
    assert!(is_damage, "{why}");
}

/// With many tables the signature is not on the first page.
#[test]
fn truncated_pages_of_many_tables_are_refused() {
    let place = Place::new("pages-many");
    let store = open(place.at("one"));
    fill(&store, 300);
    for number in 0..300 {
        let table: Table<u64, u64> = Table::new(format!("table number {number}").leak());
        store.put(&table, number, number).unwrap();
    }
    assert!(store.pages().unwrap()[0].depth > 1, "the catalog has one page");
    drop(store);
    let data = place.at("one/data");
    let pages = fs::read(&data).unwrap();
    for bytes in [8192, 64 * 8192] {
        let file = fs::File::options().write(true).open(&data).unwrap();
        file.set_len(pages.len() as u64 - bytes).unwrap();
        is_refused_for_its_pages(&place, &pages, &format!("{bytes} bytes fewer"));
    }
}

/// After a crash, redo rewrites the signature, because its leaf has changed since the checkpoint.
/// With memory of killed processes nothing is redone.
#[test]
fn old_pages_are_refused_after_a_crash_and_with_left_memory() {
    for crash in [true, false] {
        let place = Place::new("pages-crash");
        let data = place.at("one/data");
        let early = closed_twice(&place);
        killed(&place);
        if crash {
            assert!(discard_shared_memory(place.at("one")).unwrap() > 0);
        }
        let pages = fs::read(&data).unwrap();
        fs::write(&data, &early).unwrap();
        is_refused_for_its_pages(&place, &pages, if crash { "crash" } else { "killed" });
        let store = open(place.at("one"));
        assert_eq!((store.get(&LATE, 1), store.get(&LATE, 2)), (Ok(Some(1)), Ok(None)));
        assert_eq!(store.get(&ROWS, 3).unwrap().unwrap().len(), length(3));
    }
}

/// As above, without a checkpoint that would show it: pages newer than the log are refused when
/// they are read.
#[test]
fn a_page_newer_than_the_log_is_not_read() {
    let place = Place::new("ahead");
    let mut options = options();
    options.sizes.log_budget = 1 << 30;
    let store = Store::open_with(place.at("one"), &options).unwrap();
    fill(&store, 300);
    store.checkpoint().unwrap();
    let log = place.at("log");
    copy(&place.at("one/log"), &log);
    // More than the cache holds: pages are written without a checkpoint.
    let long = vec![7; 6000];
    let put = |row: u64| store.put(&ROWS, row * 7 + 3, &long).unwrap();
    (0..1000).for_each(put);
    std::mem::forget(store);
    let at_rest = place.at("two");
    copy(&place.at("one"), &at_rest);
    let _ = fs::remove_file(at_rest.join("region"));
    fs::remove_dir_all(at_rest.join("log")).unwrap();
    fs::rename(&log, at_rest.join("log")).unwrap();
    let used = Store::open_with(&at_rest, &options).and_then(|store| {
        store.read(|tx| tx.range(&ROWS, ..)?.try_fold(0, |count, row| row.map(|_| count + 1)))
    });
    let told = used.unwrap_err().to_string();
    assert!(told.contains("the log is of an earlier time"), "{told}");
}

/// An older log with newer pages, as after a partial restore of a copy: the log lacks what the
/// pages contain.
#[test]
fn pages_newer_than_the_log_are_refused() {
    for more in [10, 500] {
        let place = Place::new("newer");
        drop(closed_twice(&place));
        let log = place.at("log");
        copy(&place.at("one/log"), &log);
        let store = open(place.at("one"));
        for round in 0..more {
            transfer(&store, round % COUNT, (round + 5) % COUNT);
        }
        drop(store);
        let newer = place.at("newer");
        fs::rename(place.at("one/log"), &newer).unwrap();
        fs::rename(&log, place.at("one/log")).unwrap();
        let refusal = refused(place.at("one"));
        assert!(matches!(refusal, Refusal::Damaged { file: "data", .. }), "{refusal:?}");
        fs::rename(place.at("one/log"), &log).unwrap();
        fs::rename(&newer, place.at("one/log")).unwrap();
        assert_eq!(sum(&open(place.at("one"))), COUNT as i64 * EACH);
    }
}

/// The pieces of all long values are in one tree; each table is charged for its own.
#[test]
fn long_values_are_counted_for_their_table() {
    const PICTURES: Table<u64, &[u8]> = Table::new("pictures");
    const LETTERS: Table<u64, &[u8]> = Table::new("letters");
    let place = Place::new("pages-long");
    let store = open(place.at("one"));
    for key in 0..9 {
        store.put(&PICTURES, key, &vec![1; 100_000]).unwrap();
        store.put(&LETTERS, key, &vec![2; if key < 2 { 20_000 } else { 100 }]).unwrap();
    }
    store.remove(&PICTURES, 0).unwrap();
    let tables = store.pages().unwrap();
    let of = |name: &str| tables.iter().find(|table| table.name == name).unwrap();
    let (pictures, letters) = (of("pictures"), of("letters"));
    assert_eq!((pictures.long_values, letters.long_values), (8, 2));
    assert_eq!(pictures.value_bytes + pictures.long_bytes, 8 * (100_000 + 16));
    assert_eq!(letters.value_bytes + letters.long_bytes, 2 * (20_000 + 16) + 7 * 100);
    assert_eq!(of("(long values)").value_bytes, pictures.long_bytes + letters.long_bytes);
    let file = store.data_file().unwrap();
    let used: u64 = tables.iter().map(|table| table.bytes).sum();
    let pages = file.pages * u64::from(file.page_bytes);
    assert_eq!(used + file.free * u64::from(file.page_bytes), pages);
    assert_eq!(file.length, pages + file.reserved());
}
