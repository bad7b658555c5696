//! A pool on the simulated machine, threads that use it, and what is expected of it.
//!
//! What was stored in each page is also written down outside of the simulation, where nothing is
//! ever late. A change counts as begun before its first word is stored, and as ended when the call
//! that ends it has returned. So a read returns a value that had begun, and none that is older than
//! the last one that had ended before the read.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Plain;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_check::between::{Before, Between};
use latchwork_check::explore::{Schedule, body, two_by_two};
use latchwork_disk::{Disk, Error as DiskError, File, Simulated as Memory};
use latchwork_machine::{Clock, ConstMachine, Machine, Word};
use latchwork_pool::{
    Error, FileId, FileSpec, Handle, Options, PageMut, PageView, Pool, Stats, sound,
};
use latchwork_region::{AreaOptions, Options as RegionOptions, Region, Thread};
use latchwork_sim::{Explorer, Simulated, Simulation, clock};

use crate::house::Dice;

/// Accesses after which a run has no end.
const LIMIT: u64 = 1_000_000;
/// About as many accesses has a run, for the changes of priority to fall into.
const LENGTH: u64 = 6_000;
/// A thread whose wake-up is lost looks by itself after 20 ms, which no run takes.
const PATIENCE: Duration = Duration::from_millis(19);

/// Pages that all threads read and change; those behind them have one owner each, or none.
pub(crate) const PUBLIC: u64 = 24;
/// More pages than a file ever has.
const PAGES: usize = 64;
pub(crate) const FRAMES: u32 = 16;
pub(crate) const FRAMES_MAX: u32 = 32;
const PAGE_BYTES: u32 = 512;
/// The two words of a page that have the same value, as far apart as can be.
const FIRST: usize = 2;
const LAST: usize = PAGE_BYTES as usize / 8 - 1;
const THREADS: usize = 4;
/// Where the pool's head has its times, with the threads' words behind them.
const TIMES_AT: u64 = 1024 + 256 * 128;
/// Where it has the secret of the translation of sparse files.
const SECRET: u64 = 80;
const PATH: &str = "/data/pages";

/// Has other threads run before, between and after the halves of what is read and written.
#[derive(Debug, Default)]
struct Slow {
    calls: Plain,
    /// Of so many writes one is lost; none if it is zero.
    loses_one_in: u64,
}

impl Slow {
    /// Some turns for the others: how many is a matter of the call.
    fn pause(&self) -> u64 {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        for _ in 0..(call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) {
            Simulated::relax();
        }
        call
    }
}

impl Between for Slow {
    fn read(&self, file: &dyn File, at: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let half = into.len() / 2;
        let (first, second) = into.split_at_mut(half);
        self.pause();
        file.read(at, first)?;
        self.pause();
        file.read(at + half as u64, second)?;
        self.pause();
        Ok(())
    }

    fn write(&self, file: &dyn File, at: u64, from: &[u8]) -> Result<(), DiskError> {
        let (first, second) = from.split_at(from.len() / 2);
        let call = self.pause();
        // Not before the threads run.
        let loses = self.loses_one_in != 0 && clock().is_some();
        if loses && call.is_multiple_of(self.loses_one_in) {
            return Ok(());
        }
        file.write(at, first)?;
        self.pause();
        file.write(at + first.len() as u64, second)?;
        self.pause();
        Ok(())
    }
}

/// What all threads of a run have in common, outside of the simulation.
#[derive(Default)]
pub(crate) struct Book {
    /// Of each page the last value that was begun, and that was ended.
    begun: Vec<Cell<u64>>,
    ended: Vec<Cell<u64>>,
    /// The threads that have pages of their own.
    owners: RefCell<Vec<Option<usize>>>,
    flaw: RefCell<Option<String>>,
    /// What each thread began last: the name of a call, and a page.
    calls: RefCell<Vec<(&'static str, u64)>>,
    pub(crate) upgrades: Cell<u64>,
    pub(crate) resizes: Cell<u64>,
    pub(crate) pins: Cell<u64>,
}

impl Book {
    fn new() -> Self {
        let zeros = || (0..PAGES).map(|_| Cell::new(0)).collect();
        Self {
            begun: zeros(),
            ended: zeros(),
            owners: RefCell::new(vec![None; PAGES]),
            calls: RefCell::new(vec![("nothing", 0); THREADS]),
            ..Self::default()
        }
    }

    /// Notes the first flaw.
    fn flaw(&self, text: String) {
        self.flaw.borrow_mut().get_or_insert(text);
    }

    /// The value that a page has next.
    fn next(&self, page: u64) -> u64 {
        let begun = &self.begun[page as usize];
        begun.set(begun.get() + 1);
        begun.get()
    }

    fn last_calls(&self) -> String {
        let told = |(me, (call, page)): (usize, &(&str, u64))| format!("{me}: {call} {page}");
        self.calls.borrow().iter().enumerate().map(told).collect::<Vec<_>>().join("; ")
    }
}

/// What is odd on purpose; and what is wrong, for controls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Odd {
    /// All take long between the two words.
    pub(crate) slow: bool,
    /// The file is sparse.
    pub(crate) sparse: bool,
    /// Readers do not look at the version again.
    pub(crate) hasty: bool,
    /// Of so many writes to the disk one is lost; none if it is zero.
    pub(crate) loses_one_in: u64,
}

/// One thread of a run.
pub(crate) struct Life<'a, M: ConstMachine> {
    pub(crate) me: usize,
    pub(crate) handle: &'a Handle<'a, M>,
    pub(crate) file: FileId,
    pub(crate) book: &'a Book,
    pub(crate) dice: Dice,
    odd: Odd,
}

/// The words that are equal, as a reader finds them.
type Pair = (u64, u64);

impl<M: ConstMachine> Life<'_, M> {
    fn begins(&self, call: &'static str, page: u64) {
        self.book.calls.borrow_mut()[self.me] = (call, page);
    }

    fn flaw(&self, what: impl std::fmt::Display) {
        let (call, page) = self.book.calls.borrow()[self.me];
        self.book.flaw(format!("thread {} in {call} {page}: {what}", self.me));
    }

    /// What a call returned; none, and a flaw, if it failed.
    fn done<T>(&self, end: Result<T, Error>) -> Option<T> {
        self.in_time();
        end.map_err(|error| self.flaw(error)).ok()
    }

    fn in_time(&self) {
        if u128::from(M::now(Clock::Monotonic)) >= PATIENCE.as_nanos() {
            self.flaw("somebody slept through a wake-up");
        }
    }

    fn least(&self, page: u64) -> u64 {
        self.book.ended[page as usize].get()
    }

    /// Whether what a reader found is a value of this page, whole.
    fn is_whole(&self, page: u64, (first, last): Pair) -> bool {
        if first != last {
            self.flaw(format!("torn: {first:#x} and {last:#x}"));
        } else if first >> 32 != page {
            self.flaw(format!("another page's bytes: {first:#x}"));
        }
        first == last && first >> 32 == page
    }

    /// Whether it is one that the page may have had since `least` had ended.
    fn judge(&self, page: u64, pair: Pair, least: u64) {
        let (value, most) = (pair.0 & 0xffff_ffff, self.book.begun[page as usize].get());
        if self.is_whole(page, pair) && !(least..=most).contains(&value) {
            let age = if value < least { "older" } else { "never stored" };
            self.flaw(format!("{age}: {value} is not in {least} to {most}"));
        }
    }

    /// Lets others run between the two words, perhaps.
    fn linger(&self) {
        let turns = if self.odd.slow { 12 } else { self.dice.below(8) / 2 };
        (0..turns).for_each(|_| Simulated::relax());
    }

    fn pair(&self, view: &PageView<'_, M>) -> Option<Pair> {
        let first = view.word(FIRST)?;
        self.linger();
        Some((first, view.word(LAST)?))
    }

    /// Reads a page that this thread may read.
    pub(crate) fn read(&self, page: u64) {
        self.begins("read", page);
        let least = self.least(page);
        let read = match self.odd.hasty {
            true => {
                let snapshot = self.handle.optimistic(self.file, page);
                snapshot.map(|snapshot| self.pair(&snapshot.view()).unwrap_or_default())
            }
            false => self.handle.read(self.file, page, |view| self.pair(view)),
        };
        if let Some(pair) = self.done(read) {
            self.judge(page, pair, least);
        }
    }

    /// Reads a page that may be another thread's, or nobody's: then it is whole, or an error that
    /// says so.
    pub(crate) fn read_astray(&self, page: u64) {
        self.begins("read astray", page);
        let read = self.handle.read(self.file, page, |view| self.pair(view));
        self.in_time();
        match read {
            Ok(pair) => {
                self.is_whole(page, pair);
            }
            Err(Error::Freed { .. } | Error::OutOfRange { .. }) => {}
            Err(error) if error.is_unwritten() => {}
            Err(error) => self.flaw(error),
        }
    }

    /// Changes a page that this thread has, once or twice.
    fn change(&self, mut held: PageMut<'_, '_, M>) {
        let page = held.page();
        for _ in 0..1 + self.dice.below(4) / 3 {
            let value = page << 32 | self.book.next(page);
            held.begin(0);
            let _ = held.set(FIRST, value);
            self.linger();
            let _ = held.set(LAST, value);
            held.commit_and_keep();
        }
        drop(held);
        self.book.ended[page as usize].set(self.book.begun[page as usize].get());
    }

    /// What a thread finds that keeps all others out.
    fn judge_alone(&self, held: &PageMut<'_, '_, M>) {
        let pair = self.pair(&held.view()).unwrap_or_default();
        self.judge(held.page(), pair, self.book.begun[held.page() as usize].get());
    }

    pub(crate) fn write(&self, page: u64) {
        self.begins("write", page);
        let Some(held) = self.done(self.handle.write(self.file, page)) else { return };
        self.judge_alone(&held);
        if self.dice.one_in(6) {
            return drop(held);
        }
        self.change(held);
        self.in_time();
    }

    /// Reads a page, and changes it if it is still what was read.
    pub(crate) fn upgrade(&self, page: u64) {
        self.begins("upgrade", page);
        let least = self.least(page);
        let Some(snapshot) = self.done(self.handle.optimistic(self.file, page)) else { return };
        let pair = self.pair(&snapshot.view()).unwrap_or_default();
        if let Some(Some(held)) = self.done(self.handle.upgrade(&snapshot)) {
            self.book.upgrades.set(self.book.upgrades.get() + 1);
            self.judge(page, pair, least);
            self.judge_alone(&held);
            if held.word(FIRST) != Some(pair.0) {
                self.flaw("it is not what was read");
            }
            self.change(held);
        }
    }

    /// Keeps a page, and reads others meanwhile.
    pub(crate) fn pin(&self, page: u64, others: [u64; 3]) {
        self.begins("pin", page);
        let Some(pin) = self.done(self.handle.pin(self.file, page)) else { return };
        for other in others {
            self.read(other);
            self.begins("look at pinned", page);
            let there = self.handle.pool().frame(pin.frame()).map(|frame| frame.page);
            if there != Some((self.file.number(), page)) {
                self.flaw(format!("the pinned page went: {there:?} is there"));
            }
        }
        self.book.pins.set(self.book.pins.get() + 1);
    }

    pub(crate) fn prefetch(&self, page: u64) {
        self.begins("prefetch", page);
        self.done(self.handle.prefetch(self.file, page, 4));
    }

    pub(crate) fn clean(&self, most: u32) {
        self.begins("clean", most.into());
        self.done(self.handle.clean(most));
    }

    pub(crate) fn sync(&self) {
        self.begins("sync", 0);
        self.done(self.handle.sync(u64::MAX, &mut |_| {}));
    }

    pub(crate) fn resize(&self, frames: u32) {
        self.begins("resize", frames.into());
        let end = self.handle.resize(frames);
        self.book.resizes.set(self.book.resizes.get() + u64::from(end.is_ok()));
        // Somebody has pinned a page in a frame that was to go.
        if !matches!(end, Err(Error::Full { .. })) {
            self.done(end);
        }
    }

    /// A page of this thread's own.
    fn owned(&self) -> Option<u64> {
        let owners = self.book.owners.borrow();
        let mine = |page: &u64| owners[*page as usize] == Some(self.me);
        let mine: Vec<_> = (0..PAGES as u64).filter(mine).collect();
        (!mine.is_empty()).then(|| mine[self.dice.below(mine.len() as u64) as usize])
    }

    /// Makes a page of this thread's own.
    pub(crate) fn make(&self) {
        if self.book.owners.borrow().iter().filter(|owner| owner.is_some()).count() + THREADS
            > PAGES
        {
            return;
        }
        self.begins("make", 0);
        let Some(mut held) = self.done(self.handle.new_page(self.file)) else { return };
        let page = held.page();
        self.begins("make", page);
        held.begin(0);
        if (FIRST..=LAST).any(|index| held.word(index) != Some(0)) {
            self.flaw("what was in the page is there still");
        }
        let before = self.book.owners.borrow_mut()[page as usize].replace(self.me);
        if page < PUBLIC || before.is_some() {
            self.flaw(format!("it has an owner: {before:?}"));
        }
        self.change(held);
    }

    /// Reads and frees a page of this thread's own, if it has any.
    pub(crate) fn free(&self) {
        let Some(page) = self.owned() else { return };
        self.read(page);
        self.write(page);
        self.read(page);
        self.free_at_once(page);
    }

    /// Frees a page of this thread's own, and makes one: it may be one that another thread freed.
    pub(crate) fn hand_on(&self) {
        if let Some(page) = self.owned() {
            self.free_at_once(page);
        }
        self.make();
    }

    fn free_at_once(&self, page: u64) {
        self.begins("free", page);
        self.book.owners.borrow_mut()[page as usize] = None;
        self.done(self.handle.free_page(self.file, page));
    }
}

/// Memory for a pool, which run after run has for itself.
pub(crate) struct Stage<M: ConstMachine> {
    region: Region<M>,
    threads: Vec<Thread<M>>,
    /// What all runs did.
    pub(crate) did: RefCell<Stats>,
    pub(crate) upgrades: Cell<u64>,
    pub(crate) resizes: Cell<u64>,
    pub(crate) pins: Cell<u64>,
}

impl<M: ConstMachine> Stage<M> {
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

    /// Makes the pool's memory what it was at first: half a gigabyte of addresses, of which a run
    /// uses little.
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
            let area = self.region.area(name, &sizes).expect("it is there");
            for word in area.slice(from, to - from).expect("it is as long") {
                word.store(0, Relaxed);
            }
            if (name, from) == ("pool-head", 0) {
                // Else a run would have a secret of its own, and no seed would replay it.
                area.word(SECRET).expect("it is there").store(0x5eed, Relaxed);
            }
        }
    }

    fn pool(&self, disk: &Memory, odd: Odd) -> Result<Pool<M>, Error> {
        let slow = Slow { loses_one_in: odd.loses_one_in, ..Slow::default() };
        let disk: Arc<dyn Disk> = Arc::new(Before::new(Arc::new(slow), disk.clone()));
        let options = Options {
            frames: FRAMES,
            frames_max: FRAMES_MAX,
            frame_bytes: PAGE_BYTES,
            ..Options::default()
        };
        Pool::open(&self.region, disk, &options)
    }

    /// Runs it: each thread does what `life` says, and what is left is looked at.
    pub(crate) fn run(
        &self,
        schedule: Schedule,
        odd: Odd,
        life: impl Fn(&Life<'_, M>),
    ) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        let disk = Memory::new();
        disk.make_folder(Path::new("/data")).map_err(|error| error.to_string())?;
        // The memory must be there before it can be wiped.
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
            // They are in the midst of something: nobody is to touch them again.
            core::mem::forget(handles);
            return Err(format!("{text}\n{}{frames}", book.last_calls()));
        }
        look(&pool, &handles[0], file, &book, &disk, odd.sparse)?;
        self.count(&book, &handles, before);
        Ok(())
    }

    /// Adds what a run did, but for what was done `before` by the first.
    fn count(&self, book: &Book, handles: &[Handle<'_, M>], before: Stats) {
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

/// Makes the pages that are all threads', before they run.
fn public_pages<M: ConstMachine>(life: &Life<'_, M>) {
    for page in 0..PUBLIC {
        if let Some(held) = life.done(life.handle.new_page(life.file)) {
            life.change(held);
            life.book.owners.borrow_mut()[page as usize] = Some(usize::MAX);
        }
    }
    life.sync();
}

/// What must be so when all have ended.
fn look<M: ConstMachine>(
    pool: &Pool<M>,
    handle: &Handle<'_, M>,
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
    // A sparse file has no list of pages that are nobody's.
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
            return Err(format!("page {page} is {found:?} in the file, and was {last} at last"));
        }
    }
    Ok(())
}
