//! Waiting without a thread: notifiers and futures.

pub(crate) mod futures;
pub(crate) mod notifier;
pub(crate) mod range_futures;
