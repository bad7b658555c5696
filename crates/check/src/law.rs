//! The properties of every latch, stated once and run on any machine and any latch.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_latch::{Attempt, LwLatch, Policy, Shfl, ShflRwLock};
use latchwork_machine::Machine;

/// A latch with an exclusive and possibly a shared mode.
pub trait Latch: Default + Send + Sync + 'static {
    /// Acquires it exclusively.
    fn lock(&self);
    /// Releases it. The caller holds it.
    fn unlock(&self);
    /// Acquires a share; exclusive for latches without a shared mode.
    fn share(&self) {
        self.lock();
    }
    /// Releases a share. The caller holds one.
    fn unshare(&self) {
        self.unlock();
    }
}

impl<P: Policy + Default, M: Machine> Latch for Shfl<P, M> {
    fn lock(&self) {
        Shfl::lock(self);
    }
    fn unlock(&self) {
        // SAFETY: a property unlocks only what it locked.
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
                // SAFETY: a property unlocks only what it locked.
                unsafe { self.unlock_exclusive() };
            }
            fn share(&self) {
                self.lock_shared();
            }
            fn unshare(&self) {
                // SAFETY: a property releases only its own share.
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
    /// Thread `me` runs `section` exclusively.
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send));
    /// Thread `me` runs `section` with a shared acquisition.
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

/// The control: it excludes nothing, and every property must fail.
#[derive(Default)]
pub struct Broken;

impl Latch for Broken {
    fn lock(&self) {}
    fn unlock(&self) {}
}

/// A counter that is torn if two threads count at once or one counts while another reads.
#[derive(Default)]
struct Pair {
    parts: UnsafeCell<[u64; 2]>,
}

// SAFETY: this is the subject of the tests, with volatile accesses to plain memory.
unsafe impl Sync for Pair {}

impl Pair {
    fn count(&self) {
        let parts = self.parts.get().cast::<u64>();
        // SAFETY: the pointer comes from the cell; volatile, because a broken latch races here.
        let first = unsafe { parts.read_volatile() };
        // SAFETY: the pointer comes from the cell; volatile, because a broken latch races here.
        unsafe { parts.write_volatile(first + 1) };
        std::hint::spin_loop();
        // SAFETY: the pointer comes from the cell, and this is the second of its two elements.
        unsafe { parts.wrapping_add(1).write_volatile(first + 1) };
    }

    /// The count. `None` if it is torn.
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

/// Threads count under the latch and no count is lost. Of ten operations, `reads` only read.
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

/// As [`excludes`], for an existing latch or lock.
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
    /// Hand-overs with a waiter on the node of the last holder.
    pub possible: u64,
    /// Those of them that stayed on the node.
    pub local: u64,
    /// The largest number of hand-overs for which a single waiter had to wait.
    pub worst_wait: u64,
}

impl Locality {
    /// The fraction of the possible hand-overs that stayed on the node.
    pub fn share(&self) -> f64 {
        self.local as f64 / self.possible.max(1) as f64
    }
}

/// Hands a latch over `rounds` times among `threads` threads on `nodes` nodes.
///
/// Each holder works long enough for the others to queue, and hands over to the head of the queue.
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
                    // The latch guards all of this except `waiting`, which is slightly ahead.
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

/// The bound for the hand-overs that a waiter waits for: the whole queue before it, and for each
/// other node one batch plus the length of the queue at its begin.
pub fn worst_wait<P: Policy>(threads: usize, nodes: usize) -> u64 {
    (threads + nodes * (P::BATCH as usize + threads)) as u64
}
