//! Our pool, and the pool that it is compared with.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_disk::Disk;
use latchwork_latch::{FetchAdd, LwLatch};
use latchwork_machine::{Integer, Machine, Padded, Word};
use latchwork_pool::{Error, FileId, FileSpec, Options, Pool};
use latchwork_region::{Region, Thread};
use latchwork_sim::{Simulated, Simulation};

use super::super::dice::Dice;
use super::super::operations::Pages;
use super::super::watch::Watch;
use super::{Engine, pause};

/// Bytes of a page. One of its words is read.
const PAGE: u32 = 4096;

/// Our pool, with all pages in memory.
pub(super) struct Ours {
    pages: Pages,
    region: Region<Simulated>,
    pool: Pool<Simulated>,
    file: FileId,
    threads: Vec<Thread<Simulated>>,
}

impl Ours {
    pub(super) fn new(pages: Pages, threads: usize) -> Result<Self, String> {
        Self::try_new(pages, threads).map_err(|error| error.to_string())
    }

    fn try_new(pages: Pages, count: usize) -> Result<Self, Error> {
        let sizes = latchwork_region::Options {
            processes: 1,
            threads: count as u32,
            limit: 64 << 20,
            ..latchwork_region::Options::default()
        };
        let region = Region::heap(&sizes)?;
        let disk = latchwork_disk::Simulated::new();
        disk.make_folder(Path::new("/data"))?;
        let frames = (pages.pages as u32 + 64).next_power_of_two();
        let options =
            Options { frames, frames_max: frames, frame_bytes: PAGE, ..Options::default() };
        let pool = Pool::open(&region, Arc::new(disk), &options)?;
        let threads: Result<Vec<_>, _> = (0..count).map(|_| region.thread()).collect();
        let threads = threads?;
        let handle = pool.handle(&threads[0])?;
        let spec = FileSpec { page_bytes: PAGE, ..FileSpec::new("/data/pages") };
        let file = handle.file(&spec)?;
        for page in 0..pages.pages as u64 {
            let mut made = handle.create(file, page)?;
            made.begin(0);
            let _ = made.set(2, page);
            made.commit();
        }
        drop(handle);
        Ok(Self { pages, region, pool, file, threads })
    }
}

impl Engine for Ours {
    fn set_up(&self, simulation: &mut Simulation) {
        for (start, len, name) in self.region.places() {
            let warm = match &*name {
                "pool-frames" => self.pages.pages * PAGE as usize,
                "pool-desc" | "pool-xlat" | "pool-head" => len.min(1 << 20),
                _ => 0,
            };
            simulation.warm_at(start, warm, self.threads.len());
            simulation.label_at(start, len, name);
        }
    }

    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        let handle = self.pool.handle(&self.threads[me]).map_err(told)?;
        loop {
            pause(self.pages.outside, dice);
            if !watch.goes_on() {
                break;
            }
            let page = dice.below(self.pages.pages) as u64;
            let mut read = Ok(0);
            watch.waited(&mut || read = handle.read(self.file, page, |view| view.word(2)));
            match read.map_err(told)? {
                found if found == page => watch.done(),
                found => return Err(format!("page {page} is {found}")),
            }
        }
        let counted = handle.counted();
        match counted.fallbacks + counted.slow {
            0 => Ok(()),
            slow => Err(format!("{slow} reads of {} waited or took a latch", counted.reads)),
        }
    }

    fn judge(&self) -> Result<Option<f64>, String> {
        Ok(None)
    }
}

type Long = <Simulated as Machine>::AtomicU64;

/// A frame's header: the page, and the number of pins.
#[derive(Default)]
struct Header {
    tag: Long,
    packed: Long,
}

/// A pool with pins: a reader takes the bucket's latch shared, finds the frame and pins it, as in
/// engines with a buffer table.
pub(super) struct Pinned {
    pages: Pages,
    /// Whether the pin count is on a cache line of its own.
    isolated: bool,
    buckets: Vec<Padded<LwLatch<FetchAdd, Simulated>>>,
    headers: Vec<Padded<Header>>,
    pins: Vec<Padded<Long>>,
    frames: Vec<Padded<Long>>,
    threads: usize,
}

impl Pinned {
    pub(super) fn new(pages: Pages, isolated: bool, threads: usize) -> Self {
        fn many<T: Default>(count: usize) -> Vec<T> {
            (0..count).map(|_| T::default()).collect()
        }
        let made = Self {
            pages,
            isolated,
            buckets: many(pages.pages),
            headers: many(pages.pages),
            pins: many(pages.pages),
            frames: many(pages.pages),
            threads,
        };
        for page in 0..pages.pages {
            made.headers[page].tag.store(page as u64, Relaxed);
            made.frames[page].store(page as u64, Relaxed);
        }
        made
    }

    fn pin(&self, page: usize) -> &Long {
        if self.isolated { &self.pins[page] } else { &self.headers[page].packed }
    }

    fn read(&self, page: usize) -> Option<u64> {
        self.buckets[page].lock_shared();
        let found = self.headers[page].tag.load(Relaxed) == page as u64;
        if found {
            self.pin(page).fetch_add(1, Acquire);
        }
        // SAFETY: this thread acquired the share above.
        unsafe { self.buckets[page].unlock_shared() };
        found.then(|| {
            let word = self.frames[page].load(Relaxed);
            self.pin(page).fetch_sub(1, Release);
            word
        })
    }
}

impl Engine for Pinned {
    fn set_up(&self, simulation: &mut Simulation) {
        simulation.label(&self.buckets[..], "buckets");
        simulation.label(&self.headers[..], "headers");
        simulation.label(&self.pins[..], "pins");
        simulation.label(&self.frames[..], "frames");
        simulation.warm(&self.buckets[..], self.threads);
        simulation.warm(&self.headers[..], self.threads);
        simulation.warm(&self.frames[..], self.threads);
    }

    fn live(&self, _: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String> {
        loop {
            pause(self.pages.outside, dice);
            if !watch.goes_on() {
                return Ok(());
            }
            let page = dice.below(self.pages.pages);
            let mut read = None;
            watch.waited(&mut || read = self.read(page));
            match read {
                Some(found) if found == page as u64 => watch.done(),
                found => return Err(format!("page {page} is {found:?}")),
            }
        }
    }

    fn judge(&self) -> Result<Option<f64>, String> {
        let pinned = (0..self.pages.pages).filter(|page| self.pin(*page).load(Relaxed) != 0);
        match pinned.count() {
            0 => Ok(None),
            pages => Err(format!("{pages} pages are pinned when all have ended")),
        }
    }
}
