//! Threads that use a pool on the simulated machine, and the values that each of them expects.
//!
//! The values stored in each page are also recorded outside of the simulation, where no store is
//! delayed. A change has begun before its first word is stored, and has ended when the call that
//! ends it has returned. So a read must return a value that had begun, and none older than the last
//! value that had ended before the read.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::atomic::AtomicU64 as Plain;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_check::between::Between;
use latchwork_disk::{Error as DiskError, File};
use latchwork_machine::{Clock, Machine};
use latchwork_pool::{Error, FileId, Handle, PageMut, PageView};
use latchwork_sim::{Simulated, clock};

use crate::flawed::Breakable;
use crate::house::Dice;

/// A thread whose wake-up was lost checks again after 20 ms; no run takes that long.
const PATIENCE: Duration = Duration::from_millis(19);

/// Pages that all threads read and change. Later pages belong to one thread each, or are free.
pub(crate) const PUBLIC: u64 = 24;
/// More pages than any file has.
const PAGES: usize = 64;
pub(crate) const FRAMES: u32 = 16;
pub(crate) const FRAMES_MAX: u32 = 32;
pub(crate) const PAGE_BYTES: u32 = 512;
/// The two words of a page that have the same value, as far apart as possible.
pub(crate) const FIRST: usize = 2;
pub(crate) const LAST: usize = PAGE_BYTES as usize / 8 - 1;
pub(crate) const THREADS: usize = 4;

/// A disk that lets other threads run before, between and after the halves of each access.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    calls: Plain,
    /// One of this many writes is lost; zero: none.
    loses_one_in: u64,
}

impl Slow {
    pub(crate) fn new(loses_one_in: u64) -> Self {
        Self { loses_one_in, ..Self::default() }
    }

    /// Lets other threads run for a number of steps that depends on the call.
    fn pause(&self) -> u64 {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        for _ in 0..(call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) {
            Simulated::relax();
        }
        call
    }
}

impl Between for Slow {
    fn read(&self, file: &dyn File, _: &Path, at: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let half = into.len() / 2;
        let (first, second) = into.split_at_mut(half);
        self.pause();
        file.read(at, first)?;
        self.pause();
        file.read(at + half as u64, second)?;
        self.pause();
        Ok(())
    }

    fn write(&self, file: &dyn File, _: &Path, at: u64, from: &[u8]) -> Result<(), DiskError> {
        let (first, second) = from.split_at(from.len() / 2);
        let call = self.pause();
        // No write is lost before the threads run.
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

/// State that the threads of a run share, outside of the simulation.
#[derive(Default)]
pub(crate) struct Book {
    /// For each page the last value that was begun, and the last that was ended.
    pub(crate) begun: Vec<Cell<u64>>,
    ended: Vec<Cell<u64>>,
    /// The thread to which each page belongs.
    pub(crate) owners: RefCell<Vec<Option<usize>>>,
    pub(crate) flaw: RefCell<Option<String>>,
    /// The call that each thread began last, and its page.
    calls: RefCell<Vec<(&'static str, u64)>>,
    pub(crate) upgrades: Cell<u64>,
    pub(crate) resizes: Cell<u64>,
    pub(crate) pins: Cell<u64>,
}

impl Book {
    pub(crate) fn new() -> Self {
        let zeros = || (0..PAGES).map(|_| Cell::new(0)).collect();
        Self {
            begun: zeros(),
            ended: zeros(),
            owners: RefCell::new(vec![None; PAGES]),
            calls: RefCell::new(vec![("nothing", 0); THREADS]),
            ..Self::default()
        }
    }

    /// Records the first flaw.
    fn flaw(&self, text: String) {
        self.flaw.borrow_mut().get_or_insert(text);
    }

    /// The next value of a page.
    fn next(&self, page: u64) -> u64 {
        let begun = &self.begun[page as usize];
        begun.set(begun.get() + 1);
        begun.get()
    }

    pub(crate) fn last_calls(&self) -> String {
        let told = |(me, (call, page)): (usize, &(&str, u64))| format!("{me}: {call} {page}");
        self.calls.borrow().iter().enumerate().map(told).collect::<Vec<_>>().join("; ")
    }
}

/// Deliberate variations, and errors for controls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Odd {
    /// Threads pause for long between the two words.
    pub(crate) slow: bool,
    /// The file is sparse.
    pub(crate) sparse: bool,
    /// Error: readers do not check the version again.
    pub(crate) hasty: bool,
    /// Error: one of this many writes to the disk is lost; zero: none.
    pub(crate) loses_one_in: u64,
}

/// One thread of a run.
pub(crate) struct Life<'a> {
    pub(crate) me: usize,
    pub(crate) handle: &'a Handle<'a, Breakable>,
    pub(crate) file: FileId,
    pub(crate) book: &'a Book,
    pub(crate) dice: Dice,
    pub(crate) odd: Odd,
}

/// The two equal words, as a reader found them.
type Pair = (u64, u64);

impl Life<'_> {
    fn begins(&self, call: &'static str, page: u64) {
        self.book.calls.borrow_mut()[self.me] = (call, page);
    }

    fn flaw(&self, what: impl std::fmt::Display) {
        let (call, page) = self.book.calls.borrow()[self.me];
        self.book.flaw(format!("thread {} in {call} {page}: {what}", self.me));
    }

    /// Returns the result of a call, or records a flaw if it failed.
    pub(crate) fn done<T>(&self, end: Result<T, Error>) -> Option<T> {
        self.in_time();
        end.map_err(|error| self.flaw(error)).ok()
    }

    fn in_time(&self) {
        if u128::from(Breakable::now(Clock::Monotonic)) >= PATIENCE.as_nanos() {
            self.flaw("a thread slept through a wake-up");
        }
    }

    fn least(&self, page: u64) -> u64 {
        self.book.ended[page as usize].get()
    }

    /// Checks that a reader found a complete value of this page.
    fn is_whole(&self, page: u64, (first, last): Pair) -> bool {
        if first != last {
            self.flaw(format!("torn: {first:#x} and {last:#x}"));
        } else if first >> 32 != page {
            self.flaw(format!("another page's bytes: {first:#x}"));
        }
        first == last && first >> 32 == page
    }

    /// Checks that the page may have had this value since `least` had ended.
    fn judge(&self, page: u64, pair: Pair, least: u64) {
        let (value, most) = (pair.0 & 0xffff_ffff, self.book.begun[page as usize].get());
        if self.is_whole(page, pair) && !(least..=most).contains(&value) {
            let age = if value < least { "older" } else { "never stored" };
            self.flaw(format!("{age}: {value} is not in {least} to {most}"));
        }
    }

    /// Sometimes lets others run between the two words.
    fn linger(&self) {
        let turns = if self.odd.slow { 12 } else { self.dice.below(8) / 2 };
        (0..turns).for_each(|_| Simulated::relax());
    }

    fn pair(&self, view: &PageView<'_, Breakable>) -> Option<Pair> {
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

    /// Reads a page that may be free or belong to another thread: the result must be complete, or
    /// an error that says so.
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

    /// Changes a page held by this thread, once or twice.
    pub(crate) fn change(&self, mut held: PageMut<'_, '_, Breakable>) {
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

    /// Checks the value under exclusive access.
    fn judge_alone(&self, held: &PageMut<'_, '_, Breakable>) {
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

    /// Reads a page, and changes it if it is unchanged since.
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
                self.flaw("the page is not the page that was read");
            }
            self.change(held);
        }
    }

    /// Pins a page and reads others while it is pinned.
    pub(crate) fn pin(&self, page: u64, others: [u64; 3]) {
        self.begins("pin", page);
        let Some(pin) = self.done(self.handle.pin(self.file, page)) else { return };
        for other in others {
            self.read(other);
            self.begins("look at pinned", page);
            let there = self.handle.pool().frame(pin.frame()).map(|frame| frame.page);
            if there != Some((self.file.number(), page)) {
                self.flaw(format!("the pinned page was evicted: {there:?} is in its frame"));
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
        // Another thread has pinned a page in a frame that would be removed.
        if !matches!(end, Err(Error::Full { .. })) {
            self.done(end);
        }
    }

    /// A page of this thread.
    fn owned(&self) -> Option<u64> {
        let owners = self.book.owners.borrow();
        let mine = |page: &u64| owners[*page as usize] == Some(self.me);
        let mine: Vec<_> = (0..PAGES as u64).filter(mine).collect();
        (!mine.is_empty()).then(|| mine[self.dice.below(mine.len() as u64) as usize])
    }

    /// Creates a page for this thread.
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
            self.flaw("the page still has its old contents");
        }
        let before = self.book.owners.borrow_mut()[page as usize].replace(self.me);
        if page < PUBLIC || before.is_some() {
            self.flaw(format!("the page belongs to a thread: {before:?}"));
        }
        self.change(held);
    }

    /// Reads and frees a page of this thread, if it has one.
    pub(crate) fn free(&self) {
        let Some(page) = self.owned() else { return };
        self.read(page);
        self.write(page);
        self.read(page);
        self.free_at_once(page);
    }

    /// Frees a page of this thread and creates one, which may be a page that another thread freed.
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
