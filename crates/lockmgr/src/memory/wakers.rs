//! Tasks of this process that wait without a thread.

use std::collections::HashMap;
use std::task::Waker;

/// A task that waits.
pub(crate) struct Watched {
    /// Where the request lies for which it waits.
    pub(crate) request: u32,
    /// When it wants to be woken in any case.
    pub(crate) at: u64,
    pub(crate) waker: Waker,
}

/// All tasks that wait, and whether the thread is there.
///
/// A task that was woken is out of it: a task that waits still is polled and says so anew, and one
/// that was forgotten (`mem::forget`) is not waited for.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) all: HashMap<u64, Watched>,
    pub(crate) last: u64,
    pub(crate) runs: bool,
}
