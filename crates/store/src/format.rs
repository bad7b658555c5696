//! The formats of a store's files.

/// The format of a store that is made now. Format 6 has the types of tables in its catalog, and a
/// log whose first segments are small; both are read as format 5 has them, too.
pub(crate) const FORMAT: u64 = 6;

/// The oldest format that is converted in place.
pub(crate) const CONVERTED: u64 = 5;

/// The first version of the program that wrote a format.
const VERSIONS: [(u64, &str); 2] = [(5, "0.1.0-dev"), (6, "0.1.0")];

/// The version of the program that wrote a format; none if there was no such release.
pub(crate) fn version_of(format: u64) -> Option<&'static str> {
    VERSIONS.iter().find(|known| known.0 == format).map(|known| known.1)
}
