//! The traits of `lock_api`: `lock_api::RwLock<LwLatch, T>`.
//!
//! ```
//! let lock = lock_api::RwLock::<latchwork_latch::LwLatch, u32>::new(0);
//! *lock.write() += 1;
//! let first = lock.read();
//! assert_eq!((*first, *lock.read()), (1, 1));
//! assert!(lock.try_write_for(core::time::Duration::from_millis(1)).is_none());
//! drop(first);
//! let shared = lock_api::RwLockWriteGuard::downgrade(lock.write());
//! assert_eq!(*shared, *lock.read());
//! ```
//!
//! `RawRwLockFair` is not implemented: a release never hands the latch over, so a fair unlock would
//! not differ.

use core::time::Duration;

use latchwork_machine::{ConstMachine, Deadline};
use lock_api::{GuardSend, RawRwLock, RawRwLockDowngrade, RawRwLockTimed};

use super::LwLatch;
use super::attempt::Attempt;

// SAFETY: the state word admits one exclusive holder or sharers, by an exchange with Acquire, and
// every release is an exchange with Release. No thread owns the latch, so guards may be sent.
unsafe impl<A: Attempt, M: ConstMachine> RawRwLock for LwLatch<A, M> {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    const INIT: Self = Self::FREE;

    type SharedGuard = GuardSend;
    type ExclusiveGuard = GuardSend;

    #[inline]
    fn lock_shared(&self) -> GuardSend {
        LwLatch::lock_shared(self);
        GuardSend::new()
    }

    #[inline]
    fn try_lock_shared(&self) -> Option<GuardSend> {
        LwLatch::try_lock_shared(self).then_some(GuardSend::new())
    }

    #[inline]
    unsafe fn unlock_shared(&self, _: GuardSend) {
        // SAFETY: the guard stands for a share.
        unsafe { LwLatch::unlock_shared(self) };
    }

    #[inline]
    fn lock_exclusive(&self) -> GuardSend {
        LwLatch::lock_exclusive(self);
        GuardSend::new()
    }

    #[inline]
    fn try_lock_exclusive(&self) -> Option<GuardSend> {
        LwLatch::try_lock_exclusive(self).then_some(GuardSend::new())
    }

    #[inline]
    unsafe fn unlock_exclusive(&self, _: GuardSend) {
        // SAFETY: the guard stands for exclusive possession.
        unsafe { LwLatch::unlock_exclusive(self) };
    }

    fn is_locked(&self) -> bool {
        LwLatch::is_locked(self)
    }

    fn is_locked_exclusive(&self) -> bool {
        LwLatch::is_locked_exclusive(self)
    }
}

// SAFETY: one atomic subtraction with Release turns exclusive possession into one share.
unsafe impl<A: Attempt, M: ConstMachine> RawRwLockDowngrade for LwLatch<A, M> {
    unsafe fn downgrade(&self, guard: GuardSend) -> GuardSend {
        // SAFETY: the guard stands for exclusive possession.
        unsafe { LwLatch::downgrade(self) };
        guard
    }
}

// SAFETY: as for `RawRwLock`; false is returned with nothing held, at the deadline or later.
unsafe impl<A: Attempt, M: ConstMachine> RawRwLockTimed for LwLatch<A, M> {
    type Duration = Duration;
    type Instant = Deadline;

    fn try_lock_shared_for(&self, timeout: Duration) -> Option<GuardSend> {
        self.try_lock_shared_until(Deadline::after::<M>(timeout))
    }

    fn try_lock_shared_until(&self, deadline: Deadline) -> Option<GuardSend> {
        self.lock_shared_until(deadline).then_some(GuardSend::new())
    }

    fn try_lock_exclusive_for(&self, timeout: Duration) -> Option<GuardSend> {
        self.try_lock_exclusive_until(Deadline::after::<M>(timeout))
    }

    fn try_lock_exclusive_until(&self, deadline: Deadline) -> Option<GuardSend> {
        self.lock_exclusive_until(deadline).then_some(GuardSend::new())
    }
}
