//! The shuffled latches: under loom, on real threads, and on an invented topology.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use latchwork_check::law::{self, Broken, Latch};
use latchwork_check::loom_machine::{explore, objects};
use latchwork_check::{Loom, Scattered};
use latchwork_latch::{Park, ParkDetached, Policy, Shfl, ShflMutex, ShflRwLock, ShflSpin};
use latchwork_machine::{Clock, Deadline, Machine, Native, Shared};
use loom::cell::UnsafeCell;

/// Something that a latch guards, of which loom knows who touches it.
struct Guarded<L> {
    latch: L,
    value: UnsafeCell<u32>,
}

// SAFETY: the latch guards the value, and loom panics if it does not.
unsafe impl<L: Sync> Sync for Guarded<L> {}

impl<L: Latch> Guarded<L> {
    fn new() -> Arc<Self> {
        Arc::new(Self { latch: L::default(), value: UnsafeCell::new(0) })
    }

    fn count(&self) {
        // SAFETY: the latch is held by the caller.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: a share of the latch is held by the caller.
        self.value.with(|value| unsafe { *value })
    }
}

/// Each of `threads` threads takes the latch once, with `take` and `give`, and counts.
fn counts<L: Latch>(
    threads: usize,
    take: impl Fn(&L) -> bool + Send + Sync + Copy + 'static,
    give: impl Fn(&L) + Send + Sync + Copy + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Guarded::<L>::new();
        let work = move |thread: usize, guarded: &Guarded<L>| {
            Loom::stand_on(thread as u32 % 2);
            if take(&guarded.latch) {
                guarded.count();
                give(&guarded.latch);
                1
            } else {
                0
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|thread| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || work(thread, &guarded))
            })
            .collect();
        let mut counted = work(0, &guarded);
        for other in others {
            counted += other.join().unwrap();
        }
        guarded.latch.lock();
        assert_eq!(guarded.read(), counted);
        guarded.latch.unlock();
    }
}

type LoomMutex = Shfl<Park, Loom>;

/// Parks at once and reserves at the first loss, so that reservations are explored too.
#[derive(Default)]
struct Impatient;

impl Policy for Impatient {
    const PARKS: bool = true;
    const PATIENCE: u32 = 1;
    const BATCH: u32 = 2;
}

fn soon() -> Deadline {
    Deadline { clock: Clock::Monotonic, at: 1 }
}

#[test]
fn loom_mutex_three_threads() {
    explore("mutex, 3 threads", 2, counts::<LoomMutex>(3, |l| (l.lock(), true).1, Latch::unlock));
}

#[test]
fn loom_mutex_two_threads_deeper() {
    explore("mutex, 2 threads", 4, counts::<LoomMutex>(2, |l| (l.lock(), true).1, Latch::unlock));
}

#[test]
fn loom_mutex_impatient() {
    type L = Shfl<Impatient, Loom>;
    explore("impatient mutex", 2, counts::<L>(3, |l| (l.lock(), true).1, Latch::unlock));
}

/// Four that wait, on two nodes in turn, so that the third is brought forward past the second.
#[test]
fn loom_shuffles() {
    explore("shuffling", 1, counts::<LoomMutex>(5, |l| (l.lock(), true).1, Latch::unlock));
}

#[test]
fn loom_mutex_tried() {
    explore("tried mutex", 3, counts::<LoomMutex>(3, Shfl::try_lock, Latch::unlock));
    explore(
        "tried rw",
        3,
        counts::<ShflRwLock<Loom>>(3, |l| l.try_lock_exclusive(), Latch::unlock),
    );
}

#[test]
fn loom_mutex_detached() {
    type L = Shfl<ParkDetached, Loom>;
    explore("detached mutex", 2, counts::<L>(3, |l| (l.lock(), true).1, Latch::unlock));
    explore("detached, timed", 2, counts::<L>(3, |l| l.lock_until(soon()), Latch::unlock));
}

#[test]
fn loom_mutex_timed() {
    explore("timed mutex", 2, counts::<LoomMutex>(3, |l| l.lock_until(soon()), Latch::unlock));
}

#[test]
fn loom_mutex_gives_up_and_comes_back() {
    let take = |l: &LoomMutex| l.lock_until(soon()) || l.lock_until(soon()) || (l.lock(), true).1;
    explore("gives up", 2, counts::<LoomMutex>(2, take, Latch::unlock));
}

#[test]
fn loom_mutex_one_gives_up_among_two_that_wait() {
    explore("one gives up", 2, || {
        let guarded = Guarded::<LoomMutex>::new();
        let waits = |guarded: Arc<Guarded<LoomMutex>>| {
            move || {
                guarded.latch.lock();
                guarded.count();
                Latch::unlock(&guarded.latch);
            }
        };
        let first = loom::thread::spawn(waits(guarded.clone()));
        let second = loom::thread::spawn(waits(guarded.clone()));
        if guarded.latch.lock_until(soon()) {
            Latch::unlock(&guarded.latch);
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn loom_spin_two_threads() {
    type L = Shfl<latchwork_latch::SpinOnly, Loom>;
    explore("spin, 2 threads", 3, counts::<L>(2, |l| (l.lock(), true).1, Latch::unlock));
}

#[test]
fn loom_rw_three_writers() {
    type L = ShflRwLock<Loom>;
    explore("rw, 3 writers", 2, counts::<L>(3, |l| (Latch::lock(l), true).1, Latch::unlock));
}

/// `readers` threads read what `writers` threads write.
fn reads(readers: usize, writers: usize, recursive: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Guarded::<ShflRwLock<Loom>>::new();
        let mut threads = Vec::new();
        for reader in 0..readers {
            let guarded = guarded.clone();
            threads.push(loom::thread::spawn(move || {
                Loom::stand_on(reader as u32 % 2);
                if recursive {
                    guarded.latch.lock_shared_recursive()
                } else {
                    guarded.latch.share()
                }
                assert!(guarded.read() as usize <= writers);
                guarded.latch.unshare();
            }));
        }
        for _ in 0..writers {
            guarded.latch.lock();
            guarded.count();
            guarded.latch.unlock();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn loom_rw_two_readers_and_a_writer() {
    explore("rw, 2 readers", 2, reads(2, 1, false));
}

#[test]
fn loom_rw_two_recursive_readers_and_a_writer() {
    explore("rw, recursive", 2, reads(2, 1, true));
}

#[test]
fn loom_rw_a_reader_and_a_writer_twice() {
    explore("rw, 2 writes", 3, reads(1, 2, false));
}

#[test]
fn loom_rw_timed() {
    explore("rw, timed", 2, || {
        let guarded = Guarded::<ShflRwLock<Loom>>::new();
        let reader = guarded.clone();
        let reader = loom::thread::spawn(move || {
            if reader.latch.lock_shared_until(soon()) {
                reader.read();
                reader.latch.unshare();
            }
        });
        let writer = guarded.clone();
        let writer = loom::thread::spawn(move || {
            if writer.latch.lock_exclusive_until(soon()) {
                writer.count();
                writer.latch.unlock();
            }
        });
        guarded.latch.share();
        guarded.read();
        guarded.latch.unshare();
        reader.join().unwrap();
        writer.join().unwrap();
        guarded.latch.lock();
        guarded.latch.unlock();
    });
}

#[test]
fn loom_rw_downgrade() {
    explore("rw, downgrade", 2, || {
        let guarded = Guarded::<ShflRwLock<Loom>>::new();
        let reader = guarded.clone();
        let reader = loom::thread::spawn(move || {
            reader.latch.share();
            reader.read();
            reader.latch.unshare();
        });
        guarded.latch.lock();
        guarded.count();
        // SAFETY: the latch is held.
        unsafe { guarded.latch.downgrade() };
        guarded.read();
        guarded.latch.unshare();
        reader.join().unwrap();
    });
}

#[test]
fn loom_objects_to_a_broken_latch() {
    assert!(objects(2, counts::<Broken>(2, |l| (l.lock(), true).1, Latch::unlock)));
}

const OPERATIONS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

/// From one thread to sixteen times the cores.
fn crowds() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
    vec![1, 2, cores + 1, 4 * cores, 16 * cores]
}

#[test]
fn natively_everybody_counts() {
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
fn a_latch_that_excludes_nobody_is_caught() {
    let caught = (0..50).any(|_| law::excludes::<Broken>(8, OPERATIONS, 0, |_| ()).is_err());
    assert!(caught, "the law of exclusion cannot fail");
}

#[test]
fn on_four_nodes_everybody_counts() {
    let stand = |thread: usize| Scattered::stand_on(thread as u32 % 4);
    for threads in crowds() {
        let each = OPERATIONS / threads as u64 * 2;
        law::excludes::<ShflMutex<Scattered>>(threads, each, 0, stand).unwrap();
        law::excludes::<Shfl<Impatient, Scattered>>(threads, each, 0, stand).unwrap();
        law::excludes::<ShflSpin<Scattered>>(threads, each, 0, stand).unwrap();
        law::excludes::<ShflRwLock<Scattered>>(threads, each, 5, stand).unwrap();
    }
}

/// How often the head of the queue is passed, each time it would sleep, before it gets the latch.
fn passes<P: Policy + Default>() -> u32 {
    let latch: &'static Shfl<P, Scattered> = Box::leak(Box::default());
    let passes: &'static Cell<u32> = Box::leak(Box::new(Cell::new(0)));
    latch.lock();
    Scattered::instead_of_sleeping(Some(Box::new(|| {
        // The holder leaves, and somebody who did not queue comes before the head has looked.
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

/// Never has a release reserved: the control.
#[derive(Default)]
struct Patient;

impl Policy for Patient {
    const PARKS: bool = true;
    const PATIENCE: u32 = u32::MAX;
}

#[test]
fn the_head_is_passed_as_often_as_its_patience_lasts() {
    assert_eq!(passes::<Impatient>(), Impatient::PATIENCE);
    assert_eq!(passes::<Park>(), Park::PATIENCE);
    assert_eq!(passes::<ParkDetached>(), ParkDetached::PATIENCE);
    assert_eq!(passes::<Patient>(), 10_000, "the bound cannot fail");
}

#[test]
fn a_writer_that_sleeps_is_passed_by_no_reader() {
    let latch: &'static ShflRwLock<Scattered> = Box::leak(Box::default());
    let passes: &'static Cell<u32> = Box::leak(Box::new(Cell::new(0)));
    let recursive: &'static Cell<u32> = Box::leak(Box::new(Cell::new(0)));
    latch.lock_shared();
    Scattered::instead_of_sleeping(Some(Box::new(|| {
        // A reader comes before the last one leaves, so that the latch is never free.
        if latch.try_lock_shared() {
            passes.set(passes.get() + 1);
        } else if recursive.get() < 100 {
            // The control: a recursive share does pass.
            assert!(latch.try_lock_shared_recursive());
            recursive.set(recursive.get() + 1);
        }
        // SAFETY: one share is held from before.
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

/// Waiters that give up for ever, at a latch that is never released, use one slot each.
#[test]
fn giving_up_again_and_again_takes_one_slot() {
    let mutex: &'static ShflMutex = Box::leak(Box::new(ShflMutex::new()));
    mutex.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let soon = || Deadline::after::<Native>(Duration::from_micros(50));
            // The first waiter is the head and leaves; let another be the head.
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

/// Threads that end after waiting return their slots: the table holds 65,535.
#[test]
fn slots_come_back_at_thread_exit() {
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
    assert_eq!(size_of::<ShflMutex<Shared>>(), 8);
    assert_eq!(size_of::<latchwork_machine::Slot<Native>>(), 64);
}

/// Brings nobody forward: the control.
#[derive(Default)]
struct InOrder;

impl Policy for InOrder {
    const PARKS: bool = true;
    const PATIENCE: u32 = 0;
    const BATCH: u32 = 1;
}

/// Turns of four, so that their end is seen.
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
    assert!(long.possible > 100, "nobody waited: {long:?}");
    assert!(long.share() >= 0.8, "{long:?}");
    let short = law::locality::<ShortTurns, Scattered>(threads, nodes, 400, stand);
    assert!(short.share() < 0.9, "turns do not end: {short:?}");
    assert!(short.worst_wait <= law::worst_wait::<ShortTurns>(threads, nodes), "{short:?}");
    let control = law::locality::<InOrder, Scattered>(threads, nodes, 400, stand);
    assert!(control.share() < 0.6, "the law of locality cannot fail: {control:?}");
}
