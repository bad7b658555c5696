//! The bound on history: snapshots and transactions that keep the log for too long are ended.

use std::path::Path;
use std::sync::Barrier;
use std::thread;

use latchwork_check::serial::replay;
use latchwork_disk::{Disk, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store};

use crate::files::{crowd, dump, model};
use crate::stage::{Shape, TABLE, begin, begin_with, sizes};
use crate::stuck::{key, value};

const MIB: u64 = 1 << 20;
/// History, the log of a checkpoint, segments in use, and spare segments.
const MOST: u64 = (4 + 1 + 2 + 2 + 4) * MIB;

fn bytes_of_log(disk: &Simulated) -> u64 {
    let folder = Path::new("/home/store/log");
    let names = disk.list(folder).unwrap();
    names.iter().map(|name| disk.peek(&folder.join(name)).unwrap().len() as u64).sum()
}

fn bytes_of_data(disk: &Simulated) -> usize {
    disk.peek(Path::new("/home/store/data")).unwrap().len()
}

/// Writes records until the log has grown by `bytes`. The log's files stay within their bound.
fn write_much(store: &Store<Native>, disk: &Simulated, bytes: u64) {
    let (until, mut round) = (store.log_end() + bytes, 0);
    while store.log_end() < until {
        let put = |tx: &mut latchwork_store::WriteTxn<'_, '_, Native>| {
            (100..300).try_for_each(|n| tx.put(&TABLE, &key(n), &value(n + round)))
        };
        store.write(put).unwrap();
        round += 1;
        assert!(bytes_of_log(disk) <= MOST, "{} bytes of log", bytes_of_log(disk));
    }
}

fn fill(mode: Mode) -> (Simulated, Store<Native>) {
    let disk = Simulated::new();
    let store = begin(&disk, mode).unwrap();
    for n in 0..300 {
        store.write(|tx| tx.put(&TABLE, &key(n), &value(n))).unwrap();
    }
    write_much(&store, &disk, 2 * MIB);
    (disk, store)
}

#[test]
fn a_held_snapshot_does_not_keep_the_log() {
    let (disk, store) = fill(Mode::None);
    let data = bytes_of_data(&disk);
    let held = store.read(|tx| {
        let before = tx.get(&TABLE, &key(200))?;
        write_much(&store, &disk, MIB);
        assert_eq!(tx.get(&TABLE, &key(200))?, before, "a version within the bound was lost");
        write_much(&store, &disk, 40 * MIB);
        // This record was not changed.
        assert_eq!(tx.get(&TABLE, &key(50))?, Some(value(50)));
        tx.get(&TABLE, &key(200))
    });
    let why = held.unwrap_err();
    assert!(matches!(why, Error::SnapshotTooOld { .. }) && why.is_retryable(), "{why}");
    assert_eq!(bytes_of_data(&disk), data, "the data file has grown for a reader");
    store.read(|tx| tx.get(&TABLE, &key(200))).unwrap();
    store.verify().unwrap();
}

/// The next call of a thread whose transaction was open for too long.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    Write,
    Commit,
    RollBack,
    BackToSavepoint,
    Get,
    Scan,
}

#[test]
fn an_open_transaction_does_not_keep_the_log() {
    use Next::{BackToSavepoint, Commit, Get, RollBack, Scan, Write};
    for next in [Write, Commit, RollBack, BackToSavepoint, Get, Scan] {
        let (disk, store) = fill(Mode::None);
        let (open, over) = (Barrier::new(2), Barrier::new(2));
        let mut runs = 0;
        thread::scope(|scope| {
            let (store, disk, open, over) = (&store, &disk, &open, &over);
            scope.spawn(move || {
                open.wait();
                write_much(store, disk, 40 * MIB);
                // The transaction is undone and its locks are still held.
                let found = store.read(|tx| tx.get(&TABLE, &key(7))).unwrap();
                assert_eq!(found, Some(value(7)));
                assert!(store.counts().unwrap().locks > 0);
                over.wait();
            });
            let ended = store.write(|tx| {
                runs += 1;
                tx.put(&TABLE, &key(7), &value(1000 + runs))?;
                let here = tx.savepoint()?;
                tx.remove(&TABLE, &key(8))?;
                if runs == 1 {
                    open.wait();
                    over.wait();
                }
                match next {
                    Next::Write => tx.put(&TABLE, &key(9), &value(2000)),
                    Next::Commit => Ok(()),
                    Next::RollBack => Err(Error::Rejected(String::new())),
                    Next::BackToSavepoint => tx.roll_back_to(here),
                    // It must not read the value from before its own write.
                    Next::Get => {
                        let got = tx.get(&TABLE, &key(7));
                        let own = Ok(Some(value(1000 + runs)));
                        assert_eq!(
                            got,
                            if runs == 1 { Err(Error::TransactionTooOld) } else { own }
                        );
                        got.map(drop)
                    }
                    Next::Scan => {
                        let from = &key(7)[..]..;
                        let first = tx.range(&TABLE, from).map(|mut rows| rows.next().unwrap());
                        assert_eq!(first.is_err(), runs == 1);
                        first.map(drop)
                    }
                }
            });
            let rejected = next == Next::RollBack;
            assert_eq!(ended.is_err(), rejected, "{next:?}: {ended:?}");
        });
        assert_eq!(runs, if next == Next::RollBack { 1 } else { 2 }, "{next:?}");
        let found = store.read(|tx| Ok((tx.get(&TABLE, &key(7))?, tx.get(&TABLE, &key(8))?)));
        let expected = match next {
            Next::RollBack => (Some(value(7)), Some(value(8))),
            Next::BackToSavepoint => (Some(value(1002)), Some(value(8))),
            _ => (Some(value(1002)), None),
        };
        assert_eq!(found.unwrap(), expected, "{next:?}");
        assert_eq!(store.counts().unwrap().locks, 0, "{next:?}");
        store.verify().unwrap();
    }
}

/// So little history that transactions and snapshots become too old all the time. Their reads
/// still equal those of a serial run.
#[test]
fn every_read_equals_that_of_a_serial_run_with_little_history() {
    let shape = Shape { keys: 40, longest: 700 };
    for seed in 1..4 {
        let disk = Simulated::new();
        let little =
            latchwork_store::Sizes { log_budget: 8 << 10, history: 8 << 10, ..sizes(Mode::None) };
        let store = begin_with(&disk, little).unwrap();
        let done = crowd(&store, shape, 6, 300, seed);
        assert_eq!(dump(&store), model(&done));
        replay(done).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(store.counts().unwrap().locks, 0);
        store.verify().unwrap();
    }
}
