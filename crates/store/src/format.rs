//! The formats of a store's files.

/// The format of new stores. Format 6 records the types of tables in the catalog and has smaller
/// first log segments. Format 7 has shorter log records, which contain only the part of a value
/// that differs. All can also be read as in format 5.
pub(crate) const FORMAT: u64 = 7;

/// The oldest format that can be converted in place.
pub(crate) const CONVERTED: u64 = 5;

/// The first version of the program that wrote a format.
const VERSIONS: [(u64, &str); 3] = [(5, "0.1.0-dev"), (6, "0.1.0-dev"), (7, "0.1.0")];

/// Returns the version of the program that wrote a format; `None` if no release did.
pub(crate) fn version_of(format: u64) -> Option<&'static str> {
    VERSIONS.iter().find(|known| known.0 == format).map(|known| known.1)
}
