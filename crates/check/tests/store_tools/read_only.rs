//! Stores opened read-only: live ones, closed ones, and ones left by killed processes or crashes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_store::{Error, Options, Refusal, Store};

use crate::left::{LATE, killed};
use crate::stage::{ACCOUNTS, Place, ROWS, all, copy, fill, open, options, transfer, why};

fn to_read() -> Options {
    Options { read_only: true, wait: Some(Duration::from_secs(10)), ..options() }
}

fn read(path: impl AsRef<Path>) -> Result<Store, Error> {
    Store::open_with(path, &to_read())
}

/// The contents of all files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

/// Checks that every kind of writing call is refused.
fn is_refused(store: &Store) {
    let ends = [
        store.put(&ACCOUNTS, 1, 1),
        store.remove(&ACCOUNTS, 1).map(drop),
        store.write(|tx| tx.get(&ACCOUNTS, 1)).map(drop),
        store.begin().map(drop),
        store.checkpoint(),
        store.sync(),
        store.reclaim(&mut |_| {}).map(drop),
        store.sweep().map(drop),
        store.load_sorted(&LATE, [(1, 1)]).map(drop),
        store.commit_prepared(b"one").map(drop),
    ];
    for (number, end) in ends.iter().enumerate() {
        assert_eq!(*end, Err(Error::ReadOnly), "call {number}");
    }
}

#[test]
fn a_closed_store_is_read_in_place() {
    let place = Place::new("closed");
    let store = open(place.at("one"));
    fill(&store, 300);
    let records = all(&store);
    drop(store);
    let before = files(&place.at("one"));
    let (first, second) = (read(place.at("one")).unwrap(), read(place.at("one")).unwrap());
    assert!(all(&first) == records && all(&second) == records);
    is_refused(&first);
    // The files of the store must not change while they are read.
    let now = Options { wait: Some(Duration::ZERO), ..options() };
    let refused = |options| why(Store::open_with(place.at("one"), options).map(drop).unwrap_err());
    assert_eq!(refused(&now), Refusal::ReadElsewhere);
    drop(first);
    assert_eq!(refused(&now), Refusal::ReadElsewhere);
    drop(second);
    assert!(files(&place.at("one")) == before, "the reader wrote to a file");
    assert!(all(&open(place.at("one"))) == records);
}

/// The files after a crash of the machine, without memory.
#[test]
fn a_store_that_was_not_closed_is_recovered_in_memory() {
    let place = Place::new("unclean");
    killed(&place);
    copy(&place.at("one"), &place.at("two"));
    fs::remove_file(place.at("two/region")).unwrap();
    copy(&place.at("two"), &place.at("three"));
    let before = files(&place.at("two"));
    let store = read(place.at("two")).unwrap();
    assert_eq!(store.get(&LATE, 1), Ok(Some(1)));
    assert_eq!((store.get(&LATE, 2), store.get(&ROWS, 77_777)), (Ok(None), Ok(None)));
    assert!(all(&store) == all(&open(place.at("three"))));
    drop(store);
    assert!(files(&place.at("two")) == before, "the reader wrote to a file");
}

/// Commits that are only in memory are visible, and stay for the next writer.
#[test]
fn memory_of_killed_processes_is_read() {
    let place = Place::new("left");
    killed(&place);
    let before = files(&place.at("one"));
    for _ in 0..2 {
        let store = read(place.at("one")).unwrap();
        let late = store.get(&ROWS, 77_777).unwrap();
        assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
        assert_eq!(store.get(&LATE, 2), Ok(None), "an uncommitted write is visible");
        is_refused(&store);
    }
    assert!(files(&place.at("one")) == before, "the reader wrote to a file");
    let late = open(place.at("one")).get(&ROWS, 77_777).unwrap();
    assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
}

#[test]
fn a_live_store_is_read_while_it_is_written() {
    let place = Place::new("live");
    let store = open(place.at("one"));
    fill(&store, 300);
    let reader = read(place.at("one")).unwrap();
    for from in 0..10 {
        transfer(&store, from, from + 1);
        assert_eq!(reader.get(&ACCOUNTS, from), store.get(&ACCOUNTS, from));
    }
    is_refused(&reader);
    // It does not take part in closing: the last writer leaves the memory to it.
    drop(store);
    assert_eq!(reader.get(&ACCOUNTS, 0), Ok(Some(999)));
    let writer = open(place.at("one"));
    writer.put(&ACCOUNTS, 0, 7).unwrap();
    assert_eq!(reader.get(&ACCOUNTS, 0), Ok(Some(7)));
    drop(reader);
    writer.close().unwrap();
    assert!(!place.at("one/region").exists());
}

#[test]
fn reading_creates_no_store() {
    let place = Place::new("none");
    assert_eq!(why(read(place.at("one")).map(drop).unwrap_err()), Refusal::NoStore);
    fs::create_dir(place.at("one")).unwrap();
    assert_eq!(why(read(place.at("one")).map(drop).unwrap_err()), Refusal::NoStore);
    assert_eq!(fs::read_dir(place.at("one")).unwrap().count(), 0);
}
