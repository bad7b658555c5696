//! What every latch must obey, stated once and run on any machine and any latch.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use latchwork_latch::{Policy, Shfl, ShflRwLock};
use latchwork_machine::Machine;

/// A latch that one may hold, or several if they only read.
pub trait Latch: Default + Send + Sync + 'static {
    /// Takes it for oneself.
    fn lock(&self);
    /// Gives it back. The caller holds it.
    fn unlock(&self);
    /// Takes a share; for latches without shares, the whole.
    fn share(&self) {
        self.lock();
    }
    /// Gives a share back. The caller holds one.
    fn unshare(&self) {
        self.unlock();
    }
}

impl<P: Policy + Default, M: Machine> Latch for Shfl<P, M> {
    fn lock(&self) {
        Shfl::lock(self);
    }
    fn unlock(&self) {
        // SAFETY: a law unlocks what it has locked.
        unsafe { Shfl::unlock(self) };
    }
}

impl<M: Machine> Latch for ShflRwLock<M> {
    fn lock(&self) {
        self.lock_exclusive();
    }
    fn unlock(&self) {
        // SAFETY: a law unlocks what it has locked.
        unsafe { self.unlock_exclusive() };
    }
    fn share(&self) {
        self.lock_shared();
    }
    fn unshare(&self) {
        // SAFETY: a law gives back the share that it took.
        unsafe { self.unlock_shared() };
    }
}

/// The control: it excludes nobody, and every law must notice.
#[derive(Default)]
pub struct Broken;

impl Latch for Broken {
    fn lock(&self) {}
    fn unlock(&self) {}
}

/// A counter that is torn if two threads count at once, or one counts while another reads.
#[derive(Default)]
struct Pair {
    parts: UnsafeCell<[u64; 2]>,
}

// SAFETY: it is what the laws put to the test, with volatile accesses to plain memory.
unsafe impl Sync for Pair {}

impl Pair {
    fn count(&self) {
        let parts = self.parts.get().cast::<u64>();
        // SAFETY: the pointer comes from the cell; volatile, because a broken latch races here.
        let first = unsafe { parts.read_volatile() };
        // SAFETY: as above.
        unsafe { parts.write_volatile(first + 1) };
        std::hint::spin_loop();
        // SAFETY: as above; the second of two elements.
        unsafe { parts.add(1).write_volatile(first + 1) };
    }

    /// The count, or nothing if it is torn.
    fn read(&self) -> Option<u64> {
        let parts = self.parts.get().cast::<u64>();
        // SAFETY: as in `count`.
        let second = unsafe { parts.add(1).read_volatile() };
        std::hint::spin_loop();
        // SAFETY: as in `count`.
        let first = unsafe { parts.read_volatile() };
        (first == second).then_some(first)
    }
}

/// Threads count under the latch and lose nothing; one operation in `reads` of ten only reads.
///
/// `prepare` runs first in each thread, with its number.
pub fn excludes<L: Latch>(
    threads: usize,
    operations: u64,
    reads: u64,
    prepare: impl Fn(usize) + Sync,
) -> Result<(), String> {
    let (latch, pair) = (L::default(), Pair::default());
    let torn = AtomicU64::new(0);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (latch, pair, torn, written, prepare) = (&latch, &pair, &torn, &written, &prepare);
            scope.spawn(move || {
                prepare(thread);
                for i in 0..operations {
                    if (i * 7 + thread as u64) % 10 < reads {
                        latch.share();
                        if pair.read().is_none() {
                            torn.fetch_add(1, Relaxed);
                        }
                        latch.unshare();
                    } else {
                        latch.lock();
                        pair.count();
                        latch.unlock();
                        written.fetch_add(1, Relaxed);
                    }
                    if i % 64 == thread as u64 % 64 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let (torn, written) = (torn.into_inner(), written.into_inner());
    match pair.read() {
        _ if torn != 0 => Err(format!("{torn} torn reads")),
        Some(counted) if counted == written => Ok(()),
        counted => Err(format!("{written} written, {counted:?} counted")),
    }
}

/// How often others passed one thread that waited, in the worst of `rounds` waits.
///
/// `others` threads take and release the latch without pause; the victim takes it `rounds` times.
/// A pass is a whole acquisition by somebody else between the victim's request and its grant.
pub fn worst_bypass<L: Latch>(others: usize, rounds: u32, share: bool) -> u64 {
    let latch = L::default();
    let passes = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let mut worst = 0;
    std::thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    if share {
                        latch.share()
                    } else {
                        latch.lock()
                    }
                    passes.fetch_add(1, Relaxed);
                    for _ in 0..50 {
                        std::hint::spin_loop();
                    }
                    if share { latch.unshare() } else { latch.unlock() }
                }
            });
        }
        for _ in 0..rounds {
            let before = passes.load(Relaxed);
            latch.lock();
            worst = worst.max(passes.load(Relaxed) - before);
            latch.unlock();
            std::thread::yield_now();
        }
        done.store(true, Relaxed);
    });
    worst
}

/// Whether `run` ends within `limit`. If it does not, its thread is left behind.
pub fn ends(limit: Duration, run: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::spawn(run);
    let began = Instant::now();
    while !thread.is_finished() {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.join().is_ok()
}
