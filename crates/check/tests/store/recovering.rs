//! The writes of recovery: a crash at each of its disk calls, and a recovery after a sync that
//! failed while the machine continued.

use std::collections::BTreeMap;

use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store, Table, TxnOptions, WriteTxn};

use crate::stage::{TABLE, begin};

/// Ways in which a sync fails: the data can still be read afterwards, or not.
const FAILS: [Fault; 3] = [Fault::Device, Fault::NoSpace, Fault::Dropped];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A table without changes since the checkpoint.
const QUIET: Table<u64, &[u8]> = Table::new("quiet");

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn put(store: &Store<Native>, rows: &mut Rows, from: u64, value: &[u8]) -> Result<(), Error> {
    for number in from..from + 20 {
        rows.insert(key(number).to_vec(), value.to_vec());
    }
    let all = TxnOptions { mode: Some(Mode::Full), ..TxnOptions::default() };
    let put = |tx: &mut WriteTxn<'_, '_, Native>| {
        (from..from + 20).try_for_each(|row| tx.put(&TABLE, &key(row), value))
    };
    store.write_with(&all, put).map(drop)
}

fn found(store: &Store<Native>) -> Result<(Rows, u64), Error> {
    store.read(|tx| {
        let rows = tx.range(&TABLE, ..)?.collect::<Result<Rows, _>>()?;
        let mut quiet = 0;
        for row in tx.range(&QUIET, ..)? {
            let (number, value) = row?;
            assert!(value == [1; 30], "row {number} of an open transaction");
            quiet += 1;
        }
        Ok((rows, quiet))
    })
}

/// A store after a crash of the machine: rows changed since the last checkpoint, and an open
/// transaction, which is undone at once if it has created a table.
fn left(open: bool, makes: bool, seed: u64) -> (Simulated, Rows) {
    let (disk, mut rows) = (Simulated::new(), Rows::new());
    let store = begin(&disk, Mode::None).unwrap();
    put(&store, &mut rows, 0, &[3; 100]).unwrap();
    store.write(|tx| (0..20).try_for_each(|row| tx.put(&QUIET, row, &[1; 30]))).unwrap();
    let mut tx = store.begin().unwrap();
    if open {
        tx.put(&QUIET, 7, &[2; 30]).unwrap();
    }
    if makes {
        tx.put(&Table::<u64, u64>::new("made"), 7, 7).unwrap();
    }
    store.checkpoint().unwrap();
    put(&store, &mut rows, 5, &[4; 100]).unwrap();
    disk.crash();
    drop(tx);
    drop(store);
    disk.restart(seed);
    (disk, rows)
}

/// A write of a page by recovery may be torn, also if the log had nothing of the page since the
/// last checkpoint.
#[test]
fn a_crash_at_each_call_of_recovery_changes_no_data() {
    for (open, makes) in [(false, false), (true, false), (true, true)] {
        let (disk, rows) = left(open, makes, 1);
        let before = disk.calls().total() as usize;
        drop(begin(&disk, Mode::None).unwrap());
        let history = disk.history().split_off(before);
        println!("{open}, {makes}: {history:?}");
        // Data that is written and not yet durable can be torn in many ways.
        let seeds =
            |at| if matches!(at, Operation::Write | Operation::Sync) { 2..42 } else { 2..4 };
        let all = (0..).zip(history).flat_map(|(call, at)| seeds(at).map(move |seed| (call, seed)));
        for (call, seed) in all {
            let case = format!("{open}, {makes}: call {call}, seed {seed}");
            let (disk, _) = left(open, makes, 1);
            disk.plan(disk.calls().total() + call, Fault::Crash);
            drop(begin(&disk, Mode::None));
            disk.crash();
            disk.restart(seed);
            let store = begin(&disk, Mode::None).unwrap_or_else(|why| panic!("{case}: {why}"));
            store.sweep().unwrap();
            assert_eq!(found(&store).unwrap(), (rows.clone(), 20), "{case}");
            store.verify().unwrap();
        }
    }
}

/// A failed sync makes recovery fail, and the machine continues: what the next recovery reads may
/// not be on disk.
#[test]
fn a_failed_sync_of_recovery_is_repeated_by_the_next() {
    let mut failed = 0;
    for (seed, fault) in (0..6).flat_map(|seed| FAILS.map(|fault| (seed, fault))) {
        let (open, makes) = (seed % 3 > 0, seed % 3 > 1);
        let (disk, rows) = left(open, makes, seed);
        let before = disk.calls().total() as usize;
        drop(begin(&disk, Mode::None).unwrap());
        let history = disk.history().split_off(before);
        for (call, _) in (0..).zip(history).filter(|(_, at)| *at == Operation::Sync) {
            let case = format!("{open}, {makes}: {fault:?} at call {call}, seed {seed}");
            let (disk, mut rows) = (left(open, makes, seed).0, rows.clone());
            disk.plan(disk.calls().total() + call, fault);
            // A checkpoint that is not due causes no error.
            failed += u32::from(begin(&disk, Mode::None).is_err());
            assert_eq!(disk.fired(), 1, "{case}");
            let store = begin(&disk, Mode::None).unwrap_or_else(|why| panic!("{case}: {why}"));
            store.sweep().unwrap();
            assert_eq!(found(&store).unwrap(), (rows.clone(), 20), "{case}");
            put(&store, &mut rows, 30, &[5; 50]).unwrap();
            if seed % 2 == 0 {
                store.checkpoint().unwrap();
            }
            drop(store);
            disk.restart(seed + 1);
            let store = begin(&disk, Mode::None).unwrap_or_else(|why| panic!("{case}: {why}"));
            store.sweep().unwrap();
            assert_eq!(found(&store).unwrap(), (rows, 20), "{case}");
            store.verify().unwrap();
        }
    }
    assert!(failed > 30, "{failed} recoveries failed");
}

/// The system keeps what it could not write and reports it as written. So what the next open reads
/// and acknowledges may not be on disk; it is written again.
#[test]
fn data_read_after_a_failed_sync_is_made_durable() {
    let mut failed = 0;
    for call in 0..60 {
        for (seed, fault) in (0..4).flat_map(|seed| FAILS.map(|fault| (seed, fault))) {
            let (disk, mut rows) = (Simulated::with_seed(seed), Rows::new());
            let store = begin(&disk, Mode::None).unwrap();
            put(&store, &mut rows, 0, &[3; 300]).unwrap();
            store.put(&QUIET, 0, &[1; 30]).unwrap();
            store.checkpoint().unwrap();
            let before = disk.calls().total();
            put(&store, &mut rows, 5, &[4; 300]).unwrap();
            disk.plan(before + call, fault);
            let made = store.checkpoint();
            let at = disk.history().get((before + call) as usize).copied();
            if disk.fired() == 0 || at != Some(Operation::Sync) {
                continue;
            }
            let case = format!("{fault:?} at call {call}, seed {seed}: {made:?}");
            failed += 1;
            // The processes end; the machine continues.
            drop(store);
            let store = begin(&disk, Mode::None).unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(found(&store).unwrap(), (rows.clone(), 1), "{case}");
            disk.drop_cache();
            // To other pages: pages changed before are written for their own sake.
            let patience = TxnOptions { mode: Some(Mode::Full), ..TxnOptions::default() };
            store.write_with(&patience, |tx| tx.put(&QUIET, 1, &[1; 30])).unwrap();
            store.checkpoint().unwrap();
            drop(store);
            disk.crash();
            disk.restart(seed);
            let store = begin(&disk, Mode::None).unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(found(&store).unwrap(), (rows, 2), "{case}");
            store.verify().unwrap();
        }
    }
    assert!(failed > 12, "{failed} syncs failed");
}
