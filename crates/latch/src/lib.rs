//! Short locks: 4 to 16 bytes each, all zero when free, in one process or shared by many.
//!
//! A *latch* is held briefly, and deadlocks among latches are not detected. Which one to use:
//!
//! | need | type | bytes |
//! |---|---|---|
//! | one holder; the default | [`ShflMutex`], or [`Mutex<T>`](Mutex) around data | 8 |
//! | one holder, a few instructions long, fewer threads than cores | [`ShflSpin`] | 8 |
//! | readers or one writer, in order of arrival | [`ShflRwLock`], [`RwLock<T>`](RwLock) | 16 |
//! | many readers that do not disturb each other, few writers | [`Biased`] | 16 more |
//! | readers or one writer, and waiting for a release or a value | [`LwLatch`] | 8 |
//! | readers that store nothing, of words of memory | [`OptCell`], or [`OptLatch`] | 8 |
//! | waiting for a condition that a mutex guards | [`Condvar`], [`RawCondvar`] | 4 |
//!
//! ```
//! use latchwork_latch::{Condvar, Mutex};
//!
//! static JOBS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
//! static ARRIVED: Condvar = Condvar::new();
//!
//! std::thread::spawn(|| {
//!     JOBS.lock().push(7);
//!     ARRIVED.notify_one();
//! });
//! let mut jobs = JOBS.lock();
//! while jobs.is_empty() {
//!     ARRIVED.wait(&mut jobs);
//! }
//! assert_eq!(jobs.pop(), Some(7));
//! ```
//!
//! # Examples by task
//!
//! Lock with a timeout:
//!
//! ```
//! use std::time::Duration;
//!
//! let sum = latchwork_latch::Mutex::new(1);
//! let held = sum.lock();
//! assert!(sum.try_lock_for(Duration::from_millis(1)).is_none());
//! drop(held);
//! assert_eq!(*sum.try_lock_for(Duration::from_secs(1)).expect("it is free"), 1);
//! ```
//!
//! Keep a guard together with the `Arc` that it locks, in a struct or another thread:
//!
//! ```
//! use std::sync::Arc;
//!
//! let names = Arc::new(latchwork_latch::RwLock::new(vec!["a"]));
//! let guard = names.read_arc();
//! std::thread::spawn(move || assert_eq!(guard.len(), 1)).join().unwrap();
//! names.write().push("b");
//! ```
//!
//! Return a part of the locked data:
//!
//! ```
//! use latchwork_latch::{MappedMutexGuard, Mutex, MutexGuard};
//!
//! fn first(pair: &Mutex<(u32, u32)>) -> MappedMutexGuard<'_, u32> {
//!     MutexGuard::map(pair.lock(), |pair| &mut pair.0)
//! }
//!
//! let pair = Mutex::new((1, 2));
//! *first(&pair) += 1;
//! assert_eq!(*pair.lock(), (2, 2));
//! ```
//!
//! Write, and then continue to read without letting a writer in between:
//!
//! ```
//! use latchwork_latch::{RwLock, RwLockWriteGuard};
//!
//! let table = RwLock::new(1);
//! let mut writes = table.write();
//! *writes += 1;
//! let reads = RwLockWriteGuard::downgrade(writes);
//! assert_eq!((*reads, *table.read()), (2, 2));
//! ```
//!
//! There is no upgradable read: two threads that upgrade would need an order between them, and the
//! word of a latch has no room for a third kind of holder. Take the write lock, or check the data
//! again after taking it.
//!
//! # Common properties
//!
//! Zero bytes are a free latch. A holder costs no memory; a waiting thread uses a slot of 64 bytes
//! that it keeps until it ends. 65,534 threads can wait at a time. No latch is reentrant. A panic
//! in a critical section releases the latch if a guard holds it, and there is no poisoning: the
//! next holder finds the data as the panic left them. A thread that *ends* while it holds a raw
//! latch leaves it held.
//!
//! Every latch is generic over a [`Machine`](latchwork_machine::Machine), which defaults to
//! [`Native`](latchwork_machine::Native): this process. Over
//! [`Shared`](latchwork_machine::Shared) the same latches serve all processes that map them.

#![warn(clippy::all)]

mod biased;
mod condvar;
mod list;
mod lw;
mod number;
mod opt;
mod policy;
mod queue;
mod shfl;
mod shfl_api;
mod shfl_rw;
mod turn;

/// The crate that defines the types of [`Mutex`], [`RwLock`], their guards and [`Condvar`].
pub use lock_api;

pub use crate::biased::{Biased, BiasedShare, RwLatch};
pub use crate::condvar::{Outcome, RawCondvar, Ticket};
pub use crate::lw::{Attempt, CompareExchange, FetchAdd, LwLatch, ReadersFirst, WritersFirst};
pub use crate::opt::{
    ATTEMPTS, Exclusive, Holder, HolderDied, HolderNumber, LocalHolder, OptCell, OptLatch, Share,
    Version, View, Words,
};
pub use crate::policy::{Park, ParkDetached, Policy, Shuffling, SpinOnly};
pub use crate::shfl::{Shfl, ShflMutex, ShflSpin};
pub use crate::shfl_rw::ShflRwLock;

/// Data with the default exclusive latch: `lock`, `try_lock`, `try_lock_for`, `unlock_fair`.
pub type Mutex<T> = lock_api::Mutex<ShflMutex, T>;
/// The guard that [`Mutex::lock`] returns.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, ShflMutex, T>;
/// Data with the reader-writer latch: `read`, `write`, and their variants that try, time out or
/// downgrade.
pub type RwLock<T> = lock_api::RwLock<ShflRwLock, T>;
/// The guard that [`RwLock::read`] returns.
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, ShflRwLock, T>;
/// The guard that [`RwLock::write`] returns.
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, ShflRwLock, T>;
/// A [`MutexGuard`] of a part of the data, from `MutexGuard::map`.
pub type MappedMutexGuard<'a, T> = lock_api::MappedMutexGuard<'a, ShflMutex, T>;
/// A [`RwLockReadGuard`] of a part of the data, from `RwLockReadGuard::map`.
pub type MappedRwLockReadGuard<'a, T> = lock_api::MappedRwLockReadGuard<'a, ShflRwLock, T>;
/// A [`RwLockWriteGuard`] of a part of the data, from `RwLockWriteGuard::map`.
pub type MappedRwLockWriteGuard<'a, T> = lock_api::MappedRwLockWriteGuard<'a, ShflRwLock, T>;
/// The guard that `Mutex::lock_arc` returns. It keeps the `Arc`, and has no lifetime.
pub type ArcMutexGuard<T> = lock_api::ArcMutexGuard<ShflMutex, T>;
/// The guard that `RwLock::read_arc` returns. It keeps the `Arc`, and has no lifetime.
pub type ArcRwLockReadGuard<T> = lock_api::ArcRwLockReadGuard<ShflRwLock, T>;
/// The guard that `RwLock::write_arc` returns. It keeps the `Arc`, and has no lifetime.
pub type ArcRwLockWriteGuard<T> = lock_api::ArcRwLockWriteGuard<ShflRwLock, T>;
/// The condition variable of [`Mutex`] guards. No wake-up is spurious.
///
/// All threads that wait concurrently must use the same mutex. That is not checked, because the
/// variable's four bytes have no room to remember a mutex. Threads that wait with different mutexes
/// are woken in the order of their arrival, and each locks its own.
pub type Condvar = lock_api::Condvar<RawCondvar>;
