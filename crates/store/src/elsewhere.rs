//! Access to the names, types, bytes and ranges of tables, for engines in other crates.

use core::fmt;
use core::ops::RangeBounds;

use latchwork_tree::Batch;

use crate::entry::{said as said_of, short};
use crate::snapshot::Slices;
use crate::typed::{Bounds, Rows};
use crate::{Error, Key, Multi, StartsWith, Table, TableInfo, Type, Value};

/// A table as a call names it.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// A hash of the name, the version and the types.
    pub tag: u64,
    /// Its schema version.
    pub version: u32,
    /// The type of its keys.
    pub key: Type,
    /// The type of its values.
    pub value: Type,
}

impl Named {
    /// Returns the table of a constant.
    pub const fn new<K: Key, V: Value>(table: &Table<K, V>) -> Self {
        let asked = table.asked();
        Self {
            name: asked.name,
            tag: asked.tag,
            version: asked.version,
            key: asked.key,
            value: asked.value,
        }
    }

    /// Returns whether one of its types matches any type.
    pub const fn is_any(&self) -> bool {
        self.key.is_any() || self.value.is_any()
    }

    /// Compares the types and the version with the recorded ones.
    ///
    /// # Errors
    ///
    /// [`Error::TableType`].
    pub fn check(&self, stored: &TableInfo) -> Result<(), Error> {
        let Self { name, version, key, value, .. } = self;
        if key.is_any() && value.is_any() {
            return Ok(());
        }
        let is = |stored: &Option<String>, asked: &Type| match stored {
            Some(stored) if !asked.is_any() => {
                let asked = asked.to_string();
                *stored == asked || *stored == short(&asked)
            }
            _ => true,
        };
        let typed = stored.key.is_some() && stored.value.is_some();
        let same = !typed || is(&stored.key, key) && is(&stored.value, value);
        if same && *version == stored.version {
            return Ok(());
        }
        Err(Error::TableType {
            table: (*name).to_owned(),
            stored: said(stored),
            requested: said_of(key, value, *version),
        })
    }
}

/// Formats the types and the version of a table.
pub fn said(table: &TableInfo) -> String {
    let unknown = "unknown".to_owned();
    let of = |of: &Option<String>| of.clone().unwrap_or_else(|| unknown.clone());
    said_of(&of(&table.key), &of(&table.value), table.version)
}

/// Creates the description of a table in another catalog.
pub fn table_info(
    name: String,
    key: Option<String>,
    value: Option<String>,
    version: u32,
) -> TableInfo {
    TableInfo { name, key, value, version, migrating: false }
}

/// Returns the encoded bounds of a range.
///
/// # Errors
///
/// [`Error::KeyTooLong`].
pub fn bounds<'k, K: Key, V: Value>(
    table: &Table<K, V>,
    range: &impl RangeBounds<K::Of<'k>>,
) -> Result<Bounds, Error> {
    crate::typed::bounds(table, range)
}

/// Returns the encoded bounds of the range of all keys that begin with these parts.
///
/// # Errors
///
/// [`Error::KeyTooLong`].
pub fn prefixed<P: Key, K: StartsWith<P>>(
    table: &str,
    prefix: &P::Of<'_>,
) -> Result<Bounds, Error> {
    crate::typed::prefixed::<P, K>(table, prefix)
}

/// Returns the table of the pairs of a multimap.
pub fn pairs_of<K: Key, V: Key>(table: &Multi<K, V>) -> &Table<(K, V), ()> {
    table.table()
}

/// Returns the records of a range, which `fetch` reads in batches. Its arguments are the rest of
/// the range, whether to read backwards, and the number of records.
pub fn rows<'r, K: Key, V: Value>(
    table: Table<K, V>,
    range: Bounds,
    fetch: impl FnMut(Slices<'_>, bool, usize, &mut Batch) -> Result<(), Error> + 'r,
) -> Rows<'r, K, V> {
    Rows::new(table, range, Box::new(fetch))
}

/// Returns an iterator over records that have been read.
pub fn rows_of<K: Key, V: Value>(table: Table<K, V>, batch: Batch) -> Rows<'static, K, V> {
    Rows::of(table, batch)
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&said_of(&self.key, &self.value, self.version))
    }
}
