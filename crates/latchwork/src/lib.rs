//! The synchronisation core of a storage engine.
//!
//! This crate re-exports what a user wants and holds nothing else. [`latch`] has the latches and a
//! table of which to take; [`machine`] has what they run on.
//!
//! ```
//! use latchwork::latch::Mutex;
//!
//! let sum = Mutex::new(0);
//! std::thread::scope(|scope| {
//!     for _ in 0..4 {
//!         scope.spawn(|| *sum.lock() += 1);
//!     }
//! });
//! assert_eq!(*sum.lock(), 4);
//! ```

pub use latchwork_latch as latch;
pub use latchwork_machine as machine;
