//! The biased latch under loom: marks against the writer that closes the bias.

use std::sync::Arc;

use latchwork_check::Loom;
use latchwork_check::loom_machine::explore;
use latchwork_latch::{Biased, ShflRwLock};
use latchwork_machine::{Clock, Deadline};
use loom::cell::UnsafeCell;
use loom::thread;

#[derive(Default)]
struct Guarded {
    latch: Biased<ShflRwLock<Loom>>,
    data: UnsafeCell<u32>,
}

// SAFETY: the latch guards the data, and loom fails otherwise.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// A latch whose bias is open.
    fn open() -> Arc<Self> {
        let guarded = Arc::new(Self { latch: Biased::default(), data: UnsafeCell::new(0) });
        assert!(!guarded.read().1);
        assert!(guarded.latch.is_open());
        guarded
    }

    /// Returns the data, and whether the share was biased.
    fn read(&self) -> (u32, bool) {
        let share = self.latch.lock_shared();
        let biased = share.is_biased();
        // SAFETY: loom fails if another thread writes it.
        let data = self.data.with(|data| unsafe { *data });
        // SAFETY: taken above.
        unsafe { self.latch.unlock_shared(share) };
        (data, biased)
    }

    fn write(&self) {
        self.latch.lock_exclusive();
        self.add();
    }

    fn add(&self) {
        // SAFETY: loom fails if another thread accesses it.
        self.data.with_mut(|data| unsafe { *data += 1 });
        // SAFETY: locked by the caller.
        unsafe { self.latch.unlock_exclusive() };
    }
}

#[test]
fn loom_writer_waits_for_marks() {
    explore("a mark", 3, || {
        let g = Guarded::open();
        let other = g.clone();
        let reader = thread::spawn(move || other.read());
        g.write();
        let (seen, _) = reader.join().unwrap();
        assert!(seen <= 1);
        assert_eq!(g.read(), (1, true), "the bias should be open again");
    });
}

/// A reader that finds a bias opened by another thread sees all earlier writes.
#[test]
fn loom_biased_reader_sees_the_last_writer() {
    explore("opened again", 2, || {
        let g = Guarded::open();
        let (one, other) = (g.clone(), g.clone());
        let writer = thread::spawn(move || one.write());
        let reader = thread::spawn(move || other.read());
        let (seen, _) = g.read();
        assert!(seen <= 1);
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(g.read().0, 1);
    });
}

#[test]
fn loom_two_writers_close_in_turn() {
    explore("two writers", 2, || {
        let g = Guarded::open();
        let other = g.clone();
        let writer = thread::spawn(move || other.write());
        g.write();
        let _ = g.read();
        writer.join().unwrap();
        assert_eq!(g.read().0, 2);
    });
}

/// A writer that gives up because of a mark leaves the latch unchanged.
#[test]
fn loom_writer_that_gives_up_opens_the_bias_again() {
    explore("giving up", 2, || {
        let g = Guarded::open();
        let other = g.clone();
        let reader = thread::spawn(move || other.read());
        let now = Deadline { clock: Clock::Monotonic, at: 0 };
        if g.latch.lock_exclusive_until(now) {
            g.add();
        }
        reader.join().unwrap();
        assert!(g.latch.is_open());
        g.write();
    });
}
