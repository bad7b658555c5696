//! A pool on the simulated machine, its runs, and the checks after a run.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::between::Before;
use latchwork_check::explore::{Schedule, body, two_by_two};
use latchwork_disk::{Disk, Simulated as Memory};
use latchwork_machine::Word;
use latchwork_pool::{Error, FileId, FileSpec, Handle, Options, Pool, Stats, sound};
use latchwork_region::{AreaOptions, Options as RegionOptions, Region, Thread};
use latchwork_sim::{Explorer, Simulation};

use crate::flawed::Breakable;
use crate::house::Dice;
use crate::pool::{
    Book, FIRST, FRAMES, FRAMES_MAX, LAST, Life, Odd, PAGE_BYTES, PUBLIC, Slow, THREADS,
};

/// Number of accesses after which a run counts as endless.
const LIMIT: u64 = 1_000_000;
/// Approximate accesses of a run, within which priorities are changed.
const LENGTH: u64 = 6_000;
/// Offset of the times in the pool's head; the threads' words follow.
const TIMES_AT: u64 = 1024 + 256 * 128;
/// Offset of the secret of the translation of sparse files.
const SECRET: u64 = 80;
const PATH: &str = "/data/pages";

/// Memory for a pool, used by one run after the other.
pub(crate) struct Stage {
    region: Region<Breakable>,
    threads: Vec<Thread<Breakable>>,
    /// Totals of all runs.
    pub(crate) did: RefCell<Stats>,
    pub(crate) upgrades: Cell<u64>,
    pub(crate) resizes: Cell<u64>,
    pub(crate) pins: Cell<u64>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let sizes = RegionOptions {
            processes: 1,
            threads: THREADS as u32,
            waiters: 1,
            limit: 4 << 20,
            ..RegionOptions::default()
        };
        let region = Region::heap(&sizes).expect("memory");
        let threads = (0..THREADS).map(|_| region.thread().expect("a slot")).collect();
        let [upgrades, resizes, pins] = [const { Cell::new(0) }; 3];
        Self { region, threads, did: RefCell::default(), upgrades, resizes, pins }
    }

    /// Resets the pool's memory: half a gigabyte of addresses. A run uses little of it.
    fn renew(&self) {
        crate::flawed::renew();
        let frames = u64::from(FRAMES_MAX);
        for (name, from, to) in [
            ("pool-head", 0, 1024 + 128),
            ("pool-head", TIMES_AT, TIMES_AT + 3 * 64 + THREADS as u64 * 32),
            ("pool-xlat", 0, 8 * 2048),
            ("pool-desc", 0, 8 + frames * 8),
            ("pool-frames", 0, frames * u64::from(PAGE_BYTES / 8)),
        ] {
            let sizes = AreaOptions { first: 1, limit: 1, huge: false };
            let area = self.region.area(name, &sizes).expect("the area exists");
            for word in area.slice(from, to - from).expect("the area is long enough") {
                word.store(0, Relaxed);
            }
            if (name, from) == ("pool-head", 0) {
                // With a random secret no seed could replay the run.
                area.word(SECRET).expect("the area exists").store(0x5eed, Relaxed);
            }
        }
    }

    fn pool(&self, disk: &Memory, odd: Odd) -> Result<Pool<Breakable>, Error> {
        let slow = Slow::new(odd.loses_one_in);
        let disk: Arc<dyn Disk> = Arc::new(Before::new(Arc::new(slow), disk.clone()));
        let options = Options {
            frames: FRAMES,
            frames_max: FRAMES_MAX,
            frame_bytes: PAGE_BYTES,
            ..Options::default()
        };
        Pool::open(&self.region, disk, &options)
    }

    /// Runs `life` in each thread, and checks what is left.
    pub(crate) fn run(
        &self,
        schedule: Schedule,
        odd: Odd,
        life: impl Fn(&Life<'_>),
    ) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        let disk = Memory::new();
        disk.make_folder(Path::new("/data")).map_err(|error| error.to_string())?;
        // The memory must exist before it can be reset.
        drop(self.pool(&disk, Odd::default()).map_err(told)?);
        self.renew();
        let pool = self.pool(&disk, odd).map_err(told)?;
        let threads = &self.threads[..2 + (schedule.0 / 8 % (THREADS as u64 - 1)) as usize];
        let handles = threads.iter().map(|thread| pool.handle(thread));
        let handles = handles.collect::<Result<Vec<_>, _>>().map_err(told)?;
        let spec = FileSpec { page_bytes: PAGE_BYTES, sparse: odd.sparse, ..FileSpec::new(PATH) };
        let file = handles[0].file(&spec).map_err(told)?;
        let book = Book::new();
        let bodies = handles.iter().enumerate().map(|(me, handle)| {
            let dice = Dice::new(schedule.0 << 3 | me as u64);
            let life_of = Life { me, handle, file, book: &book, dice, odd };
            if me == 0 {
                public_pages(&life_of);
            }
            let life = &life;
            body(move || life(&life_of))
        });
        let bodies = bodies.collect();
        let before = handles[0].counted();
        let explorer = match schedule.0 % 2 {
            0 => Explorer::random(schedule.0),
            _ => Explorer::pct(schedule.0, 1 + (schedule.0 / 2 % 4) as usize, LENGTH),
        };
        let simulation = Simulation::new(&two_by_two(), schedule.0);
        let ended = simulation.explore(explorer).limit(LIMIT).run(bodies);
        let flaw = book.flaw.take();
        if let Some(text) = flaw.or_else(|| ended.err().map(|stuck| stuck.to_string())) {
            let frames = pool.list().map_err(told)?.map(|frame| format!("\n{frame:?}"));
            let frames: String = frames.collect();
            // Threads are stopped inside calls: their objects must not be used again.
            core::mem::forget(handles);
            return Err(format!("{text}\n{}{frames}", book.last_calls()));
        }
        look(&pool, &handles[0], file, &book, &disk, odd.sparse)?;
        self.count(&book, &handles, before);
        Ok(())
    }

    /// Adds the counts of a run, without those of the first thread `before` the run.
    fn count(&self, book: &Book, handles: &[Handle<'_, Breakable>], before: Stats) {
        let mut did = self.did.borrow_mut();
        for (me, done) in handles.iter().map(Handle::counted).enumerate() {
            let since = |of: fn(&Stats) -> u64| of(&done) - if me == 0 { of(&before) } else { 0 };
            did.faults += since(|stats| stats.faults);
            did.evicted += since(|stats| stats.evicted);
            did.evicted_dirty += since(|stats| stats.evicted_dirty);
            did.restarts += since(|stats| stats.restarts);
            did.fallbacks += since(|stats| stats.fallbacks);
            did.written += since(|stats| stats.written);
            did.reused += since(|stats| stats.reused);
            did.prefetched += since(|stats| stats.prefetched);
        }
        for (all, one) in [
            (&self.upgrades, &book.upgrades),
            (&self.resizes, &book.resizes),
            (&self.pins, &book.pins),
        ] {
            all.set(all.get() + one.get());
        }
    }
}

/// Creates the pages of all threads before the run.
fn public_pages(life: &Life<'_>) {
    for page in 0..PUBLIC {
        if let Some(held) = life.done(life.handle.new_page(life.file)) {
            life.change(held);
            life.book.owners.borrow_mut()[page as usize] = Some(usize::MAX);
        }
    }
    life.sync();
}

/// Checks the pool and its file after all threads have ended.
fn look(
    pool: &Pool<Breakable>,
    handle: &Handle<'_, Breakable>,
    file: FileId,
    book: &Book,
    disk: &Memory,
    sparse: bool,
) -> Result<(), String> {
    let told = |error: Error| error.to_string();
    let found = pool.verify().map_err(told)?;
    if !found.flaws.is_empty() || found.latched != 0 || found.poisoned != 0 {
        return Err(format!("{found:?}"));
    }
    handle.sync(u64::MAX, &mut |_| {}).map_err(told)?;
    if let Some(dirty) = handle.dirty().map_err(told)?.first() {
        return Err(format!("not on disk after a sync: {dirty:?}"));
    }
    // A sparse file has no list of free pages.
    let free = if sparse { 0 } else { pool.free_pages(file).map_err(told)? };
    let pages = pool.pages(file).map_err(told)?;
    let owners = book.owners.borrow();
    let owned = owners.iter().filter(|owner| owner.is_some()).count() as u64;
    if owned + free != pages {
        return Err(format!("{pages} pages, {owned} have owners and {free} are free"));
    }
    let bytes = disk.peek(Path::new(PATH)).unwrap_or_default();
    let mut on_disk = bytes.chunks_exact(PAGE_BYTES as usize);
    for (page, owner) in (0..pages).zip(owners.iter()) {
        let image = on_disk.next();
        if owner.is_none() {
            continue;
        }
        let image = image.ok_or_else(|| format!("page {page} is not in the file"))?;
        sound(page, image).map_err(told)?;
        let word =
            |index: usize| image[index * 8..].first_chunk().map(|at| u64::from_le_bytes(*at));
        let last = page << 32 | book.begun[page as usize].get();
        if (word(FIRST), word(LAST)) != (Some(last), Some(last)) {
            let found = (word(FIRST), word(LAST));
            return Err(format!(
                "page {page} is {found:?} in the file, but {last} was stored last"
            ));
        }
    }
    Ok(())
}
