//! Converts a store of an older format to the current one, in place.

use std::path::Path;

use crate::Error;
use crate::format::FORMAT;
use crate::open::convert;

/// The result of [`upgrade`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upgraded {
    /// The format that the store had.
    pub from: u64,
    /// The format that it has now.
    pub to: u64,
}

/// Converts the store in a folder to the format that this version writes. Programs of versions that
/// write the older format cannot open it afterwards: copy the folder first.
///
/// The conversion of formats 5 and 6 replaces one file, so a process that is killed in the call
/// leaves a store of either format. A store of the current format is not changed.
///
/// # Errors
///
/// [`Error::Open`]: no store exists; processes have it open; killed processes left memory, which
/// the version that wrote it must first take over and close; its format is newer, or too old.
pub fn upgrade(path: impl AsRef<Path>) -> Result<Upgraded, Error> {
    Ok(Upgraded { from: convert(path.as_ref())?, to: FORMAT })
}
