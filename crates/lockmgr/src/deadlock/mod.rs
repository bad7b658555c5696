//! Deadlocks: finding cycles, choosing a victim, its report, and the history of deadlocks.

pub(crate) mod detect;
pub(crate) mod history;
pub(crate) mod report;
pub(crate) mod search;
pub(crate) mod victim;
