//! What every latch must obey, stated once and run on any machine and any latch.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_latch::{Attempt, LwLatch, Policy, Shfl, ShflRwLock};
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

macro_rules! shared {
    ($([$($generic:tt)*] $latch:ty;)*) => {$(
        impl<$($generic)*> Latch for $latch {
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
    )*};
}

shared! {
    [M: Machine] ShflRwLock<M>;
    [A: Attempt, M: Machine] LwLatch<A, M>;
}

/// A latch, or a lock that knows its users by number.
pub trait Numbered: Sync {
    /// Thread `me` runs `section` alone.
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send));
    /// Thread `me` runs `section` beside others that only read.
    fn beside(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.alone(me, section);
    }
}

impl<L: Latch> Numbered for L {
    fn alone(&self, _: usize, section: &mut (dyn FnMut() + Send)) {
        self.lock();
        section();
        self.unlock();
    }
    fn beside(&self, _: usize, section: &mut (dyn FnMut() + Send)) {
        self.share();
        section();
        self.unshare();
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
        unsafe { parts.wrapping_add(1).write_volatile(first + 1) };
    }

    /// The count, or nothing if it is torn.
    fn read(&self) -> Option<u64> {
        let parts = self.parts.get().cast::<u64>();
        // SAFETY: as in `count`.
        let second = unsafe { parts.wrapping_add(1).read_volatile() };
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
    everybody_counts(&L::default(), threads, operations, reads, prepare)
}

/// As [`excludes`], for a latch or a lock that is there already.
pub fn everybody_counts(
    latch: &(impl Numbered + ?Sized),
    threads: usize,
    operations: u64,
    reads: u64,
    prepare: impl Fn(usize) + Sync,
) -> Result<(), String> {
    let pair = Pair::default();
    let torn = AtomicU64::new(0);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pair, torn, written, prepare) = (&pair, &torn, &written, &prepare);
            scope.spawn(move || {
                prepare(thread);
                for i in 0..operations {
                    if (i * 7 + thread as u64) % 10 < reads {
                        latch.beside(thread, &mut || {
                            if pair.read().is_none() {
                                torn.fetch_add(1, Relaxed);
                            }
                        });
                    } else {
                        latch.alone(thread, &mut || pair.count());
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

/// How a latch was handed from thread to thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Locality {
    /// Hand-overs at which a waiter stood on the node of the last holder.
    pub possible: u64,
    /// Those of them that stayed on the node.
    pub local: u64,
    /// The most hand-overs that one waiter saw go by.
    pub worst_wait: u64,
}

impl Locality {
    /// The share of hand-overs that stayed on the node, where that was possible.
    pub fn share(&self) -> f64 {
        self.local as f64 / self.possible.max(1) as f64
    }
}

/// Hands a latch over `rounds` times among `threads` threads, which stand on `nodes` nodes in turn.
///
/// Every holder works for so long that the others queue, and hands over to the head of the queue.
pub fn locality<P: Policy + Default, M: Machine>(
    threads: usize,
    nodes: usize,
    rounds: u64,
    stand: impl Fn(usize) + Sync,
) -> Locality {
    let latch = Shfl::<P, M>::default();
    let waiting: Vec<AtomicU64> = (0..nodes).map(|_| AtomicU64::new(0)).collect();
    let handed = AtomicU64::new(0);
    let last = AtomicU64::new(0);
    let (possible, local, worst) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (latch, waiting, handed, last) = (&latch, &waiting, &handed, &last);
            let (possible, local, worst, stand) = (&possible, &local, &worst, &stand);
            let node = thread % nodes;
            scope.spawn(move || {
                stand(node);
                loop {
                    waiting[node].fetch_add(1, Relaxed);
                    let before = handed.load(Relaxed);
                    latch.lock();
                    // All below is guarded by the latch but `waiting`, which is a little ahead.
                    let from = last.swap(node as u64, Relaxed) as usize;
                    let round = handed.fetch_add(1, Relaxed);
                    if waiting[from].load(Relaxed) > 0 {
                        possible.fetch_add(1, Relaxed);
                        local.fetch_add(u64::from(from == node), Relaxed);
                    }
                    waiting[node].fetch_sub(1, Relaxed);
                    worst.fetch_max(round - before, Relaxed);
                    std::thread::sleep(Duration::from_micros(300));
                    // SAFETY: locked above.
                    unsafe { latch.unlock_fair() };
                    if round >= rounds {
                        return;
                    }
                }
            });
        }
    });
    Locality {
        possible: possible.into_inner(),
        local: local.into_inner(),
        worst_wait: worst.into_inner(),
    }
}

/// The most hand-overs that a waiter may see go by: in front of it may be the whole queue, and for
/// each other node a turn of the batch bound, with as many more as were in the queue when it began.
pub fn worst_wait<P: Policy>(threads: usize, nodes: usize) -> u64 {
    (threads + nodes * (P::BATCH as usize + threads)) as u64
}
