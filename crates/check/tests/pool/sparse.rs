//! Sparse files: pages far apart, found through a hash table.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use latchwork_check::random::Random;
use latchwork_pool::{Error, FileId, FileSpec, Handle};

use super::pages::{Scratch, fill, options, pool, region, value};
use super::points::at_points;

fn spec(scratch: &Scratch) -> FileSpec {
    FileSpec { sparse: true, ..scratch.spec() }
}

fn create(handle: &Handle<'_>, file: FileId, page: u64, value: u64) {
    let mut held = handle.create(file, page).unwrap();
    held.begin(0);
    (2..held.len()).for_each(|index| assert!(held.set(index, value)));
    held.commit();
}

/// Pages up to four tebibytes apart, as few as a file system accepts.
fn far(random: &mut Random) -> u64 {
    random.below(1 << 32)
}

#[test]
fn pages_far_apart_come_back_as_they_were() {
    let scratch = Scratch::new("sparse");
    let mut law = HashMap::new();
    let mut random = Random(7);
    {
        let region = region();
        let pool = pool(&region, &options(32));
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&spec(&scratch)).unwrap();
        for round in 0..3_000 {
            let known: Vec<u64> = law.keys().copied().take(40).collect();
            match random.below(4) {
                0 => {
                    let page = far(&mut random);
                    create(&handle, file, page, round);
                    law.insert(page, round);
                }
                1 if !known.is_empty() => {
                    let page = known[random.below(known.len() as u64) as usize];
                    fill(&handle, file, page, round);
                    law.insert(page, round);
                }
                _ if !known.is_empty() => {
                    let page = known[random.below(known.len() as u64) as usize];
                    assert_eq!(value(&handle, file, page), Ok(law[&page]), "page {page}");
                }
                _ => {}
            }
        }
        assert!(handle.counted().evicted > 500, "{:?}", handle.counted());
        assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
    }
    let region = region();
    let pool = pool(&region, &options(32));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&spec(&scratch)).unwrap();
    for (page, expected) in &law {
        assert_eq!(value(&handle, file, *page), Ok(*expected), "page {page}");
    }
    // Of four tebibytes only written parts are read.
    let mut told = Vec::new();
    let looked = pool.verify_file(file, &mut |page, error| told.push((page, error.clone())));
    assert_eq!((looked, told.as_slice()), (Ok(law.len() as u64), &[][..]));
    let page = *law.keys().next().unwrap();
    scratch.patch(page * 1024 + 100, &[1, 2, 3]);
    pool.verify_file(file, &mut |page, error| told.push((page, error.clone()))).unwrap();
    assert_eq!(told, [(page, Error::Checksum { file: 0, page })]);
}

/// With as many pages as frames some buckets need more than one line. The number of lines does not
/// depend on how many pages were created and removed.
#[test]
fn buckets_that_are_full_have_more_lines() {
    let scratch = Scratch::new("lines");
    let (region, other) = (region(), Scratch::new("lines-other"));
    let pool = pool(&region, &options(4096));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let lines = Rc::new(Cell::new(0));
    let counted = lines.clone();
    at_points(move |point| counted.set(counted.get() + u64::from(point == "hash.line")));
    let (first, second) = (spec(&scratch), spec(&other));
    let files = [handle.file(&first).unwrap(), handle.file(&second).unwrap()];
    for page in 0..4_000 {
        create(&handle, files[page as usize % 2], page / 2 * 1_000, page);
    }
    for page in 0..4_000 {
        assert_eq!(value(&handle, files[page as usize % 2], page / 2 * 1_000), Ok(page));
    }
    assert_eq!(handle.counted().faults, 0, "all of them are in the pool");
    let filled = lines.get();
    // Of 1,024 buckets with four pages each on average, 52 have more than seven.
    assert!((10..200).contains(&filled), "{filled} lines");
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
    for page in 4_000..20_000 {
        create(&handle, files[page as usize % 2], page / 2 * 1_000, page);
    }
    assert!(lines.get() < 600, "{} lines for pages that have gone", lines.get());
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
}

/// Threads request the same pages: each page is in one frame, and the last write is read.
#[test]
fn threads_bring_a_page_in_once() {
    let scratch = Scratch::new("sparse-threads");
    let region = region();
    let pool = pool(&region, &options(24));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&spec(&scratch)).unwrap();
    let pages: Vec<u64> = (0..64).map(|page| page * page * 65_537).collect();
    pages.iter().for_each(|page| create(&handle, file, *page, 0));
    let changes: u64 = std::thread::scope(|scope| {
        let work = |seed: u64| {
            let (pool, region, pages) = (&pool, &region, &pages);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let (mut random, mut changes) = (Random(seed + 1), 0u64);
                for _ in 0..20_000 {
                    let page = pages[random.below(64) as usize];
                    let before = value(&handle, file, page).unwrap();
                    if random.below(4) == 0 {
                        let mut held = handle.write(file, page).unwrap();
                        let now = held.word(2).unwrap();
                        assert!(now >= before, "page {page}: {now} after {before}");
                        held.begin(0);
                        (2..held.len()).for_each(|index| assert!(held.set(index, now + 1)));
                        held.commit();
                        changes += 1;
                    }
                }
                changes
            })
        };
        let threads: Vec<_> = (0..4u64).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
    let sum: u64 = pages.iter().map(|page| value(&handle, file, *page).unwrap()).sum();
    assert_eq!(sum, changes, "a change is lost");
    assert!(handle.pool().stats().unwrap().evicted > 1_000);
}

#[test]
fn unsupported_calls_on_a_sparse_file_are_refused() {
    let (scratch, array) = (Scratch::new("sparse-cannot"), Scratch::new("array-beside"));
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let ahead = FileSpec { ahead: true, ..spec(&scratch) };
    assert_eq!(handle.file(&ahead), Err(Error::Options("room ahead in a sparse file")));
    let file = handle.file(&spec(&scratch)).unwrap();
    let array = handle.file(&array.spec()).unwrap();
    assert_eq!((file.pages_max(), array.pages_max()), (1 << 40, 1 << 28));
    // Its own pages, and those with the same numbers of another file.
    for page in 0..40 {
        assert_eq!(handle.new_page(array).map(|page| page.page()), Ok(page));
        create(&handle, array, page, page);
        create(&handle, file, page, page + 100);
    }
    for page in 0..40 {
        assert_eq!(value(&handle, array, page), Ok(page));
        assert_eq!(value(&handle, file, page), Ok(page + 100));
    }
    assert_eq!(handle.free_page(file, 3), Err(Error::Sparse { file: 0 }));
    assert_eq!(handle.take_freed(file), Ok(None));
    handle.discard(file, 39).unwrap();
    let beyond = Error::OutOfRange { file: 0, page: 1 << 40, pages: 1 << 40 };
    assert_eq!(handle.create(file, 1 << 40).map(drop), Err(beyond));
    let beyond = Error::OutOfRange { file: 0, page: 50, pages: 40 };
    assert_eq!(value(&handle, file, 50), Err(beyond));
    // A page between others that was never created.
    create(&handle, file, 1 << 20, 5);
    assert!(value(&handle, file, 1 << 19).is_err_and(|error| error.is_unwritten()));
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
    assert_eq!(pool.free_pages(file), Ok(0));
}
