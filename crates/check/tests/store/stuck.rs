//! Transactions that cannot be undone keep their locks, block no other, and are retried.

use core::time::Duration;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

use latchwork_check::forked::in_child;
use latchwork_disk::{Disk, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, ReadTxn, Sizes, Store, TxnOptions};

use crate::stage::{TABLE, begin_in, begin_with, sizes};

pub(crate) const PAGE: usize = 4096;

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

pub(crate) fn data(disk: &Simulated) -> Vec<u8> {
    disk.peek(Path::new("/home/store/data")).unwrap()
}

/// Reads other records until the damaged page of this record has left the pool.
fn read_others(store: &Store<Native>, number: u64) {
    let others = |tx: &ReadTxn<'_, Native>| Ok(tx.range(&TABLE, &key(200)[..]..)?.count());
    for _ in 0..100 {
        assert!(store.read(others).unwrap() > 2000);
        if store.read(|tx| tx.get(&TABLE, &key(number))).is_err() {
            return;
        }
    }
    panic!("the page of {number} stays in the pool");
}

/// Overwrites the page with this record by zeros and returns its place and old bytes. The log is
/// not read for a page of zeros, because an unwritten page looks the same.
fn damage(disk: &Simulated, of: &[u8]) -> (u64, Vec<u8>) {
    let all = data(disk);
    let at = all.windows(of.len()).position(|bytes| bytes == of).unwrap() / PAGE * PAGE;
    let page = all[at..at + PAGE].to_vec();
    assert!(disk.damage(Path::new("/home/store/data"), at as u64, &[0; PAGE]));
    (at as u64, page)
}

pub(crate) fn restore(disk: &Simulated, (at, page): &(u64, Vec<u8>)) {
    assert!(disk.damage(Path::new("/home/store/data"), *at, page));
}

/// Returns whether a record can be locked within 60 ms. After a refusal the store may sweep.
fn is_free(store: &Store<Native>, number: u64) -> bool {
    let patience = TxnOptions { time: Duration::from_millis(60), ..TxnOptions::default() };
    match store.write_with(&patience, |tx| tx.get_for_update(&TABLE, &key(number))) {
        Ok(done) => {
            assert_eq!(done.value.unwrap()[..9], value(number)[..9], "a change was not undone");
            true
        }
        Err(Error::Deadline { .. } | Error::Lock { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

pub(crate) fn value(number: u64) -> Vec<u8> {
    let mut value = format!("value{number:04}").into_bytes();
    // The log has only what differs from the value before: other bytes for the next number.
    value.resize(700, b'a' + (number % 26) as u8);
    value
}

/// A thread writes three records and cannot read the page of the second one when it rolls back.
/// Returns when the thread has ended.
pub(crate) fn fails(
    store: &Store<Native>,
    disk: &Simulated,
    first: u64,
    second: u64,
) -> (u64, Vec<u8>) {
    let (store, disk) = (store.clone(), disk.clone());
    let work = move || {
        let mut damaged = None;
        let ended = store.write(|tx| {
            tx.put(&TABLE, &key(second), &b"changed, the other"[..])?;
            tx.put(&TABLE, &key(first), format!("changed, on the page {first}").as_bytes())?;
            tx.put(&TABLE, &key(second + 1), &b"changed last"[..])?;
            store.checkpoint()?;
            damaged = Some(damage(&disk, format!("changed, on the page {first}").as_bytes()));
            read_others(&store, first);
            Err::<(), _>(Error::Rejected(String::new()))
        });
        assert!(!matches!(ended, Err(Error::Rejected(_))), "the transaction was rolled back");
        damaged.unwrap()
    };
    thread::spawn(work).join().unwrap()
}

/// A store of 3,000 records, more than its pool holds.
pub(crate) fn filled() -> (Simulated, Store<Native>) {
    filled_with(sizes(Mode::None))
}

pub(crate) fn filled_with(sizes: Sizes) -> (Simulated, Store<Native>) {
    let disk = Simulated::new();
    let store = begin_with(&disk, sizes).unwrap();
    fill(&store);
    (disk, store)
}

fn fill(store: &Store<Native>) {
    for part in 0..30 {
        let put = |tx: &mut latchwork_store::WriteTxn<'_, '_, Native>| {
            (0..100).try_for_each(|n| tx.put(&TABLE, &key(part * 100 + n), &value(part * 100 + n)))
        };
        store.write(put).unwrap();
    }
}

#[test]
fn a_failed_rollback_blocks_no_other_and_keeps_its_locks() {
    let (disk, store) = filled();
    let one = fails(&store, &disk, 10, 2500);
    let two = fails(&store, &disk, 50, 2600);
    let three = fails(&store, &disk, 90, 2700);
    assert_ne!(one.0, two.0);

    // All records that the three have written are locked, including those on readable pages.
    let told = store.sweep().unwrap_err();
    let Error::NotUndone { table, page, key: at, why } = &told else { panic!("{told}") };
    assert!(
        table == TABLE.name() && [one.0, two.0, three.0].contains(&(page * PAGE as u64)),
        "{told}"
    );
    let named = [10, 50, 90].into_iter().any(|number| *at == TABLE.key(&&key(number)[..]).unwrap());
    assert!(named, "{told}");
    assert!(why.to_string().contains("page"), "{told}");
    assert_eq!(store.not_undone().len(), 3);
    assert_eq!(in_child(|| assert!(store.not_undone().is_empty())), 0);
    for number in [10, 2500, 2501, 50, 2600, 2601, 90, 2700, 2701] {
        assert!(!is_free(&store, number), "{number} is not locked");
    }
    assert!(is_free(&store, 2800));

    // Another attempt logs nothing: the last write is undone once.
    let end = store.log_end();
    (0..10).for_each(|_| drop(store.sweep().unwrap_err()));
    assert_eq!(store.log_end(), end);

    restore(&disk, &two);
    assert!(matches!(store.sweep(), Err(Error::NotUndone { .. })));
    assert_eq!(store.not_undone().len(), 2);
    for number in [10, 2500, 90, 2700] {
        assert!(!is_free(&store, number), "{number} is not locked");
    }
    assert!(is_free(&store, 50) && is_free(&store, 2600));

    restore(&disk, &one);
    restore(&disk, &three);
    store.sweep().unwrap();
    assert!(store.not_undone().is_empty());
    assert_eq!(store.counts().unwrap().undone, 3);
    assert!([10, 2500, 50, 2600, 90, 2700].into_iter().all(|number| is_free(&store, number)));
    store.verify().unwrap();
}

/// A sweep continues after the changes that an earlier sweep has undone, and does not log them
/// again.
#[test]
fn a_sweep_continues_after_a_failed_rollback() {
    let (disk, store) = filled();
    let one = fails(&store, &disk, 10, 150);
    store.checkpoint().unwrap();
    let two = damage(&disk, b"changed, the other");
    read_others(&store, 150);
    restore(&disk, &one);
    assert!(matches!(store.sweep(), Err(Error::NotUndone { .. })));
    let end = store.log_end();
    (0..10).for_each(|_| drop(store.sweep().unwrap_err()));
    assert_eq!(store.log_end(), end);
    restore(&disk, &two);
    assert_eq!(store.sweep(), Ok(1));
    assert!([10, 150, 151].into_iter().all(|number| is_free(&store, number)));
    store.verify().unwrap();
}

/// A transaction that can neither commit nor be undone is not retried: a retry would be a second
/// transaction in a slot that still has the first one.
#[test]
fn a_transaction_whose_rollback_failed_is_not_retried() {
    let (disk, store) = filled();
    let (held, over) = (Barrier::new(2), Barrier::new(2));
    let damaged = thread::scope(|scope| {
        scope.spawn(|| {
            let rows = store.write(|tx| {
                let rows = tx.range(&TABLE, &key(2000)[..]..)?.count();
                held.wait();
                over.wait();
                Ok(rows)
            });
            assert_eq!(rows, Ok(1000));
        });
        let work = || {
            held.wait();
            let (mut damaged, mut runs) = (None, 0);
            let patience = TxnOptions { time: Duration::from_millis(300), ..TxnOptions::default() };
            let ended = store.write_with(&patience, |tx| {
                runs += 1;
                tx.put(&TABLE, &key(10), &b"changed, on the page 10"[..])?;
                store.checkpoint()?;
                damaged = Some(damage(&disk, b"changed, on the page 10"));
                read_others(&store, 10);
                // Another transaction holds a range with this key, which the commit meets.
                tx.put_final(&TABLE, &key(2500), &b"changed last"[..])
            });
            over.wait();
            let why = ended.unwrap_err();
            assert!(!why.is_retryable() && !matches!(why, Error::Deadline { .. }), "{why}");
            assert_eq!(runs, 1);
            damaged.unwrap()
        };
        scope.spawn(work).join().unwrap()
    });
    assert!(!is_free(&store, 10));
    restore(&disk, &damaged);
    store.sweep().unwrap();
    assert!(is_free(&store, 10) && is_free(&store, 2500));
}

/// The rollback of an old transaction that failed in a checkpoint is retried by the next one: its
/// own thread may never return, and it keeps the log.
#[test]
fn a_failed_rollback_of_an_old_transaction_is_retried() {
    let (disk, store) = filled_with(Sizes { history: 1 << 20, ..sizes(Mode::None) });
    let mut old = store.begin().unwrap();
    let first = store.log_end();
    old.put(&TABLE, &key(10), b"changed, on the page 10").unwrap();
    old.put(&TABLE, &key(2500), b"changed last").unwrap();
    store.checkpoint().unwrap();
    let page = damage(&disk, b"changed, on the page 10");
    read_others(&store, 10);
    let put = |row: u64| store.put(&TABLE, &key(2800 + row % 100), &value(row));
    (0..).take_while(|_| store.log_end() < first + (2 << 20)).try_for_each(put).unwrap();
    store.checkpoint().unwrap();
    // Its pages are logged in full before its own first record.
    let keeps_log = || store.activity().unwrap().redo < first + (1 << 16);
    assert!(keeps_log(), "the transaction was undone");

    restore(&disk, &page);
    (0..2).try_for_each(|_| put(0).and_then(|()| store.checkpoint())).unwrap();
    assert!(!keeps_log(), "the transaction was not retried");
    assert_eq!(old.put(&TABLE, &key(11), b""), Err(Error::TransactionTooOld));
    old.roll_back().unwrap();
    assert!([10, 2500].into_iter().all(|number| is_free(&store, number)));
    store.verify().unwrap();
}

/// A transaction that another process has undone in the meantime is no longer reported.
#[test]
fn a_transaction_undone_by_another_process_is_not_stuck() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    fill(&store);
    let page = fails(&store, &disk, 10, 2500);
    assert!(matches!(store.sweep(), Err(Error::NotUndone { .. })));
    assert_eq!(store.not_undone().len(), 1);
    let own: Arc<dyn Disk> = Arc::new(disk.clone());
    let path = Path::new("/home/store");
    let another = region.another().unwrap();
    let other = Store::in_region_with(&another, &own, path, &sizes(Mode::None), 1).unwrap();
    restore(&disk, &page);
    assert_eq!(other.sweep(), Ok(1));
    assert_eq!(store.not_undone(), []);
}

/// A stuck transaction keeps its thread slot; the error says that no other slot is free.
#[test]
fn a_stuck_transaction_changes_no_error() {
    let (disk, store) = filled();
    let page = fails(&store, &disk, 10, 2500);
    let mut held = Vec::new();
    let full = loop {
        match store.begin() {
            Ok(tx) => held.push(tx),
            Err(why) => break why,
        }
    };
    assert!(matches!(full, Error::Threads { limit: 48, here: 47 }), "{full}");
    drop(held);
    restore(&disk, &page);
    store.sweep().unwrap();
}

/// A record that has left the log's buffer and cannot be read: it is unknown whether its
/// transaction is prepared. The transaction is reported as not undone, and other transactions can
/// be decided.
#[test]
fn an_unreadable_last_record_blocks_no_other() {
    let (disk, store) = filled_with(Sizes { log_segment: 4 << 20, ..sizes(Mode::None) });
    let mut prepared = store.begin().unwrap();
    prepared.put(&TABLE, &key(500), b"prepared").unwrap();
    prepared.prepare(b"one").unwrap();
    let (mut at, lost) = (0, store.clone());
    thread::scope(|scope| {
        let work = || {
            let ended = lost.write(|tx| {
                tx.put(&TABLE, &key(10), &b"written"[..])?;
                at = lost.log_end();
                tx.put(&TABLE, &key(10), &b"written last"[..])?;
                let fill = || (0..2500).try_for_each(|n| lost.put(&TABLE, &key(2000), &value(n)));
                thread::scope(|scope| scope.spawn(fill).join().unwrap())?;
                lost.sync()?;
                // Segments of 512 KiB, 512 KiB, 1 MiB, 2 MiB, and then of 4 MiB.
                let (mut number, mut from, mut length) = (0, 0, 512 << 10);
                while at >= from + length {
                    (number, from) = (number + 1, from + length);
                    length = from.min(4 << 20);
                }
                let path = format!("/home/store/log/{number:016x}");
                assert!(disk.damage(Path::new(&path), 4096 + at - from, &[0; 64]));
                Err::<(), _>(Error::Rejected(String::new()))
            });
            assert!(!matches!(ended, Err(Error::Rejected(_))), "it was rolled back");
        };
        scope.spawn(work).join().unwrap();
    });
    assert!(matches!(store.sweep(), Err(Error::NotUndone { .. })));
    assert_eq!(store.not_undone().len(), 1);
    assert!(!is_free(&store, 10) && is_free(&store, 11));
    assert!(matches!(store.commit_prepared(b"another"), Err(Error::Log(_))));
    store.commit_prepared(b"one").unwrap();
    assert_eq!(store.get(&TABLE, &key(500)), Ok(Some(b"prepared".to_vec())));
}
