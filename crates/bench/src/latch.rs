//! The interface between workloads and latches, with its implementations for our latches and the
//! rivals.

use latchwork_latch::{
    Biased, CompareExchange, FetchAdd, LwLatch, ShflMutex, ShflRwLock, ShflSpin,
};
use latchwork_rivals::{
    ParkingLotMutex, ParkingLotRwLock, PthreadAdaptive, PthreadMutex, PthreadRwLock, StdMutex,
    StdRwLock,
};

/// An exclusive latch.
pub trait Exclusive: Default + Send + Sync + 'static {
    /// Runs `f` exclusively.
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R;
}

/// A reader-writer latch.
pub trait Shared: Exclusive {
    /// Runs `f` with a shared acquisition.
    fn shared<R>(&self, f: impl FnOnce() -> R) -> R;
}

macro_rules! ours_exclusive {
    ($latch:ty, $lock:ident, $unlock:ident) => {
        impl Exclusive for $latch {
            #[inline]
            fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
                self.$lock();
                let result = f();
                // SAFETY: this thread took the latch above, and `self` outlives the call.
                unsafe { self.$unlock() };
                result
            }
        }
    };
}

macro_rules! ours_shared {
    ($latch:ty) => {
        ours_exclusive!($latch, lock_exclusive, unlock_exclusive);

        impl Shared for $latch {
            #[inline]
            fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
                self.lock_shared();
                let result = f();
                // SAFETY: this thread took its share above, and `self` outlives the call.
                unsafe { self.unlock_shared() };
                result
            }
        }
    };
}

ours_exclusive!(ShflMutex, lock, unlock);
ours_exclusive!(ShflSpin, lock, unlock);
ours_shared!(ShflRwLock);
ours_shared!(LwLatch<FetchAdd>);
ours_shared!(LwLatch<CompareExchange>);
ours_exclusive!(Biased<ShflRwLock>, lock_exclusive, unlock_exclusive);

impl Shared for Biased<ShflRwLock> {
    #[inline]
    fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        let share = self.lock_shared();
        let result = f();
        // SAFETY: this thread took the share above, and `self` outlives the call.
        unsafe { self.unlock_shared(share) };
        result
    }
}

macro_rules! theirs_exclusive {
    ($($latch:ty),*) => {$(
        impl Exclusive for $latch {
            #[inline]
            fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
                self.exclusive(f)
            }
        }
    )*};
}

macro_rules! theirs_shared {
    ($($latch:ty),*) => {$(
        theirs_exclusive!($latch);

        impl Shared for $latch {
            #[inline]
            fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
                self.shared(f)
            }
        }
    )*};
}

theirs_exclusive!(StdMutex, ParkingLotMutex, PthreadMutex, PthreadAdaptive);
theirs_shared!(StdRwLock, ParkingLotRwLock, PthreadRwLock);
