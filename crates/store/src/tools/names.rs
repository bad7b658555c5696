//! Names of locks in words: tables and keys.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use latchwork_lockmgr::RangeInfo;
use latchwork_machine::ConstMachine;
use latchwork_tree::Node;

use crate::lock_error::{key_in_words, of_tree};
use crate::lock_name::{LOCK_NAME, of_name};
use crate::long::PIECES;
use crate::tables::{CATALOG, CATALOG_NAME, INNER, as_shown, root_of};
use crate::tools::view::StoreView;
use crate::txn::IDS;

/// Pages of the catalog that are read at most.
const PAGES_MAX: u32 = 10_000;

/// What locks of a store are called.
#[derive(Clone, Debug, Default)]
pub struct LockNames {
    tables: HashMap<u32, String>,
}

impl LockNames {
    pub(super) fn new(tables: HashMap<u32, String>) -> Self {
        Self { tables }
    }

    /// The table, or its tree if its name is not known, and the key or range in words. `range` is
    /// the lock's [`LockInfo::range`](latchwork_lockmgr::LockInfo::range).
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

    /// The id of a prepared transaction, if this is the lock that keeps it.
    pub(super) fn prepared(object: &[u8]) -> Option<Vec<u8>> {
        object.strip_prefix(&IDS.to_be_bytes()).filter(|gid| !gid.is_empty()).map(<[u8]>::to_vec)
    }
}

/// Keys from one to another.
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

impl<M: ConstMachine> StoreView<M> {
    /// The names of tables by their trees, as far as the catalog's pages can be read: one that is
    /// just being changed or written is missing.
    pub(super) fn tables(&self) -> HashMap<u32, String> {
        let mut tables = HashMap::new();
        let _ = self.read_catalog(&mut tables);
        tables
    }

    /// None if a page cannot be read.
    fn read_catalog(&self, tables: &mut HashMap<u32, String>) -> Option<()> {
        let mut page = u64::from(CATALOG);
        for _ in 0..PAGES_MAX {
            let words = self.page(page)?;
            let node = Node::of(&words[..])?;
            if node.level() > 0 {
                page = node.first_child()?;
                continue;
            }
            for index in 0..node.count() {
                let key = node.key(index)?;
                if key.starts_with(INNER) {
                    return Some(());
                }
                if node.is_ghost(index)? {
                    continue;
                }
                if let Ok(tree) = root_of(&node.value(index)?) {
                    let name = String::from_utf8_lossy(&key).into_owned();
                    tables.insert(tree, as_shown(&name).unwrap_or(name));
                }
            }
            page = node.right()??;
        }
        None
    }

    /// The words of a page, from memory, or from the file if it is not there.
    fn page(&self, number: u64) -> Option<Vec<u64>> {
        let pool = self.pool.as_ref()?;
        let (file, _) = pool.files().ok()?.into_iter().next()?;
        let read = pool.looker().read(file, number, |page| {
            let mut words = vec![0; page.len()];
            page.copy(0, &mut words).map(|()| words)
        });
        if let Ok(words) = read {
            return Some(words);
        }
        let mut bytes = vec![0; file.page_bytes() as usize];
        let at = number.checked_mul(bytes.len() as u64)?;
        File::open(self.data.as_ref()?).ok()?.read_exact_at(&mut bytes, at).ok()?;
        latchwork_pool::sound(number, &bytes).ok()?;
        let (words, _) = bytes.as_chunks();
        Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
}
