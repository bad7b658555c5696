//! Our log, and two common ways to append that it is compared with. Unless records are made
//! durable, nothing is written to files in a run of some milliseconds: the buffer is larger.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_disk::Disk;
use latchwork_latch::ShflMutex;
use latchwork_log::{Error, Flags, Head, Log, Lsn};
use latchwork_machine::{Integer, Machine, Padded, Word};
use latchwork_region::{Region, Thread};
use latchwork_sim::{Simulated, Simulation};

use super::super::dice::Dice;
use super::super::operations::Appends;
use super::super::watch::Watch;
use super::disk::Timed;
use super::{Engine, pause};

/// The largest size of the log's buffer, and the size of the rivals' in words.
const BUFFER: u64 = 64 << 20;
const WORDS: usize = 1 << 20;
/// Bytes of the header of a record of our log.
const HEADER: usize = 56;

/// The number of records that all threads appended, outside of the simulated memory: all simulated
/// threads run on one thread of the host.
type Count = Cell<u64>;

fn judged(appended: &Count, found: u64) -> Result<Option<f64>, String> {
    match appended.get() {
        count if count == found => Ok(None),
        count => Err(format!("{count} records were appended, {found} are in the log")),
    }
}

/// Our log. Each simulated thread has a slot of its own.
pub(super) struct Ours {
    appends: Appends,
    region: Region<Simulated>,
    log: Log<Simulated>,
    threads: Vec<Thread<Simulated>>,
    appended: Count,
}

impl Ours {
    pub(super) fn new(appends: Appends, threads: usize) -> Result<Self, String> {
        Self::try_new(appends, threads).map_err(|error| error.to_string())
    }

    fn try_new(appends: Appends, count: usize) -> Result<Self, Error> {
        let sizes = latchwork_region::Options {
            processes: 1,
            threads: count as u32,
            waiters: count.max(64) as u32,
            limit: 256 << 20,
            ..latchwork_region::Options::default()
        };
        let region = Region::heap(&sizes)?;
        let disk: Arc<dyn Disk> = Arc::new(Timed::new());
        let threads: Result<Vec<_>, _> = (0..count).map(|_| region.thread()).collect();
        let threads = threads?;
        let options = latchwork_log::Options {
            buffer: BUFFER,
            buffer_first: BUFFER,
            segment: BUFFER,
            segment_first: BUFFER,
            threads: count as u32,
            ..latchwork_log::Options::default()
        };
        let log = Log::open(&region, disk, Path::new("/log"), &options, &threads[0])?;
        Ok(Self { appends, region, log, threads, appended: Count::new(0) })
    }

    fn run(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), Error> {
        let session = self.log.session(&self.threads[me])?;
        let (head, payload) = (Head { flags: Flags::SYSTEM, ..Head::default() }, [me as u8; 256]);
        let payload = &payload[..self.appends.bytes.min(256)];
        loop {
            pause(self.appends.outside, dice);
            if !watch.goes_on() {
                return Ok(());
            }
            let mut done = Ok(Lsn::NEVER);
            watch.waited(&mut || {
                done = session.build(&head, &[payload]).and_then(|mut record| {
                    session.reserve(record.bytes() as u64)?;
                    let at = session.append(&mut record)?;
                    if self.appends.durable { session.flush(at).map(|()| at) } else { Ok(at) }
                });
            });
            done?;
            self.appended.set(self.appended.get() + 1);
            watch.done();
        }
    }
}

impl Engine for Ours {
    fn set_up(&self, simulation: &mut Simulation) {
        let places = self.region.places().into_iter();
        for (start, len, name) in places.chain(self.log.places().unwrap_or_default()) {
            simulation.label_at(start, len, name);
        }
    }

    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String> {
        self.run(me, dice, watch).map_err(|error| error.to_string())
    }

    fn judge(&self) -> Result<Option<f64>, String> {
        let records: Result<Vec<_>, _> = self.log.scan(Lsn::FIRST).collect();
        judged(&self.appended, records.map_err(|error| error.to_string())?.len() as u64)
    }
}

type Long = <Simulated as Machine>::AtomicU64;

/// A log without protection from the death of a thread. It has no file: old words are overwritten.
pub(super) struct Unprotected {
    appends: Appends,
    /// Whether a record is copied under the latch. Otherwise a `fetch_add` reserves its place, and
    /// `end` moves in the order of places.
    is_latched: bool,
    latch: Padded<ShflMutex<Simulated>>,
    reserved: Padded<Long>,
    end: Padded<Long>,
    words: Vec<Long>,
    appended: Count,
}

impl Unprotected {
    pub(super) fn new(appends: Appends, is_latched: bool) -> Self {
        Self {
            appends,
            is_latched,
            latch: Padded::default(),
            reserved: Padded::default(),
            end: Padded::default(),
            words: (0..WORDS).map(|_| Long::default()).collect(),
            appended: Count::new(0),
        }
    }

    /// The words of a record, as large as one of our log.
    fn size(&self) -> u64 {
        (HEADER + self.appends.bytes).next_multiple_of(16) as u64 / 8
    }

    fn copy(&self, at: u64, me: usize) {
        for n in at..at + self.size() {
            self.words[n as usize % WORDS].store(me as u64, Relaxed);
        }
    }

    fn append(&self, me: usize) {
        if self.is_latched {
            self.latch.lock();
            let at = self.end.load(Relaxed);
            self.copy(at, me);
            self.end.store(at + self.size(), Release);
            // SAFETY: this thread acquired the latch above.
            unsafe { self.latch.unlock() };
            return;
        }
        let at = self.reserved.fetch_add(self.size(), Relaxed);
        self.copy(at, me);
        while self.end.load(Acquire) != at {
            Simulated::relax();
        }
        self.end.store(at + self.size(), Release);
    }
}

impl Engine for Unprotected {
    fn set_up(&self, simulation: &mut Simulation) {
        simulation.label(core::slice::from_ref(&self.latch), "latch");
        simulation.label(core::slice::from_ref(&self.reserved), "reserved");
        simulation.label(core::slice::from_ref(&self.end), "end");
        simulation.label(&self.words[..], "buffer");
    }

    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String> {
        loop {
            pause(self.appends.outside, dice);
            if !watch.goes_on() {
                return Ok(());
            }
            watch.waited(&mut || self.append(me));
            self.appended.set(self.appended.get() + 1);
            watch.done();
        }
    }

    fn judge(&self) -> Result<Option<f64>, String> {
        judged(&self.appended, self.end.load(Relaxed) / self.size())
    }
}
