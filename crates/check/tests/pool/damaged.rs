//! Pages that the disk damages, and that the layer above can make anew.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileSpec, Lost, Options, Pool, Rebuild};
use latchwork_region::Region;

use super::pages::{make, options, region, value};

const PAGES: u64 = 100;

/// Knows each page, as it was made, but for one; counts how often it is asked.
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
fn a_damaged_page_is_made_anew_by_the_layer_above() {
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

    // Other bytes, and another page's: each is there again, and on disk.
    for (page, bytes) in [(20, vec![0xee; 1024]), (30, disk.peek(path).unwrap()[..1024].to_vec())] {
        assert!(evict(page) && disk.damage(path, page * 1024, &bytes));
        assert_eq!((value(&handle, file, page), asked()), (Ok(page), 1));
        // It is on disk, durable, before anybody sees it.
        assert!(evict(page) && handle.dirty().unwrap().is_empty());
        assert_eq!((value(&handle, file, page), asked()), (Ok(page), 0));
    }
    // What cannot be written is dirty.
    assert!(evict(35) && disk.damage(path, 35 * 1024, &[0xee; 1024]));
    disk.plan(disk.calls().total() + 1, Fault::Device);
    assert_eq!((value(&handle, file, 35), asked(), disk.fired()), (Ok(35), 1, 1));
    let dirty = handle.dirty().unwrap();
    assert_eq!(dirty.iter().map(|dirty| dirty.page).collect::<Vec<_>>(), [35]);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert!(evict(35));
    assert_eq!((value(&handle, file, 35), asked()), (Ok(35), 0));
    // The device fails, once.
    assert!(evict(40));
    disk.plan(disk.calls().total(), Fault::Device);
    assert_eq!((value(&handle, file, 40), asked(), disk.fired()), (Ok(40), 1, 2));

    // Zeros may be what nobody has written; a page may be unknown; and one may lie behind the end.
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

    // Without such a layer it is an error of that page alone.
    assert!(disk.damage(path, 70 * 1024, &[0xee; 1024]));
    let (other_region, other_pool) = open(None);
    let thread = other_region.thread().unwrap();
    let handle = other_pool.handle(&thread).unwrap();
    let file = handle.file(&spec).unwrap();
    assert_eq!(value(&handle, file, 70), Err(Error::Checksum { file: 0, page: 70 }));
    assert_eq!(value(&handle, file, 71), Ok(71));
}
