//! Pages that are freed and allocated again.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Error as DiskError, Fault, Simulated};
use latchwork_pool::{Error, FileSpec, Pool};

use super::pages::{Scratch, fill, make, options, pool, region, value};

#[test]
fn a_freed_page_has_no_owner_until_it_is_created_again() {
    let scratch = Scratch::new("free");
    let region = region();
    let pool = pool(&region, &options(32));
    let (thread, other) = (region.thread().unwrap(), region.thread().unwrap());
    let (handle, other) = (pool.handle(&thread).unwrap(), pool.handle(&other).unwrap());
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 100);
    for page in [7, 90, 8] {
        handle.free_page(file, page).unwrap();
    }
    assert_eq!(pool.free_pages(file), Ok(3));
    let freed = |page| Error::Freed { file: 0, page };
    assert_eq!(value(&handle, file, 90), Err(freed(90)));
    assert_eq!(handle.write(file, 7).map(drop), Err(freed(7)));
    assert_eq!(handle.create(file, 8).map(drop), Err(freed(8)));
    assert_eq!(handle.free_page(file, 8), Err(freed(8)));
    let beyond = Error::OutOfRange { file: 0, page: 100, pages: 100 };
    assert_eq!(handle.free_page(file, 100), Err(beyond));
    assert_eq!(handle.discard(file, 8), Ok(()));
    assert_eq!(pool.looker().read(file, 7, |view| view.word(2)), Err(freed(7)));
    // Another thread gets them as new pages, the last first; then the file grows again.
    for page in [8, 90, 7, 100] {
        let mut held = other.new_page(file).unwrap();
        assert_eq!(held.page(), page);
        held.begin(0);
        assert_eq!(held.word(5), Some(0));
        held.commit();
        fill(&handle, file, page, 1_000 + page);
    }
    assert_eq!((pool.free_pages(file), pool.pages(file)), (Ok(0), Ok(101)));
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert_eq!(value(&other, file, 90), Ok(1_090));
    assert_eq!((handle.counted().freed, other.counted().reused), (3, 3));
    // No frame is available for it: it stays free.
    handle.free_page(file, 5).unwrap();
    let held: Vec<_> = (20..52).map_while(|page| handle.write(file, page).ok()).collect();
    assert_eq!(held.len(), 32);
    assert!(matches!(other.new_page(file).map(drop), Err(Error::Full { .. })));
    assert_eq!(pool.free_pages(file), Ok(1));
}

#[test]
fn a_page_for_which_there_is_no_frame_is_free() {
    let scratch = Scratch::new("no-frame");
    let region = region();
    let pool = pool(&region, &options(16));
    let (thread, other) = (region.thread().unwrap(), region.thread().unwrap());
    let (handle, other) = (pool.handle(&thread).unwrap(), pool.handle(&other).unwrap());
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 20);
    let held: Vec<_> = (0..16).map(|page| handle.write(file, page).unwrap()).collect();
    for _ in 0..2 {
        assert!(matches!(other.new_page(file).map(drop), Err(Error::Full { .. })));
        assert_eq!((pool.free_pages(file), pool.pages(file)), (Ok(1), Ok(21)));
    }
    drop(held);
    assert_eq!(other.new_page(file).unwrap().page(), 20);
}

#[test]
fn no_page_has_two_owners() {
    let scratch = Scratch::new("owners");
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    let owned = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (pool, region, owned) = (&pool, &region, &owned);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let (mut random, mut mine) = (Random(seed), Vec::new());
                for _ in 0..5_000 {
                    if mine.len() < 8 && random.below(2) == 0 {
                        let mut held = handle.new_page(file).unwrap();
                        assert!(owned.lock().unwrap().insert(held.page()), "it has an owner");
                        held.begin(0);
                        mine.push(held.page());
                        held.commit();
                    } else if let Some(page) = mine.pop() {
                        assert!(owned.lock().unwrap().remove(&page));
                        handle.free_page(file, page).unwrap();
                    }
                }
                for page in mine {
                    assert!(owned.lock().unwrap().remove(&page));
                    handle.free_page(file, page).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.free_pages(file), pool.pages(file));
    assert!(pool.pages(file).unwrap() <= 32, "freed pages are had again");
}

/// Bytes of the scratch file on disk.
fn on_disk(scratch: &Scratch) -> u64 {
    std::fs::metadata(&scratch.0).unwrap().blocks() * 512
}

#[test]
fn a_punched_page_takes_no_room_until_it_is_taken() {
    let scratch = Scratch::new("punch");
    let region = region();
    let pool = pool(&region, &options(32));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&FileSpec { ahead: true, ..scratch.spec() }).unwrap();
    make(&handle, file, 400);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let full = on_disk(&scratch);
    (100..300).for_each(|page| handle.free_page(file, page).unwrap());
    // Pages in use are not punched. Nothing is punched if the layer above cannot flush its log.
    assert_eq!(handle.punch(file, &[1, 2, 399, 5000], &mut || true), Ok(0));
    let kept = pool.punchable(file, 40).unwrap();
    assert_eq!(kept, (100..260).collect::<Vec<_>>(), "the last 40 are taken first");
    assert_eq!(handle.punch(file, &kept, &mut || false), Ok(0));
    assert_eq!(on_disk(&scratch), full);
    let punched = handle.punch(file, &kept, &mut || true).unwrap();
    if punched == 0 {
        println!("SKIPPED: the file system of {} punches no holes", scratch.0.display());
        return;
    }
    let left = on_disk(&scratch);
    assert!(left + 150 * 1024 < full, "{full} bytes, then {left}");
    assert_eq!((pool.free_pages(file), pool.punchable(file, 0).unwrap().len()), (Ok(200), 40));
    // Each has its space again before the first write to it.
    let mut taken: Vec<_> = (0..200).map(|_| handle.take_freed(file).unwrap().unwrap()).collect();
    assert!(on_disk(&scratch) >= full, "{full} bytes, then {}", on_disk(&scratch));
    taken.sort_unstable();
    assert_eq!(taken, (100..300).collect::<Vec<_>>());
    assert_eq!(handle.take_freed(file), Ok(None));
    for page in (0..100).chain(300..400) {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    // Free again, they have their space.
    handle.free_page(file, 150).unwrap();
    assert_eq!(pool.punchable(file, 0), Ok(vec![150]));
}

/// On a full disk the page stays free, and the error is about the disk.
#[test]
fn a_punched_page_stays_free_where_there_is_no_room() {
    let disk = Simulated::new();
    let region = region();
    let pool = Pool::open(&region, Arc::new(disk.clone()), &options(32)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 1024, ahead: true, ..FileSpec::new("/pages") };
    let file = handle.file(&spec).unwrap();
    make(&handle, file, 20);
    (5..15).for_each(|page| handle.free_page(file, page).unwrap());
    assert_eq!(handle.punch(file, &pool.punchable(file, 0).unwrap(), &mut || true), Ok(10 * 1024));
    disk.plan(disk.calls().total(), Fault::NoSpace);
    let full = handle.take_freed(file).unwrap_err();
    assert!(matches!(full, Error::Disk(DiskError::NoSpace(_))), "{full}");
    assert_eq!(pool.free_pages(file), Ok(10));
    let taken: HashSet<_> = (0..10).map(|_| handle.take_freed(file).unwrap().unwrap()).collect();
    assert_eq!(taken, (5..15).collect());
}

/// A page that another thread has allocated is not punched: everything written is read again.
#[test]
fn no_page_in_use_is_punched() {
    let scratch = Scratch::new("punch-owners");
    let region = region();
    let pool = pool(&region, &options(32));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&FileSpec { ahead: true, ..scratch.spec() }).unwrap();
    std::thread::scope(|scope| {
        let users = [1, 2, 3].map(|seed| {
            let (pool, region) = (&pool, &region);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let (mut random, mut mine) = (Random(seed), Vec::new());
                for step in 0..4_000 {
                    if mine.len() < 40 && random.below(2) == 0 {
                        let mut held = handle.new_page(file).unwrap();
                        let page = held.page();
                        held.begin(0);
                        (2..held.len())
                            .for_each(|index| assert!(held.set(index, seed << 32 | step)));
                        held.commit();
                        mine.push((page, seed << 32 | step));
                    } else if !mine.is_empty() {
                        let (page, was) =
                            mine.swap_remove(random.below(mine.len() as u64) as usize);
                        assert_eq!(value(&handle, file, page), Ok(was), "page {page}");
                        handle.free_page(file, page).unwrap();
                    }
                }
            })
        });
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let mut punched = 0;
        while !users.iter().all(|user| user.is_finished()) {
            let pages = pool.punchable(file, 0).unwrap();
            // At the same time the other threads allocate the marked pages.
            let mut durable = || {
                std::thread::sleep(Duration::from_micros(100));
                true
            };
            punched += handle.punch(file, &pages, &mut durable).unwrap();
        }
        println!("{punched} bytes punched");
    });
}
