//! What recovery itself writes, and what it believes: a crash at each of its calls, and a life that
//! follows on a sync that failed while the machine ran on.

use std::collections::BTreeMap;

use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Patience, Store, Table, WriteTxn};

use crate::stage::{TABLE, begin};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A table whose pages nobody changes behind the checkpoint.
const QUIET: Table<u64, &[u8]> = Table::new("quiet");

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn put(store: &Store<Native>, rows: &mut Rows, from: u64, value: &[u8]) -> Result<(), Error> {
    for number in from..from + 20 {
        rows.insert(key(number).to_vec(), value.to_vec());
    }
    let all = Patience { mode: Some(Mode::Full), ..Patience::default() };
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

/// A store that a crash of the machine leaves: rows that are behind the last checkpoint, and a
/// transaction that was open over it, which is undone at once if it has made a table.
fn left(open: bool, makes: bool) -> (Simulated, Rows) {
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
    disk.restart(1);
    (disk, rows)
}

/// Each page that recovery changes can be written in part, were it one of which the log had nothing
/// since the last checkpoint.
#[test]
fn a_crash_at_each_call_of_recovery_leaves_what_there_was() {
    for (open, makes) in [(false, false), (true, false), (true, true)] {
        let (disk, rows) = left(open, makes);
        let before = disk.calls().total() as usize;
        drop(begin(&disk, Mode::None).unwrap());
        let history = disk.history().split_off(before);
        println!("{open}, {makes}: {history:?}");
        // What is written and not yet durable can be torn in many ways.
        let seeds =
            |at| if matches!(at, Operation::Write | Operation::Sync) { 2..42 } else { 2..4 };
        let all = (0..).zip(history).flat_map(|(call, at)| seeds(at).map(move |seed| (call, seed)));
        for (call, seed) in all {
            let case = format!("{open}, {makes}: call {call}, seed {seed}");
            let (disk, _) = left(open, makes);
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

/// The system keeps what it could not write for readers, and counts it as written. So what the
/// next life finds, and answers for, may not be on the disk; it is written once more.
#[test]
fn what_is_read_after_a_failed_sync_is_made_durable() {
    let mut failed = 0;
    for call in 0..60 {
        for seed in 0..4 {
            let (disk, mut rows) = (Simulated::new(), Rows::new());
            let store = begin(&disk, Mode::None).unwrap();
            put(&store, &mut rows, 0, &[3; 300]).unwrap();
            store.put(&QUIET, 0, &[1; 30]).unwrap();
            store.checkpoint().unwrap();
            let before = disk.calls().total();
            put(&store, &mut rows, 5, &[4; 300]).unwrap();
            disk.plan(before + call, Fault::Device);
            let made = store.checkpoint();
            let at = disk.history().get((before + call) as usize).copied();
            if disk.fired() == 0 || at != Some(Operation::Sync) {
                continue;
            }
            let case = format!("call {call}, seed {seed}: {made:?}");
            failed += 1;
            // The processes end; the machine runs on.
            drop(store);
            let store = begin(&disk, Mode::None).unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(found(&store).unwrap(), (rows.clone(), 1), "{case}");
            // Into other pages: those that were changed before are written for their own sake.
            let patience = Patience { mode: Some(Mode::Full), ..Patience::default() };
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
    assert!(failed > 4, "{failed} syncs failed");
}
