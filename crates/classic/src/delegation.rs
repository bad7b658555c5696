//! Common code of the delegation locks: a record in which a thread leaves an operation for another.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Release};

use latchwork_machine::{Machine, Word};

use crate::Named;
use crate::words::words;

type Operation = *mut (dyn FnMut() + Send + 'static);

const IDLE: u32 = 0;
const ASKED: u32 = 1;

/// A thread's record. `state` says which thread may access `operation`.
///
/// `IDLE`: its thread. `ASKED`: the serving thread, of which there is one at a time.
#[derive(Default)]
pub(crate) struct Record<M: Machine> {
    state: M::AtomicU32,
    operation: UnsafeCell<Option<Operation>>,
}

impl<M: Machine> Named for Record<M> {
    words!(state);
}

// SAFETY: `state` passes `operation` from one thread to another, and what it points to is `Send`.
unsafe impl<M: Machine> Send for Record<M> {}
// SAFETY: as above.
unsafe impl<M: Machine> Sync for Record<M> {}

impl<M: Machine> Record<M> {
    /// Leaves an operation.
    ///
    /// # Safety
    ///
    /// The caller is the record's thread, the record is idle, and `operation` stays alive and
    /// unused until [`is_idle`](Self::is_idle) or [`wait`](Self::wait) has reported it idle again.
    pub(crate) unsafe fn ask(&self, operation: &mut (dyn FnMut() + Send)) {
        let short: *mut (dyn FnMut() + Send + '_) = operation;
        // SAFETY: the types differ in a lifetime, which the caller vouches for.
        let long =
            unsafe { core::mem::transmute::<*mut (dyn FnMut() + Send + '_), Operation>(short) };
        // SAFETY: the record is idle, so its thread may access it.
        unsafe { *self.operation.get() = Some(long) };
        // Release: synchronizes with the Acquire in `serve`.
        self.state.store(ASKED, Release);
    }

    /// Returns whether no operation is left here.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: synchronizes with the Release in `serve`.
        self.state.load(Acquire) == IDLE
    }

    /// Waits until no operation is left here.
    pub(crate) fn wait(&self) {
        // Acquire: synchronizes with the Release in `serve`.
        M::spin_until(&self.state, Acquire, |state| state == IDLE);
    }

    /// Runs the operation that was left here, if any; returns whether there was one.
    ///
    /// # Safety
    ///
    /// No other thread serves at the same time.
    pub(crate) unsafe fn serve(&self) -> bool {
        // Acquire: synchronizes with the Release in `ask`.
        if self.state.load(Acquire) != ASKED {
            return false;
        }
        // SAFETY: the record is asked, and only this thread serves.
        let operation = unsafe { *self.operation.get() };
        if let Some(operation) = operation {
            // SAFETY: the caller of `ask` keeps it alive and unused until the record is idle.
            let operation = unsafe { &mut *operation };
            operation();
        }
        // Release: synchronizes with the Acquire in `is_idle` and `wait`.
        self.state.store(IDLE, Release);
        true
    }
}
