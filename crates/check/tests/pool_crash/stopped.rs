//! Threads that are stopped in the middle of a write, a read or a failed sync, while other threads
//! continue.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileId, FileSpec, Handle, Options, Pool};
use latchwork_region::{Options as RegionOptions, Region};

use super::meet::{STOP, Stop, stop};

fn disk() -> Simulated {
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    disk
}

/// A pool in private memory and a thread of it, kept until the program ends.
struct Scene {
    region: &'static Region<Native>,
    pool: &'static Pool<Native>,
    handle: Handle<'static>,
    file: FileId,
}

/// The pool as opened by another process.
fn opened(region: &'static Region<Native>, disk: &Simulated) -> Pool<Native> {
    let options = Options { frames: 16, frames_max: 16, frame_bytes: 512, ..Options::default() };
    Pool::open(region, Arc::new(disk.clone()), &options).unwrap()
}

impl Scene {
    fn new(disk: &Simulated) -> Self {
        let few =
            RegionOptions { threads: 16, waiters: 16, processes: 8, limit: 4 << 20, mode: 0o600 };
        let region = Box::leak(Box::new(Region::private(&few).unwrap()));
        let pool = Box::leak(Box::new(opened(region, disk)));
        let handle = pool.handle(Box::leak(Box::new(region.thread().unwrap()))).unwrap();
        let path = PathBuf::from("/data/pages");
        let file = handle.file(&FileSpec { page_bytes: 512, ..FileSpec::new(path) }).unwrap();
        Self { region, pool, handle, file }
    }

    /// A new thread's work with the pool, which stops there.
    fn other(&self) -> Other {
        Other { region: self.region, pool: self.pool, file: self.file }
    }

    /// The same in another process that has not opened the file yet.
    fn late(&self, disk: &Simulated) -> Other {
        Other { pool: Box::leak(Box::new(opened(self.region, disk))), ..self.other() }
    }

    fn change(&self, page: u64, value: u64) {
        let held = self.handle.write(self.file, page);
        let mut held = held.or_else(|_| self.handle.create(self.file, page)).unwrap();
        held.begin(0);
        (2..held.len()).for_each(|index| assert!(held.set(index, value)));
        held.commit();
    }

    fn sync(&self) -> Result<(), Error> {
        self.handle.sync(u64::MAX, &mut |_| {}).map(drop)
    }
}

#[derive(Clone, Copy)]
struct Other {
    region: &'static Region<Native>,
    pool: &'static Pool<Native>,
    file: FileId,
}

impl Other {
    fn does<R>(self, stops: Vec<Stop>, act: impl FnOnce(&Handle<'_>, FileId) -> R) -> R {
        STOP.set(stops);
        let thread = self.region.thread().unwrap();
        let handle = self.pool.handle(&thread).unwrap();
        act(&handle, self.file)
    }

    fn cleans_one(self, stops: Vec<Stop>) -> u32 {
        self.does(stops, |handle, _| handle.clean(1).unwrap())
    }

    fn syncs(self, stops: Vec<Stop>) -> Result<(), Error> {
        self.does(stops, |handle, _| handle.sync(u64::MAX, &mut |_| {}).map(drop))
    }
}

/// A known bug of other pools: a write that began early ends late, over a newer one.
#[test]
fn an_old_copy_never_ends_over_a_newer_page() {
    let disk = disk();
    let scene = Scene::new(&disk);
    scene.change(0, 1);
    let (place, stopped) = stop("write.ahead");
    let writes = || disk.history().iter().filter(|call| matches!(call, Operation::Write)).count();
    let other = scene.other();
    std::thread::scope(|scope| {
        let slow = scope.spawn(move || other.cleans_one(vec![place]));
        stopped.reached.recv().unwrap();
        let before = writes();
        scene.change(0, 2);
        assert_eq!(scene.handle.clean(u32::MAX), Ok(0), "two threads write one page");
        assert_eq!(writes(), before);
        stopped.go.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), 0, "a page changed during its write counts as clean");
        assert_eq!(writes(), before + 1, "the slow write is the old page");
    });
    assert_eq!(scene.handle.dirty().unwrap().len(), 1);
    scene.sync().unwrap();
    let scene = Scene::new(&disk);
    let value = scene.handle.read(scene.file, 0, |view| view.word(2));
    assert_eq!(value, Ok(2), "the old copy ended over the newer page");
}

/// A thread that found a page with a writer claims it after that writer, unless another thread has
/// claimed it. With two writers, the slower one would write an old copy over a newer page.
#[test]
fn a_page_has_one_writer_after_a_wait_for_another() {
    let disk = disk();
    let scene = Scene::new(&disk);
    scene.change(0, 1);
    let ((first, first_stopped), (next, next_stopped)) = (stop("write.ahead"), stop("write.ahead"));
    let ((busy, at_busy), (free, at_free)) = (stop("write.busy"), stop("write.free"));
    let other = scene.other();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || other.cleans_one(vec![first]));
        first_stopped.reached.recv().unwrap();
        let slow = scope.spawn(move || other.cleans_one(vec![busy, free]));
        at_busy.reached.recv().unwrap();
        first_stopped.go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), 1);
        scene.change(0, 2);
        at_busy.go.send(()).unwrap();
        at_free.reached.recv().unwrap();
        let next = scope.spawn(move || other.cleans_one(vec![next]));
        next_stopped.reached.recv().unwrap();
        let before = disk.history().len();
        at_free.go.send(()).unwrap();
        let wrote = slow.join().unwrap();
        let calls = disk.history().len() - before;
        next_stopped.go.send(()).unwrap();
        assert_eq!((next.join().unwrap(), wrote, calls), (1, 0, 0), "two threads write one page");
    });
}

/// The system reports the failure of a sync once. A thread that syncs afterwards, before the first
/// one has recorded the failure, must not succeed.
#[test]
fn a_sync_during_a_failed_one_is_no_success() {
    let disk = disk();
    let scene = Scene::new(&disk);
    scene.change(0, 1);
    // The next calls are the write of the page and the sync.
    disk.plan(disk.history().len() as u64 + 1, Fault::Device);
    let (place, stopped) = stop("sync.failed");
    let other = scene.other();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || other.syncs(vec![place]));
        stopped.reached.recv().unwrap();
        let second = scope.spawn(move || other.syncs(Vec::new()));
        // Time for a wrong success to be reported.
        std::thread::sleep(Duration::from_millis(150));
        stopped.go.send(()).unwrap();
        let first = first.join().unwrap();
        assert!(matches!(first, Err(Error::Disk(_))), "{first:?}");
        assert_eq!(second.join().unwrap(), Err(Error::SyncFailed { file: 0 }));
    });
}

/// The system reports the failure of a sync to the files open at that time. A process that opens
/// the file afterwards and syncs it, before the first one has recorded the failure, requests more.
#[test]
fn a_file_opened_during_a_failed_sync_does_not_sync_successfully() {
    let disk = disk();
    let scene = Scene::new(&disk);
    scene.change(0, 1);
    disk.plan(disk.history().len() as u64 + 1, Fault::Device);
    let (place, stopped) = stop("sync.failed");
    let (other, late) = (scene.other(), scene.late(&disk));
    std::thread::scope(|scope| {
        let first = scope.spawn(move || other.syncs(vec![place]));
        stopped.reached.recv().unwrap();
        scene.change(1, 2);
        let late = scope.spawn(move || late.syncs(Vec::new())).join().unwrap();
        stopped.go.send(()).unwrap();
        assert!(matches!(late, Err(Error::Disk(_))), "{late:?}");
        assert!(matches!(first.join().unwrap(), Err(Error::Disk(_))));
    });
    assert_eq!(scene.sync(), Err(Error::SyncFailed { file: 0 }));
}

/// The larger request ends with the first successful sync: it syncs all files of the system.
#[test]
fn a_file_opened_during_a_sync_is_in_doubt_once() {
    let disk = disk();
    let scene = Scene::new(&disk);
    let whole = || disk.calls()[Operation::SyncSystem];
    let (place, stopped) = stop("sync.begun");
    let (other, late) = (scene.other(), scene.late(&disk));
    std::thread::scope(|scope| {
        scene.change(0, 1);
        let first = scope.spawn(move || other.syncs(vec![place]));
        stopped.reached.recv().unwrap();
        for (page, expected) in [(1, 1), (2, 1)] {
            scene.change(page, 2);
            scope.spawn(move || late.syncs(Vec::new())).join().unwrap().unwrap();
            assert_eq!(whole(), expected, "page {page}");
        }
        stopped.go.send(()).unwrap();
        first.join().unwrap().unwrap();
    });
    assert_eq!(whole(), 1, "a process with the file already open also synced everything");
}

/// Between the failure of a sync and its record the system may return old data. Data read in this
/// time is not served if the record exists after the read.
#[test]
fn data_read_during_a_failing_sync_is_not_served() {
    let disk = disk();
    let before = Scene::new(&disk);
    (0..2).for_each(|page| before.change(page, 1));
    before.sync().unwrap();
    for ahead in [false, true] {
        let scene = Scene::new(&disk);
        scene.change(1, 2);
        let (place, stopped) = stop(if ahead { "ahead.read" } else { "fault.read" });
        let (fails, failing) = stop("sync.failed");
        disk.plan(disk.history().len() as u64 + 1, Fault::Device);
        let other = scene.other();
        std::thread::scope(|scope| {
            let syncer = scope.spawn(move || other.syncs(vec![fails]));
            failing.reached.recv().unwrap();
            let reader = scope.spawn(move || {
                other.does(vec![place], |handle, file| match ahead {
                    true => handle.prefetch(file, 0, 1),
                    false => handle.read(file, 0, |view| view.word(2)),
                })
            });
            stopped.reached.recv().unwrap();
            failing.go.send(()).unwrap();
            let failed = syncer.join().unwrap();
            stopped.go.send(()).unwrap();
            assert!(matches!(failed, Err(Error::Disk(_))), "{failed:?}");
            let expected = if ahead { Ok(0) } else { Err(Error::SyncFailed { file: 0 }) };
            assert_eq!(reader.join().unwrap(), expected);
        });
    }
}
