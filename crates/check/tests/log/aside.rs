//! Log space reserved for undo, when undoing threads die one after another on a full disk.

use std::sync::Arc;

use latchwork_disk::{Disk, Error as DiskError, Simulated};
use latchwork_log::{Error, Head, Log, Session};
use latchwork_machine::Native;
use latchwork_region::Region;

use crate::stage::{Life, begin, folder, options};

const IMAGE: u64 = 8448;
const RECORD: u64 = 200;
const END: u64 = 128;

/// Runs `act` in a thread of a separate process, which then dies.
fn dies(life: &Life, disk: &Simulated, act: impl FnOnce(&Session<Native>)) {
    let region = life.region.another().unwrap();
    let thread = region.thread().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = Log::open(&region, disk, folder(), &options(), &thread).unwrap();
    let session = log.session(&thread).unwrap();
    act(&session);
    region.die();
    std::mem::forget((session, log, thread));
    sweep(&life.region);
    drop(region);
}

fn sweep(region: &Region<Native>) {
    assert_eq!(region.sweep().unwrap(), 1);
}

/// Appends until a record has no room.
fn fill(life: &Life, disk: &Simulated) {
    let held = disk.list(folder()).unwrap();
    let length = |name| disk.peek(&folder().join(name)).unwrap().len() as u64;
    disk.set_capacity(Some(held.iter().map(length).sum()));
    for bytes in [4000, 16] {
        let full = loop {
            let mut record = life.session.build(&Head::default(), &[&vec![1; bytes]]).unwrap();
            match life.session.reserve(record.bytes() as u64) {
                Ok(()) => life.session.append(&mut record).unwrap(),
                Err(why) => break why,
            };
        };
        assert!(matches!(full, Error::Disk(DiskError::NoSpace(_))), "{full}");
    }
    life.session.give_back(0).unwrap();
}

#[test]
fn reserved_space_taken_by_a_dead_thread_is_available_to_the_next() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let slot = life.session.slot();
    life.session.reserve(8000).unwrap();
    let mut only = life.session.build(&Head::default(), &[&[7; 64]]).unwrap();
    only.set_aside(RECORD + END);
    life.session.append(&mut only).unwrap();
    life.session.mark_with(IMAGE, 1).unwrap();
    fill(&life, &disk);
    // Dies before the record of the undo, several times.
    for _ in 0..3 {
        dies(&life, &disk, |session| {
            assert_eq!(session.take_aside(slot, RECORD, IMAGE), Ok(IMAGE));
        });
    }
    // Dies between the page image and that record.
    let flags = latchwork_log::Flags::SYSTEM;
    let append = |session: &Session<Native>, bytes: u64| {
        let head = Head { flags, ..Head::default() };
        let empty = session.build(&head, &[]).unwrap().bytes() as u64;
        let payload = vec![3; (bytes - empty) as usize];
        let mut record = session.build(&head, &[&payload]).unwrap();
        session.append(&mut record).unwrap();
    };
    dies(&life, &disk, |session| {
        assert_eq!(session.take_aside(slot, RECORD, IMAGE), Ok(IMAGE));
        append(session, 8000);
    });
    // Dies after that record and before the last one.
    dies(&life, &disk, |session| {
        session.take_aside(slot, RECORD, 0).unwrap();
        append(session, RECORD / 16 * 16);
    });
    for _ in 0..3 {
        dies(&life, &disk, |session| assert_eq!(session.take_aside(slot, END, 0), Ok(0)));
    }
    let other = life.region.thread().unwrap();
    let other = life.log.session(&other).unwrap();
    assert_eq!(other.take_aside(slot, END, 0), Ok(0));
    append(&other, END);
    other.forget(slot).unwrap();
    // The excess is released with the transaction: there is room where there was none.
    life.session.reserve(400).unwrap();
}
