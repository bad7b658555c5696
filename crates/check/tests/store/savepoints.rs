//! Savepoints: which are void, and the log records of rolling back to one.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::Simulated;
use latchwork_log::{Flags, LogFiles, Lsn};
use latchwork_store::{Error, Mode, Sizes};

use crate::stage::{TABLE, begin, begin_with, sizes};

#[test]
fn a_savepoint_after_a_rolled_back_one_is_invalid() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store
        .write(|tx| {
            let first = tx.savepoint()?;
            tx.put(&TABLE, b"a", b"1")?;
            let second = tx.savepoint()?;
            tx.put(&TABLE, b"b", b"1")?;
            tx.roll_back_to(first)?;
            assert_eq!(tx.roll_back_to(second), Err(Error::Savepoint));
            let third = tx.savepoint()?;
            for key in [b"c", b"d", b"e"] {
                tx.put(&TABLE, key, b"1")?;
            }
            assert_eq!(
                tx.roll_back_to(second),
                Err(Error::Savepoint),
                "whatever was written since"
            );
            let fourth = tx.savepoint()?;
            tx.put(&TABLE, b"f", b"1")?;
            tx.roll_back_to(fourth)?;
            tx.roll_back_to(fourth)?;
            assert_eq!(tx.get(&TABLE, b"e")?, Some(b"1".to_vec()));
            tx.roll_back_to(third)?;
            assert_eq!(tx.roll_back_to(fourth), Err(Error::Savepoint));
            tx.roll_back_to(first)?;
            assert_eq!(tx.roll_back_to(third), Err(Error::Savepoint));
            tx.roll_back_to(first)?;
            assert_eq!(tx.range(&TABLE, ..)?.count(), 0);
            Ok(())
        })
        .unwrap();
}

/// A deferred write that fails must not be missing from a committed transaction.
#[test]
fn a_failing_deferred_write_fails_its_transaction() {
    let small = Sizes { page: 4096, ..sizes(Mode::None) };
    let store = begin_with(&Simulated::new(), small).unwrap();
    // Fits on a page of 8 KiB, but not on these.
    let long = [7; 1000];
    for how in 0..3 {
        let mut tx = store.begin().unwrap();
        tx.put(&TABLE, b"a", b"1").unwrap();
        tx.with(|tx| tx.put_final(&TABLE, &long, b"")).unwrap();
        let told = match how {
            0 => tx.get(&TABLE, b"a").map(drop),
            1 => tx.savepoint().map(drop),
            _ => Ok(()),
        };
        assert_eq!(told.is_err(), how < 2, "{told:?}");
        let why = tx.commit().unwrap_err();
        assert!(why.to_string().contains("1002 bytes"), "{why}");
        assert_eq!(store.get(&TABLE, b"a"), Ok(None));
    }
}

/// Each call of a transaction that was undone because it kept too much of the log says so.
#[test]
fn a_savepoint_of_an_undone_transaction_is_an_error() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut tx = store.begin().unwrap();
    tx.put(&TABLE, b"a", b"1").unwrap();
    let behind = tx.savepoint().unwrap();
    for round in 0u32..200 {
        store.put(&TABLE, &round.to_be_bytes(), &[1; 100_000]).unwrap();
    }
    assert_eq!(tx.savepoint().map(drop), Err(Error::TransactionTooOld));
    let aborted = Error::Aborted { why: Box::new(Error::TransactionTooOld) };
    assert_eq!(tx.roll_back_to(behind), Err(aborted));
    assert_eq!(store.get(&TABLE, b"a"), Ok(None));
}

/// The record of each undo links to the write before the savepoint and skips what was already
/// undone; otherwise each rollback would walk over all of that.
#[test]
fn repeated_rollbacks_to_a_savepoint_take_constant_time() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    store.put(&TABLE, b"a", b"0").unwrap();
    let from = store.log_end();
    let mut tx = store.begin().unwrap();
    tx.put(&TABLE, b"a", b"1").unwrap();
    // A record of the same transaction that is not undone.
    tx.put(&TABLE, b"b", b"1").unwrap();
    let here = tx.savepoint().unwrap();
    for round in 0..20u8 {
        (0..3).for_each(|key| tx.put(&TABLE, &[key], &[round]).unwrap());
        tx.roll_back_to(here).unwrap();
    }
    tx.commit().unwrap();
    assert_eq!(store.get(&TABLE, b"b"), Ok(Some(b"1".to_vec())));
    assert_eq!(store.get(&TABLE, &[0]), Ok(None));
    let log = LogFiles::open(Arc::new(disk), Path::new("/home/store/log")).unwrap();
    let (mut scan, mut undone) = (log.scan(Lsn(from)), Vec::new());
    while let Some(entry) = scan.next_entry().unwrap() {
        if entry.head.flags.has(Flags::CLR) {
            undone.push((entry.lsn, entry.head.prev));
        }
    }
    assert_eq!(undone.len(), 60);
    // Of three records, the last links to the write before the savepoint.
    let before = undone[2].1;
    let led: Vec<_> = undone.chunks(3).map(|round| round[2].1).collect();
    assert!(before.0 >= from && before < undone[0].0);
    assert_eq!(led, vec![before; 20]);
}
