//! Looking at it: counters, times of waits, events, and a view that takes no latch.

#[cfg(feature = "tracing")]
pub(crate) mod events;
pub(crate) mod stats;
pub(crate) mod view;
pub(crate) mod waits;
pub(crate) mod watch;
