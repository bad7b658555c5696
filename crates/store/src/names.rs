//! Names of tables: those computed at run time, and a session's cache of their trees.
//!
//! The name of a table is a `&'static str`, so that a table is a constant and can be copied. A name
//! computed at run time is leaked, once for each distinct name. So most tables with the same name
//! share one string. Two constants may still have two strings, and so may names that the program
//! leaks itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Maximum length of a table's name, in bytes.
pub const NAME_MAX: usize = 900;

/// How many trees a session finds by the address of their names.
const FEW: usize = 16;

/// All names that a process has computed at run time.
struct Names {
    process: u32,
    all: Mutex<BTreeSet<&'static str>>,
    /// In the child of a fork: the names of the child.
    next: OnceLock<Box<Names>>,
}

static FIRST: OnceLock<Box<Names>> = OnceLock::new();

/// Returns the names of this process. The child of a fork gets an empty set, because a thread that
/// does not exist there may hold the mutex of its parent's.
fn names() -> &'static Names {
    let process = std::process::id();
    let own = || Box::new(Names { process, all: Mutex::default(), next: OnceLock::new() });
    let mut names = FIRST.get_or_init(own);
    while names.process != process {
        names = names.next.get_or_init(own);
    }
    names
}

/// Returns the name as a string that lives until the process ends.
pub(crate) fn kept(name: &str) -> &'static str {
    let mut names = names().all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = names.get(name) {
        return kept;
    }
    let kept: &'static str = name.to_owned().leak();
    names.insert(kept);
    kept
}

/// A session's knowledge of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) tree: u32,
    /// Whether the catalog has the types of the table, or the caller has none, so that a write need
    /// not record them.
    pub(crate) settled: bool,
}

/// A table that is found by the address of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    name: usize,
    /// The hash of the name, the types and the version. It detects that another name now has the
    /// same address, or that the call has other types.
    tag: u64,
    found: Found,
}

/// The tables that a session has used, each with types that matched those of the catalog.
#[derive(Default)]
pub(crate) struct Trees {
    /// The recent ones, found by address and tag without reading the name.
    few: Vec<Known>,
    /// The index in `few` of the next entry to replace.
    next: usize,
    /// All of them, by tag: one for each name and types, in however many strings the name occurs.
    /// The names are copied, because the string of a library that is unloaded no longer exists.
    all: HashMap<u64, (Box<str>, Found)>,
    /// The number of migrations that had begun when the first of them was looked up.
    pub(crate) at: u64,
}

impl Trees {
    /// Returns the table with this name and tag, if it was looked up before.
    #[inline]
    pub(crate) fn find(&mut self, name: &'static str, tag: u64) -> Option<Found> {
        let at = name.as_ptr().addr();
        match self.few.iter().find(|known| known.name == at && known.tag == tag) {
            Some(known) => Some(known.found),
            None => self.find_by_name(name, tag),
        }
    }

    #[cold]
    fn find_by_name(&mut self, name: &'static str, tag: u64) -> Option<Found> {
        let (known, found) = self.all.get(&tag)?;
        let found = (**known == *name).then_some(*found)?;
        self.put_first(name, tag, found);
        Some(found)
    }

    /// Caches a table, and replaces an earlier entry for it.
    #[cold]
    pub(crate) fn insert(&mut self, name: &'static str, tag: u64, found: Found) {
        self.few.retain(|known| known.tag != tag);
        if self.few.len() < FEW {
            self.next = self.few.len();
        }
        self.all.insert(tag, (name.into(), found));
        self.put_first(name, tag, found);
    }

    /// Discards all tables, at this number of migrations.
    #[cold]
    pub(crate) fn renew(&mut self, at: u64) {
        *self = Self { at, ..Self::default() };
    }

    /// Makes a table findable by the address of its name; replaces the oldest entry.
    fn put_first(&mut self, name: &'static str, tag: u64, found: Found) {
        let known = Known { name: name.as_ptr().addr(), tag, found };
        match self.few.get_mut(self.next) {
            Some(place) => *place = known,
            None => self.few.push(known),
        }
        self.next = (self.next + 1) % FEW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tree: u32) -> Found {
        Found { tree, settled: true }
    }

    fn known(name: &'static str, tree: usize) -> Known {
        Known { name: name.as_ptr().addr(), tag: tree as u64, found: found(tree as u32) }
    }

    /// Simulates that a library was unloaded and another one lies at its address: address and
    /// length are the same, the bytes and the tag differ.
    #[test]
    fn another_name_at_the_same_address_is_another_table() {
        let mut trees = Trees::default();
        let name = kept("plugin one");
        trees.insert(name, 1, found(7));
        assert_eq!(trees.find(name, 2), None);
        trees.insert(name, 2, found(8));
        assert_eq!((trees.find(name, 1), trees.find(name, 2)), (Some(found(7)), Some(found(8))));
        // Two names with one tag are not taken for each other.
        assert_eq!(trees.find(kept("plugin two"), 1), None);
    }

    #[test]
    fn a_name_is_kept_once() {
        let (one, two) = (kept("a name of a test"), kept(&["a name", " of a test"].concat()));
        assert!(core::ptr::eq(one, two));
        assert!(!core::ptr::eq(one, kept("another name of a test")));
    }

    #[test]
    fn ten_thousand_strings_of_one_name_are_one_tree() {
        let mut trees = Trees::default();
        for number in 0..10_000 {
            let name: &'static str = "one".to_owned().leak();
            assert_eq!(trees.find(name, 1), (number > 0).then_some(found(7)));
            if number == 0 {
                trees.insert(name, 1, found(7));
            }
            assert_eq!(trees.find(name, 1), Some(found(7)));
        }
        assert_eq!((trees.all.len(), trees.few.len()), (1, FEW));
    }

    #[test]
    fn many_names_are_all_found_and_the_last_ones_by_address() {
        let names: Vec<_> = (0..1000).map(|number| kept(&format!("table {number}"))).collect();
        let mut trees = Trees::default();
        for (tree, name) in names.iter().enumerate() {
            assert_eq!(trees.find(name, tree as u64), None);
            trees.insert(name, tree as u64, found(tree as u32));
        }
        for _ in 0..2 {
            for (tree, name) in names.iter().enumerate() {
                let known = known(name, tree);
                assert_eq!(trees.find(name, known.tag), Some(known.found));
                assert!(trees.few.contains(&known));
            }
        }
        assert_eq!((trees.all.len(), trees.few.len()), (1000, FEW));
        // A few that are used by turns stay.
        for round in 0..100 {
            for (tree, name) in names[..FEW].iter().enumerate() {
                trees.find(name, tree as u64);
            }
            let is_there =
                |(tree, name): (usize, &&'static str)| trees.few.contains(&known(name, tree));
            assert!(round == 0 || names[..FEW].iter().enumerate().all(is_there));
        }
    }
}
