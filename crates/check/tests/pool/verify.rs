//! A pool with damaged words: `verify` reports the damage, and using a damaged word is an error.

use std::sync::atomic::Ordering::Relaxed;

use latchwork_pool::Error;
use latchwork_region::AreaOptions;

use super::pages::{Scratch, make, options, pool, region, value};

#[test]
fn a_damaged_pool_is_not_sound() {
    let scratch = Scratch::new("verify");
    let region = region();
    let options = options(64);
    let pool = pool(&region, &options);
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 40);
    handle.free_page(file, 9).unwrap();
    let found = pool.verify().unwrap();
    assert_eq!((found.flaws.len(), found.pages, found.latched), (0, 39, 0), "{found:?}");
    let frame = handle.optimistic(file, 17).unwrap().frame();
    let marks = u64::from(options.frames_max) / 64 * 8;
    let whole = marks + u64::from(options.frames_max) * 8;
    let sizes = AreaOptions { first: 8, limit: whole * 8, huge: false };
    let descs = region.area("pool-desc", &sizes).unwrap();
    // Latch, tag, state: a page of no file, a page that is elsewhere, an invalid state.
    for (word, to, what) in [
        (1, 200 << 48 | 17, "file 199"),
        (1, 1 << 48 | 18, "looked for elsewhere"),
        (1, 1 << 48 | 18, "is in frame"),
        (1, 1 << 48 | 5_000, "which has"),
        (1, 0, "of no page"),
        (2, 1, "state 0x1"),
        (2, 0x202, "half changed"),
    ] {
        let place = descs.word(marks + u64::from(frame) * 8 + word).unwrap();
        let was = place.swap(to, Relaxed);
        let found = pool.verify().unwrap();
        assert!(found.flaws.iter().any(|flaw| flaw.contains(what)), "{what}: {found:?}");
        if word == 2 {
            // No thread may continue a change that was begun and not ended.
            let taken = handle.write(file, 17).map(drop);
            assert_eq!(taken, Err(Error::Corrupt("state of a frame")), "{what}");
        }
        place.store(was, Relaxed);
    }
    assert_eq!(value(&handle, file, 17), Ok(17));
    // The number of frames of the clock: fewer or more than a pool can have.
    let words = 1024 + 256 * 128 + 16_383 * 32;
    let sizes = AreaOptions { first: 8, limit: words * 8, huge: false };
    let head = region.area("pool-head", &sizes).unwrap();
    let place = head.word(48).unwrap();
    for count in [0, 15, 4097, u64::MAX] {
        let was = place.swap(count, Relaxed);
        assert!(pool.verify().unwrap().flaws.iter().any(|flaw| flaw.contains("the clock")));
        assert_eq!(handle.new_page(file).map(drop), Err(Error::Corrupt("number of frames")));
        place.store(was, Relaxed);
    }
    // The first free page becomes a page that is not free.
    let place = head.word(1024 + 6).unwrap();
    place.store(18 + 1, Relaxed);
    assert!(pool.verify().unwrap().flaws.iter().any(|flaw| flaw.contains("free pages")));
    assert_eq!(handle.new_page(file).map(drop), Err(Error::Corrupt("list of free pages")));
    assert_eq!(value(&handle, file, 18), Ok(18));
}
