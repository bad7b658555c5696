//! What only tests and reports use: places where tests kill, and addresses by name.

pub(crate) mod addresses;
pub(crate) mod crash_points;
