//! Counters per file, and times.

use std::thread;

use latchwork_check::stops::stop_at;
use latchwork_pool::{FileStats, TIME_CLASSES, Timed, Times};

use super::pages::{Scratch, fill, make, options, pool, region, value};
use super::points::hooked;

#[test]
fn work_is_counted_by_file() {
    let (scratch, other) = (Scratch::new("counted"), Scratch::new("counted-other"));
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    let other = handle.file(&other.spec()).unwrap();
    make(&handle, file, 10);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    (0..10).for_each(|page| handle.discard(file, page).unwrap());
    (0..10).for_each(|page| assert_eq!(value(&handle, file, page), Ok(page)));
    for _ in 0..100 {
        (0..10).for_each(|page| assert_eq!(value(&handle, file, page), Ok(page)));
    }
    assert_eq!(pool.file_stats(file).unwrap().reads, 0, "they are the handle's until it says so");
    handle.store_counts();
    handle.store_counts();
    let stats = pool.file_stats(file).unwrap();
    assert!((1_000 - 32..=1_010).contains(&stats.reads), "{stats:?}");
    assert_eq!((stats.faults, stats.written, stats.failed), (10, 10, 0));
    assert!((0.985..0.995).contains(&stats.hit_rate()), "{stats:?}");
    scratch.patch(3 * 1024 + 100, &[1, 2, 3]);
    handle.discard(file, 3).unwrap();
    value(&handle, file, 3).unwrap_err();
    let after = pool.file_stats(file).unwrap();
    assert_eq!((after.faults, after.failed), (10, 1));
    assert_eq!(pool.file_stats(other), Ok(FileStats::default()));
    assert_eq!(FileStats::default().hit_rate(), 1.0);
    make(&handle, other, 100);
    let (stats, after) = (pool.file_stats(other).unwrap(), pool.file_stats(file).unwrap());
    assert!(after.evicted <= 9 && stats.evicted >= 36, "{after:?} {stats:?}");
    let sums = (stats.evicted + after.evicted, stats.written + after.written);
    assert_eq!(sums, (handle.counted().evicted, handle.counted().written));
    let times = Timed::ALL.map(|of| pool.times(of).unwrap().count());
    assert_eq!(times, [10, sums.1, 0]);
}

#[test]
fn a_wait_for_a_page_is_counted() {
    let scratch = Scratch::new("waits");
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 2);
    fill(&handle, file, 0, 5);
    hooked();
    for (round, writes) in [false, true].into_iter().enumerate() {
        let (armed, waits) = stop_at("page.waits");
        let held = handle.write(file, 0).unwrap();
        thread::scope(|scope| {
            let (region, pool) = (&region, &pool);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                armed.here();
                match writes {
                    false => assert_eq!(value(&handle, file, 0), Ok(5)),
                    true => drop(handle.write(file, 0).unwrap()),
                }
            });
            waits.wait();
            let counted = pool.file_stats(file).unwrap().waits;
            assert_eq!(counted, round as u64, "a thread that waits stores nothing here");
            waits.go_on();
            drop(held);
        });
        // Its handle has ended.
        assert_eq!(pool.file_stats(file).unwrap().waits, round as u64 + 1);
        assert_eq!(pool.times(Timed::Wait).unwrap().count(), round as u64 + 1);
    }
}

#[test]
fn times_are_reported_as_the_end_of_their_class() {
    let mut times = Times([0; TIME_CLASSES]);
    assert_eq!((times.count(), times.quantile(0.5)), (0, 0));
    (times.0[3], times.0[10], times.0[TIME_CLASSES - 1]) = (98, 1, 1);
    let at = [0.0, 0.5, 0.98, 0.99, 1.0].map(|share| times.quantile(share));
    assert_eq!(at, [15, 15, 15, 2047, u64::MAX]);
}
