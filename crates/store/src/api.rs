//! Calls of a store beyond running closures, and calls of its transactions beyond reading and
//! writing records.

pub(crate) mod by_hand;
pub(crate) mod cursor;
mod durable;
pub(crate) mod ends;
pub(crate) mod kept;
pub(crate) mod multi;
mod own_errors;
pub(crate) mod sequence;
mod some;
pub(crate) mod tasks;
