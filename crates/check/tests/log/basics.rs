//! What each call does when nothing goes wrong, and what it answers to misuse.

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
fn what_is_appended_is_read() {
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
    assert!(life.log.end().0 > 2 * options().segment, "it went over segments and round the buffer");
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

/// A reader of a slot's list finds a commit even if all that the list has came since it began.
#[test]
fn a_list_that_is_written_anew_under_a_reader_is_read_again() {
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

/// Logs of one process whose memory is its own share the table in which threads wait: a log's latch
/// must not be handed to a thread that waits for that of another.
#[test]
fn logs_of_one_process_do_not_call_each_others_waiters() {
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
fn misuse_is_told() {
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
    assert_eq!(life.log.end(), Lsn::FIRST, "nothing was appended");
}

/// A latch names its holder by 14 bits, and each thread of a region may have to hold the log's.
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
fn each_mode_syncs_as_it_says() {
    for (mode, syncs, behind) in
        // And one of the control file, for the first records behind a redo point.
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
fn segments_are_recycled_but_for_what_is_pinned() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let lsns: Vec<_> = (0..600).map(|n| operate(&life, n, Mode::None).unwrap()).collect();
    let last = *lsns.last().unwrap();
    life.session.flush(last).unwrap();
    let segments = || disk.list(folder()).unwrap().len();
    let before = segments();
    let pin = life.session.pin("a backup of things", lsns[100]).unwrap();
    assert_eq!(life.session.recycle(last).unwrap(), Lsn::FIRST, "the redo point is the first");
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
    assert_eq!(life.log.scan(last).count(), 401, "recycled segments hold new records only");
}

/// A process reads in a segment, and so has it open as another recycles it. What it reads there on
/// may be of before a record that is gone: it is gone as well.
#[test]
fn what_is_gone_is_gone_for_those_who_have_it_open() {
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
    // What was begun of a segment does not keep the room that is left.
    assert!(!disk.list(folder()).unwrap().contains(&"new".into()));
    disk.set_capacity(None);
    operate(&life, number, Mode::Full).unwrap();
    assert_eq!(life.log.scan(Lsn::FIRST).count() as u64, number + 1);
}

/// A process that may open no more files, or no longer these.
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
        // It has the first segment open; the next one is made by now.
        operate(&life, number, Mode::Full).unwrap();
        *closed.0.lock().unwrap() = Some(why);
        let failed = loop {
            number += 1;
            match operate(&life, number, Mode::Full) {
                Ok(_) => assert!(life.log.end().0 < 2 * options().segment, "it opened a segment"),
                Err(failed) => break failed,
            }
        };
        assert!(matches!(failed, Error::Disk(told) if told == why(told.subject().clone())));
        assert!(!life.log.is_broken());
        // Another process, say, writes what is in the buffer.
        *closed.0.lock().unwrap() = None;
        life.session.flush(Lsn(life.log.end().0 - 1)).unwrap();
        operate(&life, number + 1, Mode::Full).unwrap();
        assert_eq!(life.log.scan(Lsn::FIRST).count() as u64, number + 2);
    }
}

/// A disk that has no room when it is to make things durable: the system counts them as written.
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
    // A later sync would say nothing of what was to be written before.
    assert_eq!(operate(&life, 2, Mode::Full).err(), Some(Error::Broken));
}

/// A disk that fails to make a segment durable, and has the thread that asked end in that call.
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

/// A life whose first two operations are durable, and the third is what a thread was to make so:
/// its sync failed in this way, and it died before it told anybody.
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
        // It has the segment open by then.
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

/// Nobody is told of a sync that failed but the thread that made it, and that one is dead: what it
/// was to write is written once more.
#[test]
fn a_sync_whose_thread_died_is_not_believed() {
    for seed in 0..8 {
        let (disk, life) = dead_in_a_failed_sync(Fault::Device, seed);
        // The first writes it again, and the others do not.
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

/// Where the system has not kept it for readers either, it is written from the buffer.
#[test]
fn what_a_dead_thread_wrote_and_the_system_dropped_is_in_the_buffer() {
    for seed in 0..40 {
        let (disk, life) = dead_in_a_failed_sync(Fault::Dropped, seed);
        operate(&life, 3, Mode::Full).unwrap();
        drop(life);
        disk.restart(seed);
        assert_eq!(read_back(&begin(&disk).unwrap()), Ok((0, 4)), "seed {seed}");
    }
}

/// If it is not there any more either, what is read is no record, and is not written in the place
/// of one: the log is broken, as it is for a thread that lives.
#[test]
fn what_a_dead_thread_wrote_and_the_system_dropped_breaks_the_log() {
    let mut broken = 0;
    for seed in 0..40 {
        let (disk, life) = dead_in_a_failed_sync(Fault::Dropped, seed);
        let (mut next, written) = (3, life.log.written());
        let mut done = Ok(());
        // Until the buffer is full, and somebody must lead.
        while done.is_ok() && life.log.written() == written {
            done = operate(&life, next, Mode::None).map(|_| next += 1);
        }
        match done.and_then(|()| operate(&life, next, Mode::Full)) {
            // All of it had come to the disk.
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
    assert!(broken > 5, "{broken} logs were broken");
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
    // A copy's log begins anywhere in a segment.
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

/// What is not in the files yet is nowhere but in the buffer, however much came behind it.
#[test]
fn what_is_not_written_is_read_from_the_buffer() {
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
    assert_eq!(life.log.written(), begun, "the test is about what is not written");
    assert!(places.len() > 50);
    for lsn in places {
        assert_eq!(life.log.read(lsn).unwrap().payload, bytes);
    }
}

/// Four threads have the whole buffer reserved, and die: no sweep is needed for another to go on.
#[test]
fn credit_of_the_dead_is_taken_by_one_that_waits() {
    let (over, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let life = begin(&Simulated::new()).unwrap();
        for _ in 0..4 {
            let thread = life.region.thread().unwrap();
            let session = life.log.session(&thread).unwrap();
            session.reserve(SMALL / 4).unwrap();
            // Dropped it would give back what it has.
            core::mem::forget(session);
            thread.abandon();
        }
        life.session.reserve(8000).unwrap();
        over.send(()).unwrap();
    });
    is_over.recv_timeout(core::time::Duration::from_secs(60)).expect("it waits for ever");
}

/// The file of the first segment, and where a place of the log is in it.
fn first_segment(at: Lsn) -> (std::path::PathBuf, u64) {
    (folder().join(format!("{:016x}", 0)), 4096 + at.0)
}

/// What was written and not synced when all died the system may have lost since, and have told
/// nobody: it is written once more before the next sync.
#[test]
fn what_the_system_lost_when_all_were_dead_is_in_the_buffer() {
    for seed in 0..8 {
        let disk = Simulated::with_seed(seed);
        let life = begin(&disk).unwrap();
        operate(&life, 0, Mode::Full).unwrap();
        (1..6).for_each(|number| _ = operate(&life, number, Mode::Write).unwrap());
        // As the system does by itself, but for that it is told.
        let file = disk.open(&first_segment(Lsn::FIRST).0, Open::READ).unwrap();
        disk.plan(disk.history().len() as u64, Fault::Dropped);
        file.sync().unwrap_err();
        assert_eq!(life.log.has_its_files(), Ok(true), "the buffer has it");
        life.log.doubt_unsynced().unwrap();
        operate(&life, 6, Mode::Full).unwrap();
        drop(life);
        disk.restart(seed);
        assert_eq!(read_back(&begin(&disk).unwrap()), Ok((0, 7)), "seed {seed}");
    }
}

/// A copy of the files that went on by itself has other records than the buffer behind what was
/// durable in both.
#[test]
fn files_that_went_on_by_themselves_are_not_its_own() {
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
    // Behind all that this one has, too.
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    operate(&life, 0, Mode::Full).unwrap();
    assert_eq!(life.log.has_its_files(), Ok(true));
    goes_on(&disk);
    assert_eq!(life.log.has_its_files(), Ok(false));
}

/// A file's header that cannot be read is no write that failed.
#[test]
fn a_header_that_cannot_be_read_breaks_nothing() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    (0..12).for_each(|number| _ = operate(&life, number, Mode::Full).unwrap());
    let other = begin_in(&disk, life.region.another().unwrap()).unwrap();
    // It opens the file, and reads that.
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

/// One that makes the area and then fails leaves it to one of its own sizes: a larger one is
/// refused before it has opened the log.
#[test]
fn an_area_that_is_too_small_is_told_before_the_log_is_opened() {
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
