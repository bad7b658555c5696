//! The common parts of the models of the shared-exclusive latch.

use std::sync::Arc;

use latchwork_check::Loom;
use latchwork_latch::{Attempt, FetchAdd, LwLatch};
use latchwork_machine::{Clock, Deadline, Machine};
use loom::cell::UnsafeCell;

/// Preemptions in models of two threads, and of three.
pub(crate) const TWO: usize = 3;
pub(crate) const THREE: usize = 1;

/// A policy that stops newcomers at once, so that models reach that state, and keeps all waiters in
/// the list.
pub(crate) struct Strict<A>(A);

impl<A: Attempt> Attempt for Strict<A> {
    const BYPASSES: u32 = 1;
    const LOSSES: u32 = 1;
    const SORTED: bool = false;

    fn share<M: Machine>(state: &M::AtomicU32, look: bool, bypasses: u32) -> Result<(), u32> {
        A::share::<M>(state, look, bypasses)
    }
}

/// A policy that never checks first, so that a try backs out as `lock_shared` does.
pub(crate) struct Blind;

impl Attempt for Blind {
    const SORTED: bool = false;

    fn share<M: Machine>(state: &M::AtomicU32, _: bool, bypasses: u32) -> Result<(), u32> {
        FetchAdd::share::<M>(state, false, bypasses)
    }
}

pub(crate) const NOW: Deadline = Deadline { clock: Clock::Monotonic, at: 0 };

/// A latch and the data that it guards.
pub(crate) struct Guarded<A: Attempt> {
    pub(crate) latch: LwLatch<A, Loom>,
    pub(crate) data: UnsafeCell<u32>,
    pub(crate) value: <Loom as Machine>::AtomicU64,
}

// SAFETY: the latch guards the data, and loom fails otherwise.
unsafe impl<A: Attempt> Sync for Guarded<A> {}

impl<A: Attempt> Guarded<A> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            latch: LwLatch::default(),
            data: UnsafeCell::new(0),
            value: Default::default(),
        })
    }

    /// Needs exclusive access; loom fails otherwise.
    pub(crate) fn add(&self) {
        // SAFETY: the caller has exclusive access, and loom checks it.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    /// Needs a share; loom fails otherwise.
    pub(crate) fn get(&self) -> u32 {
        // SAFETY: loom fails if another thread writes it.
        self.data.with(|data| unsafe { *data })
    }

    pub(crate) fn write(&self) {
        self.latch.lock_exclusive();
        self.add();
        // SAFETY: locked above.
        unsafe { self.latch.unlock_exclusive() };
    }

    pub(crate) fn read(&self) -> u32 {
        self.latch.lock_shared();
        let data = self.get();
        // SAFETY: locked above.
        unsafe { self.latch.unlock_shared() };
        data
    }

    pub(crate) fn try_read(&self) {
        if self.latch.try_lock_shared() {
            // SAFETY: locked above.
            unsafe { self.latch.unlock_shared() };
        }
    }

    pub(crate) fn write_until(&self) -> bool {
        let entered = self.latch.lock_exclusive_until(NOW);
        if entered {
            self.add();
            // SAFETY: locked above.
            unsafe { self.latch.unlock_exclusive() };
        }
        entered
    }

    pub(crate) fn read_until(&self) -> bool {
        let entered = self.latch.lock_shared_until(NOW);
        if entered {
            self.get();
            // SAFETY: locked above.
            unsafe { self.latch.unlock_shared() };
        }
        entered
    }

    /// Checks that every flag is clear after all threads have ended.
    pub(crate) fn is_idle(&self) {
        let free = LwLatch::<A, Loom>::default();
        assert_eq!(format!("{:?}", self.latch), format!("{free:?}"));
    }
}

/// Runs the closures in threads and the last one in the first thread; then checks the result.
macro_rules! threads {
    ($guarded:ident: $($other:expr),*; $first:expr) => {{
        let others = [$({
            let $guarded = $guarded.clone();
            thread::spawn(move || { let _ = $other; })
        }),*];
        let _ = $first;
        for other in others {
            other.join().unwrap();
        }
        $guarded.is_idle();
    }};
}

pub(crate) use threads;
