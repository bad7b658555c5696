//! The machine crashes, or the disk fails, at each disk call of a run, in every mode. The records
//! read back must be a prefix of those appended, and in `Full` include all acknowledged ones.

use std::time::Duration;

use latchwork_disk::{Error as DiskError, Fault, Operation, Simulated};
use latchwork_log::{Error, Mode};

use crate::stage::{Answered, Life, begin, folder, operate, read_back, work};

const OPERATIONS: u64 = 130;

const MODES: [Mode; 4] = [Mode::Full, Mode::Write, Mode::None, Mode::Periodic(Duration::ZERO)];

/// Ways in which a sync fails: the data can still be read afterwards, or not.
const FAILS: [Fault; 3] = [Fault::Device, Fault::NoSpace, Fault::Dropped];

/// Seeds for each call; set by `LATCHWORK_LOG_SEEDS`.
fn seeds() -> u64 {
    std::env::var("LATCHWORK_LOG_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// The disk calls of a run without a fault.
fn history(mode: Mode) -> Vec<Operation> {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    work(&life, (0, OPERATIONS), mode, &mut Answered::default()).unwrap();
    drop(life);
    disk.history()
}

/// Opens the log after a crash and checks its records; returns the number of operations.
fn recover(disk: &Simulated, mode: Mode, answered: &Answered) -> Result<(Life, u64), String> {
    let life = begin(disk).map_err(|error| format!("not opened: {error}"))?;
    let (first, next) = read_back(&life)?;
    let durable = matches!(mode, Mode::Full | Mode::Periodic(Duration::ZERO));
    if durable && next < answered.operations {
        return Err(format!("{next} operations of {}", answered.operations));
    }
    if next > 0 && first < answered.redo {
        return Err(format!("redo from {first}, not {}", answered.redo));
    }
    Ok((life, next))
}

/// A run with a fault, a crash, more work, and a second crash.
fn trial(mode: Mode, number: u64, fault: Fault, seed: u64) -> Result<(), String> {
    let (disk, mut answered) = (Simulated::with_seed(seed), Answered::default());
    disk.plan(number, fault);
    // After a failure the machine continues.
    if let Ok(life) = begin(&disk).or_else(|_| begin(&disk)) {
        let worked = work(&life, (0, OPERATIONS), mode, &mut answered);
        if worked == Err(Error::Broken) {
            let again = work(&life, (OPERATIONS, OPERATIONS + 1), mode, &mut answered.clone());
            if again != Err(Error::Broken) {
                return Err(format!("{again:?} after a failed sync"));
            }
        }
        if disk.fired() == 1 {
            // Failures of other kinds may be retried.
            let from = answered.operations;
            if matches!(worked, Err(Error::Disk(DiskError::NoSpace(_) | DiskError::Device(_)))) {
                let there = life.log.scan(life.log.oldest()).last();
                let there = there.and_then(Result::ok).map_or(0, |entry| entry.head.page + 1);
                let again = work(&life, (from.max(there), OPERATIONS), mode, &mut answered);
                again.map_err(|error| format!("once more: {error}"))?;
            }
        }
    }
    disk.restart(seed);
    let (life, next) = recover(&disk, mode, &answered)?;
    answered.operations = next;
    work(&life, (next, next + 20), mode, &mut answered).map_err(|e| format!("continuing: {e}"))?;
    drop(life);
    disk.restart(seed + 1);
    recover(&disk, mode, &answered).map(drop)
}

/// Trials at each call for which `at` holds; returns their number and the failures.
fn trials(mode: Mode, fault: Fault, seeds: u64, at: fn(Operation) -> bool) -> (u64, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    for (number, operation) in history(mode).into_iter().enumerate() {
        for seed in (0..seeds).filter(|_| at(operation)) {
            count += 1;
            if let Err(why) = trial(mode, number as u64, fault, seed * 1000 + number as u64) {
                failures.push(format!(
                    "{mode:?}, {fault:?} at call {number} ({operation}), seed {seed}: {why}"
                ));
            }
        }
    }
    (count, failures)
}

fn holds(fault: Fault, seeds: u64, at: fn(Operation) -> bool) {
    for mode in MODES {
        let (count, failures) = trials(mode, fault, seeds, at);
        println!("{mode:?}: {count} trials of {fault:?}");
        assert!(count > 0);
        assert!(failures.is_empty(), "{} failures, the first: {}", failures.len(), failures[0]);
    }
}

#[test]
fn a_crash_at_each_call_leaves_a_prefix() {
    holds(Fault::Crash, seeds(), |_| true);
}

#[test]
#[ignore = "long: cargo test --release -p latchwork-check --test log -- --ignored"]
fn a_crash_at_each_call_leaves_a_prefix_long() {
    holds(Fault::Crash, seeds().max(20), |_| true);
}

#[test]
fn a_failed_write_or_sync_is_final() {
    holds(Fault::Device, seeds(), |at| matches!(at, Operation::Sync | Operation::Write));
    for fault in FAILS {
        holds(fault, seeds(), |at| at == Operation::Sync);
    }
}

/// Runs until the disk fails at one call. Returns None if that call is never made.
fn failed_at(
    (number, fault): (u64, Fault),
    seed: u64,
    answered: &mut Answered,
) -> Option<(Simulated, Option<Life>)> {
    let disk = Simulated::with_seed(seed);
    disk.plan(number, fault);
    let Ok(life) = begin(&disk) else { return Some((disk, None)) };
    let failed = work(&life, (0, OPERATIONS), Mode::Full, answered);
    (disk.fired() == 1).then_some(())?;
    assert!(failed.is_err() || answered.operations == OPERATIONS);
    Some((disk, Some(life)))
}

/// A file that was renamed without a sync of the folder may lose its name in a crash: the thread
/// that finds the name makes it durable before it writes to the file.
#[test]
fn a_segments_name_is_durable_before_its_records() {
    let calls = (0..).zip(history(Mode::Full)).filter(|(_, at)| *at == Operation::SyncFolder);
    let trials = calls.flat_map(|(number, _)| (1..24).map(move |more| (number, more)));
    for ((number, more), seed) in trials.flat_map(|trial| (0..8).map(move |seed| (trial, seed))) {
        let mut answered = Answered::default();
        let failed = failed_at((number, Fault::Device), seed, &mut answered);
        let Some((disk, life)) = failed else { continue };
        let life = life.or_else(|| begin(&disk).ok()).unwrap();
        for _ in 0..more {
            let next = answered.operations;
            // The operation is in the log unless it failed.
            if operate(&life, next, Mode::Full).is_ok() {
                answered.operations += 1;
            }
        }
        drop(life);
        disk.restart(seed);
        recover(&disk, Mode::Full, &answered)
            .unwrap_or_else(|why| panic!("call {number}, {more} more, seed {seed}: {why}"));
    }
}

/// After a failed sync the next open reads what the system has kept and reports it as durable, so
/// it must write the data again.
#[test]
fn records_read_after_a_failed_sync_are_written_again() {
    for fault in FAILS {
        let calls = (0..).zip(history(Mode::Full)).filter(|(_, at)| *at == Operation::Sync);
        let mut found = 0;
        for (number, seed) in calls.flat_map(|(number, _)| (0..6).map(move |seed| (number, seed))) {
            let case = format!("{fault:?} at call {number}, seed {seed}");
            let mut answered = Answered::default();
            let failed = failed_at((number, fault), seed, &mut answered);
            let Some((disk, life)) = failed else { continue };
            // The processes end, and the machine continues.
            drop(life);
            let (life, next) = recover(&disk, Mode::Full, &answered).expect(&case);
            found += u64::from(next > answered.operations);
            disk.drop_cache();
            operate(&life, next, Mode::Full).unwrap();
            answered.operations = next + 1;
            drop(life);
            disk.restart(seed);
            recover(&disk, Mode::Full, &answered).expect(&case);
        }
        assert!(found > 20, "{found} operations were read that no sync had made durable");
    }
}

/// A log whose last records a crash has kept in part, including later ones.
fn left_by_a_crash(seed: u64) -> Simulated {
    let disk = Simulated::with_seed(seed);
    let life = begin(&disk).unwrap();
    work(&life, (0, 10), Mode::Full, &mut Answered::default()).unwrap();
    work(&life, (10, 30), Mode::Write, &mut Answered::default()).unwrap();
    drop(life);
    disk.restart(seed);
    disk
}

/// A recovery whose sync failed is not relied on by the next one while the machine continues: what
/// it had cleared after the end may still be on disk.
#[test]
fn a_recovery_whose_sync_failed_is_repeated() {
    let mut trials = 0;
    for (fault, seed) in FAILS.into_iter().flat_map(|fault| (0..60).map(move |seed| (fault, seed)))
    {
        let before = left_by_a_crash(seed).history().len();
        let disk = left_by_a_crash(seed);
        drop(begin(&disk).unwrap());
        let recovery = disk.history().split_off(before);
        let syncs = (before as u64..).zip(recovery).filter(|(_, at)| *at == Operation::Sync);
        for (number, _) in syncs {
            let case = format!("{fault:?} at call {number}, seed {seed}");
            let disk = left_by_a_crash(seed);
            disk.plan(number, fault);
            assert!(begin(&disk).is_err() && disk.fired() == 1, "{case}");
            trials += 1;
            let (life, next) =
                recover(&disk, Mode::Full, &Answered { operations: 10, redo: 0 }).expect(&case);
            let mut answered = Answered { operations: next, redo: 0 };
            work(&life, (next, next + 1 + seed % 4), Mode::Full, &mut answered).expect(&case);
            drop(life);
            disk.restart(seed + 1);
            let (_, found) = recover(&disk, Mode::Full, &answered).expect(&case);
            assert_eq!(found, answered.operations, "{case}: operations that were not appended");
        }
    }
    assert!(trials > 200, "{trials} syncs failed");
}

#[test]
fn a_full_disk_at_each_call_is_reported_and_may_pass() {
    holds(Fault::NoSpace, seeds(), |at| {
        matches!(at, Operation::Write | Operation::Open | Operation::Rename | Operation::Truncate)
    });
}

/// A crash may keep a record without the one before it. After the earlier one is written again, the
/// next open must not find the old later record.
#[test]
fn old_records_after_the_end_are_never_read_again() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let places: Vec<_> = (0..10).map(|n| operate(&life, n, Mode::Write).unwrap()).collect();
    drop(life);
    let file = folder().join(format!("{:016x}", 0));
    assert!(disk.damage(&file, 4096 + places[5].0, &[0; 8]));
    let life = begin(&disk).unwrap();
    assert_eq!(read_back(&life), Ok((0, 5)));
    assert_eq!(operate(&life, 5, Mode::Write), Ok(places[5]));
    drop(life);
    assert_eq!(read_back(&begin(&disk).unwrap()), Ok((0, 6)));
}

/// A process dies with unsynced records: the records that the next process finds count as durable
/// and survive a crash of the machine.
#[test]
fn records_found_by_recovery_are_durable() {
    for seed in 0..20 {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        for number in 0..10 {
            operate(&life, number, Mode::Write).unwrap();
        }
        drop(life);
        let life = begin(&disk).unwrap();
        assert_eq!(read_back(&life), Ok((0, 10)));
        drop(life);
        disk.restart(seed);
        assert_eq!(read_back(&begin(&disk).unwrap()), Ok((0, 10)), "seed {seed}");
    }
}

/// The control: a disk that skips a sync is detected.
#[test]
fn a_skipped_sync_is_detected() {
    let (count, failures) = trials(Mode::Full, Fault::LostSync, 4, |at| at == Operation::Sync);
    assert!(!failures.is_empty(), "none of {count} skipped syncs was detected");
}

/// The control: a disk that skips the sync of a folder is detected.
#[test]
fn a_skipped_sync_of_the_folder_is_detected() {
    let skipped = |at| at == Operation::SyncFolder;
    let (count, failures) = trials(Mode::Full, Fault::LostSync, 30, skipped);
    assert!(!failures.is_empty(), "none of {count} skipped syncs was detected");
}
