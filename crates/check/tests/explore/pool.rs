//! Threads that use a pool on the simulated machine, and what each of them expects.
//!
//! What was stored in each page is also written down outside of the simulation, where nothing is
//! ever late. A change counts as begun before its first word is stored, and as ended when the call
//! that ends it has returned. So a read returns a value that had begun, and none that is older than
//! the last one that had ended before the read.

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

/// A thread whose wake-up is lost looks by itself after 20 ms, which no run takes.
const PATIENCE: Duration = Duration::from_millis(19);

/// Pages that all threads read and change; those behind them have one owner each, or none.
pub(crate) const PUBLIC: u64 = 24;
/// More pages than a file ever has.
const PAGES: usize = 64;
pub(crate) const FRAMES: u32 = 16;
pub(crate) const FRAMES_MAX: u32 = 32;
pub(crate) const PAGE_BYTES: u32 = 512;
/// The two words of a page that have the same value, as far apart as can be.
pub(crate) const FIRST: usize = 2;
pub(crate) const LAST: usize = PAGE_BYTES as usize / 8 - 1;
pub(crate) const THREADS: usize = 4;

/// Has other threads run before, between and after the halves of what is read and written.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    calls: Plain,
    /// Of so many writes one is lost; none if it is zero.
    loses_one_in: u64,
}

impl Slow {
    pub(crate) fn new(loses_one_in: u64) -> Self {
        Self { loses_one_in, ..Self::default() }
    }

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
    pub(crate) begun: Vec<Cell<u64>>,
    ended: Vec<Cell<u64>>,
    /// The threads that have pages of their own.
    pub(crate) owners: RefCell<Vec<Option<usize>>>,
    pub(crate) flaw: RefCell<Option<String>>,
    /// What each thread began last: the name of a call, and a page.
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

    pub(crate) fn last_calls(&self) -> String {
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
pub(crate) struct Life<'a> {
    pub(crate) me: usize,
    pub(crate) handle: &'a Handle<'a, Breakable>,
    pub(crate) file: FileId,
    pub(crate) book: &'a Book,
    pub(crate) dice: Dice,
    pub(crate) odd: Odd,
}

/// The words that are equal, as a reader finds them.
type Pair = (u64, u64);

impl Life<'_> {
    fn begins(&self, call: &'static str, page: u64) {
        self.book.calls.borrow_mut()[self.me] = (call, page);
    }

    fn flaw(&self, what: impl std::fmt::Display) {
        let (call, page) = self.book.calls.borrow()[self.me];
        self.book.flaw(format!("thread {} in {call} {page}: {what}", self.me));
    }

    /// What a call returned; none, and a flaw, if it failed.
    pub(crate) fn done<T>(&self, end: Result<T, Error>) -> Option<T> {
        self.in_time();
        end.map_err(|error| self.flaw(error)).ok()
    }

    fn in_time(&self) {
        if u128::from(Breakable::now(Clock::Monotonic)) >= PATIENCE.as_nanos() {
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

    /// What a thread finds that keeps all others out.
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
