//! The counters and events of a session: requests, waits, events. This folder does not use the
//! region.

pub(crate) mod asked;
pub(crate) mod counters;
#[cfg(feature = "tracing")]
pub(crate) mod events;
pub(crate) mod outcome;
pub(crate) mod released;
pub(crate) mod waits;
