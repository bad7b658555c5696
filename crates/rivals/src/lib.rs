//! Other people's locks and stores, for benchmarks to run beside ours. No other crate builds them.
//!
//! Each is what a user would write: `lock().unwrap()` and a guard for std, a guard for
//! parking_lot, a call through the C library for pthread. All protect nothing by themselves and
//! run a closure under the lock, so that the guard's own cost is part of the measure. Berkeley DB's
//! lock manager has lockers and handles instead, as its own users see them. Embedded stores are
//! behind one trait, [`Store`].

#![warn(clippy::all)]

mod bdb;
mod pthread;
mod stores;

pub use crate::bdb::{Bdb, BdbCounts, BdbError, BdbLock, BdbLocker, BdbPool, BdbSizes};
pub use crate::pthread::{PthreadAdaptive, PthreadMutex, PthreadRwLock};
pub use crate::stores::{
    Reads, Session, Store, StoreError, StoreKind, StoreOptions, StoreResult, Writes, syncs,
};

/// `std::sync::Mutex`, with its check for poison.
#[derive(Default)]
pub struct StdMutex(std::sync::Mutex<()>);

impl StdMutex {
    /// Runs `f` alone.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock().unwrap();
        f()
    }
}

/// `std::sync::RwLock`, with its check for poison.
#[derive(Default)]
pub struct StdRwLock(std::sync::RwLock<()>);

impl StdRwLock {
    /// Runs `f` alone.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.write().unwrap();
        f()
    }

    /// Runs `f` beside other sharers.
    #[inline]
    pub fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.read().unwrap();
        f()
    }
}

/// `parking_lot::Mutex`.
#[derive(Default)]
pub struct ParkingLotMutex(parking_lot::Mutex<()>);

impl ParkingLotMutex {
    /// Runs `f` alone.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// `parking_lot::RwLock`.
#[derive(Default)]
pub struct ParkingLotRwLock(parking_lot::RwLock<()>);

impl ParkingLotRwLock {
    /// Runs `f` alone.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.write();
        f()
    }

    /// Runs `f` beside other sharers.
    #[inline]
    pub fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.read();
        f()
    }
}
