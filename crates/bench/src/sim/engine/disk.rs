//! A disk in memory. Its calls take time of the simulated thread.

use core::time::Duration;
use std::ffi::OsString;
use std::path::Path;

use latchwork_disk::{Calls, Disk, Error, File, Open, Simulated};
use latchwork_machine::{Clock, Deadline, Machine};
use latchwork_sim::{Simulated as Processor, work};

/// Cycles of a system call, and bytes copied per cycle: 25 GB/s at 2.5 GHz.
const CALL: u64 = 1000;
const BYTES: u64 = 10;
/// The time of a sync, in which the thread sleeps.
const SYNC: Duration = Duration::from_micros(100);

/// Files in memory, whose calls take simulated time.
#[derive(Debug)]
pub(super) struct Timed(Simulated);

#[derive(Debug)]
struct TimedFile(Box<dyn File>);

impl Timed {
    pub(super) fn new() -> Self {
        Self(Simulated::new())
    }
}

fn sync() {
    work(CALL);
    // Before the simulation starts, its clock shows 0, and there is no thread that could sleep.
    if Processor::now(Clock::Monotonic) != 0 {
        let word = <Processor as Machine>::AtomicU32::default();
        Processor::wait(&word, 0, Some(Deadline::after::<Processor>(SYNC)));
    }
}

fn copied(bytes: usize) {
    work(CALL + bytes as u64 / BYTES);
}

impl Disk for Timed {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        work(CALL);
        Ok(Box::new(TimedFile(self.0.open(path, how)?)))
    }

    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        work(CALL);
        self.0.make_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        work(CALL);
        self.0.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        work(CALL);
        self.0.link(from, to)
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        work(CALL);
        self.0.remove(path)
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        work(CALL);
        self.0.list(folder)
    }

    fn sync_folder(&self, folder: &Path) -> Result<(), Error> {
        sync();
        self.0.sync_folder(folder)
    }

    fn calls(&self) -> Calls {
        self.0.calls()
    }
}

impl File for TimedFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        copied(into.len());
        self.0.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        copied(from.len());
        self.0.write(at, from)
    }

    fn sync(&self) -> Result<(), Error> {
        sync();
        self.0.sync()
    }

    fn sync_in_doubt(&self) -> Result<(), Error> {
        sync();
        self.0.sync_in_doubt()
    }

    fn truncate(&self, length: u64) -> Result<(), Error> {
        work(CALL);
        self.0.truncate(length)
    }

    fn allocate(&self, at: u64, length: u64) -> Result<(), Error> {
        work(CALL);
        self.0.allocate(at, length)
    }

    fn punch(&self, at: u64, length: u64) -> Result<(), Error> {
        work(CALL);
        self.0.punch(at, length)
    }

    fn links(&self) -> Result<u64, Error> {
        work(CALL);
        self.0.links()
    }

    fn length(&self) -> Result<u64, Error> {
        work(CALL);
        self.0.length()
    }

    fn allocated(&self) -> Result<u64, Error> {
        work(CALL);
        self.0.allocated()
    }

    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error> {
        work(CALL);
        self.0.lock(byte, exclusive)
    }
}
