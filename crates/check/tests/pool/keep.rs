//! Prefetched pages and pinned pages.

use std::cell::Cell;
use std::fs;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_pool::Error;

use super::pages::{Scratch, fill, make, options, pool, region, value};
use super::points::at_points;

#[test]
fn a_run_of_pages_comes_by_one_call_to_the_disk() {
    let scratch = Scratch::new("ahead");
    {
        let region = region();
        let pool = pool(&region, &options(32));
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&scratch.spec()).unwrap();
        make(&handle, file, 100);
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
    }
    let region = region();
    let disk = std::sync::Arc::new(latchwork_disk::System::new());
    let pool = latchwork_pool::Pool::open(&region, disk.clone(), &options(256)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    let reads = || latchwork_disk::Disk::calls(&*disk)[latchwork_disk::Operation::Read];
    let before = reads();
    assert_eq!(handle.prefetch(file, 10, 32), Ok(32));
    assert_eq!(reads() - before, 2);
    assert_eq!(handle.prefetch(file, 0, 60), Ok(28), "only pages that are not in the pool");
    for page in 0..60 {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    assert_eq!((handle.counted().faults, handle.counted().prefetched), (0, 60));
    // Beyond the end there is nothing. A damaged page is left to its reader.
    scratch.patch(71 * 1024 + 100, &[1, 2, 3]);
    assert_eq!(handle.prefetch(file, 70, u64::MAX), Ok(29));
    assert_eq!(value(&handle, file, 72), Ok(72));
    assert_eq!(value(&handle, file, 71), Err(Error::Checksum { file: 0, page: 71 }));
    // A page that cannot be read is left to its reader too.
    fs::OpenOptions::new().write(true).open(&scratch.0).unwrap().set_len(65 * 1024).unwrap();
    assert_eq!(handle.prefetch(file, 60, 10), Ok(0));
    assert_eq!(value(&handle, file, 64), Ok(64));
    let shrank = Error::Shrank { file: 0, page: 65, pages: 100 };
    assert_eq!(value(&handle, file, 65), Err(shrank));
    assert!(pool.list().unwrap().all(|frame| frame.holder.is_none()));
}

/// An eviction reads the pins of threads only for a frame that was pinned since its page came in,
/// however many threads have pins.
#[test]
fn an_eviction_does_not_look_for_pins_that_are_of_other_frames() {
    let scratch = Scratch::new("looks");
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 500);
    for page in 0..32 {
        handle.pin(file, page).unwrap();
    }
    let looks = Rc::new(Cell::new(0));
    let count = looks.clone();
    at_points(move |name| count.set(count.get() + u32::from(name == "pin.looked")));
    let round = || {
        for page in 0..500 {
            assert_eq!(value(&handle, file, page), Ok(page));
        }
        looks.replace(0)
    };
    assert!((1..=64).contains(&round()), "once for each frame that was pinned");
    assert_eq!(round(), 0);
    let pin = handle.pin(file, 7).unwrap();
    assert!((1..=100).contains(&round()));
    drop(pin);
}

#[test]
fn a_pinned_page_stays() {
    let scratch = Scratch::new("pins");
    let region = region();
    let pool = pool(&region, &options(16));
    let (thread, other) = (region.thread().unwrap(), region.thread().unwrap());
    let (handle, other) = (pool.handle(&thread).unwrap(), pool.handle(&other).unwrap());
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 100);
    let pins: Vec<_> = (0..8).map(|page| handle.pin(file, page).unwrap()).collect();
    assert_eq!(handle.pin(file, 9).map(drop), Err(Error::Pins(8)));
    let more: Vec<_> = (8..15).map(|page| other.pin(file, page).unwrap()).collect();
    for page in (15..100).rev() {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    for pin in pins.iter().chain(&more) {
        let page = pool.frame(pin.frame()).unwrap().page;
        assert_eq!((page, pin.file()), ((0, pin.page()), file), "the frame has another page");
        assert_eq!(pin.read(|view| view.word(3)), Ok(pin.page()));
        // Others change it.
        fill(&other, file, pin.page(), 500 + pin.page());
        assert_eq!(pin.read(|view| view.word(3)), Ok(500 + pin.page()));
    }
    // The error of a pool full of pins names their owners.
    let last = other.pin(file, 15).unwrap();
    let mut holders = match value(&handle, file, 40) {
        Err(Error::Full { holders, .. }) => holders,
        ended => panic!("{ended:?}"),
    };
    holders.sort_unstable();
    assert_eq!(holders, [thread.number(), 1]);
    drop(last);
    assert_eq!(value(&handle, file, 40), Ok(40));
    // A forgotten pin ends with the successor of its handle.
    std::mem::forget(more);
    drop(other);
    assert_eq!(pool.pins().count(), 15);
    let thread = region.thread().unwrap();
    assert_eq!(thread.number(), 2);
    assert_eq!(handle.repair(&[1]), Ok(0));
    assert_eq!(pool.pins().count(), 8);
}

/// Frames about to be filled are not held pages: a thread that finds no other frame waits for them.
/// A new page that its creator keeps is a held page.
#[test]
fn more_threads_than_frames_bring_pages_in() {
    let scratch = Scratch::new("crowd");
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 200);
    thread::scope(|scope| {
        for seed in 0..30 {
            let (region, pool) = (&region, &pool);
            scope.spawn(move || {
                at_points(|point| {
                    if point == "fault.published" {
                        thread::sleep(Duration::from_micros(100));
                    }
                });
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let mut random = Random(seed);
                for _ in 0..50 {
                    let page = random.below(200);
                    assert_eq!(value(&handle, file, page), Ok(page));
                }
            });
        }
    });
    let keeper = region.thread().unwrap();
    let other = pool.handle(&keeper).unwrap();
    let _held: Vec<_> = (200..216).map(|page| other.create(file, page).unwrap()).collect();
    match value(&handle, file, 3) {
        Err(Error::Full { holders, .. }) => assert_eq!(holders, [keeper.number()]),
        got => panic!("{got:?}"),
    }
}
