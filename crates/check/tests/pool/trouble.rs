//! The pool compared with maps, in several threads, on a disk that is slow and often fails.
//!
//! Each thread has pages of its own and a map of their contents. Some pages are shared; threads
//! count in them. Everything that a call confirmed with `Ok` is present: while the disk fails,
//! after it has recovered, and for another pool that has only the file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use latchwork_check::between::{Before, Between};
use latchwork_check::random::Random;
use latchwork_disk::{Disk, Error as DiskError, File, Operation, Simulated, Subject};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileId, FileSpec, Handle, Options, PageMut, Pool};
use latchwork_region::{Options as RegionOptions, Region};

const PATH: &str = "/data/pages";
const PAGE: usize = 512;
const THREADS: u64 = 4;
/// Pages in which all threads count.
const SHARED: u64 = 5;
/// The most pages of one thread.
const OWN: usize = 12;
const ROUNDS: u64 = 1_500;

/// The faults of the disk, by the number of the call, so that threads and seeds differ.
#[derive(Debug)]
struct Trouble {
    on: AtomicBool,
    calls: AtomicU64,
    seed: u64,
    /// Whether a failing write returns `Ok`: the control.
    lies: bool,
}

impl Trouble {
    /// The number of this call, after some time for other threads. `None` while the disk works.
    fn next(&self) -> Option<u64> {
        if !self.on.load(Relaxed) {
            return None;
        }
        let call = self.calls.fetch_add(1, Relaxed);
        let random =
            Random(call.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed | 1).below(1 << 30);
        (0..random % 16).for_each(|_| std::thread::yield_now());
        Some(random / 16)
    }
}

fn subject(operation: Operation, at: u64) -> Subject {
    Subject { operation, path: PATH.into(), at }
}

impl Between for Trouble {
    fn read(&self, file: &dyn File, _: &Path, at: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let half = into.len() / 2;
        match self.next().map(|random| random % 16) {
            Some(0) => Err(DiskError::Device(subject(Operation::Read, at))),
            Some(1) => {
                file.read(at, &mut into[..half])?;
                let (wanted, got) = (into.len() as u64, half as u64);
                Err(DiskError::ShortRead { subject: subject(Operation::Read, at), wanted, got })
            }
            _ => file.read(at, into),
        }
    }

    fn write(&self, file: &dyn File, _: &Path, at: u64, from: &[u8]) -> Result<(), DiskError> {
        let (first, second) = from.split_at(from.len() / 2);
        let random = self.next().map_or(15, |random| random % 16);
        if random < 3 && self.lies {
            return Ok(());
        }
        let subject = subject(Operation::Write, at);
        match random {
            0 => return Err(DiskError::Device(subject)),
            1 => return Err(DiskError::NoSpace(subject)),
            _ => {}
        }
        file.write(at, first)?;
        (0..random * 2).for_each(|_| std::thread::yield_now());
        // The device fails in the middle: half of the page is new.
        if random == 2 {
            Err(DiskError::Device(subject))
        } else {
            file.write(at + first.len() as u64, second)
        }
    }
}

/// The result of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// Violations; the first few in words.
    strange: Vec<String>,
    /// Calls that failed because of the disk, which is allowed.
    reads_failed: u64,
    writes_failed: u64,
    /// Calls that found no frame.
    full: u64,
    /// The counts of each shared page.
    counted: [u64; SHARED as usize],
    /// The contents of a thread's own pages.
    map: HashMap<u64, u64>,
    evicted: u64,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.strange.extend(other.strange);
        self.reads_failed += other.reads_failed;
        self.writes_failed += other.writes_failed;
        self.full += other.full;
        self.evicted += other.evicted;
        self.map.extend(other.map);
        self.counted.iter_mut().zip(other.counted).for_each(|(all, one)| *all += one);
    }

    fn strange(&mut self, what: String) {
        if self.strange.len() < 5 {
            self.strange.push(what);
        }
    }
}

/// A thread of a run.
struct Life<'a> {
    handle: &'a Handle<'a>,
    file: FileId,
    sparse: bool,
    random: Random,
    outcome: Outcome,
}

fn value(handle: &Handle<'_>, file: FileId, page: u64) -> Result<u64, Error> {
    handle.read(file, page, |view| {
        let first = view.word(2)?;
        (3..view.len()).all(|index| view.word(index) == Some(first)).then_some(first)
    })
}

/// Stores a value in every word of a page.
fn fill(mut held: PageMut<'_, '_, Native>, value: u64) {
    held.begin(0);
    assert!((2..held.len()).all(|index| held.set(index, value)));
    held.commit();
}

impl Life<'_> {
    /// The result of a call about `page`, or about none. An error must come from the disk: from
    /// reading this page and no other, or from writing a page whose frame was needed.
    fn known<T>(&mut self, page: Option<u64>, what: &str, end: Result<T, Error>) -> Option<T> {
        let error = match end {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        match &error {
            Error::Disk(
                DiskError::Device(subject)
                | DiskError::NoSpace(subject)
                | DiskError::ShortRead { subject, .. },
            ) if subject.operation == Operation::Read => {
                self.outcome.reads_failed += 1;
                if page.map(|page| page * PAGE as u64) != Some(subject.at) {
                    self.outcome.strange(format!("{what} {page:?}: about another page: {error}"));
                }
            }
            Error::Disk(DiskError::Device(_) | DiskError::NoSpace(_)) => {
                self.outcome.writes_failed += 1;
            }
            Error::Full { .. } => self.outcome.full += 1,
            _ => self.outcome.strange(format!("{what} {page:?}: {error}")),
        }
        None
    }

    /// A page of this thread.
    fn own(&mut self) -> Option<u64> {
        let mut pages: Vec<_> = self.outcome.map.keys().copied().collect();
        pages.sort_unstable();
        (!pages.is_empty()).then(|| pages[self.random.roll(pages.len())])
    }

    fn read(&mut self, page: u64) {
        let known = self.outcome.map.get(&page).copied();
        let end = value(self.handle, self.file, page);
        let Some(found) = self.known(Some(page), "read", end) else { return };
        if known.is_some_and(|known| known != found) || found >> 32 != page {
            self.outcome.strange(format!("page {page} is {found:#x}, and was {known:x?}"));
        }
    }

    fn write(&mut self, page: u64, round: u64) {
        let end = self.handle.write(self.file, page);
        let Some(held) = self.known(Some(page), "write", end) else { return };
        let (seen, known) = (held.word(2), self.outcome.map.get(&page).copied());
        if seen != known {
            self.outcome.strange(format!("page {page} is {seen:x?}, and was {known:x?}"));
        }
        if self.random.below(8) == 0 {
            // Held and unchanged.
            return;
        }
        fill(held, page << 32 | round);
        self.outcome.map.insert(page, page << 32 | round);
    }

    /// Counts one in a shared page, by a write or by an upgrade of a read.
    fn count(&mut self, page: u64) {
        let held = if self.random.below(2) == 0 {
            let end = self.handle.write(self.file, page);
            self.known(Some(page), "count", end)
        } else {
            let end = self.handle.optimistic(self.file, page);
            let Some(snapshot) = self.known(Some(page), "count", end) else { return };
            let seen = snapshot.word(2);
            let end = self.handle.upgrade(&snapshot);
            let held = self.known(Some(page), "upgrade", end).flatten();
            if held.as_ref().is_some_and(|held| held.word(2) != seen) {
                self.outcome.strange(format!("page {page} is not what was read"));
            }
            held
        };
        let Some(held) = held else { return };
        let next = held.word(2).unwrap_or(0) + 1;
        fill(held, next);
        self.outcome.counted[page as usize] += 1;
    }

    fn make(&mut self, round: u64) {
        let end = self.handle.new_page(self.file);
        let Some(held) = self.known(None, "make", end) else { return };
        let page = held.page();
        fill(held, page << 32 | round);
        if page < SHARED || self.outcome.map.insert(page, page << 32 | round).is_some() {
            self.outcome.strange(format!("page {page} was made, and was had"));
        }
    }

    fn free(&mut self, page: u64) {
        // A sparse file has no list of free pages.
        let end = match self.sparse {
            true => self.handle.discard(self.file, page),
            false => self.handle.free_page(self.file, page),
        };
        if self.known(None, "free", end).is_some() {
            self.outcome.map.remove(&page);
        }
    }

    /// A random operation.
    fn step(&mut self, round: u64) {
        let own = self.own();
        let (shared, frames) = (self.random.below(SHARED), 16 + self.random.below(17) as u32);
        match (self.random.below(24), own) {
            (0..=5, Some(page)) => self.read(page),
            (6..=10, Some(page)) => self.write(page, round),
            (11 | 12, _) => self.count(shared),
            (13, _) => self.read(shared),
            (14, Some(page)) => {
                let end = self.handle.pin(self.file, page);
                let Some(pin) = self.known(Some(page), "pin", end) else { return };
                self.read(page);
                drop(pin);
            }
            (15, Some(page)) => self.free(page),
            (16, Some(page)) => {
                let end = self.handle.prefetch(self.file, page, 6);
                self.known(None, "prefetch", end);
            }
            (17, _) => {
                let end = self.handle.clean(3);
                self.known(None, "clean", end);
            }
            (18, _) if round.is_multiple_of(8) => {
                let end = self.handle.sync(u64::MAX, &mut |_| {});
                self.known(None, "sync", end);
            }
            (19, _) if round.is_multiple_of(8) => {
                let end = self.handle.resize(frames);
                self.known(None, "resize", end);
            }
            _ if self.outcome.map.len() < OWN => self.make(round),
            _ => {}
        }
    }
}

/// Runs `work` with a pool on the disk and a handle.
fn with_pool(
    disk: Arc<dyn Disk>,
    sparse: bool,
    work: impl FnOnce(&Region<Native>, &Handle<'_>, FileId),
) {
    let sizes =
        RegionOptions { threads: 16, waiters: 16, processes: 4, limit: 4 << 20, mode: 0o600 };
    let region = Region::private(&sizes).unwrap();
    let options =
        Options { frames: 16, frames_max: 32, frame_bytes: PAGE as u32, ..Options::default() };
    let pool = Pool::open(&region, disk, &options).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: PAGE as u32, sparse, ..FileSpec::new(PATH) };
    let file = handle.file(&spec).unwrap();
    work(&region, &handle, file);
}

/// The work of one thread and its result.
fn live(region: &Region<Native>, pool: &Pool, file: FileId, sparse: bool, seed: u64) -> Outcome {
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut life = Life { handle: &handle, file, sparse, random, outcome: Outcome::default() };
    (1..=ROUNDS).for_each(|round| life.step(round));
    life.outcome.evicted = handle.counted().evicted;
    life.outcome
}

/// Compares the contents of a pool with the values stored by the threads.
fn compare(handle: &Handle<'_>, file: FileId, all: &mut Outcome) {
    let counted = (0..).zip(all.counted).map(|(page, count)| (page, page << 32 | count));
    for (page, known) in all.map.clone().into_iter().chain(counted) {
        let found = value(handle, file, page);
        if found != Ok(known) {
            all.strange(format!("page {page} is {found:x?} at last, and was {known:#x}"));
        }
    }
}

/// Runs threads on a failing disk and compares everything after it has recovered.
fn run(seed: u64, lies: bool) -> Outcome {
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    let trouble = Trouble { on: AtomicBool::new(false), calls: AtomicU64::new(0), seed, lies };
    let trouble = Arc::new(trouble);
    let before: Arc<dyn Disk> = Arc::new(Before::new(trouble.clone(), disk.clone()));
    let (mut all, sparse) = (Outcome::default(), seed.is_multiple_of(2));
    with_pool(before, sparse, |region, handle, file| {
        (0..SHARED).for_each(|page| fill(handle.new_page(file).unwrap(), page << 32));
        trouble.on.store(true, Relaxed);
        let pool = handle.pool();
        let lives: Vec<_> = std::thread::scope(|scope| {
            let life =
                |me| scope.spawn(move || live(region, pool, file, sparse, seed * THREADS + me));
            let threads: Vec<_> = (0..THREADS).map(life).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        lives.into_iter().for_each(|one| all.add(one));
        trouble.on.store(false, Relaxed);
        compare(handle, file, &mut all);
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        let found = pool.verify().unwrap();
        if !found.flaws.is_empty() || found.latched != 0 || found.poisoned != 0 {
            all.strange(format!("{found:?}"));
        }
        let free = if sparse { 0 } else { pool.free_pages(file).unwrap() };
        let pages = pool.pages(file).unwrap();
        // A page whose creation failed belongs to no thread.
        if all.map.len() as u64 + SHARED + free > pages {
            all.strange(format!("{free} of {pages} pages are free, more than have no owner"));
        }
    });
    // The contents of the disk are the same.
    with_pool(Arc::new(disk), sparse, |_, handle, file| compare(handle, file, &mut all));
    all
}

fn many(seeds: core::ops::Range<u64>) {
    for seed in seeds {
        let done = run(seed, false);
        assert!(done.strange.is_empty(), "seed {seed}: {:#?}", done.strange);
        let Outcome { reads_failed, writes_failed, evicted, full, .. } = done;
        println!(
            "{reads_failed} reads failed, {writes_failed} writes; {evicted} evicted; {full} full"
        );
        assert!(
            reads_failed > 50 && writes_failed > 50 && evicted > 500,
            "seed {seed}: it came to nothing"
        );
    }
}

#[test]
fn confirmed_changes_survive_disk_errors() {
    many(1..20);
}

#[test]
#[ignore = "long"]
fn confirmed_changes_survive_disk_errors_long() {
    many(1..500);
}

#[test]
fn lost_writes_are_detected() {
    assert!(!run(1, true).strange.is_empty(), "the comparison with the maps cannot fail");
}
