//! Short locks: 4 to 16 bytes each, all zero when free, in one process or in many.
//!
//! A *latch* is held for a short while, and nobody looks for deadlocks among latches. Which one?
//!
//! | you want | take | bytes |
//! |---|---|---|
//! | one holder; the default | [`ShflMutex`], or [`Mutex<T>`](Mutex) around data | 8 |
//! | one holder, a few instructions long, fewer threads than cores | [`ShflSpin`] | 8 |
//! | many readers or one writer, writers in turn with readers | [`ShflRwLock`], [`RwLock<T>`](RwLock) | 16 |
//! | the same, and to wait until it is free, or for a value to change | [`LwLatch`] | 8 |
//! | to wait for a condition that a mutex guards | [`Condvar`], [`Monitor`] | 4 |
//!
//! ```
//! use latchwork_latch::{Monitor, Mutex};
//!
//! static JOBS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
//! static ARRIVED: Monitor = Monitor::new();
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
//! # What holds for all
//!
//! Zero bytes are a free latch. A holder costs no memory, a waiting thread a slot of 64 bytes that
//! it keeps until it ends; 65,535 threads can wait at a time. No latch is reentrant. A panic in a
//! critical section releases the latch, if a guard holds it, and poisons nobody: the next holder
//! finds the data as the panic left it. A thread that *ends* while it holds a raw latch leaves it
//! held.
//!
//! Every latch is generic over a [`Machine`](latchwork_machine::Machine), which defaults to
//! [`Native`](latchwork_machine::Native): this process. Over
//! [`Shared`](latchwork_machine::Shared) the same latches serve all processes that map them.

#![warn(clippy::all)]

mod condvar;
mod list;
mod lw;
mod policy;
mod queue;
mod shfl;
mod shfl_api;
mod shfl_rw;

pub use crate::condvar::{Condvar, Outcome, Ticket};
pub use crate::lw::{Attempt, CompareExchange, FetchAdd, LwLatch};
pub use crate::policy::{Park, ParkDetached, Policy, Shuffling, SpinOnly};
pub use crate::shfl::{Shfl, ShflMutex, ShflSpin};
pub use crate::shfl_rw::ShflRwLock;

/// Data with the default exclusive latch: `lock`, `try_lock`, `try_lock_for`, `unlock_fair`.
pub type Mutex<T> = lock_api::Mutex<ShflMutex, T>;
/// What [`Mutex::lock`] returns.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, ShflMutex, T>;
/// Data with the reader-writer latch: `read`, `write`, and both tried, timed and downgraded.
pub type RwLock<T> = lock_api::RwLock<ShflRwLock, T>;
/// What [`RwLock::read`] returns.
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, ShflRwLock, T>;
/// What [`RwLock::write`] returns.
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, ShflRwLock, T>;
/// The condition variable of [`Mutex`] guards.
pub type Monitor = lock_api::Condvar<Condvar>;
