//! pthread functions on our latches: a library to preload into an unmodified program.
//!
//! A latch *inside the object's own bytes* serves each mutex, reader-writer lock, spin lock and
//! condition variable of the program. There is no table from address to latch and no allocation, so
//! static initialisers work, and an object keeps its size.
//!
//! The path of an ordinary object calls no `dlsym`, allocates and prints nothing, preserves
//! `errno`, and does not depend on our constructor. Objects that other processes or the kernel know
//! (process-shared, robust, priority-inheriting or -protected) are passed to the C library; the
//! object's own bytes determine that for every function alike.
//!
//! | file | content |
//! |---|---|
//! | `abi.rs` | the layout of the C library's objects |
//! | `entry.rs` | the exported functions; one test, then one jump |
//! | `mode.rs` | the choice of a latch, made once by the environment |
//! | `mutex.rs`, `rwlock.rs`, `spin.rs`, `cond.rs`, `wait.c` | the objects |
//! | `real.rs` | the C library's own functions |
//! | `thread.rs` | the number of the calling thread |
//! | `record.rs` | recording for a profile |

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the arms of one choice, each safe for the same reason"
)]
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

mod abi;
mod cond;
#[allow(unreachable_pub, reason = "exported by name, not by path")]
mod entry;
mod mode;
mod mutex;
mod real;
mod record;
mod rwlock;
mod spin;
mod start;
mod thread;
mod time;
