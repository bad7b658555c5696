//! Tasks of this process that wait without a thread.

use std::collections::HashMap;
use std::task::Waker;

/// A task that waits.
pub(crate) struct Watched {
    /// The offset of the request that it waits for.
    pub(crate) request: u32,
    /// The time at which it must be woken in any case.
    pub(crate) at: u64,
    pub(crate) waker: Waker,
}

/// All tasks that wait, and whether the process's thread runs.
///
/// A task that was woken is removed. If it still waits, its next poll registers it again; a task
/// that was forgotten (`mem::forget`) is never polled, so it is not kept.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) all: HashMap<u64, Watched>,
    pub(crate) last: u64,
    pub(crate) runs: bool,
}
