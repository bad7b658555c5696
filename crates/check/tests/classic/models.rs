//! The published locks under loom: every interleaving of a few threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::Loom;
use latchwork_check::loom_machine::{explore, objects};
use latchwork_classic::{
    Bytes, Delegate, Lock, Named, SharedLock, Tell, delegate, exclusive, shared,
};
use loom::cell::UnsafeCell;

/// A lock, and what it guards; loom knows who touches that.
struct Guarded<L> {
    lock: L,
    value: UnsafeCell<u32>,
}

// SAFETY: the lock guards the value, and loom panics if it does not.
unsafe impl<L: Sync> Sync for Guarded<L> {}
// SAFETY: as above.
unsafe impl<L: Send> Send for Guarded<L> {}

impl<L> Guarded<L> {
    fn new(lock: L) -> Self {
        Self { lock, value: UnsafeCell::new(0) }
    }

    fn count(&self) {
        // SAFETY: the lock is held by the caller.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: the lock, or a share of it, is held by the caller; or there is no other thread.
        self.value.with(|value| unsafe { *value })
    }
}

/// Threads take the lock `rounds` times each, and count. The first two are neighbours.
fn counts(
    threads: usize,
    rounds: usize,
    new: impl Fn(usize) -> Box<dyn Lock> + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Arc::new(Guarded::new(new(threads)));
        let work = move |me: usize, guarded: &Guarded<Box<dyn Lock>>| {
            Loom::stand_on(me as u32 / 2);
            for _ in 0..rounds {
                guarded.lock.lock(me);
                guarded.count();
                guarded.lock.unlock(me);
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|me| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || work(me, &guarded))
            })
            .collect();
        work(0, &guarded);
        for other in others {
            other.join().unwrap();
        }
        guarded.lock.lock(0);
        assert_eq!(guarded.read(), (threads * rounds) as u32);
        guarded.lock.unlock(0);
    }
}

fn check(name: &'static str, threads: usize, rounds: usize, preemptions: usize) {
    let title = format!("{name}, {threads} threads, {rounds} rounds");
    let new = move |threads| exclusive::<Loom>(name, threads).unwrap();
    explore(&title, preemptions, counts(threads, rounds, new));
}

/// Each lock by name: threads, how often each takes it, preemptions.
///
/// Where several threads spin on one word, loom lets each spin forever in turn, so those models are
/// small. `tas` has none: loom lets an exchange read the same thread's last one past an
/// intermediate store, so the lock is never seen free. For the same reason no thread's patience
/// ends in the model of `mcs-tp`, which is explored in `classic_sim.rs`.
macro_rules! locks {
    ($($test:ident: $name:literal, $(($threads:literal, $rounds:literal, $preemptions:literal)),*;)*) => {$(
        #[test]
        fn $test() {
            $(check($name, $threads, $rounds, $preemptions);)*
        }
    )*};
}

locks! {
    loom_ttas: "ttas", (2, 2, 2);
    loom_ttas_plain: "ttas-plain", (2, 2, 2);
    loom_ticket: "ticket", (2, 2, 3), (3, 1, 1);
    loom_array: "array", (2, 2, 3), (3, 1, 1);
    loom_mcs: "mcs", (2, 2, 3), (3, 1, 2);
    loom_clh: "clh", (2, 2, 3), (3, 1, 2);
    loom_qspinlock: "qspinlock", (2, 2, 3), (3, 1, 1);
    loom_cna: "cna", (2, 2, 3), (3, 1, 1), (3, 2, 1);
    loom_cna_kernel: "cna-kernel", (2, 2, 3), (3, 2, 1), (4, 1, 1);
    loom_cst: "cst", (2, 2, 3), (3, 1, 1);
    loom_mcs_tp: "mcs-tp", (2, 2, 2), (3, 1, 1);
    loom_cohort_ticket: "cohort-ticket", (2, 2, 3), (3, 1, 1);
    loom_c_bo_mcs: "c-bo-mcs", (2, 2, 3);
    loom_hmcs: "hmcs", (2, 2, 3), (3, 1, 1);
    loom_hemlock: "hemlock", (2, 2, 3), (3, 1, 1);
    loom_malthusian: "malthusian", (2, 2, 3), (3, 1, 1);
    loom_hbo: "hbo", (2, 2, 2);
    loom_hclh: "hclh", (2, 2, 3), (3, 1, 1);
    loom_ahmcs: "ahmcs", (2, 2, 3), (3, 1, 1);
    loom_dekker: "dekker", (2, 1, 3), (2, 2, 1);
    loom_bakery: "bakery", (2, 1, 3);
    loom_stock_mutex: "stock-mutex", (2, 2, 3), (3, 1, 2);
}

/// A reader against two writers, or two readers against one: `writers` of three threads write.
fn shares(
    threads: usize,
    writers: usize,
    new: impl Fn(usize) -> Box<dyn SharedLock> + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Arc::new(Guarded::new(new(threads)));
        let work = move |me: usize, guarded: &Guarded<Box<dyn SharedLock>>| {
            Loom::stand_on(me as u32 % 2);
            if me < writers {
                guarded.lock.write(me);
                guarded.count();
                guarded.lock.unwrite(me);
            } else {
                guarded.lock.read(me);
                assert!(guarded.read() <= writers as u32);
                guarded.lock.unread(me);
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|me| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || work(me, &guarded))
            })
            .collect();
        work(0, &guarded);
        for other in others {
            other.join().unwrap();
        }
        guarded.lock.read(0);
        assert_eq!(guarded.read(), writers as u32);
        guarded.lock.unread(0);
    }
}

#[test]
fn loom_stock_rwsem() {
    let new = |threads| shared::<Loom>("stock-rwsem", threads).unwrap();
    explore("rwsem, a writer and a reader", 3, shares(2, 1, new));
    explore("rwsem, a writer and two readers", 2, shares(3, 1, new));
    explore("rwsem, two writers and a reader", 1, shares(3, 2, new));
}

#[test]
fn loom_cohort_rw() {
    let new = |threads| shared::<Loom>("cohort-rw", threads).unwrap();
    explore("cohort-rw, a writer and a reader", 3, shares(2, 1, new));
    explore("cohort-rw, two writers", 2, shares(2, 2, new));
}

/// `clients` threads have their operations run; one more serves, if there must be one.
fn delegates(
    clients: usize,
    new: impl Fn(usize) -> Box<dyn Delegate> + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Arc::new(Guarded::new(new(1 + clients)));
        let left = Arc::new(loom::sync::atomic::AtomicU32::new(clients as u32));
        let others: Vec<_> = (1..=clients)
            .map(|me| {
                let (guarded, left) = (guarded.clone(), left.clone());
                loom::thread::spawn(move || {
                    // SAFETY: each thread has a number of its own.
                    unsafe { guarded.lock.with(me, &mut || guarded.count()) };
                    left.fetch_sub(1, Relaxed);
                })
            })
            .collect();
        guarded.lock.serve(&|| left.load(Relaxed) == 0);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(guarded.read(), clients as u32);
    }
}

#[test]
fn loom_flat_combining() {
    explore("flat combining", 2, delegates(2, |n| delegate::<Loom>("flat-combining", n).unwrap()));
}

#[test]
fn loom_rcl() {
    explore("rcl", 2, delegates(1, |n| delegate::<Loom>("rcl", n).unwrap()));
}

/// A lock without exclusion: the control.
struct Broken;

impl Named for Broken {
    fn tell_words(&self, _: &str, _: &mut Tell<'_>) {}
}

impl Lock for Broken {
    fn new(_: usize) -> Self {
        Self
    }
    fn lock(&self, _: usize) {}
    fn unlock(&self, _: usize) {}
    fn bytes(&self, _: usize) -> Bytes {
        Bytes { lock: 0, waiter: 0, holder: 0 }
    }
}

#[test]
fn loom_detects_a_broken_lock() {
    assert!(objects(2, counts(2, 1, |threads| Box::new(Broken::new(threads)))));
}
