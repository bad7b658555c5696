//! pthread names, our latches: a library to preload into an unmodified program.
//!
//! A mutex, a reader-writer lock, a spin lock or a condition variable of the program's is served
//! by a latch that lives *inside the object's own bytes*. There is no table from address to latch
//! and no allocation, so static initialisers work and an object costs what it cost before.
//!
//! On the path of an ordinary object nothing is looked up with `dlsym`, nothing is allocated or
//! printed, `errno` stays as it was, and nothing depends on our constructor having run. Objects
//! that other processes or the kernel know (process-shared, robust, priority-inheriting or
//! -protected) go to the C library untouched; the object's own bytes say which it is, to every
//! function alike.
//!
//! | file | |
//! |---|---|
//! | `abi.rs` | where things lie in the C library's objects |
//! | `entry.rs` | the exported names; one test, then one jump |
//! | `mode.rs` | the choice of a latch, made once by the environment |
//! | `mutex.rs`, `rwlock.rs`, `spin.rs`, `cond.rs`, `wait.c` | the objects |
//! | `real.rs` | the names below ours |
//! | `thread.rs` | who is calling |
//! | `record.rs` | what a profile wants to know |

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
