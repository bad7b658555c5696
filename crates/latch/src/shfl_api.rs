//! The traits of `lock_api` for the shuffled latches and the condition variable.
//!
//! No thread owns a latch and no guard carries state, so guards may be sent to other threads.
//! `lock_api` 0.5 has no recursive shares; only the raw latch has methods for them.

use core::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Machine};
use lock_api::{
    GuardSend, RawCondvarTimed, RawMutex, RawMutexFair, RawMutexTimed, RawRwLock,
    RawRwLockDowngrade, RawRwLockTimed,
};

use crate::condvar::{Outcome, RawCondvar};
use crate::policy::{Park, Policy};
use crate::shfl::Shfl;
use crate::shfl_rw::ShflRwLock;

// SAFETY: an exchange with Acquire admits one holder, whose release is a store with Release.
unsafe impl<P: Policy, M: ConstMachine> RawMutex for Shfl<P, M> {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    const INIT: Self = Self::FREE;

    type Guard = GuardSend;

    #[inline]
    fn lock(&self) -> GuardSend {
        Shfl::lock(self);
        GuardSend::new()
    }

    #[inline]
    fn try_lock(&self) -> Option<GuardSend> {
        Shfl::try_lock(self).then(GuardSend::new)
    }

    #[inline]
    unsafe fn unlock(&self, _: GuardSend) {
        // SAFETY: the guard stands for possession.
        unsafe { Shfl::unlock(self) };
    }

    fn is_locked(&self) -> bool {
        Shfl::is_locked(self)
    }
}

// SAFETY: as for `RawMutex`.
unsafe impl<P: Policy, M: ConstMachine> RawMutexFair for Shfl<P, M> {
    unsafe fn unlock_fair(&self, _: GuardSend) {
        // SAFETY: the guard stands for possession.
        unsafe { Shfl::unlock_fair(self) };
    }
}

// SAFETY: as for `RawMutex`; nothing is held when the deadline has passed.
unsafe impl<P: Policy, M: ConstMachine> RawMutexTimed for Shfl<P, M> {
    type Duration = Duration;
    type Instant = Deadline;

    fn try_lock_for(&self, timeout: Duration) -> Option<GuardSend> {
        self.try_lock_until(Deadline::after::<M>(timeout))
    }

    fn try_lock_until(&self, deadline: Deadline) -> Option<GuardSend> {
        self.lock_until(deadline).then(GuardSend::new)
    }
}

// SAFETY: the state word admits one writer or readers, by exchanges with Acquire, and every release
// is an exchange with Release.
unsafe impl<M: ConstMachine> RawRwLock for ShflRwLock<M> {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    const INIT: Self = Self::FREE;

    type SharedGuard = GuardSend;
    type ExclusiveGuard = GuardSend;

    #[inline]
    fn lock_shared(&self) -> GuardSend {
        ShflRwLock::lock_shared(self);
        GuardSend::new()
    }

    #[inline]
    fn try_lock_shared(&self) -> Option<GuardSend> {
        ShflRwLock::try_lock_shared(self).then(GuardSend::new)
    }

    #[inline]
    unsafe fn unlock_shared(&self, _: GuardSend) {
        // SAFETY: the guard stands for a share.
        unsafe { ShflRwLock::unlock_shared(self) };
    }

    #[inline]
    fn lock_exclusive(&self) -> GuardSend {
        ShflRwLock::lock_exclusive(self);
        GuardSend::new()
    }

    #[inline]
    fn try_lock_exclusive(&self) -> Option<GuardSend> {
        ShflRwLock::try_lock_exclusive(self).then(GuardSend::new)
    }

    #[inline]
    unsafe fn unlock_exclusive(&self, _: GuardSend) {
        // SAFETY: the guard stands for exclusive possession.
        unsafe { ShflRwLock::unlock_exclusive(self) };
    }

    fn is_locked(&self) -> bool {
        ShflRwLock::is_locked(self)
    }

    fn is_locked_exclusive(&self) -> bool {
        ShflRwLock::is_locked_exclusive(self)
    }
}

// SAFETY: one exchange with Release turns exclusive possession into one share.
unsafe impl<M: ConstMachine> RawRwLockDowngrade for ShflRwLock<M> {
    unsafe fn downgrade(&self, guard: GuardSend) -> GuardSend {
        // SAFETY: the guard stands for exclusive possession.
        unsafe { ShflRwLock::downgrade(self) };
        guard
    }
}

// SAFETY: as for `RawRwLock`; nothing is held when the deadline has passed.
unsafe impl<M: ConstMachine> RawRwLockTimed for ShflRwLock<M> {
    type Duration = Duration;
    type Instant = Deadline;

    fn try_lock_shared_for(&self, timeout: Duration) -> Option<GuardSend> {
        self.try_lock_shared_until(Deadline::after::<M>(timeout))
    }

    fn try_lock_shared_until(&self, deadline: Deadline) -> Option<GuardSend> {
        self.lock_shared_until(deadline).then(GuardSend::new)
    }

    fn try_lock_exclusive_for(&self, timeout: Duration) -> Option<GuardSend> {
        self.try_lock_exclusive_until(Deadline::after::<M>(timeout))
    }

    fn try_lock_exclusive_until(&self, deadline: Deadline) -> Option<GuardSend> {
        self.lock_exclusive_until(deadline).then(GuardSend::new)
    }
}

/// The condition variable for the default exclusive latch. No wake-up is spurious.
// SAFETY: the waiter is in the list before the latch is unlocked, and locks it again at the end.
// Nothing panics in between: code that can panic comes before the unlocking.
unsafe impl<M: ConstMachine> lock_api::RawCondvar for RawCondvar<M> {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is one of its own")]
    const INIT: Self = Self::FREE;

    type RawMutex = Shfl<Park, M>;

    unsafe fn wait(&self, mutex: &Self::RawMutex, _: &mut GuardSend) {
        let _ = wait_until(self, mutex, None);
    }

    fn notify_one(&self) -> bool {
        RawCondvar::notify_one(self)
    }

    fn notify_all(&self) -> usize {
        RawCondvar::notify_all(self)
    }
}

// SAFETY: as for `RawCondvar`.
unsafe impl<M: ConstMachine> RawCondvarTimed for RawCondvar<M> {
    fn checked_duration_to_instant(timeout: &Duration) -> Option<Deadline> {
        Some(Deadline::after::<M>(*timeout))
    }

    unsafe fn wait_until(
        &self,
        mutex: &Self::RawMutex,
        _: &mut GuardSend,
        deadline: &Deadline,
    ) -> bool {
        wait_until(self, mutex, Some(*deadline)) == Outcome::GaveUp
    }
}

/// Waits with the mutex unlocked. The callers, which are unsafe, guarantee that it is held.
fn wait_until<M: Machine>(
    condvar: &RawCondvar<M>,
    mutex: &Shfl<Park, M>,
    deadline: Option<Deadline>,
) -> Outcome {
    // SAFETY: the caller guarantees that the mutex is held.
    let outcome = condvar.wait(|| unsafe { mutex.unlock() }, deadline);
    mutex.lock();
    outcome
}
