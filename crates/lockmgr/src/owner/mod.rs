//! What an owner does: requests, waits, releases, children, transfers, batches.

pub(crate) mod batch;
pub(crate) mod handle;
pub(crate) mod nested;
pub(crate) mod release;
pub(crate) mod request;
pub(crate) mod stored;
pub(crate) mod transfer;
pub(crate) mod wait;
