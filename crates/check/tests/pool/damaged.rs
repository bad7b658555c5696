//! Pages that the disk damages and that the layer above can rebuild.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{Cause, Error, FileSpec, Lost, Options, Pool, Rebuild, WriteAhead};
use latchwork_region::Region;

use super::pages::{make, options, region, value};
use super::points::at_points;

const PAGES: u64 = 100;

/// Knows the contents of every page but one, and counts the requests.
struct Knows {
    unknown: Mutex<Option<u64>>,
    asked: AtomicU64,
}

impl Rebuild for Knows {
    fn rebuild(&self, _: &Lost, _: Option<&[u64]>, _: &mut [u64]) -> Result<u64, String> {
        Err("no page is left half changed".to_owned())
    }

    fn rebuild_damaged(&self, _: u16, page: u64, into: &mut [u64]) -> Option<u64> {
        self.asked.fetch_add(1, Relaxed);
        if *self.unknown.lock().unwrap() == Some(page) {
            return None;
        }
        into.fill(page);
        Some(0)
    }
}

#[test]
fn a_damaged_page_is_rebuilt_by_the_layer_above() {
    let (disk, path) = (Simulated::new(), std::path::Path::new("/pages"));
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(path) };
    let knows = Arc::new(Knows { unknown: Mutex::new(None), asked: AtomicU64::new(0) });
    let open = |rebuild: Option<Arc<dyn Rebuild>>| {
        let region: Region<Native> = region();
        let options = Options { rebuild, ..options(16) };
        let pool = Pool::open(&region, Arc::new(disk.clone()), &options).unwrap();
        (region, pool)
    };
    let (region, pool) = open(Some(knows.clone()));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&spec).unwrap();
    make(&handle, file, PAGES);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let evict =
        |page| (0..PAGES).filter(|at| *at != page).all(|at| value(&handle, file, at) == Ok(at));
    let asked = || knows.asked.swap(0, Relaxed);

    // Other bytes, and those of another page: each page is restored, also on disk.
    for (page, bytes) in [(20, vec![0xee; 1024]), (30, disk.peek(path).unwrap()[..1024].to_vec())] {
        assert!(evict(page) && disk.damage(path, page * 1024, &bytes));
        assert_eq!((value(&handle, file, page), asked()), (Ok(page), 1));
        // It is durable on disk before a reader sees it.
        assert!(evict(page) && handle.dirty().unwrap().is_empty());
        assert_eq!((value(&handle, file, page), asked()), (Ok(page), 0));
    }
    // A page that cannot be written stays dirty.
    assert!(evict(35) && disk.damage(path, 35 * 1024, &[0xee; 1024]));
    disk.plan(disk.calls().total() + 1, Fault::Device);
    assert_eq!((value(&handle, file, 35), asked(), disk.fired()), (Ok(35), 1, 1));
    let dirty = handle.dirty().unwrap();
    assert_eq!(dirty.iter().map(|dirty| dirty.page).collect::<Vec<_>>(), [35]);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert!(evict(35));
    assert_eq!((value(&handle, file, 35), asked()), (Ok(35), 0));
    // The device fails once.
    assert!(evict(40));
    disk.plan(disk.calls().total(), Fault::Device);
    assert_eq!((value(&handle, file, 40), asked(), disk.fired()), (Ok(40), 1, 2));

    // Zeros may be a page that was never written; a page may be unknown; a page may be beyond the
    // end.
    let whole = disk.peek(path).unwrap();
    assert!(evict(50) && disk.damage(path, 50 * 1024, &[0; 1024]));
    assert_eq!(value(&handle, file, 50), Err(Error::Checksum { file: 0, page: 50 }));
    assert_eq!(asked(), 0);
    assert!(disk.damage(path, 50 * 1024, &whole[50 * 1024..51 * 1024]));
    *knows.unknown.lock().unwrap() = Some(60);
    assert!(evict(60) && disk.damage(path, 60 * 1024, &[0xee; 1024]));
    for _ in 0..2 {
        assert_eq!(value(&handle, file, 60), Err(Error::Checksum { file: 0, page: 60 }));
        assert_eq!(asked(), 1);
    }
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);

    // Without such a layer the error is about that page only.
    assert!(disk.damage(path, 70 * 1024, &[0xee; 1024]));
    let (other_region, other_pool) = open(None);
    let thread = other_region.thread().unwrap();
    let handle = other_pool.handle(&thread).unwrap();
    let file = handle.file(&spec).unwrap();
    assert_eq!(value(&handle, file, 70), Err(Error::Checksum { file: 0, page: 70 }));
    assert_eq!(value(&handle, file, 71), Ok(71));
}

/// Rebuilds pages, but panics the first time.
struct PanicsOnce(AtomicBool);

impl Rebuild for PanicsOnce {
    fn rebuild(&self, _: &Lost, _: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String> {
        assert!(self.0.swap(true, Relaxed), "on purpose");
        into.fill(33);
        Ok(32)
    }

    fn rebuild_damaged(&self, _: u16, page: u64, into: &mut [u64]) -> Option<u64> {
        assert!(self.0.swap(true, Relaxed), "on purpose");
        into.fill(page);
        Some(0)
    }
}

/// The frame contains another page, which no reader receives as the requested one.
#[test]
fn a_panic_in_making_a_damaged_page_leaves_no_page() {
    let (disk, path) = (Simulated::new(), std::path::Path::new("/pages"));
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(path) };
    let region: Region<Native> = region();
    let rebuild = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let options = Options { rebuild: Some(rebuild), ..options(16) };
    let pool = Pool::open(&region, Arc::new(disk.clone()), &options).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&spec).unwrap();
    make(&handle, file, PAGES);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert!(
        (0..PAGES).filter(|page| *page != 20).all(|page| value(&handle, file, page) == Ok(page))
    );
    assert!(disk.damage(path, 20 * 1024, &[0xee; 1024]));
    let read = || value(&handle, file, 20);
    assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
    assert!(pool.list().unwrap().all(|frame| frame.page.1 != 20), "a frame has it");
    assert_eq!(read(), Ok(20));
}

/// A page left half changed by a dead thread can be neither read nor changed until it is rebuilt.
#[test]
fn a_panic_in_rebuilding_a_page_leaves_it_poisoned() {
    let disk: Arc<dyn Disk> = Arc::new(Simulated::new());
    let region: Region<Native> = region();
    let rebuild = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let able = Options { rebuild: Some(rebuild), ..options(16) };
    let able = Pool::open(&region, disk.clone(), &able).unwrap();
    let bare = Pool::open(&region, disk, &options(16)).unwrap();
    let (one, two, dies) = (region.thread(), region.thread(), region.thread().unwrap());
    let (one, two) = (one.unwrap(), two.unwrap());
    let (handle, other) = (able.handle(&one).unwrap(), bare.handle(&two).unwrap());
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new("/pages") };
    let file = handle.file(&spec).unwrap();
    make(&handle, file, 10);
    {
        let handle = able.handle(&dies).unwrap();
        let mut held = handle.write(file, 3).unwrap();
        held.begin(32);
        assert!(held.set(5, 1));
        std::mem::forget(held);
    }
    drop(dies);
    let read = || value(&handle, file, 3);
    assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
    let poisoned = Error::Poisoned { file: 0, page: 3 };
    assert_eq!(value(&other, file, 3), Err(poisoned.clone()));
    assert_eq!(other.write(file, 3).map(drop), Err(poisoned));
    assert_eq!(read(), Ok(33));
}

impl WriteAhead for PanicsOnce {
    fn flush(&self, _: u64) -> Result<(), Cause> {
        assert!(self.0.swap(true, Relaxed), "on purpose");
        Ok(())
    }
}

#[test]
fn a_panic_in_making_the_log_durable_leaves_a_page_that_is_written_later() {
    let region: Region<Native> = region();
    let log = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let options = Options { write_ahead: Some(log), ..options(16) };
    let pool = Pool::open(&region, Arc::new(Simulated::new()), &options).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new("/pages") };
    let file = handle.file(&spec).unwrap();
    let mut held = handle.new_page(file).unwrap();
    held.begin(16);
    held.commit();
    let dirty = || handle.dirty().unwrap().len();
    assert!(catch_unwind(AssertUnwindSafe(|| handle.clean(1))).is_err());
    assert_eq!(dirty(), 1);
    assert_eq!((handle.clean(1), dirty()), (Ok(1), 0), "it is not written any more");
}

/// A log that, once told to, ends before every record.
struct Ends(AtomicBool);

impl WriteAhead for Ends {
    fn flush(&self, _: u64) -> Result<(), Cause> {
        Ok(())
    }

    fn reaches(&self, _: u64) -> bool {
        !self.0.load(Relaxed)
    }
}

/// A reader gets the page while it is being rebuilt, and fails if it cannot be written.
#[test]
fn a_page_is_created_whatever_the_disk_has() {
    let region: Region<Native> = region();
    let log = Arc::new(Ends(AtomicBool::new(false)));
    let options = Options { write_ahead: Some(log.clone()), ..options(16) };
    let pool = Pool::open(&region, Arc::new(Simulated::new()), &options).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new("/pages") };
    let file = handle.file(&spec).unwrap();
    let mut held = handle.new_page(file).unwrap();
    held.begin(16);
    held.commit();
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    handle.discard(file, 0).unwrap();
    let (turn, turns) = (Rc::new(Cell::new(0)), region.clone());
    let (other, told) = (pool.clone(), turn.clone());
    at_points(move |name| {
        // Its own steps do not count.
        let reads = name == "fault.tagged" && told.get() == 0;
        let leaves = name == "evict.unlinked" && told.get() == 2;
        if reads || leaves {
            told.set(told.get() + 1);
            let thread = turns.thread().unwrap();
            let handle = other.handle(&thread).unwrap();
            if reads {
                assert_eq!(value(&handle, file, 0), Ok(0));
            } else {
                handle.discard(file, 0).unwrap();
                log.0.store(true, Relaxed);
            }
            told.set(told.get() + 1);
        }
    });
    let made = handle.create(file, 0);
    assert_eq!((turn.get(), made.map(|held| held.is_new())), (4, Ok(true)));
    assert!(matches!(value(&handle, file, 0), Err(Error::Newer { .. })), "it was not begun");
}
