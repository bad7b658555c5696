//! What follows a death: the sweep, the repair of what was half done, the release of what the dead
//! had, orphans.

pub(crate) mod notes;
pub(crate) mod orphans;
pub(crate) mod policy;
pub(crate) mod release;
pub(crate) mod repair;
#[cfg(test)]
mod staged;
pub(crate) mod sweep;
