//! Properties of the pool on real threads: pages are read as written, errors concern one page, and
//! known bugs of other optimistic pools do not occur.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use latchwork_check::random::Random;
use latchwork_disk::System;
use latchwork_machine::Native;
use latchwork_pool::{
    Cause, Error, FileId, FileSpec, Handle, Lost, Options, Pool, Rebuild, WriteAhead,
};
use latchwork_region::{Options as RegionOptions, Region};

/// A file of pages, removed with the test.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pool-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        Self(path)
    }

    pub(super) fn spec(&self) -> FileSpec {
        FileSpec { page_bytes: 1024, ..FileSpec::new(&self.0) }
    }

    /// Changes bytes of the file without the pool.
    pub(super) fn patch(&self, at: u64, bytes: &[u8]) {
        let file = fs::OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(super) fn options(frames: u32) -> Options {
    Options { frames, frames_max: 4096, frame_bytes: 1024, ..Options::default() }
}

pub(super) fn region() -> Region<Native> {
    Region::private(&RegionOptions { limit: 64 << 20, ..RegionOptions::default() }).unwrap()
}

pub(super) fn pool(region: &Region<Native>, options: &Options) -> Pool {
    Pool::open(region, Arc::new(System::new()), options).unwrap()
}

/// Fills a page with one value, so that a torn page is detected.
pub(super) fn fill(handle: &Handle<'_>, file: FileId, page: u64, value: u64) {
    let mut held = handle.write(file, page).unwrap();
    held.begin(0);
    for index in 2..held.len() {
        assert!(held.set(index, value));
    }
    held.commit();
}

pub(super) fn make(handle: &Handle<'_>, file: FileId, pages: u64) {
    for page in 0..pages {
        let mut held = handle.new_page(file).unwrap();
        assert_eq!(held.page(), page);
        held.begin(0);
        for index in 2..held.len() {
            assert!(held.set(index, page));
        }
        held.commit();
    }
}

/// The value of a page, which all words must have.
pub(super) fn value(handle: &Handle<'_>, file: FileId, page: u64) -> Result<u64, Error> {
    handle.read(file, page, |view| {
        let first = view.word(2)?;
        (3..view.len()).all(|index| view.word(index) == Some(first)).then_some(first)
    })
}

#[test]
fn pages_are_read_back_from_a_pool_smaller_than_the_file() {
    let scratch = Scratch::new("small");
    {
        let region = region();
        let pool = pool(&region, &options(32));
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&scratch.spec()).unwrap();
        make(&handle, file, 500);
        for page in (0..500).rev() {
            assert_eq!(value(&handle, file, page), Ok(page));
        }
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        assert!(handle.dirty().unwrap().is_empty());
        handle.store_counts();
        let stats = pool.stats().unwrap();
        assert!(stats.evicted >= 900 && stats.written >= 500 && stats.faults >= 468, "{stats:?}");
    }
    let region = region();
    let pool = pool(&region, &options(32));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    assert_eq!(pool.pages(file), Ok(500));
    for page in 0..500 {
        assert_eq!(value(&handle, file, page), Ok(page), "after opening again");
    }
    let beyond = Error::OutOfRange { file: 0, page: 500, pages: 500 };
    assert_eq!(value(&handle, file, 500), Err(beyond));
}

#[test]
fn threads_see_whole_pages_that_only_grow() {
    let scratch = Scratch::new("threads");
    let region = region();
    let pool = pool(&region, &options(48));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 200);
    let floor: Vec<_> = (0..200).map(AtomicU64::new).collect();
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (pool, region, floor) = (&pool, &region, &floor);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let mut random = Random(seed);
                for round in 0..6_000 {
                    // Half of the operations use a few pages, so that writers meet.
                    let among = if round % 2 == 0 { 8 } else { 200 };
                    let page = random.below(among);
                    let least = floor[page as usize].load(SeqCst);
                    if random.below(4) == 0 {
                        let mut held = handle.write(file, page).unwrap();
                        let seen = held.word(2).unwrap();
                        assert!(seen >= least, "an older page took the place of a newer one");
                        held.begin(0);
                        for index in 2..held.len() {
                            assert!(held.set(index, seen + 1));
                        }
                        held.commit();
                        floor[page as usize].fetch_max(seen + 1, SeqCst);
                    } else {
                        let seen = value(&handle, file, page).unwrap();
                        assert!(seen >= least, "an older page took the place of a newer one");
                    }
                }
            });
        }
    });
    let stats = pool.stats().unwrap();
    assert!(stats.faults > 1_000 && stats.evicted > 1_000, "{stats:?}");
    for page in 0..200 {
        assert_eq!(value(&handle, file, page), Ok(floor[page as usize].load(SeqCst)));
    }
}

#[test]
fn a_snapshot_is_worth_what_validates() {
    let scratch = Scratch::new("snapshot");
    let region = region();
    let pool = pool(&region, &options(32));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 100);
    let snapshot = handle.optimistic(file, 3).unwrap();
    assert_eq!((snapshot.word(2), snapshot.word(1 << 40)), (Some(3), None));
    // A holder without a change has no effect.
    drop(handle.write(file, 3).unwrap());
    assert!(snapshot.validate());
    let held = handle.upgrade(&snapshot).unwrap().expect("nothing changed");
    assert_eq!(held.word(2), Some(3));
    drop(held);
    assert!(snapshot.validate());
    fill(&handle, file, 3, 77);
    assert!(!snapshot.validate());
    assert!(handle.upgrade(&snapshot).unwrap().is_none());
    // Evicted: the frame has another page, and the memory is still mapped.
    let snapshot = handle.optimistic(file, 3).unwrap();
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert!(snapshot.validate(), "a page that is written out is the same page");
    let evicted = (0..100).any(|_| {
        (4..100).for_each(|page| drop(value(&handle, file, page)));
        !snapshot.validate()
    });
    assert!(evicted);
    assert_ne!(snapshot.word(2), None);
    assert_eq!(value(&handle, file, 3), Ok(77));
}

#[test]
fn a_damaged_page_is_an_error_about_that_page() {
    let scratch = Scratch::new("damaged");
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 60);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let image = fs::read(&scratch.0).unwrap();
    let evict_all = || (20..60).for_each(|page| drop(value(&handle, file, page)));
    evict_all();
    scratch.patch(5 * 1024 + 700, &[1]);
    assert_eq!(value(&handle, file, 5), Err(Error::Checksum { file: 0, page: 5 }));
    scratch.patch(6 * 1024, &image[9 * 1024..10 * 1024]);
    let misdirected = Error::Misdirected { file: 0, page: 6, found: 9 };
    assert_eq!(value(&handle, file, 6), Err(misdirected));
    scratch.patch(7 * 1024, &[0; 1024]);
    assert_eq!(value(&handle, file, 7), Err(Error::Checksum { file: 0, page: 7 }));
    // A torn write: half old, half new.
    let mut torn = image[8 * 1024..9 * 1024].to_vec();
    torn[512..].fill(9);
    scratch.patch(8 * 1024, &torn);
    assert_eq!(value(&handle, file, 8), Err(Error::Checksum { file: 0, page: 8 }));
    for page in (0..60).filter(|page| !(5..=8).contains(page)) {
        assert_eq!(value(&handle, file, page), Ok(page), "the others work");
    }
    // Valid again: the failures left no frame half claimed.
    scratch.patch(5 * 1024, &image[5 * 1024..9 * 1024]);
    for page in 0..60 {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    assert!(pool.list().unwrap().all(|frame| frame.holder.is_none()));
    // A file that shrank in the meantime.
    evict_all();
    fs::OpenOptions::new().write(true).open(&scratch.0).unwrap().set_len(4 * 1024).unwrap();
    assert_eq!(value(&handle, file, 4), Err(Error::Shrank { file: 0, page: 4, pages: 60 }));
    assert_eq!(value(&handle, file, 3), Ok(3));
    assert_eq!(handle.counted().failed, 5);
    handle.store_counts();
    assert_eq!((handle.counted().failed, pool.stats().unwrap().failed), (5, 5));
}

#[test]
fn a_full_pool_names_the_holders() {
    let scratch = Scratch::new("full");
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 40);
    let mut held: Vec<_> = (0..16).map(|page| handle.write(file, page).unwrap()).collect();
    let slot = thread.number();
    match handle.optimistic(file, 30) {
        Err(Error::Full { frames: 16, holders, .. }) => assert_eq!(holders, [slot]),
        other => panic!("{other:?}"),
    }
    held.pop();
    assert_eq!(value(&handle, file, 30), Ok(30));
}

/// A page number that is not of the file, whatever its bits: two files, and a thread that has just
/// read pages of both.
#[test]
fn a_page_beyond_all_is_out_of_range() {
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let scratch: Vec<_> = (0..9).map(|file| Scratch::new(&format!("beyond-{file}"))).collect();
    let files: Vec<_> =
        scratch.iter().map(|scratch| handle.file(&scratch.spec()).unwrap()).collect();
    for file in [files[0], files[8]] {
        make(&handle, file, 6);
        assert_eq!(value(&handle, file, 5), Ok(5));
    }
    for page in [1 << 48 | 5, 8 << 48 | 5, 1 << 63 | 5, 1 << 28, u64::MAX] {
        let beyond = Error::OutOfRange { file: 0, page, pages: 6 };
        assert_eq!(value(&handle, files[0], page), Err(beyond.clone()), "{page:#x}");
        assert!(handle.try_optimistic(files[0], page).is_none());
        assert_eq!(handle.write(files[0], page).map(drop), Err(beyond.clone()));
        assert_eq!(handle.pin(files[0], page).map(drop), Err(beyond));
    }
}

#[test]
fn mismatched_sizes_are_refused() {
    let scratch = Scratch::new("refused");
    let region = region();
    let first = pool(&region, &options(32));
    let again =
        Pool::open(&region, Arc::new(System::new()), &Options { frame_bytes: 2048, ..options(32) });
    let different = Error::Different { frame_bytes: 1024, frames: 4096 };
    assert_eq!(again.unwrap_err(), different);
    for odd in [
        Options { frame_bytes: 1000, ..options(32) },
        Options { frame_bytes: 256, ..options(32) },
        Options { frames: 1, ..options(32) },
        Options { frames: 5000, ..options(32) },
    ] {
        let refused = Pool::open(&region, Arc::new(System::new()), &odd);
        assert!(matches!(refused, Err(Error::Options(_))), "{odd:?}");
    }
    let thread = region.thread().unwrap();
    let handle = first.handle(&thread).unwrap();
    let spec = scratch.spec();
    let file = handle.file(&spec).unwrap();
    assert_eq!(handle.file(&spec), Ok(file), "one number for one path");
    let asked = handle.file(&FileSpec { page_bytes: 512, ..spec.clone() });
    assert_eq!(asked, Err(Error::PageSize { found: 1024, asked: 512 }));
    assert_eq!(handle.file(&FileSpec::new("relative")), Err(Error::Path));
    let large = handle.file(&FileSpec { page_bytes: 4096, ..spec.clone() });
    assert_eq!(large, Err(Error::Options("bytes of a page")));
    let none = FileSpec { path: scratch.0.with_extension("none"), create: false, ..spec };
    assert!(matches!(handle.file(&none), Err(Error::Disk(_))));
    assert!(matches!(handle.create(file, 1 << 40), Err(Error::OutOfRange { .. })));
    assert_eq!(first.file_id(1), Err(Error::NoFile(1)));
}

#[test]
fn a_file_of_pages_of_another_size_is_refused_by_a_pool_that_never_saw_it() {
    let scratch = Scratch::new("size");
    let sizes = [512, 1024];
    for written in sizes {
        let path = scratch.0.with_extension(written.to_string());
        let spec = |page_bytes| FileSpec { page_bytes, ..FileSpec::new(&path) };
        let region_of_writer = region();
        let writer = pool(&region_of_writer, &options(32));
        let thread = region_of_writer.thread().unwrap();
        let handle = writer.handle(&thread).unwrap();
        let file = handle.file(&spec(written)).unwrap();
        for page in 0..4 {
            let mut held = handle.create(file, page).unwrap();
            held.begin(0);
            assert!(held.set(2, page));
            held.commit();
        }
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        for asked in sizes {
            let region = region();
            let reader = pool(&region, &options(32));
            let thread = region.thread().unwrap();
            let handle = reader.handle(&thread).unwrap();
            match handle.file(&spec(asked)) {
                Ok(file) if asked == written => {
                    assert_eq!(handle.read(file, 3, |view| view.word(2)), Ok(3));
                }
                Err(error) => assert_eq!(error, Error::PageSize { found: written, asked }),
                Ok(_) => panic!("pages of {written} bytes were had as pages of {asked}"),
            }
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// Rebuilds the page from the disk's image and from the test's log.
struct FromLog(AtomicBool);

impl Rebuild for FromLog {
    fn rebuild(&self, lost: &Lost, base: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String> {
        if !self.0.load(Relaxed) {
            return Err("not now".to_owned());
        }
        assert_eq!((lost.lsn_before, lost.lsn), (0, 32));
        assert_eq!(base.expect("it was written").get(2), Some(&3));
        into.fill(33);
        Ok(32)
    }
}

/// A page that a dead thread left half changed and that cannot be rebuilt is discarded.
#[test]
fn a_page_that_cannot_be_rebuilt_is_discarded() {
    struct Cannot;
    impl Rebuild for Cannot {
        fn rebuild(&self, _: &Lost, _: Option<&[u64]>, _: &mut [u64]) -> Result<u64, String> {
            Err("no log".to_owned())
        }
    }
    let scratch = Scratch::new("thrown");
    let region = region();
    let pool = pool(&region, &Options { rebuild: Some(Arc::new(Cannot)), ..options(16) });
    let (thread, dies) = (region.thread().unwrap(), region.thread().unwrap());
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 3);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    {
        let handle = pool.handle(&dies).unwrap();
        let mut held = handle.write(file, 1).unwrap();
        held.begin(0);
        std::mem::forget(held);
    }
    drop(dies);
    handle.discard(file, 1).unwrap();
    assert_eq!(value(&handle, file, 1), Ok(1), "as it was on the disk");
    assert!(pool.list().unwrap().all(|frame| frame.holder.is_none()));
}

#[test]
fn a_panic_in_a_change_poisons_that_page_until_it_is_rebuilt() {
    let scratch = Scratch::new("poison");
    let region = region();
    let log = Arc::new(FromLog(AtomicBool::new(false)));
    let bare = pool(&region, &options(32));
    let rebuilds = pool(&region, &Options { rebuild: Some(log.clone()), ..options(32) });
    let (one, two) = (region.thread().unwrap(), region.thread().unwrap());
    let (handle, able) = (bare.handle(&one).unwrap(), rebuilds.handle(&two).unwrap());
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 10);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let before = handle.optimistic(file, 3).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut held = handle.write(file, 3).unwrap();
        held.begin(32);
        assert!(held.set(5, 1));
        panic!("in the middle");
    }));
    assert!(panicked.is_err() && !before.validate());
    let poisoned = Error::Poisoned { file: 0, page: 3 };
    assert_eq!(value(&handle, file, 3), Err(poisoned.clone()));
    assert_eq!(handle.write(file, 3).map(drop), Err(poisoned));
    assert_eq!(value(&handle, file, 4), Ok(4), "the others work");
    let why = "not now".to_owned();
    let cannot = Err(Error::Rebuild { file: 0, page: 3, why });
    assert_eq!(value(&able, file, 3), cannot);
    // It does not count as written before it is rebuilt.
    assert_eq!(able.sync(u64::MAX, &mut |_| {}).map(|()| 0), cannot);
    log.0.store(true, Relaxed);
    assert_eq!(value(&able, file, 3), Ok(33));
    assert_eq!(value(&handle, file, 3), Ok(33), "rebuilt for all");
    assert_eq!(handle.write(file, 3).unwrap().lsn(), 32);
    // Poisoned again, and discarded.
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut held = handle.write(file, 4).unwrap();
        held.begin(0);
        panic!("again");
    }));
    assert!(held.is_err());
    handle.discard(file, 4).unwrap();
    let mut made = handle.create(file, 4).unwrap();
    made.begin(0);
    made.commit();
    assert_eq!(value(&handle, file, 4), Ok(0));
}

/// A log that knows its durable position and the largest position requested.
struct Log {
    durable: AtomicU64,
    fails: AtomicBool,
    asked: Mutex<Vec<u64>>,
}

impl WriteAhead for Log {
    fn flush(&self, lsn: u64) -> Result<(), Cause> {
        if self.fails.load(Relaxed) {
            return Err(Cause::new("the log's disk is full"));
        }
        self.durable.fetch_max(lsn, SeqCst);
        self.asked.lock().unwrap().push(lsn);
        Ok(())
    }
}

#[test]
fn no_page_goes_out_before_its_log() {
    let scratch = Scratch::new("ahead");
    let region = region();
    let log = Arc::new(Log {
        durable: AtomicU64::new(0),
        fails: AtomicBool::new(false),
        asked: Mutex::default(),
    });
    let logged = pool(&region, &Options { write_ahead: Some(log.clone()), ..options(16) });
    let thread = region.thread().unwrap();
    let handle = logged.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 50);
    let mut random = Random(7);
    for lsn in (16..16 * 400).step_by(16) {
        let page = random.below(50);
        let mut held = handle.write(file, page).unwrap();
        held.begin(lsn);
        assert!(held.set(2, lsn));
        held.commit();
        // The check: no page on disk has an LSN beyond the durable position.
        if lsn % 160 == 0 {
            let image = fs::read(&scratch.0).unwrap();
            for page in image.chunks_exact(1024) {
                let on_disk = u64::from_le_bytes(page[8..16].try_into().unwrap());
                assert!(on_disk <= log.durable.load(SeqCst), "a page was written before its log");
            }
        }
    }
    assert!(log.asked.lock().unwrap().len() > 100, "the callback was used");
    // Dirty pages, by their first change that is not on disk.
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    for (page, lsn) in [(1, 7_000), (2, 7_016), (1, 7_032), (3, 7_048)] {
        let mut held = handle.write(file, page).unwrap();
        held.begin(lsn);
        held.commit();
    }
    let by_rec_lsn = || {
        let mut dirty = handle.dirty().unwrap();
        dirty.sort_by_key(|page| page.rec_lsn);
        dirty.iter().map(|dirty| (dirty.page, dirty.rec_lsn)).collect::<Vec<_>>()
    };
    assert_eq!(by_rec_lsn(), [(1, 7_000), (2, 7_016), (3, 7_048)]);
    handle.sync(7_016, &mut |_| {}).unwrap();
    assert_eq!(by_rec_lsn(), [(3, 7_048)]);
    log.fails.store(true, Relaxed);
    let why = Cause::new("the log's disk is full");
    assert_eq!(handle.sync(u64::MAX, &mut |_| {}), Err(Error::WriteAhead(why)));
    assert_eq!(by_rec_lsn(), [(3, 7_048)], "nothing was lost");
    // A process without the callback writes no logged page.
    let bare = pool(&region, &options(16));
    let other = region.thread().unwrap();
    let other = bare.handle(&other).unwrap();
    assert_eq!(other.sync(u64::MAX, &mut |_| {}), Err(Error::NoWriteAhead));
    log.fails.store(false, Relaxed);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
}

#[test]
fn a_scan_leaves_a_hot_set_in_the_pool() {
    let scratch = Scratch::new("scan");
    let region = region();
    let pool = pool(&region, &options(256));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 2_000);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let hot = |rounds| {
        let before = handle.counted().faults;
        for _ in 0..rounds {
            for page in 0..64 {
                value(&handle, file, page).unwrap();
            }
        }
        handle.counted().faults - before
    };
    hot(100);
    assert_eq!(hot(10), 0, "the hot set fits");
    for start in (64..2_000).step_by(121) {
        for page in start..(start + 121).min(2_000) {
            value(&handle, file, page).unwrap();
        }
        hot(20);
    }
    let faults = hot(1);
    assert!(faults <= 3, "a scan pushed {faults} of 64 hot pages out");
}
