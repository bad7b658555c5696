//! Locks and stores of other projects, for comparison in benchmarks. No other crate depends on this
//! one.
//!
//! Each is used as its users would: `lock().unwrap()` and a guard for std, a guard for parking_lot,
//! a call of the C library for pthread. The locks protect no data and run a closure, so the cost of
//! the guard is part of the measurement. Berkeley DB's lock manager has lockers and handles
//! instead, as in its own interface. Embedded stores implement one trait, [`Store`].

#![warn(clippy::all)]

mod bdb;
mod pthread;
mod stores;

pub use crate::bdb::{Bdb, BdbCounts, BdbError, BdbLock, BdbLocker, BdbPool, BdbSizes};
pub use crate::pthread::{PthreadAdaptive, PthreadMutex, PthreadRwLock};
pub use crate::stores::{
    Reads, Session, Store, StoreError, StoreKind, StoreOptions, StoreResult, Writes, syncs,
};

/// `std::sync::Mutex`, including its check for poison.
#[derive(Default)]
pub struct StdMutex(std::sync::Mutex<()>);

impl StdMutex {
    /// Runs `f` exclusively.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock().unwrap();
        f()
    }
}

/// `std::sync::RwLock`, including its check for poison.
#[derive(Default)]
pub struct StdRwLock(std::sync::RwLock<()>);

impl StdRwLock {
    /// Runs `f` exclusively.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.write().unwrap();
        f()
    }

    /// Runs `f` with a shared acquisition.
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
    /// Runs `f` exclusively.
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
    /// Runs `f` exclusively.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.write();
        f()
    }

    /// Runs `f` with a shared acquisition.
    #[inline]
    pub fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.read();
        f()
    }
}
