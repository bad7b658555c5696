//! The catalog's entry for a table: its root, and since format 6 its types and schema version.
//!
//! ```text
//! 0    4    the root's page, little-endian; in format 5 nothing follows
//! 4    -    fields: a number, a length of 2 bytes, little-endian, and that many bytes
//!
//! 1    the type of keys, as text
//! 2    the type of values, as text
//! 3    the schema version: 4 bytes, little-endian
//! 4    no content: a migration is moving the table's records
//! 128- options; a program that does not know them may skip them
//! ```
//!
//! A program refuses a table that has an unknown field below 128. A description that does not fit
//! into the record is replaced by a hash, which is compared instead.

use crate::Error;
use crate::types::{HASH, Type, text};

/// The name of the catalog in errors.
pub(crate) const CATALOG_NAME: &str = "the catalog";

const KEY: u8 = 1;
const VALUE: u8 = 2;
const VERSION: u8 = 3;
const MOVING: u8 = 4;
/// Unknown fields from this number on may be skipped.
const OPTIONS: u8 = 128;

/// The types of a table's keys and values, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Types {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Types {
    /// Returns the types of a table as a program names it; `None` if one of them matches any type.
    pub(crate) fn of(key: &Type, value: &Type) -> Option<Self> {
        let any = key.is_any() || value.is_any();
        (!any).then(|| Self { key: key.to_string(), value: value.to_string() })
    }
}

/// The types and the version of a new table.
pub(crate) type Wanted = (Option<Types>, u32);

/// A table in the catalog: see [`Store::table_infos`](crate::Store::table_infos).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// The type of its keys, as described by [`Type`](crate::Type). `None` if no program has
    /// written to the table since the store has format 6.
    pub key: Option<String>,
    /// The type of its values.
    pub value: Option<String>,
    /// Its schema version.
    pub version: u32,
    /// Whether a [migration](crate::Store::migrate) has begun and not ended; the types are then the
    /// old ones.
    pub migrating: bool,
}

impl TableInfo {
    pub(crate) fn of(name: String, entry: Entry) -> Self {
        let (version, migrating) = (entry.version, entry.moving);
        let (key, value) = entry.types.map(|types| (types.key, types.value)).unzip();
        Self { name, key, value, version, migrating }
    }

    /// Returns the types and the version that such a table gets when it is created.
    pub(crate) fn wanted(&self) -> Wanted {
        let types = self.key.clone().zip(self.value.clone());
        (types.map(|(key, value)| Types { key, value }), self.version)
    }
}

/// Returns the hash that replaces a description that is too long for its record.
pub(crate) fn short(of: &str) -> String {
    format!("hash({:016x})", text(HASH, of))
}

/// Returns whether a recorded type matches the requested one.
fn is(stored: &str, asked: &Type) -> bool {
    if asked.is_any() {
        return true;
    }
    let asked = asked.to_string();
    stored == asked || stored == short(&asked)
}

/// The entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The root's page.
    pub(crate) tree: u32,
    /// `None` if no program has recorded them.
    pub(crate) types: Option<Types>,
    pub(crate) version: u32,
    /// Whether a migration is moving its records to the tree of another entry.
    pub(crate) moving: bool,
    /// Options of a later program, as stored.
    options: Vec<u8>,
}

fn damaged() -> Error {
    let what = "no page number, or a table of a later format";
    Error::Damaged { table: CATALOG_NAME.to_owned(), key: Vec::new(), what }
}

impl Entry {
    pub(crate) fn new(tree: u32, types: Option<Types>, version: u32) -> Self {
        Self { tree, types, version, moving: false, options: Vec::new() }
    }

    /// Decodes the contents of its record.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, Error> {
        let (root, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
        let mut entry = Self::new(u32::from_le_bytes(*root), None, 0);
        let (mut key, mut value) = (None, None);
        while let [field, low, high, after @ ..] = rest {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let (bytes, next) = after.split_at_checked(length).ok_or_else(damaged)?;
            let text = || String::from_utf8(bytes.to_vec()).map_err(|_| damaged());
            match *field {
                KEY => key = Some(text()?),
                VALUE => value = Some(text()?),
                VERSION => {
                    entry.version = u32::from_le_bytes(bytes.try_into().map_err(|_| damaged())?);
                }
                MOVING if bytes.is_empty() => entry.moving = true,
                OPTIONS.. => entry.options.extend_from_slice(&rest[..3 + length]),
                _ => return Err(damaged()),
            }
            rest = next;
        }
        if !rest.is_empty() {
            return Err(damaged());
        }
        entry.types = key.zip(value).map(|(key, value)| Types { key, value });
        Ok(entry)
    }

    /// Encodes the entry, in at most this many bytes.
    pub(crate) fn bytes(&self, room: usize) -> Vec<u8> {
        let mut bytes = self.tree.to_le_bytes().to_vec();
        let mut field = |field: u8, of: &[u8]| {
            bytes.push(field);
            bytes.extend_from_slice(&(of.len() as u16).to_le_bytes());
            bytes.extend_from_slice(of);
        };
        if let Some(Types { key, value }) = &self.types {
            let long = key.len() + value.len() + 20 + self.options.len() > room;
            let text = |of: &String| if long { short(of) } else { of.clone() };
            field(KEY, text(key).as_bytes());
            field(VALUE, text(value).as_bytes());
        }
        if self.version != 0 {
            field(VERSION, &self.version.to_le_bytes());
        }
        if self.moving {
            field(MOVING, &[]);
        }
        bytes.extend_from_slice(&self.options);
        bytes
    }

    /// Returns whether its keys and values have these types; an unrecorded type matches any.
    pub(crate) fn is_of(&self, key: &Type, value: &Type, version: u32) -> bool {
        if key.is_any() && value.is_any() {
            return true;
        }
        let types = self.types.as_ref();
        let same = types.is_none_or(|types| is(&types.key, key) && is(&types.value, value));
        same && version == self.version
    }

    /// Returns whether a table of another store with these types may be loaded into this one.
    pub(crate) fn takes(&self, (types, version): &Wanted) -> bool {
        let same = |stored: &String, of: &String| stored == of || *stored == short(of);
        let (Some(here), Some(there)) = (&self.types, types) else { return true };
        self.version == *version && same(&here.key, &there.key) && same(&here.value, &there.value)
    }

    /// Formats the types and the version.
    pub(crate) fn said(&self) -> String {
        match &self.types {
            Some(Types { key, value }) => said(key, value, self.version),
            None => said(&"unknown", &"unknown", self.version),
        }
    }
}

/// Formats types and a version.
pub(crate) fn said(
    key: &dyn core::fmt::Display,
    value: &dyn core::fmt::Display,
    version: u32,
) -> String {
    match version {
        0 => format!("{key} -> {value}"),
        _ => format!("{key} -> {value}, version {version}"),
    }
}

/// Returns the root's page from a record of the catalog.
pub(crate) fn root_of(bytes: &[u8]) -> Result<u32, Error> {
    let (root, _) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    Ok(u32::from_le_bytes(*root))
}
