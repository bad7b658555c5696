//! The shared-exclusive latch on real threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use latchwork_latch::{Attempt, CompareExchange, FetchAdd, LwLatch};
use latchwork_machine::{Clock, Deadline, Machine, Native};

/// A policy that stops newcomers at once, so that tests reach that state.
struct Strict<A>(A);

impl<A: Attempt> Attempt for Strict<A> {
    const BYPASSES: u32 = 1;
    const LOSSES: u32 = 1;

    fn share<M: Machine>(state: &M::AtomicU32, look: bool, bypasses: u32) -> Result<(), u32> {
        A::share::<M>(state, look, bypasses)
    }
}

const NOW: Deadline = Deadline { clock: Clock::Monotonic, at: 0 };

/// PostgreSQL 333f586372 (2026): a try of a latch that the caller holds must fail without effect.
#[test]
fn bug_2026_try_of_a_latch_held_by_the_caller_fails() {
    let latch = LwLatch::new();
    latch.lock_shared();
    assert!(!latch.try_lock_exclusive());
    assert!(latch.try_lock_shared());
    // SAFETY: two shares are held.
    unsafe { latch.unlock_shared() };
    // SAFETY: one share is held.
    unsafe { latch.unlock_shared() };
    latch.lock_exclusive();
    assert!(!latch.try_lock_exclusive());
    assert!(!latch.try_lock_shared());
    assert!(!latch.lock_shared_until(NOW));
    assert!(!latch.lock_exclusive_until(NOW));
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    assert!(latch.try_lock_exclusive());
}

/// Many threads, all ways to lock, and one counter that only exclusive holders change.
fn stress<A: Attempt>(threads: usize, rounds: u32) {
    struct Shared<A: Attempt> {
        latch: LwLatch<A>,
        pair: [AtomicU64; 2],
    }
    let shared = Arc::new(Shared::<A> { latch: LwLatch::FREE, pair: Default::default() });
    let moved: u64 = (0..threads as u32)
        .map(|i| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let (latch, [a, b]) = (&shared.latch, &shared.pair);
                let soon = || Deadline::after::<Native>(Duration::from_micros(u64::from(i) * 7));
                let mut moved = 0;
                for round in 0..rounds {
                    let exclusive = match (round + i) % 16 {
                        0 => {
                            latch.lock_exclusive();
                            true
                        }
                        1 => latch.lock_exclusive_until(soon()),
                        2 => latch.try_lock_exclusive(),
                        3 => latch.acquire_or_wait(),
                        4 => {
                            if latch.lock_shared_until(soon()) {
                                assert_eq!(a.load(Relaxed), b.load(Relaxed));
                                // SAFETY: locked above.
                                unsafe { latch.unlock_shared() };
                            }
                            false
                        }
                        _ => {
                            latch.lock_shared();
                            assert_eq!(a.load(Relaxed), b.load(Relaxed));
                            // SAFETY: locked above.
                            unsafe { latch.unlock_shared() };
                            false
                        }
                    };
                    if exclusive {
                        a.store(a.load(Relaxed) + 1, Relaxed);
                        b.store(b.load(Relaxed) + 1, Relaxed);
                        moved += 1;
                        if round % 3 == 0 {
                            // SAFETY: locked above.
                            unsafe { latch.downgrade() };
                            assert_eq!(a.load(Relaxed), b.load(Relaxed));
                            // SAFETY: the share of the downgrade is held.
                            unsafe { latch.unlock_shared() };
                        } else {
                            // SAFETY: locked above.
                            unsafe { latch.unlock_exclusive() };
                        }
                    }
                }
                moved
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(shared.pair[0].load(Relaxed), moved);
    assert_eq!(format!("{:?}", shared.latch), format!("{:?}", LwLatch::<A>::default()));
}

/// Thread counts, from the number of cores.
fn crowds() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    vec![1, cores, 4 * cores, 16 * cores]
}

#[test]
fn stress_all_ways_in() {
    for threads in crowds() {
        let rounds = 200_000 / threads as u32;
        stress::<FetchAdd>(threads, rounds);
        stress::<CompareExchange>(threads, rounds);
        stress::<Strict<FetchAdd>>(threads, rounds / 4);
        stress::<Strict<CompareExchange>>(threads, rounds / 4);
    }
}

/// Readers that overlap never release the latch completely. A writer still gets in, after at most
/// as many of them as the policy allows, and one for each thread that had passed the check.
#[test]
fn fairness_of_readers_that_overlap() {
    fn run<A: Attempt>() {
        const READERS: u64 = 4;
        let latch = Arc::new(LwLatch::<A>::FREE);
        let stop = Arc::new(AtomicBool::new(false));
        let entries = Arc::new(AtomicU64::new(0));
        latch.lock_shared();
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (latch, stop, entries) = (latch.clone(), stop.clone(), entries.clone());
                std::thread::spawn(move || {
                    while !stop.load(Relaxed) {
                        latch.lock_shared();
                        entries.fetch_add(1, Relaxed);
                        // SAFETY: locked above.
                        unsafe { latch.unlock_shared() };
                    }
                })
            })
            .collect();
        let writer = {
            let latch = latch.clone();
            std::thread::spawn(move || {
                latch.lock_exclusive();
                // SAFETY: locked above.
                unsafe { latch.unlock_exclusive() };
            })
        };
        // The first share is kept, so the writer cannot get in and newcomers must stop.
        while !format!("{latch:?}").contains("waiters: true") {
            std::thread::yield_now();
        }
        let before = entries.load(SeqCst);
        while !format!("{latch:?}").contains("starved: true") {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        let stopped = entries.load(SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(entries.load(SeqCst), stopped, "a newcomer passed a starved writer");
        let bound = u64::from(A::BYPASSES) + 2 * READERS;
        println!("passed by {} of at most {bound}", stopped - before);
        assert!(stopped - before <= bound);
        // SAFETY: locked above.
        unsafe { latch.unlock_shared() };
        writer.join().unwrap();
        stop.store(true, Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    }
    run::<FetchAdd>();
    run::<CompareExchange>();
    run::<Strict<FetchAdd>>();
}

/// Threads lock and unlock without a pause: a waiter loses a bounded number of races.
#[test]
fn fairness_of_a_greedy_writer() {
    let latch = Arc::new(LwLatch::new());
    let stop = Arc::new(AtomicBool::new(false));
    let inside = Arc::new(AtomicU32::new(0));
    let greedy: Vec<_> = (0..3)
        .map(|_| {
            let (latch, stop) = (latch.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    latch.lock_exclusive();
                    std::thread::yield_now();
                    // SAFETY: locked above.
                    unsafe { latch.unlock_exclusive() };
                }
            })
        })
        .collect();
    for _ in 0..50 {
        latch.lock_shared();
        inside.fetch_add(1, Relaxed);
        // SAFETY: locked above.
        unsafe { latch.unlock_shared() };
    }
    stop.store(true, Relaxed);
    for thread in greedy {
        thread.join().unwrap();
    }
    assert_eq!(inside.load(Relaxed), 50);
}

/// Too many shares are refused, and a refusal leaves the count unchanged.
#[test]
fn too_many_shares_are_refused() {
    fn run<A: Attempt>() {
        let latch = LwLatch::<A>::FREE;
        for _ in 0..1 << 18 {
            latch.lock_shared();
        }
        let full = format!("{latch:?}");
        for _ in 0..3 {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                latch.lock_shared();
            }));
            assert!(refused.is_err());
            assert_eq!(format!("{latch:?}"), full);
        }
        for _ in 0..1 << 18 {
            // SAFETY: this many shares are held.
            unsafe { latch.unlock_shared() };
        }
        assert!(latch.try_lock_exclusive());
    }
    run::<FetchAdd>();
    run::<CompareExchange>();
}

#[test]
fn timeouts_are_not_early_and_leave_no_state() {
    let latch = Arc::new(LwLatch::new());
    latch.lock_exclusive();
    let others: Vec<_> = (0..6)
        .map(|i| {
            let latch = latch.clone();
            std::thread::spawn(move || {
                let deadline = Deadline::after::<Native>(Duration::from_millis(5 + i));
                let entered = if i % 2 == 0 {
                    latch.lock_shared_until(deadline)
                } else {
                    latch.lock_exclusive_until(deadline)
                };
                assert!(!entered && deadline.passed::<Native>());
            })
        })
        .collect();
    for other in others {
        other.join().unwrap();
    }
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    assert_eq!(format!("{latch:?}"), format!("{:?}", LwLatch::new()));
}

/// In the child of a fork, queues of threads that do not exist there are treated as empty.
#[test]
fn forked_child_ignores_queues_of_absent_threads() {
    let latch = Arc::new(LwLatch::new());
    latch.lock_exclusive();
    let waiter = {
        let latch = latch.clone();
        std::thread::spawn(move || {
            latch.lock_exclusive();
            // SAFETY: locked above.
            unsafe { latch.unlock_exclusive() };
        })
    };
    while !format!("{latch:?}").contains("waiters: true") {
        std::thread::yield_now();
    }
    // SAFETY: the child uses only latches, threads and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        Native::table().forked();
        // SAFETY: locked by the thread whose copy in the child is this one.
        unsafe { latch.unlock_exclusive() };
        for _ in 0..100 {
            if !latch.lock_exclusive_until(Deadline::after::<Native>(Duration::from_secs(2))) {
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
            // SAFETY: locked above.
            unsafe { latch.unlock_exclusive() };
        }
        let idle = format!("{latch:?}") == format!("{:?}", LwLatch::new());
        // SAFETY: ends the child.
        unsafe { libc::_exit(if idle { 0 } else { 2 }) };
    }
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    waiter.join().unwrap();
    let mut status = 0;
    // SAFETY: waits for the child created above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}
