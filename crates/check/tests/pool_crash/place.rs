//! The pool and the log of a test, and the operations of a thread.
//!
//! Each change sets all words of a page to one value, after a record in the log, which has one word
//! per page in an area. A page is valid if all its words are the value in the log, or the value
//! before it if the process died before it marked the page.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};

use latchwork_check::between::Before;
use latchwork_check::random::Random;
use latchwork_disk::System;
use latchwork_machine::Shared;
use latchwork_pool::{Error, FileId, FileSpec, Handle, Lost, Options, Pool, Rebuild};
use latchwork_region::{AreaOptions, Options as RegionOptions, Region, Thread};

use super::ahead::{Log, RECORD, WORDS, Watch};

pub(super) const PAGES: u64 = 96;
pub(super) const FRAMES: u32 = 32;

/// The step at which this process is killed, and the number of earlier arrivals there.
pub(super) static TOLD: Mutex<Option<(String, u32)>> = Mutex::new(None);
static PASSED: AtomicU32 = AtomicU32::new(0);

/// Called at each step of this program's threads.
pub(super) fn at_step(step: &'static str) {
    super::meet::at_step(step);
    let told = TOLD.lock().unwrap();
    if let Some((name, nth)) = &*told
        && name == step
        && PASSED.fetch_add(1, Relaxed) + 1 == *nth
    {
        // SAFETY: signals this process.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
}

/// Rebuilds pages from the log, which has the value of each page's newest record.
struct Rebuilder {
    log: Log,
    /// The control: a rebuild that ignores the log.
    forgets: bool,
    authors: Authors,
}

/// The thread slots reported as the authors of the changes of rebuilt pages.
type Authors = Arc<Mutex<Vec<Option<u32>>>>;

impl Rebuild for Rebuilder {
    fn rebuild(&self, lost: &Lost, base: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String> {
        self.authors.lock().unwrap().push(lost.dead_slot);
        if lost.file != 0 {
            // A page of the spare file: it is not logged, and its contents are not needed.
            return Ok(0);
        }
        let base = base.map(|base| base[2]);
        let logged = self.log.area.word(lost.page).unwrap().load(Relaxed);
        let value = if self.forgets { base.unwrap_or(0) } else { logged };
        if let Some(base) = base {
            assert!(base <= logged, "{lost:?}: the disk has {base}, the log {logged}");
        }
        into.fill(value);
        Ok(value * RECORD)
    }
}

pub(super) struct Place {
    pub(super) region: Region<Shared>,
    pub(super) pool: Pool<Shared>,
    pub(super) log: Log,
    pub(super) authors: Authors,
    folder: PathBuf,
}

impl Place {
    pub(super) fn open(folder: &Path, forgets: bool) -> Self {
        Self::over(folder, forgets, false)
    }

    /// With a log that reports records as durable when they are not: the control of the check at
    /// the disk.
    pub(super) fn with_a_log_that_lies(folder: &Path) -> Self {
        Self::over(folder, false, true)
    }

    fn over(folder: &Path, forgets: bool, lies: bool) -> Self {
        let sizes = RegionOptions { limit: 32 << 20, ..RegionOptions::default() };
        let region = Region::open_or_create(folder.join("region"), &sizes).unwrap();
        let words = AreaOptions { first: 8 * WORDS, limit: 8 * WORDS, huge: false };
        let log = Log { area: region.area("test-log", &words).unwrap(), lies };
        let authors = Authors::default();
        let rebuild = Rebuilder { log: log.clone(), forgets, authors: authors.clone() };
        let watch = Arc::new(Watch { log: log.clone(), file: "data" });
        let disk = Before::new(watch, System::new());
        let options = Options {
            frames: FRAMES,
            frames_max: FRAMES,
            frame_bytes: 512,
            rebuild: Some(Arc::new(rebuild)),
            write_ahead: Some(Arc::new(log.clone())),
            ..Options::default()
        };
        let pool = Pool::open(&region, Arc::new(disk), &options).unwrap();
        Self { region, pool, log, authors, folder: folder.to_owned() }
    }

    pub(super) fn work<'t>(&self, thread: &'t Thread<Shared>) -> Work<'t> {
        let handle = self.pool.handle(thread).unwrap();
        let spec = FileSpec { page_bytes: 512, ..FileSpec::new(self.folder.join("data")) };
        // Half of the campaigns have their pages in the hash table.
        let sparse = self.folder.to_string_lossy().contains("sparse");
        let file = handle.file(&FileSpec { sparse, ..spec.clone() }).unwrap();
        let spare = FileSpec { path: self.folder.join("spare"), temporary: true, ..spec };
        let spare = handle.file(&spare).unwrap();
        let (slot, file_path) = (thread.number(), self.folder.join("data"));
        Work { handle, file, spare, log: self.log.clone(), slot, file_path, peer: None }
    }

    /// Lets the region's layers repair the state of dead threads and frees their slots.
    pub(super) fn sweep(&self) -> usize {
        self.region.sweep().unwrap()
    }
}

pub(super) struct Work<'t> {
    pub(super) handle: Handle<'t, Shared>,
    pub(super) file: FileId,
    spare: FileId,
    pub(super) log: Log,
    /// Its thread slot, and the file of the pages.
    slot: u32,
    file_path: PathBuf,
    /// The number of the peer, if it is one. A peer counts its rounds.
    pub(super) peer: Option<u64>,
}

impl Work<'_> {
    pub(super) fn begin(&self) {
        for _ in 0..PAGES {
            let mut page = self.handle.new_page(self.file).unwrap();
            page.begin(0);
            page.commit();
        }
        self.handle.sync(u64::MAX, &mut |_| {}).unwrap();
    }

    /// The value of a page, which all of its words have.
    pub(super) fn value(&self, page: u64) -> u64 {
        let value = self.handle.read(self.file, page, |view| {
            let first = view.word(2)?;
            (3..view.len()).all(|index| view.word(index) == Some(first)).then_some(first)
        });
        value.unwrap_or_else(|error| panic!("page {page}: {error}"))
    }

    /// Pins a page for a moment, reads some ahead, or resizes the pool.
    fn keep(&self, page: u64, chance: u64) {
        match chance {
            0 => match self.handle.resize(FRAMES - (page % 8) as u32) {
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            1 => drop(self.handle.prefetch(self.file, page, 4).unwrap()),
            _ => {
                let pin = self.handle.pin(self.file, page).unwrap();
                pin.read(|view| view.word(2)).unwrap();
            }
        }
    }

    /// Creates a page and frees it. No other thread uses it in between.
    fn borrow(&self, seed: u64) {
        let mut held = self.handle.new_page(self.spare).unwrap();
        let page = held.page();
        held.begin(0);
        assert_eq!(held.word(2), Some(0), "a new page is not empty");
        assert!(held.set(2, seed));
        held.commit();
        let seen = self.handle.read(self.spare, page, |view| view.word(2));
        assert_eq!(seen, Ok(seed), "two threads use one page");
        self.handle.free_page(self.spare, page).unwrap();
    }

    /// Creates a temporary file used by one thread and removes it. If a killed thread left one, it
    /// is used.
    pub(super) fn scratch(&self, seed: u64) {
        let pool = self.handle.pool();
        let name = format!("temporary-{}", self.slot);
        let path = self.file_path.with_file_name(name);
        let spec = FileSpec { page_bytes: 512, temporary: true, ..FileSpec::new(path) };
        let spec = FileSpec { sparse: self.slot % 2 == 1, ..spec };
        let file = self.handle.file(&spec).unwrap();
        let pages: Vec<u64> = (0..5).map(|page| page * 7 + seed % 5).collect();
        for page in &pages {
            let mut held = self.handle.create(file, *page).unwrap();
            held.begin(0);
            assert!(held.set(2, seed + page));
            held.commit();
        }
        for page in &pages {
            let seen = self.handle.read(file, *page, |view| view.word(2));
            assert_eq!(seen, Ok(seed + page));
        }
        self.handle.remove_file(file).unwrap();
        let gone = Err(Error::NoFile(file.number()));
        assert_eq!(self.handle.read(file, pages[0], |view| view.word(2)), gone);
        assert_eq!(pool.file_id(file.number()).map(drop), gone.map(drop));
    }

    /// Temporary files on disk that the pool does not know: their removal was begun and not
    /// finished.
    pub(super) fn forgotten(&self) -> Vec<PathBuf> {
        let known: Vec<PathBuf> =
            self.handle.pool().files().unwrap().into_iter().map(|(_, path)| path).collect();
        let folder = std::fs::read_dir(self.file_path.parent().unwrap()).unwrap();
        let temporary = |path: &PathBuf| path.to_string_lossy().contains("temporary-");
        let files = folder.map(|file| file.unwrap().path()).filter(temporary);
        files.filter(|path| !known.contains(path)).collect()
    }

    pub(super) fn change(&self, page: u64) {
        let mut held = self.handle.write(self.file, page).unwrap();
        let next = self.log.append();
        held.intend();
        // The record: Release, in case the process dies after it.
        let older = self.log.area.word(page).unwrap().swap(next, Release);
        assert!(older < next, "two threads change page {page}: {older} and {next}");
        held.begin(next * RECORD);
        for index in 2..held.len() {
            assert!(held.set(index, next));
            if index == held.len() / 2 {
                at_step("change.half");
            }
        }
        held.commit();
    }

    pub(super) fn rounds(&self, rounds: u64, seed: u64) {
        let mut random = Random(seed * 77 + 1);
        for _ in 0..rounds {
            if let Some(peer) = self.peer {
                self.log.beat(peer);
            }
            // Half of the changes are on four pages, so that other threads wait for a killed one.
            let page = if random.below(2) == 0 { random.below(4) } else { random.below(PAGES) };
            if random.below(256) == 0 {
                self.scratch(seed);
            }
            match random.below(8) {
                0..=2 => self.change(page),
                3 => drop(self.handle.clean(2).unwrap()),
                4 => self.borrow(seed),
                5 => self.keep(page, random.below(8)),
                _ => drop(self.value(page)),
            }
        }
    }

    /// Checks that every page is valid and agrees with the log.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_after(100)
    }

    /// The same after at most `deaths` deaths. Each death may lose one spare page.
    pub(super) fn check_after(&self, deaths: u64) -> Result<(), String> {
        for page in 0..PAGES {
            let (seen, logged) =
                (self.value(page), self.log.area.word(page).unwrap().load(Relaxed));
            if seen != logged {
                return Err(format!("page {page} is {seen}, the log has {logged}"));
            }
        }
        let (broken, checked) = self.log.breaches();
        if broken > 0 {
            return Err(format!("{broken} of {checked} pages were written before their records"));
        }
        let pool = self.handle.pool();
        let (free, all) = (pool.free_pages(self.spare).unwrap(), pool.pages(self.spare).unwrap());
        if free + deaths < all { Err(format!("{free} of {all} pages are free")) } else { Ok(()) }
    }
}
