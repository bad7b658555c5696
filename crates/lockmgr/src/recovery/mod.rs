//! What follows a death: the sweep, the repair of what was half done, dead owners that are kept.

pub(crate) mod orphans;
pub(crate) mod repair;
pub(crate) mod sweep;
