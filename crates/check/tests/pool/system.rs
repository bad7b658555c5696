//! System features of a pool: direct I/O and huge pages.

use std::path::Path;
use std::sync::Arc;

use latchwork_check::between::{Before, Between};
use latchwork_check::forked::{in_child, limit};
use latchwork_disk::{Disk, Error as DiskError, Fault, Open, Operation, Simulated, System};
use latchwork_pool::{Error, FileSpec, Options, Pool};
use latchwork_region::Error as RegionError;

use super::pages::{Scratch, fill, make, options, pool, region, value};

fn large() -> Options {
    Options { frame_bytes: 8192, ..options(16) }
}

fn direct(scratch: &Scratch, page_bytes: u32) -> FileSpec {
    FileSpec { direct: true, page_bytes, ..FileSpec::new(&scratch.0) }
}

/// Pages are written and read with direct I/O, singly and in runs, at both sizes of frames.
#[test]
fn pages_of_a_direct_file_come_back() {
    for page_bytes in [4096, 8192] {
        let scratch = Scratch::new("direct");
        let region = region();
        let pool = pool(&region, &large());
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = match handle.file(&direct(&scratch, page_bytes)) {
            Err(Error::Disk(DiskError::Unsupported(_))) => {
                println!("SKIPPED: {} has no direct I/O", scratch.0.display());
                return;
            }
            file => file.unwrap(),
        };
        make(&handle, file, 100);
        for page in (0..100).rev() {
            assert_eq!(value(&handle, file, page), Ok(page));
            fill(&handle, file, page, page + 500);
        }
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        for page in 0..100 {
            if page % 16 == 0 {
                handle.prefetch(file, page, 4).unwrap();
            }
            assert_eq!(value(&handle, file, page), Ok(page + 500));
        }
        let counted = handle.counted();
        assert!(counted.evicted > 200 && counted.prefetched > 10, "{counted:?}");
        let mut unsound = Vec::new();
        pool.verify_file(file, &mut |page, _| unsound.push(page)).unwrap();
        assert_eq!(unsound, Vec::<u64>::new());
        // The file can also be read through the cache.
        let bytes = std::fs::read(&scratch.0).unwrap();
        assert_eq!(bytes.len(), 100 * page_bytes as usize);
        assert!(bytes.chunks(page_bytes as usize).enumerate().all(|(page, bytes)| {
            bytes[16..].chunks(8).all(|word| word == (page as u64 + 500).to_le_bytes())
        }));
    }
}

#[test]
fn pages_too_small_for_direct_io_are_refused() {
    let scratch = Scratch::new("direct-small");
    let region = region();
    let pool = pool(&region, &large());
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let refused = Err(Error::Options("bytes of a page"));
    assert_eq!(handle.file(&direct(&scratch, 2048)), refused);
    assert!(!scratch.0.exists() && pool.files().unwrap().is_empty());
}

/// A disk without direct I/O.
#[derive(Debug)]
struct Cached(Simulated);

impl Between for Cached {
    fn opens(&self, path: &Path, how: Open) -> Result<(), DiskError> {
        // The simulated disk's error of an unsupported operation: from directory to directory.
        if how.direct { self.0.rename(path, Path::new("/elsewhere/pages")) } else { Ok(()) }
    }
}

fn cached(disk: &Simulated) -> Arc<dyn Disk> {
    Arc::new(Before::new(Arc::new(Cached(disk.clone())), disk.clone()))
}

/// A file that cannot be opened with direct I/O is not registered: it can be opened in another way.
#[test]
fn a_file_without_direct_io_is_used_through_the_cache() {
    let region = region();
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    let pool = Pool::open(&region, cached(&disk), &large()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { direct: true, page_bytes: 4096, ..FileSpec::new("/data/pages") };
    let refused = handle.file(&spec);
    assert!(matches!(refused, Err(Error::Disk(DiskError::Unsupported(_)))), "{refused:?}");
    assert_eq!(pool.files(), Ok(Vec::new()));
    let file = handle.file(&FileSpec { direct: false, page_bytes: 8192, ..spec }).unwrap();
    make(&handle, file, 40);
    assert!((0..40).all(|page| value(&handle, file, page) == Ok(page)));
}

/// A process that has never opened the file opens it as the table of files says.
#[test]
fn a_direct_file_is_direct_in_every_process() {
    let (region, disk) = (region(), Simulated::new());
    disk.make_folder(Path::new("/data")).unwrap();
    let pool = Pool::open(&region, Arc::new(disk.clone()), &large()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { direct: true, page_bytes: 4096, ..FileSpec::new("/data/pages") };
    let file = handle.file(&spec).unwrap();
    make(&handle, file, 40);
    let another = region.another().unwrap();
    let peer = Pool::open(&another, cached(&disk), &large()).unwrap();
    let thread = another.thread().unwrap();
    let peer = peer.handle(&thread).unwrap();
    let there = |page: &u64| pool.list().unwrap().any(|frame| frame.page.1 == *page);
    let (warm, cold) = ((0..40).find(there).unwrap(), (0..40).find(|page| !there(page)).unwrap());
    assert_eq!(value(&peer, file, warm), Ok(warm), "a page in the pool needs no file");
    let refused = value(&peer, file, cold);
    assert!(matches!(refused, Err(Error::Disk(DiskError::Unsupported(_)))), "{refused:?}");
    assert_eq!(value(&handle, file, cold), Ok(cold));
}

/// A file that the disk fails to open, at either of two openings, is not registered.
#[test]
fn a_file_that_cannot_be_opened_is_not_known() {
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    let region = region();
    let pool = Pool::open(&region, Arc::new(disk.clone()), &large()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec::new("/data/pages");
    let before = disk.history().len();
    handle.file(&spec).unwrap();
    // The second open: the first one reads the file's length.
    let opens: Vec<_> = (before..disk.history().len())
        .filter(|call| disk.history()[*call] == Operation::Open)
        .map(|call| call - before)
        .collect();
    let other = FileSpec::new("/data/others");
    for call in opens {
        disk.plan((disk.history().len() + call) as u64, Fault::Device);
        assert!(matches!(handle.file(&other), Err(Error::Disk(DiskError::Device(_)))));
        assert_eq!(pool.files().unwrap().len(), 1);
    }
    assert_eq!(handle.file(&other).unwrap().number(), 1);
}

/// Kilobytes of anonymous huge pages of this process.
fn huge_kilobytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = maps.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap_or("0");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Frames are in huge pages if the system has them.
#[test]
fn frames_lie_in_huge_pages() {
    const FRAMES: u64 = 4096;
    let scratch = Scratch::new("huge");
    let wanted = |huge| Options {
        frames: FRAMES as u32,
        frames_max: 2 * FRAMES as u32,
        frame_bytes: 4096,
        huge,
        ..Options::default()
    };
    let spec = FileSpec { page_bytes: 4096, ..FileSpec::new(&scratch.0) };
    let mut grown = Vec::new();
    for huge in [false, true] {
        let _ = std::fs::remove_file(&scratch.0);
        let region = region();
        let pool: Pool = Pool::open(&region, Arc::new(System::new()), &wanted(huge)).unwrap();
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&spec).unwrap();
        let before = huge_kilobytes();
        make(&handle, file, FRAMES);
        grown.push(huge_kilobytes().saturating_sub(before));
        // It can shrink and grow, with or without huge pages.
        handle.resize(64).unwrap();
        handle.resize(2 * FRAMES as u32).unwrap();
        assert!((0..FRAMES).all(|page| value(&handle, file, page) == Ok(page)));
    }
    let system = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !system.as_deref().unwrap_or_default().contains("[madvise]") {
        println!("SKIPPED: this system does not give huge pages on request: {system:?}");
        return;
    }
    println!("{grown:?} KiB of huge pages, not asked for and asked for");
    // No other test of this program uses huge pages. Half: the system may have few left.
    assert!(grown[1] >= grown[0] + FRAMES * 4 / 2, "{grown:?} KiB");
}

/// Bytes of address space of this process.
fn addresses() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_pool_that_addresses_are_too_few_for_leaves_nothing() {
    let status = in_child(|| {
        let region = region();
        limit(libc::RLIMIT_AS, addresses() + (1 << 30));
        let large = Options { frames: 64, frames_max: 1 << 22, ..options(64) };
        let refused = Pool::open(&region, Arc::new(System::new()), &large).err();
        assert!(matches!(refused, Some(Error::Region(RegionError::TooLarge(_)))), "{refused:?}");
        assert!(Pool::look(&region, Arc::new(System::new())).unwrap().is_none());
        // With smaller options it is another pool; the first one cannot be opened.
        let small = pool(&region, &options(64));
        assert_eq!(small.active(), Ok(64));
    });
    assert_eq!(status, 0);
}
