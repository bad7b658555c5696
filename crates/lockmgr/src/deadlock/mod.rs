//! Deadlocks: finding cycles, choosing a victim, the report it gets, and the history for people.

pub(crate) mod detect;
pub(crate) mod history;
pub(crate) mod report;
pub(crate) mod search;
pub(crate) mod victim;
