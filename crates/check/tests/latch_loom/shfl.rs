//! The shuffled latches under loom: every interleaving of a few threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::law::{Broken, Latch};
use latchwork_check::loom_machine::{explore, objects};
use latchwork_check::{Looking, Loom};
use latchwork_latch::{FetchAdd, LwLatch, Park, ParkDetached, Policy, Shfl, ShflRwLock};
use latchwork_machine::{Clock, Deadline};
use loom::cell::UnsafeCell;

/// Data behind a latch; loom detects conflicting accesses.
struct Guarded<L> {
    latch: L,
    value: UnsafeCell<u32>,
}

// SAFETY: the latch guards the value, and loom panics otherwise.
unsafe impl<L: Sync> Sync for Guarded<L> {}

impl<L: Latch> Guarded<L> {
    fn new() -> Arc<Self> {
        Arc::new(Self { latch: L::default(), value: UnsafeCell::new(0) })
    }

    fn count(&self) {
        // SAFETY: the caller holds the latch.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: the caller holds a share of the latch.
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

/// Parks at once and reserves at the first loss, so that reservations are explored as well.
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

/// A holder loses its processor between its release and its check, while two others wait.
#[test]
fn loom_mutex_late_holder() {
    explore("late holder", 3, counts::<LoomMutex>(3, |l| (l.lock(), true).1, Latch::unlock));
}

#[test]
fn loom_mutex_two_threads_deeper() {
    explore("mutex, 2 threads", 4, counts::<LoomMutex>(2, |l| (l.lock(), true).1, Latch::unlock));
}

/// Spins for two budgets if no other thread wants its processor.
#[derive(Default)]
struct LooksTwice;

impl Policy for LooksTwice {
    const PARKS: bool = true;
    const PATIENCE: u32 = 64;
    const PATIENCE_APART: u32 = 1;
    const BUDGETS: u32 = 2;
}

/// Each of `threads` threads takes the latch once. A yield of thread n reports a wanted processor
/// if bit n of `crowded` is set.
fn looks(threads: usize, crowded: u32) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Guarded::<Shfl<LooksTwice, Looking>>::new();
        let work = move |thread: usize, guarded: &Guarded<Shfl<LooksTwice, Looking>>| {
            Looking::stand_on(thread as u32 % 2);
            Looking::steps_by(if crowded >> thread & 1 == 1 { 2 } else { 1 });
            guarded.latch.lock();
            guarded.count();
            Latch::unlock(&guarded.latch);
        };
        let spawned = |thread| {
            let guarded = guarded.clone();
            loom::thread::spawn(move || work(thread, &guarded))
        };
        let others: Vec<_> = (1..threads).map(spawned).collect();
        work(0, &guarded);
        others.into_iter().for_each(|other| other.join().unwrap());
        guarded.latch.lock();
        assert_eq!(guarded.read(), threads as u32);
    }
}

/// After a yield with a free processor a waiter spins again; with a wanted processor it sleeps.
#[test]
fn loom_mutex_looks_again() {
    for crowded in 0..4 {
        explore(&format!("looks again, {crowded:02b}"), 4, looks(2, crowded));
    }
}

#[test]
fn loom_mutex_looks_again_among_three() {
    for crowded in [0b000, 0b110, 0b010] {
        explore(&format!("looks again, {crowded:03b}"), 1, looks(3, crowded));
    }
}

#[test]
fn loom_mutex_impatient() {
    type L = Shfl<Impatient, Loom>;
    explore("impatient mutex", 2, counts::<L>(3, |l| (l.lock(), true).1, Latch::unlock));
}

/// Four waiters on two nodes in turn, so that the third is moved before the second.
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
    explore("one gives up", 3, || {
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

/// `readers` threads read values that `writers` threads write.
fn reads<L: Latch>(
    readers: usize,
    writers: usize,
    share: fn(&L),
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Guarded::<L>::new();
        let mut threads = Vec::new();
        for reader in 0..readers {
            let guarded = guarded.clone();
            threads.push(loom::thread::spawn(move || {
                Loom::stand_on(reader as u32 % 2);
                share(&guarded.latch);
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
    explore("rw, 2 readers", 2, reads::<ShflRwLock<Loom>>(2, 1, Latch::share));
}

#[test]
fn loom_rw_two_recursive_readers_and_a_writer() {
    explore("rw, recursive", 2, reads(2, 1, ShflRwLock::<Loom>::lock_shared_recursive));
}

#[test]
fn loom_rw_a_reader_and_a_writer_twice() {
    explore("rw, 2 writes", 3, reads::<ShflRwLock<Loom>>(1, 2, Latch::share));
}

/// The shared-exclusive latch with the sorted queue, and threads in two groups.
#[test]
fn loom_lw_of_two_groups() {
    type L = LwLatch<FetchAdd, Loom>;
    explore("lw, 3 writers", 2, counts::<L>(3, |l| (Latch::lock(l), true).1, Latch::unlock));
    explore("lw, 2 readers", 2, reads::<L>(2, 1, Latch::share));
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
        // The reader gets in while this share is held.
        reader.join().unwrap();
        guarded.latch.unshare();
    });
}

/// Two readers that slept behind a writer keep their shares until both are in.
#[test]
fn loom_rw_readers_meet() {
    explore("rw, readers meet", 2, || {
        let guarded = Guarded::<ShflRwLock<Loom>>::new();
        let inside = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        Latch::lock(&guarded.latch);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (guarded, inside) = (guarded.clone(), inside.clone());
                loom::thread::spawn(move || {
                    guarded.latch.share();
                    inside.fetch_add(1, Relaxed);
                    while inside.load(Relaxed) < 2 {
                        loom::thread::yield_now();
                    }
                    guarded.latch.unshare();
                })
            })
            .collect();
        Latch::unlock(&guarded.latch);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn loom_detects_a_broken_latch() {
    assert!(objects(2, counts::<Broken>(2, |l| (l.lock(), true).1, Latch::unlock)));
}
