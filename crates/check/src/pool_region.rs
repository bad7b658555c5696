//! Arbitrary bytes in the areas of a pool for the fuzz target and the tests.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_disk::{Disk, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileId, FileSpec, Handle, Options, Pool};
use latchwork_region::{Area, AreaOptions, Options as RegionOptions, Region};

const FRAMES: u32 = 16;
const FRAMES_MAX: u32 = 32;
const FRAME_BYTES: u32 = 1024;
/// Pages of each of the three files. The last file is sparse.
const PAGES: u64 = 30;
/// Each word of a page of file 0 is this plus the page number.
const MARK: u64 = 0xfeed << 32;
/// More than the size of the files, and less than a damaged length requests.
const DISK_BYTES: u64 = 1 << 20;
/// Where descriptors begin, after the marks.
const DESCS: u64 = FRAMES_MAX as u64 / 64 * 8 + 8;
/// Latches outside of frames: of the table, of resizing and of removing files.
const LATCHES: [u64; 3] = [40, 56, 96];
/// The statistics of times.
const TIMES: core::ops::Range<u64> = 33_792..33_984;
/// The position of the hash table's secret.
const SECRET: u64 = 80;
/// The latches of the hash table's buckets.
const BUCKETS: core::ops::Range<u64> = 64..128;

/// The damaged areas.
pub const AREAS: [&str; 3] = ["pool-head", "pool-xlat", "pool-desc"];

/// A change of a word of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set to a value.
    To(u64),
    /// Bits inverted.
    Flip(u64),
    /// Set to the value of another place, as a link to a wrong target.
    Like(usize),
}

/// How far a damaged pool was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// All operations.
    Whole,
    /// Views only: a latch is held by a living thread or by none, and would be waited for.
    Seen,
}

/// A pool with three files, more pages than frames, and free, dirty and clean pages.
struct Place {
    region: Region<Native>,
    disk: Simulated,
    pool: Pool,
}

fn options() -> Options {
    Options {
        frames: FRAMES,
        frames_max: FRAMES_MAX,
        frame_bytes: FRAME_BYTES,
        ..Options::default()
    }
}

fn spec(file: u32) -> FileSpec {
    let path = format!("/data/file-{file}");
    FileSpec { page_bytes: FRAME_BYTES >> (file % 2), sparse: file == 2, ..FileSpec::new(path) }
}

impl Place {
    fn new() -> Self {
        let few =
            RegionOptions { threads: 8, waiters: 8, processes: 4, limit: 4 << 20, mode: 0o600 };
        let region = Region::private(&few).unwrap();
        let disk = Simulated::new();
        disk.make_folder(Path::new("/data")).unwrap();
        disk.set_capacity(Some(DISK_BYTES));
        let pool = Pool::open(&region, Arc::new(disk.clone()), &options()).unwrap();
        let place = Self { region, disk, pool };
        // Each run of an input must be the same.
        place.area(AREAS[0]).word(SECRET).unwrap().store(0x5ec, Relaxed);
        place
    }

    fn fill(&self, handle: &Handle<'_>) -> [FileId; 3] {
        let files = [0, 1, 2].map(|file| handle.file(&spec(file)).unwrap());
        for page in 0..PAGES {
            for file in files {
                let mut held = handle.new_page(file).unwrap();
                held.begin(0);
                assert!((2..held.len()).all(|word| held.set(word, MARK | page)));
                held.commit();
            }
        }
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        for page in [3, 9, 4] {
            files[..2].iter().for_each(|file| handle.free_page(*file, page).unwrap());
        }
        for page in 20..26 {
            change(handle, files[0], page).unwrap();
        }
        files
    }

    fn area(&self, name: &'static str) -> Area<Native> {
        self.region.area(name, &AreaOptions { first: 1, limit: 1, huge: false }).unwrap()
    }

    /// The words that a pool of this size uses in the three areas: nonzero words, and all
    /// words of the first file, the first thread and the frames.
    fn places(&self) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        for (number, name) in AREAS.into_iter().enumerate() {
            let area = self.area(name);
            let always = match number {
                0 => 0..1024 + 128,
                1 => 0..0,
                _ => 0..DESCS + u64::from(FRAMES_MAX) * 8,
            };
            let words = area.words().unwrap();
            // Durations differ from run to run.
            let timed = |at: &u64| number == 0 && TIMES.contains(at);
            let used = |at: &u64| always.contains(at) || area.word(*at).unwrap().load(Relaxed) != 0;
            found.extend(
                (0..words.min(40_000)).filter(|at| !timed(at) && used(at)).map(|at| (number, at)),
            );
        }
        found
    }

    /// Whether a latch or a page under write-out is held by a living thread, or a latch by no
    /// thread. The threads of this region are alive or have released their slots.
    fn is_stuck(&self, living: &[u64]) -> bool {
        let (head, descs) = (self.area(AREAS[0]), self.area(AREAS[2]));
        let word = |area: &Area<Native>, at| {
            area.word(at).map_or(0, |word: &AtomicU64| word.load(Relaxed))
        };
        let held = |latch: u64| {
            let (exclusive, holder) = (latch & 1 != 0, latch >> 3 & 0x3fff);
            exclusive && holder == 0 || living.contains(&holder)
        };
        let frames = (0..u64::from(FRAMES_MAX)).map(|frame| DESCS + frame * 8);
        LATCHES.into_iter().chain(BUCKETS.map(|bucket| bucket * 8)).any(|at| held(word(&head, at)))
            || frames
                .into_iter()
                .any(|at| held(word(&descs, at)) || living.contains(&word(&descs, at + 6)))
    }
}

/// The number of places.
pub fn places() -> usize {
    let place = Place::new();
    let thread = place.region.thread().unwrap();
    place.fill(&place.pool.handle(&thread).unwrap());
    place.places().len()
}

fn change(handle: &Handle<'_>, file: FileId, page: u64) -> Result<(), Error> {
    let mut held = handle.write(file, page)?;
    held.begin(0);
    let _ = held.set(2, MARK | page);
    held.commit();
    Ok(())
}

/// Applies changes to a pool, each at a numbered place, and uses the pool. Errors are allowed.
/// Every call must return, and the contents of frames must be reported.
pub fn exercise(changes: &[(usize, Change)]) -> Used {
    let place = Place::new();
    let thread = place.region.thread().unwrap();
    let handle = place.pool.handle(&thread).unwrap();
    let files = place.fill(&handle);
    let places = place.places();
    let areas = AREAS.map(|name| place.area(name));
    let word = |at: usize| {
        let (area, at) = places[at % places.len()];
        areas[area].word(at).unwrap()
    };
    for (at, change) in changes {
        let to = match change {
            Change::To(to) => *to,
            Change::Flip(bits) => word(*at).load(Relaxed) ^ bits,
            Change::Like(other) => word(*other).load(Relaxed),
        };
        word(*at).store(to, Relaxed);
    }
    look(&place, &handle, files);
    let other = place.region.thread().unwrap();
    if place.is_stuck(&[&thread, &other].map(|thread| u64::from(thread.number()) + 1)) {
        return Used::Seen;
    }
    use_it(&handle, files);
    let _ = place.pool.handle(&other).map(|handle| use_it(&handle, files));
    look(&place, &handle, files);
    Used::Whole
}

/// The operations that store nothing.
fn look(place: &Place, handle: &Handle<'_>, files: [FileId; 3]) {
    let pool = &place.pool;
    let looker = pool.looker();
    for file in files {
        for page in 0..PAGES + 3 {
            let Some(snapshot) = handle.try_optimistic(file, page) else { continue };
            let sum = snapshot.view().run(0, snapshot.len()).map(|words| words.fold(0, u64::max));
            assert!(sum.is_some(), "a page ends before its last word");
            let _ = (snapshot.validate(), snapshot.lsn(), snapshot.word(usize::MAX));
        }
        let _ = looker.read(file, 1, |view| view.word(2));
        let _ = (pool.pages(file), pool.files());
    }
    let _ = pool.list().map(|list| list.map(|frame| format!("{frame:?}").len()).sum::<usize>());
    let _ = (pool.verify(), pool.stats(), pool.pins().count(), pool.active());
    let _ = (pool.frame(FRAMES_MAX), pool.frame(u32::MAX), format!("{pool:?}"));
    let _ = Pool::look(&place.region, Arc::new(place.disk.clone())).map(drop);
}

/// The operations of a thread.
fn use_it(handle: &Handle<'_>, files: [FileId; 3]) {
    for file in files {
        for page in (0..PAGES + 2).step_by(3) {
            let _ = handle.read(file, page, |view| view.word(view.len() - 1));
            let _ = change(handle, file, page + 1);
        }
        let _ = handle.optimistic(file, 5).map(|snapshot| handle.upgrade(&snapshot).map(drop));
        let _ = handle.prefetch(file, 10, 8);
        let _ = handle.pin(file, 2).map(drop);
        let _ = handle.new_page(file).map(|mut held| {
            held.begin(0);
            held.commit();
        });
        let _ = (handle.free_page(file, 12), handle.discard(file, 13));
        let _ = handle.create(file, 14).map(drop);
        let _ = handle.file(&spec(u32::from(file.number())));
    }
    let _ = (handle.remove_file(files[1]), handle.file(&spec(1)).map(|file| file.number()));
    let _ = (handle.clean(4), handle.resize(FRAMES + 8), handle.resize(FRAMES));
    let _ = (handle.dirty().map(|dirty| dirty.len()), handle.repair(&[5]));
    let _ = (handle.sync(u64::MAX, &mut |_| {}), handle.counted());
}
