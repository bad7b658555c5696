//! The published locks under loom: every interleaving of a few threads.

use std::sync::Arc;

use latchwork_check::Loom;
use latchwork_check::loom_machine::{explore, objects};
use latchwork_classic::{Bytes, Lock, exclusive};
use loom::cell::UnsafeCell;

/// A lock of one holder, and what it guards; loom knows who touches that.
struct Guarded {
    lock: Box<dyn Lock>,
    value: UnsafeCell<u32>,
}

// SAFETY: the lock guards the value, and loom panics if it does not.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new(lock: Box<dyn Lock>) -> Self {
        Self { lock, value: UnsafeCell::new(0) }
    }

    fn count(&self) {
        // SAFETY: the lock is held by the caller.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }
}

/// Threads, of which the first two are neighbours, take the lock `rounds` times each, and count.
fn counts(
    threads: usize,
    rounds: usize,
    new: impl Fn(usize) -> Box<dyn Lock> + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let guarded = Arc::new(Guarded::new(new(threads)));
        let work = move |me: usize, guarded: &Guarded| {
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
        // SAFETY: the lock is held.
        assert_eq!(guarded.value.with(|value| unsafe { *value }), (threads * rounds) as u32);
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
/// Where several threads look at one word, loom has each look again for ever in turn; so those
/// have small models. `tas` has none: loom lets an exchange read the same thread's last one past a
/// store that came between, and so never sees the lock free.
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
    loom_cna: "cna", (2, 2, 3), (3, 1, 1);
    loom_cohort_ticket: "cohort-ticket", (2, 2, 3), (3, 1, 1);
    loom_c_bo_mcs: "c-bo-mcs", (2, 2, 3);
    loom_hmcs: "hmcs", (2, 2, 3), (3, 1, 1);
    loom_stock_mutex: "stock-mutex", (2, 2, 3), (3, 1, 2);
}

/// Excludes nobody: the control.
struct Broken;

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
fn loom_objects_to_a_broken_lock() {
    assert!(objects(2, counts(2, 1, |threads| Box::new(Broken::new(threads)))));
}
