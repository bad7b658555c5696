//! A pool that grows and shrinks while others use it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::random::Random;
use latchwork_pool::Error;

use super::pages::{Scratch, fill, make, options, pool, region, value};

#[test]
fn a_pool_becomes_larger_and_smaller() {
    let scratch = Scratch::new("resize");
    let region = region();
    let pool = pool(&region, &options(16));
    let (thread, other) = (region.thread().unwrap(), region.thread().unwrap());
    let (handle, other) = (pool.handle(&thread).unwrap(), pool.handle(&other).unwrap());
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 300);
    handle.resize(400).unwrap();
    for page in 0..300 {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    let before = handle.counted().faults;
    for page in 0..300 {
        fill(&other, file, page, page + 1);
    }
    assert_eq!((handle.counted().faults, pool.active()), (before, Ok(400)), "it has room for all");
    let snapshot = handle.optimistic(file, 299).unwrap();
    handle.resize(40).unwrap();
    assert!(pool.list().unwrap().count() <= 40 && pool.active() == Ok(40));
    // A stopped reader still reads mapped memory and detects that it is not the page.
    assert!(snapshot.frame() < 40 || (snapshot.word(2).is_some() && !snapshot.validate()));
    for page in 0..300 {
        assert_eq!(value(&handle, file, page), Ok(page + 1));
    }
    assert!((40..400).all(|frame| pool.frame(frame).is_none()), "a page lies beyond the end");
    // Removed frames can be added again.
    handle.resize(4096).unwrap();
    for page in 0..300 {
        assert_eq!(value(&other, file, page), Ok(page + 1));
    }
    for frames in [0, 15, 4097] {
        assert_eq!(handle.resize(frames), Err(Error::Options("frames")));
    }
}

#[test]
fn a_pool_that_cannot_shrink_keeps_its_size() {
    let scratch = Scratch::new("resize-pins");
    let region = region();
    let pool = pool(&region, &options(64));
    let (thread, other) = (region.thread().unwrap(), region.thread().unwrap());
    let (handle, other) = (pool.handle(&thread).unwrap(), pool.handle(&other).unwrap());
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 64);
    let beyond = |page: &u64| handle.optimistic(file, *page).unwrap().frame() >= 16;
    let page = (0..64).find(beyond).unwrap();
    let pin = other.pin(file, page).unwrap();
    match handle.resize(16) {
        Err(Error::Full { holders, .. }) => assert_eq!(holders, [1]),
        ended => panic!("{ended:?}"),
    }
    assert_eq!(pool.active(), Ok(64));
    assert_eq!(pin.read(|view| view.word(2)), Ok(page));
    for page in 0..64 {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    assert!(pool.list().unwrap().count() > 16, "it has fewer frames to use");
    drop(pin);
    handle.resize(16).unwrap();
    assert_eq!(value(&handle, file, page), Ok(page));
}

#[test]
fn nothing_is_lost_while_it_changes() {
    let scratch = Scratch::new("resize-threads");
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 200);
    let over = AtomicBool::new(false);
    let counts: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let (pool, region, over) = (&pool, &region, &over);
        let work = |seed| {
            move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let (mut random, mut added) = (Random(seed), vec![0; 200]);
                while !over.load(Relaxed) {
                    let page = random.below(200);
                    value(&handle, file, random.below(200)).unwrap();
                    let mut held = handle.write(file, page).unwrap();
                    let next = held.word(2).unwrap() + 1;
                    held.begin(0);
                    assert!((2..held.len()).all(|index| held.set(index, next)));
                    held.commit();
                    added[page as usize] += 1;
                    if random.below(50) == 0 {
                        handle.prefetch(file, page, 20).unwrap();
                    }
                }
                added
            }
        };
        let workers: Vec<_> = (1..4).map(|seed| scope.spawn(work(seed))).collect();
        let mut random = Random(9);
        let mut beyond = 0;
        for _ in 0..150 {
            handle.resize(40 + random.below(400) as u32).unwrap();
            let frames = pool.active().unwrap();
            beyond += (frames..4096).filter(|frame| pool.frame(*frame).is_some()).count();
        }
        over.store(true, Relaxed);
        assert_eq!(beyond, 0, "pages lie beyond the pool's end");
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for page in 0..200 {
        let added: u64 = counts.iter().map(|added| added[page as usize]).sum();
        assert_eq!(value(&handle, file, page), Ok(page + added), "page {page}");
    }
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert!(pool.list().unwrap().all(|frame| !frame.dirty));
}
