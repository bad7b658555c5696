//! What a session counts and tells: requests, waits, events. It knows nothing of the region.

pub(crate) mod asked;
pub(crate) mod counters;
#[cfg(feature = "tracing")]
pub(crate) mod events;
pub(crate) mod outcome;
pub(crate) mod released;
pub(crate) mod waits;
