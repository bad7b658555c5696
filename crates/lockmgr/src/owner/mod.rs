//! The operations of an owner: requests, waits, releases, ranges, children, transfers, batches.

pub(crate) mod adopted;
pub(crate) mod batch;
pub(crate) mod blockers;
pub(crate) mod handle;
pub(crate) mod holdings;
pub(crate) mod locks;
pub(crate) mod nested;
pub(crate) mod range_change;
pub(crate) mod range_request;
pub(crate) mod ranges;
pub(crate) mod release;
pub(crate) mod request;
pub(crate) mod savepoint;
pub(crate) mod striped;
pub(crate) mod transfer;
pub(crate) mod wait;
pub(crate) mod watch;
