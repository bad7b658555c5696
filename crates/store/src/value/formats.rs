//! Values in formats of other crates, each with a feature.

#[cfg(feature = "json")]
pub(super) mod json;
#[cfg(feature = "zerocopy")]
pub(super) mod plain;
#[cfg(feature = "postcard")]
pub(super) mod postcard;

/// A program's name for a type whose values are in a format of another crate.
///
/// The store records the name as the type of the table's values. It does not see the fields of the
/// type: give the type another name, or the table another
/// [schema version](crate::Table::with_version), when its encoding changes.
pub trait TypeName {
    /// The name: letters, digits and `_`.
    const NAME: &'static str;
}
