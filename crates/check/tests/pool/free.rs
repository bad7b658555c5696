//! Pages that are freed, and had again.

use std::collections::HashSet;
use std::sync::Mutex;

use latchwork_check::random::Random;
use latchwork_pool::Error;

use super::pages::{Scratch, fill, make, options, pool, region, value};

#[test]
fn a_freed_page_is_nobodys_until_it_is_made_again() {
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
    // Another thread has them, as new, the last first; then the file grows again.
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
    // A frame cannot be had for it: it stays free.
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
