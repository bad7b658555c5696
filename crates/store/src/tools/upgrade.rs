//! A store of an older format becomes one of the present format, in place.

use std::path::Path;

use crate::Error;
use crate::format::FORMAT;
use crate::open::convert;

/// What [`upgrade`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upgraded {
    /// The format that the store had.
    pub from: u64,
    /// The format that it has now.
    pub to: u64,
}

/// Converts the store in a folder to the format that this version writes. Versions of the program
/// that write the older format cannot open it afterwards: copy the folder before.
///
/// Format 5 is converted by one file, so a process that is killed in the call leaves a store of the
/// one format or of the other. A store that has the present format stays as it is.
///
/// # Errors
///
/// [`Error::Open`]: there is no store; processes have it open; killed processes left memory, which
/// the version that wrote it has to take over and close; its format is newer, or too old.
pub fn upgrade(path: impl AsRef<Path>) -> Result<Upgraded, Error> {
    Ok(Upgraded { from: convert(path.as_ref())?, to: FORMAT })
}
