//! The numbers of the sets of modes, in the high bits of a mode, and the names of their modes. So a
//! mode can name its set and itself without the set.

/// Sets that programs define.
pub(crate) const OWN: u8 = 0;
pub(crate) const GRANULAR: u8 = 1 << 4;
pub(crate) const SHARED: u8 = 2 << 4;
pub(crate) const BERKELEY: u8 = 3 << 4;
pub(crate) const POSTGRES: u8 = 4 << 4;

pub(crate) const GRANULAR_NAMES: [&str; 6] = ["IS", "IX", "S", "SIX", "U", "X"];
pub(crate) const SHARED_NAMES: [&str; 2] = ["S", "X"];
pub(crate) const BERKELEY_NAMES: [&str; 9] =
    ["NG", "READ", "WRITE", "WAIT", "IWRITE", "IREAD", "IWR", "READ_UNCOMMITTED", "WWRITE"];
pub(crate) const POSTGRES_NAMES: [&str; 8] = [
    "AccessShare",
    "RowShare",
    "RowExclusive",
    "ShareUpdateExclusive",
    "Share",
    "ShareRowExclusive",
    "Exclusive",
    "AccessExclusive",
];

/// Returns the name of a preset and the names of its modes, or `None` for a set that a program
/// defines.
pub(crate) fn names(set: u8) -> Option<(&'static str, &'static [&'static str])> {
    match set {
        GRANULAR => Some(("granular", &GRANULAR_NAMES)),
        SHARED => Some(("shared", &SHARED_NAMES)),
        BERKELEY => Some(("berkeley", &BERKELEY_NAMES)),
        POSTGRES => Some(("postgres", &POSTGRES_NAMES)),
        _ => None,
    }
}
