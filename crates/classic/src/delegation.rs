//! What the delegation locks share: a record in which a thread leaves an operation for another.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Release};

use latchwork_machine::{Machine, Word};

use crate::Named;
use crate::words::words;

type Operation = *mut (dyn FnMut() + Send + 'static);

const IDLE: u32 = 0;
const ASKED: u32 = 1;

/// A thread's record: who may touch `operation` is said by `state`.
///
/// `IDLE`: its thread. `ASKED`: whoever serves, of whom there is one at a time.
#[derive(Default)]
pub(crate) struct Record<M: Machine> {
    state: M::AtomicU32,
    operation: UnsafeCell<Option<Operation>>,
}

impl<M: Machine> Named for Record<M> {
    words!(state);
}

// SAFETY: `state` passes `operation` from one thread to one other, and what it points to is `Send`.
unsafe impl<M: Machine> Send for Record<M> {}
// SAFETY: as above.
unsafe impl<M: Machine> Sync for Record<M> {}

impl<M: Machine> Record<M> {
    /// Leaves an operation.
    ///
    /// # Safety
    ///
    /// The caller is the record's thread, the record is idle, and `operation` lives and is left
    /// alone until [`is_idle`](Self::is_idle) or [`wait`](Self::wait) has said that it is again.
    pub(crate) unsafe fn ask(&self, operation: &mut (dyn FnMut() + Send)) {
        let short: *mut (dyn FnMut() + Send + '_) = operation;
        // SAFETY: the types differ in a lifetime, which the caller vouches for.
        let long =
            unsafe { core::mem::transmute::<*mut (dyn FnMut() + Send + '_), Operation>(short) };
        // SAFETY: the record is idle, and so its thread's.
        unsafe { *self.operation.get() = Some(long) };
        // Release: synchronizes with the Acquire in `serve`.
        self.state.store(ASKED, Release);
    }

    /// Whether nothing is left to do here.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: synchronizes with the Release in `serve`.
        self.state.load(Acquire) == IDLE
    }

    /// Waits until nothing is left to do here.
    pub(crate) fn wait(&self) {
        // Acquire: synchronizes with the Release in `serve`.
        M::spin_until(&self.state, Acquire, |state| state == IDLE);
    }

    /// Runs what was left here, if anything. Whether there was.
    ///
    /// # Safety
    ///
    /// No other thread serves at the same time.
    pub(crate) unsafe fn serve(&self) -> bool {
        // Acquire: synchronizes with the Release in `ask`.
        if self.state.load(Acquire) != ASKED {
            return false;
        }
        // SAFETY: the record is asked, and we alone serve.
        let operation = unsafe { *self.operation.get() };
        if let Some(operation) = operation {
            // SAFETY: `ask`'s caller keeps it alive and alone until we say that the record is idle.
            let operation = unsafe { &mut *operation };
            operation();
        }
        // Release: synchronizes with the Acquire in `is_idle` and `wait`.
        self.state.store(IDLE, Release);
        true
    }
}
