//! Resources of dead processes for which no other process waits: a checkpoint claim, a copy's pin,
//! a snapshot. Others write their own keys and never sweep explicitly; the files must not grow.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use latchwork_store::{Error, Level, Store, Table, TxnOptions};

use crate::stage::{Place, die_after, fill, open};

const OWN: Table<u64, &[u8]> = Table::new("own");

/// Options with which no call waits for a lock.
const IMPATIENT: TxnOptions =
    TxnOptions { time: Duration::ZERO, label: "", level: Level::Serializable, mode: None };

fn die() -> ! {
    // SAFETY: signals this process.
    unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    unreachable!("a process outlives SIGKILL")
}

fn killed(place: &Place, step: u32, test: &str) -> bool {
    let ended = place.start_by(&format!("STEP={step} exec \"$0\" \"$@\""), test).wait().unwrap();
    assert!(ended.success() || ended.signal() == Some(libc::SIGKILL), "{test}, {step}: {ended}");
    !ended.success()
}

/// Total size of a folder's files.
fn bytes(folder: &Path) -> u64 {
    let length = |file: std::io::Result<std::fs::DirEntry>| file.unwrap().metadata().unwrap().len();
    std::fs::read_dir(folder).unwrap().map(length).sum()
}

/// Writes several times the log of a checkpoint interval, to keys of its own.
fn write_on(store: &Store) {
    for round in 0..120 {
        let row = |number: u64| store.put(&OWN, number, &[round; 2_000]);
        (0..100).try_for_each(row).unwrap();
    }
}

/// Checks that the log advances and takes at most two budgets, the spare and the current segments.
fn is_bounded(place: &Place, store: &Store, case: &str) {
    let before = store.activity().unwrap();
    write_on(store);
    let after = store.activity().unwrap();
    assert!(after.redo > before.redo && after.redo > before.end, "{case}: {before:?}, {after:?}");
    let log = bytes(&place.at("one/log"));
    assert!(log < 12 << 20, "{case}: {log} bytes of log");
}

/// A process that is killed with a lock.
#[test]
fn locker() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    let mut transaction = store.begin().unwrap();
    transaction.put(&OWN, 0, &[1]).unwrap();
    die();
}

/// Each request gives up before it looks for dead processes; the lock is still granted soon.
#[test]
fn a_lock_of_a_dead_process_is_released_without_a_waiter() {
    type Try = fn(&Store) -> Result<(), Error>;
    let tries: [Try; 3] = [
        |store| {
            let mut transaction = store.begin_with(&IMPATIENT)?;
            transaction.put(&OWN, 0, &[2]).or_else(|_| {
                transaction.restart()?;
                transaction.put(&OWN, 0, &[2])
            })
        },
        |store| store.begin_with(&IMPATIENT)?.put(&OWN, 0, &[2]),
        |store| store.write_with(&IMPATIENT, |tx| tx.put(&OWN, 0, &[2])).map(drop),
    ];
    for (way, once) in (0..).zip(tries) {
        let place = Place::new("impatient");
        let store = open(place.at("one"));
        store.put(&OWN, 1, &[0]).unwrap();
        assert!(killed(&place, way, "dead::locker"));
        let had = (0..5_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            once(&store).is_ok()
        });
        assert!(had, "way {way}");
    }
}

/// A process that is killed during a checkpoint.
#[test]
fn checkpointer() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    (0..40_u64).try_for_each(|number| store.put(&OWN, 1_000 + number, &[1; 500])).unwrap();
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    store.checkpoint().unwrap();
    die_after(0);
    std::process::exit(0);
}

#[test]
fn an_unfinished_checkpoint_does_not_block_others() {
    let place = Place::new("checkpoints");
    let store = open(place.at("one"));
    fill(&store, 20);
    let (mut step, mut deaths) = (1, 0);
    while killed(&place, step, "dead::checkpointer") {
        deaths += 1;
        match step % 2 {
            0 => is_bounded(&place, &store, &format!("killed at step {step}")),
            // An explicit checkpoint completes.
            _ => {
                let before = store.activity().unwrap();
                store.put(&OWN, 0, &[0; 10]).unwrap();
                store.checkpoint().unwrap();
                assert!(store.activity().unwrap().redo > before.end, "step {step}");
            }
        }
        step += 1 + step / 4;
    }
    assert!(deaths > 8, "{deaths}");
    store.verify().unwrap();
}

/// A process that cannot start threads, with a process that dies in a checkpoint.
#[test]
fn survivor() {
    let Some(place) = Place::told() else { return };
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    let store = open(place.at("one"));
    fill(&store, 20);
    assert!(killed(&place, 3, "dead::checkpointer"));
    is_bounded(&place, &store, "without threads");
}

#[test]
fn a_process_without_threads_sweeps_itself() {
    let place = Place::new("threadless");
    // Each thread would need a stack of 2^50 bytes.
    let line = "RUST_MIN_STACK=1125899906842624 exec \"$0\" \"$@\"";
    assert!(place.start_by(line, "dead::survivor").wait().unwrap().success());
}

/// A process that is killed while it copies the store, has a snapshot, or writes.
#[test]
fn copier() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    match std::env::var("STEP").unwrap().as_str() {
        "1" => store.backup(place.at("copy"), &mut |_| die()).map(drop).unwrap(),
        "2" => store.read(|_| die()).unwrap(),
        _ => store.write(|tx| tx.put(&OWN, 5_000, &[1]).map(|()| die())).unwrap(),
    }
}

#[test]
fn an_unfinished_copy_keeps_no_log() {
    let place = Place::new("copies");
    let store = open(place.at("one"));
    fill(&store, 20);
    for copy in 0..3 {
        assert!(killed(&place, 1, "dead::copier"));
        assert_eq!(store.activity().unwrap().pins.len(), 1, "the pin of the dead process");
        is_bounded(&place, &store, &format!("copy {copy}"));
        assert!(store.activity().unwrap().pins.is_empty());
    }
}

#[test]
fn a_requested_checkpoint_moves_redo_past_a_dead_transaction() {
    let place = Place::new("behind");
    let store = open(place.at("one"));
    fill(&store, 20);
    assert!(killed(&place, 3, "dead::copier"));
    let before = store.activity().unwrap();
    store.checkpoint().unwrap();
    assert!(store.activity().unwrap().redo >= before.end, "{before:?}");
    assert_eq!(store.get(&OWN, 5_000).unwrap().map(|row| row.len()), None);
}

#[test]
fn a_snapshot_of_a_dead_process_keeps_no_removed_records() {
    let place = Place::new("snapshots");
    let store = open(place.at("one"));
    fill(&store, 20);
    write_on(&store);
    let before = store.space().unwrap().pages;
    assert!(killed(&place, 2, "dead::copier"));
    assert_eq!(store.activity().unwrap().snapshots, 1);
    for round in 0..40_u64 {
        let rows = round * 1_000..round * 1_000 + 400;
        store.write(|tx| rows.clone().try_for_each(|row| tx.put(&OWN, row, &[1; 1_000]))).unwrap();
        store.write(|tx| rows.clone().try_for_each(|row| tx.remove(&OWN, row).map(drop))).unwrap();
    }
    let activity = store.activity().unwrap();
    let after = store.space().unwrap();
    assert_eq!(activity.snapshots, 0);
    assert!(after.pages < before + 400, "{before} before, {after:?}");
}
