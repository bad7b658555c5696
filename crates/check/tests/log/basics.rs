//! The calls of the log without failures, and their errors on misuse.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use latchwork_check::between::{Before, Between};
use latchwork_disk::{Disk, Error as DiskError, Fault, File, Open, Operation, Simulated, Subject};
use latchwork_log::{
    COMMITS, Checkpoint, Error, Flags, Head, Log, Lsn, Mode, Options, RECORD_MAX, Record,
};
use latchwork_machine::Native;
use latchwork_region::{Options as RegionOptions, Region};

use crate::stage::{
    Answered, Life, SMALL, begin, begin_in, end_here, folder, head, operate, options, payload,
    prepare, read_back, region, until_it_ends, work,
};

#[test]
fn appended_records_are_read() {
    let life = begin(&Simulated::new()).unwrap();
    assert_eq!((life.log.end(), life.log.flushed()), (Lsn::FIRST, Lsn::FIRST));
    let lsns: Vec<_> = (0..200).map(|n| operate(&life, n, Mode::None).unwrap()).collect();
    life.session.flush(*lsns.last().unwrap()).unwrap();
    assert_eq!(life.log.flushed(), life.log.end());
    for (number, lsn) in lsns.iter().enumerate() {
        let entry = life.log.read(*lsn).unwrap();
        assert_eq!((entry.lsn, entry.slot), (*lsn, life.session.slot() as u16));
        assert_eq!(entry.payload, payload(number as u64));
        assert_eq!(entry.head, head(number as u64, Flags::LAST));
        assert_eq!(entry.next(), *lsns.get(number + 1).unwrap_or(&life.log.end()));
    }
    assert!(
        life.log.end().0 > 2 * options().segment,
        "the log covers several segments and more than the buffer"
    );
    assert_eq!(life.log.scan(Lsn::FIRST).count(), 200);
    for lsn in [Lsn(0), Lsn(65), Lsn(lsns[3].0 + 16), life.log.end(), Lsn(u64::MAX)] {
        assert_eq!(life.log.read(lsn).unwrap_err(), Error::NotARecord(lsn));
    }
}

#[test]
fn a_slot_knows_its_transactions() {
    let life = begin(&Simulated::new()).unwrap();
    let (session, log) = (&life.session, &life.log);
    session.reserve(8000).unwrap();
    let append = |flags| {
        let mut record = session.build(&Head { flags, ..Head::default() }, &[]).unwrap();
        session.append(&mut record).unwrap()
    };
    let first = append(Flags::default());
    append(Flags::SYSTEM);
    let second = append(Flags::CLR);
    let view = log.slot(session.slot()).unwrap();
    assert_eq!((view.first, view.last, view.commits), (first, second, 0));
    let last = append(Flags::LAST | Flags::IMAGE);
    let view = log.slot(session.slot()).unwrap();
    assert_eq!((view.first, view.last, view.commits), (Lsn::NEVER, Lsn::NEVER, 1));
    assert_eq!(view.recent, [(first, last)]);
    let singles: Vec<_> = (0..80).map(|_| append(Flags::LAST)).collect();
    let view = log.slot(session.slot()).unwrap();
    assert_eq!((view.commits, view.recent.len()), (81, COMMITS - 1));
    assert!(view.recent.iter().rev().zip(singles.iter().rev()).all(|(a, b)| *a == (*b, *b)));
    append(Flags::default());
    session.forget(session.slot()).unwrap();
    assert_eq!(log.slot(session.slot()).unwrap().last, Lsn::NEVER);
    assert!(matches!(log.slot(8), Err(Error::Threads(8))));
}

/// A reader of a slot's list finds a commit even if the whole list has been overwritten since it
/// began.
#[test]
fn an_overwritten_list_of_commits_is_read_again() {
    let life = begin(&Simulated::new()).unwrap();
    let (session, log) = (&life.session, &life.log);
    let commit = || {
        let mut record = session.build(&Head { flags: Flags::LAST, ..Head::default() }, &[]);
        session.reserve(1000).unwrap();
        session.append(record.as_mut().unwrap()).unwrap()
    };
    let before = commit();
    let mut seen = Vec::new();
    let found = log.commits_of(session.slot(), |_, at| {
        if seen.is_empty() {
            (0..COMMITS).for_each(|_| _ = commit());
        }
        seen.push(at);
        (seen.len() > 1).then_some(at)
    });
    assert_eq!(seen[0], before);
    assert!(found.unwrap().is_some_and(|at| at > before), "{seen:?}");
}

/// Private logs of one process share the table of waiting threads: the latch of one log must not be
/// handed to a thread that waits for another log's.
#[test]
fn logs_of_one_process_do_not_wake_each_others_waiters() {
    let lives: Vec<_> = (0..3).map(|_| begin(&Simulated::new()).unwrap()).collect();
    std::thread::scope(|scope| {
        for Life { region, log, .. } in &lives {
            for _ in 0..7 {
                scope.spawn(move || {
                    let thread = region.thread().unwrap();
                    let session = log.session(&thread).unwrap();
                    for _ in 0..20_000 {
                        let mut record = session.build(&Head::default(), &[&[1; 8]]).unwrap();
                        session.reserve(record.bytes() as u64).unwrap();
                        session.append(&mut record).unwrap();
                    }
                });
            }
        }
    });
    for life in &lives {
        assert_eq!(life.log.scan(Lsn::FIRST).count(), 140_000);
    }
}

#[test]
fn misuse_is_an_error() {
    let life = begin(&Simulated::new()).unwrap();
    let session = &life.session;
    let mut record = session.build(&Head::default(), &[&[1; 5000]]).unwrap();
    // The shortest header; `size` allows for the longest one.
    assert_eq!(record.bytes(), (26 + 5000_usize).next_multiple_of(16));
    assert_eq!(Record::size(5000), (55 + 5000_usize).next_multiple_of(16));
    session.give_back(0).unwrap();
    assert_eq!(session.append(&mut record), Err(Error::NoCredit));
    assert!(matches!(session.build(&Head::default(), &[&[0; 9000]]), Err(Error::TooLarge { .. })));
    let large = vec![0; RECORD_MAX];
    assert!(matches!(session.build(&Head::default(), &[&large]), Err(Error::TooLarge { .. })));
    let wide = Head { page: 1 << 48, ..Head::default() };
    assert!(matches!(session.build(&wide, &[]), Err(Error::TooLarge { .. })));
    assert!(matches!(session.reserve(20_000), Err(Error::TooLarge { .. })));
    assert_eq!(session.flush(life.log.end()), Err(Error::NotARecord(life.log.end())));
    let other = life.region.thread().unwrap();
    let other = life.log.session(&other).unwrap();
    other.reserve(6000).unwrap();
    assert_eq!(other.append(&mut record), Err(Error::Threads(life.session.slot())));
    assert_eq!(life.log.end(), Lsn::FIRST, "a record was appended");
}

/// A latch names its holder in 14 bits, and each thread of a region may have to hold the log's
/// latch.
#[test]
fn a_region_of_more_threads_than_latches_can_name_is_refused() {
    let open = |threads| {
        let sizes = RegionOptions { threads, limit: 64 << 20, ..RegionOptions::default() };
        let region = Region::<Native>::heap(&sizes).unwrap();
        let thread = region.thread().unwrap();
        let disk = Simulated::new();
        prepare(&disk).unwrap();
        Log::open(&region, Arc::new(disk), folder(), &options(), &thread).map(drop)
    };
    assert_eq!(open((1 << 14) - 1 - 16), Ok(()));
    assert_eq!(open((1 << 14) - 16), Err(Error::Threads((1 << 14) - 1)));
}

#[test]
fn each_mode_syncs_as_documented() {
    for (mode, syncs, behind) in
        // In `Full`, one more: the control file, for the first records after a redo point.
        [(Mode::Full, 11, false), (Mode::Write, 0, true), (Mode::None, 0, true)]
    {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        let before = disk.calls();
        (0..10).for_each(|n| _ = operate(&life, n * 8, mode).unwrap());
        assert_eq!((disk.calls() - before)[Operation::Sync], syncs, "{mode:?}");
        assert_eq!(life.log.flushed() < life.log.end(), behind);
        assert_eq!(life.log.written() < life.log.end(), mode == Mode::None);
    }
    let life = begin(&Simulated::new()).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    operate(&life, 0, Mode::Periodic(hour)).unwrap();
    let flushed = life.log.flushed();
    operate(&life, 1, Mode::Periodic(hour)).unwrap();
    assert!(life.log.flushed() == flushed || flushed == Lsn::FIRST);
    operate(&life, 2, Mode::Periodic(std::time::Duration::ZERO)).unwrap();
    assert_eq!(life.log.flushed(), life.log.end());
}

#[test]
fn pinned_segments_are_not_recycled() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let lsns: Vec<_> = (0..600).map(|n| operate(&life, n, Mode::None).unwrap()).collect();
    let last = *lsns.last().unwrap();
    life.session.flush(last).unwrap();
    let segments = || disk.list(folder()).unwrap().len();
    let before = segments();
    let pin = life.session.pin("a backup of things", lsns[100]).unwrap();
    assert_eq!(life.session.recycle(last).unwrap(), Lsn::FIRST, "the redo point must be kept");
    life.session.checkpoint(Checkpoint { lsn: last, redo: last, clean: false }).unwrap();
    assert_eq!(life.session.recycle(last).unwrap(), lsns[100]);
    assert_eq!(life.log.oldest(), lsns[100]);
    let overtaken = Checkpoint { lsn: last, redo: lsns[200], clean: false };
    assert_eq!(life.session.checkpoint(overtaken), Err(Error::Gone { oldest: last }));
    assert_eq!(life.log.read(lsns[3]), Err(Error::Gone { oldest: lsns[100] }));
    life.log.read(lsns[100]).unwrap();
    let pins = life.log.pins();
    assert_eq!((pins.len(), &*pins[0].name, pins[0].lsn), (1, "a backup of thin", lsns[100]));
    assert!(matches!(life.session.pin("late", lsns[99]), Err(Error::Gone { .. })));
    life.session.move_pin(pin, lsns[200]).unwrap();
    assert_eq!(life.session.recycle(last).unwrap(), lsns[200]);
    life.session.unpin(pin).unwrap();
    assert_eq!(life.session.recycle(last).unwrap(), last);
    assert!(segments() < before);
    let gone = Checkpoint { lsn: last, redo: lsns[599 - 1], clean: false };
    assert_eq!(life.session.checkpoint(gone), Err(Error::Gone { oldest: last }));
    let made = disk.calls();
    (600..1000).for_each(|n| _ = operate(&life, n, Mode::None).unwrap());
    assert!((disk.calls() - made)[Operation::Rename] > 0);
    assert_eq!(life.log.scan(last).count(), 401, "a recycled segment has old records");
}

/// A process reads in a segment and keeps it open while another one recycles it. Records that it
/// would read there may be older than a missing record, so they count as gone as well.
#[test]
fn recycled_records_are_gone_for_processes_with_the_segment_open() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let lsns: Vec<_> = (0..400).map(|n| operate(&life, n, Mode::None).unwrap()).collect();
    let last = *lsns.last().unwrap();
    life.session.flush(last).unwrap();
    let other = begin_in(&disk, life.region.another().unwrap()).unwrap();
    other.log.read(lsns[3]).unwrap();
    life.session.checkpoint(Checkpoint { lsn: last, redo: last, clean: false }).unwrap();
    assert_eq!(life.session.recycle(lsns[100]).unwrap(), lsns[100]);
    for at in [3, 99] {
        assert_eq!(other.log.read(lsns[at]), Err(Error::Gone { oldest: lsns[100] }));
    }
    other.log.read(lsns[100]).unwrap();
}

#[test]
fn a_second_process_joins_and_a_region_that_lives_loses_nothing() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    work(&life, (0, 50), Mode::None, &mut Answered::default()).unwrap();
    let region = life.region.another().unwrap();
    let (end, redo) = (life.log.end(), life.log.recovered().redo);
    life.region.die();
    std::mem::forget((life.session, life.thread, life.region));
    let next = begin_in(&disk, region).unwrap();
    let found = next.log.recovered();
    assert!(found.warm && next.log.end() == end && redo == Lsn::FIRST);
    assert!(next.log.scan(found.redo).all(|entry| entry.is_ok()));
    operate(&next, 50, Mode::Full).unwrap();
    assert_eq!(next.log.flushed(), next.log.end());
}

#[test]
fn a_full_disk_fails_the_reservation_and_nothing_else() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    disk.set_capacity(Some(3 * options().segment));
    let mut number = 0;
    let error = loop {
        match operate(&life, number, Mode::Full) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Disk(DiskError::NoSpace(_))), "{error}");
    assert!(number > 20 && !life.log.is_broken());
    // A segment that could not be completed takes no room.
    assert!(!disk.list(folder()).unwrap().contains(&"new".into()));
    disk.set_capacity(None);
    operate(&life, number, Mode::Full).unwrap();
    assert_eq!(life.log.scan(Lsn::FIRST).count() as u64, number + 1);
}

/// A disk of a process that can open no more files, or lacks permission.
#[derive(Debug, Default)]
struct Closed(Mutex<Option<Why>>);

type Why = fn(Subject) -> DiskError;

impl Between for Closed {
    fn opens(&self, path: &Path, how: Open) -> Result<(), DiskError> {
        let is_segment = path.file_name().is_some_and(|name| name.len() == 16);
        match *self.0.lock().unwrap() {
            Some(why) if is_segment && how.write => {
                Err(why(Subject { operation: Operation::Open, path: path.to_owned(), at: 0 }))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_process_that_cannot_open_a_segment_fails_alone() {
    for why in [DiskError::TooManyFiles as Why, DiskError::Permission] {
        let disk = Simulated::new();
        prepare(&disk).unwrap();
        let (region, closed) = (region(), Arc::new(Closed::default()));
        let thread = region.thread().unwrap();
        let own = Arc::new(Before::new(closed.clone(), disk.clone()));
        let log = Log::open(&region, own, folder(), &options(), &thread).unwrap();
        let session = log.session(&thread).unwrap();
        let life = Life { session, log, thread, region };
        let mut number = 0;
        // The process has the first segment open; the next one has been created.
        operate(&life, number, Mode::Full).unwrap();
        *closed.0.lock().unwrap() = Some(why);
        let failed = loop {
            number += 1;
            match operate(&life, number, Mode::Full) {
                Ok(_) => {
                    assert!(life.log.end().0 < 2 * options().segment, "the segment was opened")
                }
                Err(failed) => break failed,
            }
        };
        assert!(matches!(failed, Error::Disk(told) if told == why(told.subject().clone())));
        assert!(!life.log.is_broken());
        // As if another process wrote the contents of the buffer.
        *closed.0.lock().unwrap() = None;
        life.session.flush(Lsn(life.log.end().0 - 1)).unwrap();
        operate(&life, number + 1, Mode::Full).unwrap();
        assert_eq!(life.log.scan(Lsn::FIRST).count() as u64, number + 2);
    }
}

/// A disk that has no room when it syncs; the system then regards the data as written.
#[derive(Debug, Default)]
struct Overdrawn(AtomicBool);

impl Between for Overdrawn {
    fn sync(&self, file: &dyn File, path: &Path) -> Result<(), DiskError> {
        match self.0.swap(false, Relaxed) {
            true => Err(DiskError::NoSpace(Subject {
                operation: Operation::Sync,
                path: path.to_owned(),
                at: 0,
            })),
            false => file.sync(),
        }
    }
}

#[test]
fn a_sync_that_fails_for_want_of_space_is_final() {
    let disk = Simulated::new();
    prepare(&disk).unwrap();
    let (region, overdrawn) = (region(), Arc::new(Overdrawn::default()));
    let thread = region.thread().unwrap();
    let own = Arc::new(Before::new(overdrawn.clone(), disk.clone()));
    let log = Log::open(&region, own, folder(), &options(), &thread).unwrap();
    let session = log.session(&thread).unwrap();
    let life = Life { session, log, thread, region };
    operate(&life, 0, Mode::Full).unwrap();
    overdrawn.0.store(true, Relaxed);
    assert_eq!(operate(&life, 1, Mode::Full).err(), Some(Error::Broken));
    assert!(!overdrawn.0.load(Relaxed) && life.log.is_broken());
    // A later sync would not cover the data that was not written.
    assert_eq!(operate(&life, 2, Mode::Full).err(), Some(Error::Broken));
}

/// A disk that fails to make a segment durable; the calling thread ends in that call.
#[derive(Debug, Default)]
struct Fatal(AtomicBool);

impl Between for Fatal {
    fn sync(&self, file: &dyn File, _: &Path) -> Result<(), DiskError> {
        let synced = file.sync();
        if self.0.swap(false, Relaxed) {
            end_here();
        }
        synced
    }
}

/// A log whose first two operations are durable. A thread died while it made the third one durable:
/// its sync failed in this way, and it could not report that.
fn dead_in_a_failed_sync(fault: Fault, seed: u64) -> (Simulated, Life) {
    let disk = Simulated::with_seed(seed);
    let life = begin(&disk).unwrap();
    operate(&life, 0, Mode::Full).unwrap();
    let (region, own) = (life.region.another().unwrap(), disk.clone());
    let process = region.clone();
    until_it_ends(move || {
        let (thread, fatal) = (region.thread().unwrap(), Arc::new(Fatal::default()));
        let before = Arc::new(Before::new(fatal.clone(), own.clone()));
        let log = Log::open(&region, before, folder(), &options(), &thread).unwrap();
        let session = log.session(&thread).unwrap();
        let life = Life { session, log, thread, region };
        // The thread has the segment open at this point.
        life.session.flush(operate(&life, 1, Mode::Write).unwrap()).unwrap();
        let lsn = operate(&life, 2, Mode::Write).unwrap();
        fatal.0.store(true, Relaxed);
        own.plan(own.calls().total(), fault);
        let _ = life.session.flush(lsn);
    });
    assert_eq!(disk.fired(), 1);
    process.die();
    (disk, life)
}

/// A sync has failed and its thread, the only one to learn of it, has died: the data is written
/// again.
#[test]
fn a_failed_sync_of_a_dead_thread_is_repeated() {
    for seed in 0..8 {
        let (disk, life) = dead_in_a_failed_sync(Fault::Device, seed);
        // The first operation writes it again; later ones do not.
        let before = disk.calls()[Operation::Write];
        for number in 3..13 {
            operate(&life, number, Mode::Write).unwrap();
        }
        assert_eq!(disk.calls()[Operation::Write] - before, 11);
        operate(&life, 13, Mode::Full).unwrap();
        drop(life);
        disk.restart(seed);
        let life = begin(&disk).unwrap();
        assert_eq!(read_back(&life), Ok((0, 14)), "seed {seed}");
    }
}

/// If the system has dropped the data, it is written from the buffer.
#[test]
fn dropped_writes_of_a_dead_thread_are_written_from_the_buffer() {
    for seed in 0..40 {
        let (disk, life) = dead_in_a_failed_sync(Fault::Dropped, seed);
        operate(&life, 3, Mode::Full).unwrap();
        drop(life);
        disk.restart(seed);
        assert_eq!(read_back(&begin(&disk).unwrap()), Ok((0, 4)), "seed {seed}");
    }
}

/// If the data has also left the buffer, the bytes that are read are no record and are not written
/// in its place: the log is broken, as it would be for a living thread.
#[test]
fn dropped_writes_that_left_the_buffer_break_the_log() {
    let mut broken = 0;
    for seed in 0..40 {
        let (disk, life) = dead_in_a_failed_sync(Fault::Dropped, seed);
        let (mut next, written) = (3, life.log.written());
        let mut done = Ok(());
        // Until the buffer is full and a thread has to lead.
        while done.is_ok() && life.log.written() == written {
            done = operate(&life, next, Mode::None).map(|_| next += 1);
        }
        match done.and_then(|()| operate(&life, next, Mode::Full)) {
            // All of the data had reached the disk.
            Ok(_) => next += 1,
            Err(why) => {
                assert_eq!(why, Error::Broken);
                (next, broken) = (2, broken + 1);
            }
        }
        drop(life);
        disk.restart(seed);
        let (first, found) = read_back(&begin(&disk).unwrap()).unwrap();
        assert!(first == 0 && found >= next, "seed {seed}: {found}");
    }
    assert!(broken > 5, "only {broken} logs were broken");
}

#[test]
fn files_that_are_not_this_log_are_refused() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    work(&life, (0, 30), Mode::Full, &mut Answered::default()).unwrap();
    drop(life);
    let control = folder().join("control");
    let good = disk.peek(&control).unwrap();
    for block in [0, 4096] {
        disk.damage(&control, block + 40, &[9]);
    }
    assert!(matches!(begin(&disk).err(), Some(Error::Corrupt { .. })));
    disk.damage(&control, 0, &good);
    disk.remove(&control).unwrap();
    assert_eq!(begin(&disk).err(), Some(Error::NoControl));
    // A copy's log begins in the middle of a segment.
    let segment = folder().join("0000000000000000");
    disk.damage(&segment, 4096, &[0; 64]);
    let before = disk.peek(&segment).unwrap();
    assert_eq!(begin(&disk).err(), Some(Error::NoControl));
    assert!(disk.peek(&segment).unwrap() == before, "records were overwritten");
    let region = crate::stage::region();
    let thread = region.thread().unwrap();
    for wrong in [
        latchwork_log::Options { buffer: 3 << 16, ..options() },
        latchwork_log::Options { segment: 1 << 12, ..options() },
        latchwork_log::Options { threads: 0, ..options() },
    ] {
        let disk = std::sync::Arc::new(disk.clone());
        let opened = Log::open(&region, disk, folder(), &wrong, &thread);
        assert!(matches!(opened, Err(Error::Options(_))));
    }
}

/// Records that are not in the files yet are read from the buffer, whatever followed them.
#[test]
fn unwritten_records_are_read_from_the_buffer() {
    let life = begin(&Simulated::new()).unwrap();
    let (begun, mut places) = (life.log.end(), Vec::new());
    let bytes = [5; 1000];
    loop {
        let mut record = life.session.build(&head(1, Flags::default()), &[&bytes]).unwrap();
        if life.log.end().0 - begun.0 + 2 * record.bytes() as u64 > crate::stage::SMALL {
            break;
        }
        life.session.reserve(record.bytes() as u64).unwrap();
        places.push(life.session.append(&mut record).unwrap());
    }
    assert_eq!(life.log.written(), begun, "the records were written, so nothing is tested");
    assert!(places.len() > 50);
    for lsn in places {
        assert_eq!(life.log.read(lsn).unwrap().payload, bytes);
    }
}

/// Four threads reserve the whole buffer and die: another thread continues without a sweep.
#[test]
fn a_waiting_thread_takes_the_credit_of_dead_threads() {
    let (over, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let life = begin(&Simulated::new()).unwrap();
        for _ in 0..4 {
            let thread = life.region.thread().unwrap();
            let session = life.log.session(&thread).unwrap();
            session.reserve(SMALL / 4).unwrap();
            // A drop would return the reserved bytes.
            core::mem::forget(session);
            thread.abandon();
        }
        life.session.reserve(8000).unwrap();
        over.send(()).unwrap();
    });
    is_over.recv_timeout(core::time::Duration::from_secs(60)).expect("a thread waits forever");
}

/// The file of the first segment, and the offset of a log position in it.
fn first_segment(at: Lsn) -> (std::path::PathBuf, u64) {
    (folder().join(format!("{:016x}", 0)), 4096 + at.0)
}

/// Data that was written and not synced when all processes died may have been lost by the system
/// without an error: it is written again before the next sync.
#[test]
fn writes_lost_after_all_processes_died_are_written_again() {
    for seed in 0..8 {
        let disk = Simulated::with_seed(seed);
        let life = begin(&disk).unwrap();
        operate(&life, 0, Mode::Full).unwrap();
        (1..6).for_each(|number| _ = operate(&life, number, Mode::Write).unwrap());
        // As the system does in the background, but without an error to anyone.
        let file = disk.open(&first_segment(Lsn::FIRST).0, Open::READ).unwrap();
        disk.plan(disk.history().len() as u64, Fault::Dropped);
        file.sync().unwrap_err();
        assert_eq!(life.log.has_its_files(), Ok(true), "the buffer must supply the records");
        life.log.doubt_unsynced().unwrap();
        operate(&life, 6, Mode::Full).unwrap();
        drop(life);
        disk.restart(seed);
        assert_eq!(read_back(&begin(&disk).unwrap()), Ok((0, 7)), "seed {seed}");
    }
}

/// A copy of the files that was used separately has other records than the buffer after the
/// position that was durable in both.
#[test]
fn files_that_were_used_separately_are_refused() {
    let [one, other] = [1, 5].map(|second| {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        operate(&life, 0, Mode::Full).unwrap();
        let flushed = life.log.flushed();
        operate(&life, second, Mode::Write).unwrap();
        (disk, life, flushed)
    });
    let (path, at) = first_segment(one.2);
    let copy = other.0.peek(&path).unwrap();
    assert_eq!(one.1.log.has_its_files(), Ok(true));
    let goes_on = |disk: &Simulated| {
        assert!(disk.damage(&path, at, &copy[at as usize..at as usize + 4096]));
    };
    goes_on(&one.0);
    assert_eq!(one.1.log.has_its_files(), Ok(false));
    // Also if the copy's log extends beyond this one's end.
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    operate(&life, 0, Mode::Full).unwrap();
    assert_eq!(life.log.has_its_files(), Ok(true));
    goes_on(&disk);
    assert_eq!(life.log.has_its_files(), Ok(false));
}

/// A file header that cannot be read is not treated as a failed write.
#[test]
fn a_header_that_cannot_be_read_breaks_nothing() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    (0..12).for_each(|number| _ = operate(&life, number, Mode::Full).unwrap());
    let other = begin_in(&disk, life.region.another().unwrap()).unwrap();
    // It opens the file and reads the header.
    disk.plan(disk.history().len() as u64 + 1, Fault::Device);
    let failed = operate(&other, 12, Mode::Full);
    assert!(
        matches!(&failed, Err(Error::Disk(why)) if why.subject().operation == Operation::Read),
        "{failed:?}"
    );
    assert!(!life.log.is_broken());
    operate(&other, 13, Mode::Full).unwrap();
    assert_eq!(life.log.scan(Lsn::FIRST).count(), 14);
}

/// A process that creates the area and then fails leaves it with its own size. A process that needs
/// a larger one is refused before it opens the log.
#[test]
fn an_area_too_small_is_refused_before_the_log_is_opened() {
    let (disk, region) = (Simulated::new(), region());
    prepare(&disk).unwrap();
    let (thread, own) = (region.thread().unwrap(), Arc::new(disk.clone()));
    let open =
        |options: &Options| Log::open(&region, own.clone(), folder(), options, &thread).map(drop);
    disk.plan(disk.history().len() as u64, Fault::Device);
    assert!(matches!(open(&options()), Err(Error::Disk(_))));
    let larger = Options { segment: 2 * SMALL, buffer: 2 * SMALL, ..options() };
    assert!(matches!(open(&larger), Err(Error::Region(_))));
    open(&options()).unwrap();
}
