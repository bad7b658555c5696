//! The work of a process in the log: transactions of two records in all modes, checkpoints,
//! recycling and sweeps, with checks of each result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use latchwork_disk::System;
use latchwork_log::{
    Checkpoint, Entry, Error, Flags, Head, Log, Lsn, Mode, Options, Session, SlotView,
};
use latchwork_machine::Shared;
use latchwork_region::{Area, AreaOptions, Dead, InHand, Layer, Region, Repair, Thread};

use crate::Place;

const THREADS: u32 = 32;

pub(crate) struct Worker {
    pub(crate) session: Session<Shared>,
    pub(crate) log: Log<Shared>,
    /// For each thread slot: the last acknowledged commit in `Full`.
    answered: Area<Shared>,
    _thread: Thread<Shared>,
    region: Region<Shared>,
    _undo: Arc<dyn Repair<Shared>>,
    life: u64,
    rounds: u64,
}

fn text(life: u64, round: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&life.to_le_bytes());
    bytes[8..].copy_from_slice(&round.to_le_bytes());
    bytes
}

impl Worker {
    pub(crate) fn new(place: &Place) -> Self {
        let sizes = latchwork_region::Options {
            processes: 16,
            threads: THREADS,
            waiters: 64,
            limit: 1 << 30,
            ..latchwork_region::Options::default()
        };
        let region = Region::<Shared>::open_or_create(place.path.join("region"), &sizes).unwrap();
        // All slots may belong to dead threads.
        let thread = loop {
            match region.thread() {
                Ok(thread) => break thread,
                Err(latchwork_region::Error::Threads(_)) => std::thread::yield_now(),
                Err(other) => panic!("{other}"),
            }
        };
        let options =
            Options { buffer: 1 << 16, segment: 1 << 16, threads: THREADS, ..Options::default() };
        let disk = Arc::new(System::new());
        let log = Log::open(&region, disk, &place.path.join("log"), &options, &thread).unwrap();
        let session = log.session(&thread).unwrap();
        let first = AreaOptions { first: 1 << 16, limit: 1 << 16, huge: false };
        let answered = region.area("answered", &first).unwrap();
        answered.word(u64::from(thread.number())).unwrap().store(0, Relaxed);
        let (undo_log, undo_answered) = (log.clone(), answered.clone());
        let undo: Arc<dyn Repair<Shared>> =
            Arc::new(Undo { log: undo_log, answered: undo_answered });
        region.register(&undo).unwrap();
        let life = u64::from(std::process::id()) << 32 | u64::from(thread.generation().unwrap());
        Self { session, log, answered, _thread: thread, region, _undo: undo, life, rounds: 0 }
    }

    /// Runs one transaction of two records, and sometimes other calls.
    pub(crate) fn round(&mut self) {
        let (session, round) = (&self.session, self.rounds);
        self.rounds += 1;
        let size = [100, 3000, 600][round as usize % 3];
        let filling = vec![round as u8; size];
        let text = text(self.life, round);
        session.reserve(latchwork_log::Record::size(16 + size) as u64 + 400).unwrap();
        let mut first = session.build(&Head::default(), &[&text, &filling]).unwrap();
        first.set_aside(200);
        let first = session.append(&mut first).unwrap();
        // As a transaction that undoes and does not need all of the reserved space.
        session.take_aside(session.slot(), 96, 0).unwrap();
        session.put_aside(session.slot(), 32, 0).unwrap();
        let head = Head { flags: Flags::LAST, prev: first, ..Head::default() };
        let mut last = session.build(&head, &[&text]).unwrap();
        let last = session.append(&mut last).unwrap();
        let mode = [Mode::Full, Mode::None, Mode::Write, Mode::Periodic(Duration::from_millis(1))]
            [round as usize % 4];
        session.commit(last, mode).unwrap();
        if mode == Mode::Full {
            assert!(self.log.flushed() > last);
            // Release: after the commit, so that the death of this process keeps the order.
            self.answered.word(u64::from(session.slot())).unwrap().store(last.0, Release);
        }
        match round % 16 {
            3 => self.sweep(),
            5 => session.give_back(0).unwrap(),
            9 => {
                let redo = first;
                match session.checkpoint(Checkpoint { lsn: last, redo, clean: false }) {
                    // Another process has made a later checkpoint.
                    Ok(()) | Err(Error::Gone { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                session.recycle(redo).unwrap();
            }
            _ => {}
        }
    }

    /// Appends one record that belongs to no transaction.
    pub(crate) fn append(&self) {
        let head = Head { flags: Flags::SYSTEM, ..Head::default() };
        let mut record = self.session.build(&head, &[&[7; 64]]).unwrap();
        self.session.reserve(record.bytes() as u64).unwrap();
        self.session.append(&mut record).unwrap();
    }

    /// Reserves all room of the log's buffer, a quarter for each of four slots, and keeps it.
    pub(crate) fn hoard(&self) {
        for _ in 0..3 {
            let thread = self.region.thread().unwrap();
            let session = self.log.session(&thread).unwrap();
            session.reserve(1 << 14).unwrap();
            core::mem::forget((session, thread));
        }
        self.session.reserve(1 << 14).unwrap();
    }

    pub(crate) fn sweep(&self) {
        self.region.sweep().unwrap();
    }
}

/// As a store repairs dead threads: reads the rest of the transaction and releases it.
struct Undo {
    log: Log<Shared>,
    answered: Area<Shared>,
}

impl Repair<Shared> for Undo {
    fn layer(&self) -> Layer {
        Layer::Store
    }

    fn repair(&self, dead: &[Dead<'_, Shared>]) -> Result<(), latchwork_region::Error> {
        let region = self.answered.region();
        for dead in dead.iter().filter(|dead| dead.number() < THREADS) {
            let thread = region.thread()?;
            let session = self.log.session(&thread).unwrap();
            self.check(dead.number(), &self.log.slot(dead.number()).unwrap());
            session.forget(dead.number()).unwrap();
        }
        Ok(())
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, latchwork_region::Error> {
        Ok(vec![false; cells.len()])
    }
}

impl Undo {
    fn read(&self, lsn: Lsn) -> Option<Entry> {
        match self.log.read(lsn) {
            Ok(entry) => Some(entry),
            Err(Error::Gone { .. }) => None,
            Err(error) => panic!("{lsn}: {error}"),
        }
    }

    /// Checks that a dead thread's slot agrees with the log.
    fn check(&self, number: u32, view: &SlotView) {
        // A transaction that was being released still has its first record, so the log is kept.
        let one = view.first == view.last || view.last == Lsn::NEVER;
        assert!(one, "a transaction has another record before its last: {view:?}");
        if view.last != Lsn::NEVER
            && let Some(entry) = self.read(view.last)
        {
            assert!(u32::from(entry.slot) == number && !entry.head.flags.has(Flags::LAST));
        }
        for (first, last) in view.recent.iter().rev().take(3) {
            if let Some(entry) = self.read(*last) {
                assert!(u32::from(entry.slot) == number && entry.head.flags.has(Flags::LAST));
                assert_eq!(entry.head.prev, *first);
            }
        }
        let answered = self.answered.word(u64::from(number)).unwrap().load(Relaxed);
        assert!(self.log.flushed().0 > answered);
        assert!(answered == 0 || view.recent.iter().any(|(_, last)| last.0 == answered));
    }
}

impl Worker {
    /// Reads the whole log and checks that no record of a thread is missing in between. With
    /// `quiet`, while no process works, it also compares the slots of dead threads with the log.
    /// Returns the number of records.
    pub(crate) fn audit(&self, quiet: bool) -> u64 {
        let pin = loop {
            if let Ok(pin) = self.session.pin("audit", self.log.oldest()) {
                break pin;
            }
        };
        let from = self.log.pins().iter().find(|info| info.pin == pin).unwrap().lsn;
        let mut seen: BTreeMap<u16, (Entry, u64)> = BTreeMap::new();
        let mut count = 0;
        for entry in self.log.scan(from) {
            let entry = entry.unwrap();
            let round = u64::from_le_bytes(entry.payload[8..16].try_into().unwrap());
            let last = entry.head.flags.has(Flags::LAST);
            if let Some((before, number)) = seen.get(&entry.slot) {
                let same = before.payload[..8] == entry.payload[..8];
                let was_last = before.head.flags.has(Flags::LAST);
                let right = if last {
                    same && !was_last && round == *number && entry.head.prev == before.lsn
                } else {
                    !same || (was_last && round == number + 1)
                };
                assert!(right, "{before:?} and then {entry:?}");
            }
            count += 1;
            seen.insert(entry.slot, (entry, round));
        }
        self.session.unpin(pin).unwrap();
        if quiet {
            for dead in self.region.dead_threads().unwrap() {
                let number = dead.number();
                if number >= THREADS {
                    continue;
                }
                // No dead thread has the latch, because it was taken for the pin.
                let view = self.log.slot(number).unwrap();
                if let Some((entry, _)) = seen.get(&(number as u16)) {
                    if entry.head.flags.has(Flags::LAST) {
                        assert_eq!(view.last, Lsn::NEVER);
                        assert_eq!(view.recent.last().unwrap().1, entry.lsn);
                    } else {
                        assert_eq!(view.last, entry.lsn);
                    }
                }
            }
        }
        count
    }
}
