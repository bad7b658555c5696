//! The shuffled latches on real threads, and on a simulated topology.

use std::cell::Cell;
use std::time::Duration;

use latchwork_check::Scattered;
use latchwork_check::law::{self, Broken};
use latchwork_latch::{Biased, Park, ParkDetached, Policy, Shfl, ShflMutex, ShflRwLock, ShflSpin};
use latchwork_machine::{Clock, Deadline, Machine, Native, Shared};

/// Reserves the latch at the first loss, and has short turns.
#[derive(Default)]
struct Impatient;

impl Policy for Impatient {
    const PARKS: bool = true;
    const PATIENCE: u32 = 1;
    const BATCH: u32 = 2;
    const BUDGETS: u32 = 1;
}

const OPERATIONS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

/// From one thread to sixteen times the cores.
fn crowds() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
    vec![1, 2, cores + 1, 4 * cores, 16 * cores]
}

#[test]
fn latches_exclude_on_real_threads() {
    for threads in crowds() {
        let each = OPERATIONS / threads as u64 * 2;
        law::excludes::<ShflMutex>(threads, each, 0, |_| ()).unwrap();
        law::excludes::<Shfl<ParkDetached>>(threads, each, 0, |_| ()).unwrap();
        law::excludes::<ShflSpin>(threads, each, 0, |_| ()).unwrap();
        law::excludes::<ShflRwLock>(threads, each, 0, |_| ()).unwrap();
        law::excludes::<ShflRwLock>(threads, each, 8, |_| ()).unwrap();
    }
}

#[test]
fn a_latch_without_exclusion_is_detected() {
    let caught = (0..50).any(|_| law::excludes::<Broken>(8, OPERATIONS, 0, |_| ()).is_err());
    assert!(caught, "a latch without exclusion was not detected");
}

#[test]
fn latches_exclude_on_four_nodes() {
    let stand = |thread: usize| Scattered::stand_on(thread as u32 % 4);
    for threads in crowds() {
        let each = OPERATIONS / threads as u64 * 2;
        law::excludes::<ShflMutex<Scattered>>(threads, each, 0, stand).unwrap();
        law::excludes::<Shfl<Impatient, Scattered>>(threads, each, 0, stand).unwrap();
        law::excludes::<ShflSpin<Scattered>>(threads, each, 0, stand).unwrap();
        law::excludes::<ShflRwLock<Scattered>>(threads, each, 5, stand).unwrap();
    }
}

/// How often the head of the queue is passed, each time before it sleeps, until it gets the latch.
fn passes<P: Policy + Default>() -> u32 {
    let latch: &'static Shfl<P, Scattered> = Box::leak(Box::default());
    let passes: &'static Cell<u32> = Box::leak(Box::new(Cell::new(0)));
    latch.lock();
    Scattered::instead_of_sleeping(Some(Box::new(|| {
        // The holder unlocks, and a newcomer locks before the head has checked.
        // SAFETY: locked above, or by the last pass.
        unsafe { latch.unlock() };
        if passes.get() < 10_000 && latch.try_lock() {
            passes.set(passes.get() + 1);
        }
    })));
    latch.lock();
    Scattered::instead_of_sleeping(None);
    passes.get()
}

/// A policy that never reserves: the control.
#[derive(Default)]
struct Patient;

impl Policy for Patient {
    const PARKS: bool = true;
    const PATIENCE: u32 = u32::MAX;
    const BUDGETS: u32 = 1;
}

/// A policy with the same patience on several nodes as the default on one.
#[derive(Default)]
struct Calm;

impl Policy for Calm {
    const PARKS: bool = true;
    const PATIENCE: u32 = Park::PATIENCE;
    const BUDGETS: u32 = 1;
}

/// The default, but sleeping at once: how long the default spins first depends on the host.
#[derive(Default)]
struct Sleeper;

impl Policy for Sleeper {
    const PARKS: bool = true;
    const PATIENCE: u32 = Park::PATIENCE;
    const PATIENCE_APART: u32 = Park::PATIENCE_APART;
    const BUDGETS: u32 = 1;
}

/// The same for a detached latch.
#[derive(Default)]
struct DetachedSleeper;

impl Policy for DetachedSleeper {
    const PARKS: bool = true;
    const PATIENCE: u32 = Sleeper::PATIENCE;
    const PATIENCE_APART: u32 = Sleeper::PATIENCE_APART;
    const DETACHED: bool = true;
    const BUDGETS: u32 = 1;
}

#[test]
fn the_head_is_passed_at_most_as_often_as_its_patience_allows() {
    assert_eq!(passes::<Impatient>(), Impatient::PATIENCE);
    assert_eq!(passes::<Calm>(), Park::PATIENCE);
    // The simulated machine has several nodes.
    assert_eq!(passes::<Sleeper>(), Park::PATIENCE_APART);
    assert_eq!(passes::<DetachedSleeper>(), Park::PATIENCE_APART);
    assert_eq!(passes::<Patient>(), 10_000, "the bound was not tested");
}

#[test]
fn no_reader_passes_a_sleeping_writer() {
    let latch: &'static ShflRwLock<Scattered> = Box::leak(Box::default());
    let passes: &'static Cell<u32> = Box::leak(Box::new(Cell::new(0)));
    let recursive: &'static Cell<u32> = Box::leak(Box::new(Cell::new(0)));
    latch.lock_shared();
    Scattered::instead_of_sleeping(Some(Box::new(|| {
        // A reader comes before the last one leaves, so the latch is never free.
        if latch.try_lock_shared() {
            passes.set(passes.get() + 1);
        } else if recursive.get() < 100 {
            // The control: a recursive share passes.
            assert!(latch.try_lock_shared_recursive());
            recursive.set(recursive.get() + 1);
        }
        // SAFETY: one share is held.
        unsafe { latch.unlock_shared() };
    })));
    latch.lock_exclusive();
    Scattered::instead_of_sleeping(None);
    assert_eq!((passes.get(), recursive.get()), (0, 100));
}

#[test]
fn a_deadline_passes() {
    let (mutex, rw) = (ShflMutex::new(), ShflRwLock::new());
    let soon = || Deadline::after::<Native>(Duration::from_millis(3));
    mutex.lock();
    rw.lock_exclusive();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert!(!mutex.lock_until(soon()));
                    assert!(!rw.lock_shared_until(soon()));
                    assert!(!rw.lock_exclusive_until(soon()));
                }
            });
        }
    });
    // SAFETY: locked above.
    unsafe { mutex.unlock() };
    // SAFETY: locked above.
    unsafe { rw.unlock_exclusive() };
    assert!(mutex.lock_until(soon()));
    assert!(rw.lock_shared_until(soon()));
}

#[test]
fn a_deadline_on_the_wall_clock_passes() {
    let mutex = ShflMutex::new();
    mutex.lock();
    let at = Native::now(Clock::Realtime) + 3_000_000;
    assert!(!mutex.lock_until(Deadline { clock: Clock::Realtime, at }));
    assert!(Native::now(Clock::Realtime) >= at);
}

/// A waiter that repeatedly gives up at a latch that is never released uses one slot.
#[test]
fn repeated_timeouts_use_one_slot() {
    let mutex: &'static ShflMutex = Box::leak(Box::new(ShflMutex::new()));
    mutex.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let soon = || Deadline::after::<Native>(Duration::from_micros(50));
            // The first waiter is the head and leaves; this lets another thread be the head.
            std::thread::scope(|inner| {
                inner.spawn(|| {
                    mutex.lock_until(Deadline::after::<Native>(Duration::from_millis(300)))
                });
                std::thread::sleep(Duration::from_millis(30));
                let before = Native::table().high_water();
                for _ in 0..200 {
                    assert!(!mutex.lock_until(soon()));
                }
                let after = Native::table().high_water();
                assert!(after - before < 64, "{} slots for one waiter", after - before);
            });
        });
    });
}

/// Threads that end after waiting return their slots: the table has 65,534.
#[test]
fn slots_are_returned_at_thread_exit() {
    let mutex = ShflMutex::new();
    for _ in 0..200 {
        std::thread::scope(|scope| {
            mutex.lock();
            for _ in 0..8 {
                scope.spawn(|| {
                    mutex.lock();
                    // SAFETY: locked above.
                    unsafe { mutex.unlock() };
                });
            }
            std::thread::yield_now();
            // SAFETY: locked above.
            unsafe { mutex.unlock() };
        });
    }
    let used = Native::table().high_water();
    assert!(used < 1_500, "{used} slots for at most a few hundred threads at a time");
}

#[test]
fn a_free_latch_is_all_zero() {
    // SAFETY: a latch is atomic integers, for which all zero is a value.
    let (mutex, rw): (ShflMutex, ShflRwLock) = unsafe { std::mem::zeroed() };
    assert!(mutex.try_lock() && !mutex.try_lock());
    assert!(rw.try_lock_exclusive() && !rw.try_lock_shared());
    // SAFETY: taken above.
    unsafe { rw.downgrade() };
    assert!(rw.try_lock_shared() && !rw.try_lock_exclusive());
}

#[test]
fn sizes() {
    assert_eq!(size_of::<ShflMutex>(), 8);
    assert_eq!(size_of::<ShflSpin>(), 8);
    assert_eq!(size_of::<ShflRwLock>(), 16);
    assert_eq!(size_of::<Biased<ShflRwLock>>(), 32);
    assert_eq!(size_of::<ShflMutex<Shared>>(), 8);
    assert_eq!(size_of::<latchwork_machine::Slot<Native>>(), 64);
}

/// A policy without reordering: the control.
#[derive(Default)]
struct InOrder;

impl Policy for InOrder {
    const PARKS: bool = true;
    const PATIENCE: u32 = 0;
    const BATCH: u32 = 1;
}

/// Turns of four, so that they end during the test.
#[derive(Default)]
struct ShortTurns;

impl Policy for ShortTurns {
    const PARKS: bool = true;
    const PATIENCE: u32 = 0;
    const BATCH: u32 = 4;
}

#[test]
fn hand_overs_stay_on_the_node_for_a_turn() {
    let stand = |node: usize| Scattered::stand_on(node as u32);
    let (threads, nodes) = (16, 4);
    let long = law::locality::<Park, Scattered>(threads, nodes, 400, stand);
    assert!(long.possible > 100, "no thread waited: {long:?}");
    assert!(long.share() >= 0.8, "{long:?}");
    let short = law::locality::<ShortTurns, Scattered>(threads, nodes, 400, stand);
    assert!(short.share() < 0.9, "turns do not end: {short:?}");
    assert!(short.worst_wait <= law::worst_wait::<ShortTurns>(threads, nodes), "{short:?}");
    let control = law::locality::<InOrder, Scattered>(threads, nodes, 400, stand);
    assert!(control.share() < 0.6, "locality without reordering: {control:?}");
}
