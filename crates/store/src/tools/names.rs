//! Names of locks as text: tables and keys.

use std::collections::HashMap;

use latchwork_lockmgr::RangeInfo;

use crate::lock_error::{key_in_words, of_tree};
use crate::lock_name::{LOCK_NAME, of_name};
use crate::long::PIECES;
use crate::tables::{CATALOG, CATALOG_NAME};
use crate::txn::IDS;

/// Translates names of locks of a store into tables and keys.
#[derive(Clone, Debug, Default)]
pub struct LockNames {
    tables: HashMap<u32, String>,
}

impl LockNames {
    pub(super) fn new(tables: HashMap<u32, String>) -> Self {
        Self { tables }
    }

    /// Returns the table, or the number of its tree if its name is unknown, and the key or range as
    /// text. `range` is the lock's [`LockInfo::range`](latchwork_lockmgr::LockInfo::range).
    pub fn of(&self, object: &[u8], range: Option<&RangeInfo>) -> (String, String) {
        if let Some(gid) = Self::prepared(object) {
            return ("prepared transactions".to_owned(), gid.escape_ascii().to_string());
        }
        if let Some(range) = range {
            let tree = range.keyspace.first_chunk().map(|tree| u32::from_be_bytes(*tree));
            return (tree.map_or_else(String::new, |tree| self.table(tree)), range_in_words(range));
        }
        let Some((tree, key)) = of_name(object) else {
            return (String::new(), object.escape_ascii().to_string());
        };
        let cut = if object.len() >= LOCK_NAME { ".." } else { "" };
        (self.table(tree), format!("{}{cut}", key_in_words(key)))
    }

    fn table(&self, tree: u32) -> String {
        match tree {
            CATALOG => CATALOG_NAME.to_owned(),
            PIECES => "long values".to_owned(),
            tree => self.tables.get(&tree).cloned().unwrap_or_else(|| of_tree(tree)),
        }
    }

    /// Returns the id of a prepared transaction, if this is the lock on the id.
    pub(super) fn prepared(object: &[u8]) -> Option<Vec<u8>> {
        object.strip_prefix(&IDS.to_be_bytes()).filter(|gid| !gid.is_empty()).map(<[u8]>::to_vec)
    }
}

/// Formats a range of keys.
fn range_in_words(range: &RangeInfo) -> String {
    let from = key_in_words(&range.from);
    match &range.to {
        Some(to) if to.strip_prefix(&range.from[..]) == Some(&[0]) => from,
        Some(to) if range.from.is_empty() => format!("keys before {}", key_in_words(to)),
        Some(to) => format!("{from} up to {}", key_in_words(to)),
        None if range.from.is_empty() => "all keys".to_owned(),
        None => format!("{from} and all keys after it"),
    }
}
