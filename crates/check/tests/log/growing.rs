//! A log that begins small: its segments and its buffer grow with use.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_log::{Error, Flags, LogFiles, Lsn, Mode, Options};

use crate::stage::{
    Answered, Life, SMALL, begin_with, folder, head, options, payload, read_back, region, work,
};

/// Segments of 16, 16, 32, 64, 128 and 256 KiB; a buffer of 64, 128 and 256 KiB.
fn growing() -> Options {
    let (most, first) = (4 * SMALL, SMALL / 4);
    Options { buffer: most, segment: most, buffer_first: SMALL, segment_first: first, ..options() }
}

fn begin(disk: &Simulated) -> Result<Life, Error> {
    begin_with(disk, region(), &growing())
}

fn lengths(disk: &Simulated) -> Vec<u64> {
    let names = disk.list(folder()).unwrap();
    let segments = names.iter().filter(|name| name.len() == 16);
    segments.map(|name| disk.peek(&folder().join(name)).unwrap().len() as u64 - 4096).collect()
}

#[test]
fn segments_grow_and_all_is_read_back() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    assert_eq!(lengths(&disk), [16 << 10]);
    let mut lsns = Vec::new();
    for number in 0..1200 {
        lsns.push(crate::stage::operate(&life, number, Mode::None).unwrap());
    }
    life.session.flush(*lsns.last().unwrap()).unwrap();
    let kib: Vec<_> = lengths(&disk).iter().map(|bytes| bytes >> 10).collect();
    assert_eq!(kib[..6], [16, 16, 32, 64, 128, 256], "{kib:?}");
    assert!(life.log.end().0 > 6 * SMALL, "the log did not wrap around the buffer");
    for (number, lsn) in (0..).zip(&lsns) {
        assert_eq!(life.log.read(*lsn).unwrap().payload, payload(number));
    }
    drop(life);
    disk.restart(1);
    let life = begin(&disk).unwrap();
    assert_eq!(read_back(&life), Ok((0, 1200)));
    // After this open the buffer begins in the middle of the log.
    work(&life, (1200, 2400), Mode::None, &mut Answered::default()).unwrap();
    let first = life.log.oldest();
    let all = life.log.scan(first).map(|entry| entry.unwrap().head.page).collect::<Vec<_>>();
    assert_eq!(*all.last().unwrap(), 2399);
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1));
}

/// Small segments are not recycled; only those of full size are.
#[test]
fn a_small_segment_is_not_used_for_a_larger_one() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    work(&life, (0, 4000), Mode::Full, &mut Answered::default()).unwrap();
    let names = disk.list(folder()).unwrap();
    for name in names.iter().filter(|name| name.to_string_lossy().starts_with("spare-")) {
        let length = disk.peek(&folder().join(name)).unwrap().len() as u64;
        assert_eq!(length, 4096 + growing().segment, "{name:?}");
    }
}

/// Threads append while the buffer is doubled, and others read their records.
#[test]
fn the_buffer_is_doubled_under_appends_and_reads() {
    for _ in 0..20 {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        let over = AtomicBool::new(false);
        let appended = |thread: u64| {
            let slot = life.region.thread().unwrap();
            let session = life.log.session(&slot).unwrap();
            let mut lsns = Vec::new();
            for number in (0..400).map(|n| n * 3 + thread) {
                let mut record =
                    session.build(&head(number, Flags::LAST), &[&payload(number)]).unwrap();
                session.reserve(record.bytes() as u64).unwrap();
                lsns.push((number, session.append(&mut record).unwrap()));
            }
            lsns
        };
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|n| scope.spawn(move || appended(n))).collect();
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    for entry in life.log.scan(Lsn::FIRST) {
                        let entry = entry.unwrap();
                        assert_eq!(entry.payload, payload(entry.head.page));
                    }
                }
            });
            let all: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            over.store(true, Relaxed);
            all.concat()
        });
        for (number, lsn) in all {
            assert_eq!(life.log.read(lsn).unwrap().payload, payload(number));
        }
    }
}

/// A crash of the machine at each disk call.
#[test]
fn a_crash_at_each_call_leaves_a_prefix_of_a_growing_log() {
    let run = |disk: &Simulated, answered: &mut Answered| {
        let life = begin(disk)?;
        work(&life, (0, 300), Mode::Full, answered)
    };
    let disk = Simulated::new();
    run(&disk, &mut Answered::default()).unwrap();
    let calls = disk.history().len() as u64;
    for call in (0..calls).step_by(3) {
        let (disk, mut answered) = (Simulated::with_seed(call), Answered::default());
        disk.plan(call, Fault::Crash);
        let _ = run(&disk, &mut answered);
        disk.restart(call);
        let life = begin(&disk).unwrap_or_else(|why| panic!("call {call}: {why}"));
        let (_, next) = read_back(&life).unwrap_or_else(|why| panic!("call {call}: {why}"));
        assert!(next >= answered.operations, "call {call}: {next} of {}", answered.operations);
        work(&life, (next, next + 20), Mode::Full, &mut answered).unwrap();
    }
}

/// Without its control file, a log is found by its segments, which contain their layout.
#[test]
fn a_growing_log_without_its_control_file_is_read() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    (0..600).try_for_each(|n| crate::stage::operate(&life, n, Mode::Full).map(|_| ())).unwrap();
    drop(life);
    disk.remove(&folder().join("control")).unwrap();
    let files = LogFiles::without_control(std::sync::Arc::new(disk.clone()), folder()).unwrap();
    let (mut scan, mut next) = (files.scan(files.redo()), 0);
    while let Some(entry) = scan.next_entry().unwrap() {
        assert_eq!((entry.head.page, entry.payload), (next, payload(next)));
        next += 1;
    }
    assert_eq!(next, 600);
}
