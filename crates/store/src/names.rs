//! Names of tables: those that are made at run time, and what a session knows of their trees.
//!
//! A table has its name as a `&'static str`, so that it is a constant and may be copied. A name
//! that is made at run time becomes one by being kept, each once. So most tables of one name have
//! one string; all the same two constants of one name may be two strings, and so may names that
//! the program leaks itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The longest name of a table, in bytes.
pub const NAME_MAX: usize = 900;

/// How many trees a session finds by the address of their names.
const FEW: usize = 16;

/// All names that a process has made at run time.
struct Names {
    process: u32,
    all: Mutex<BTreeSet<&'static str>>,
    /// Those of its child, in the child.
    next: OnceLock<Box<Names>>,
}

static FIRST: OnceLock<Box<Names>> = OnceLock::new();

/// The names of this process. The child of a fork begins anew: a thread that is not there may have
/// the mutex of its parent's.
fn names() -> &'static Names {
    let process = std::process::id();
    let own = || Box::new(Names { process, all: Mutex::default(), next: OnceLock::new() });
    let mut names = FIRST.get_or_init(own);
    while names.process != process {
        names = names.next.get_or_init(own);
    }
    names
}

/// The name, kept until the process ends.
pub(crate) fn kept(name: &str) -> &'static str {
    let mut names = names().all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = names.get(name) {
        return kept;
    }
    let kept: &'static str = name.to_owned().leak();
    names.insert(kept);
    kept
}

/// What a session found out about a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) tree: u32,
    /// Whether the catalog has the table's types, or the caller has none: a write need not record
    /// them.
    pub(crate) settled: bool,
}

/// A table that is found by the address of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    name: usize,
    /// The hash of the name, the types and the version: another name that came to lie at the same
    /// address is not taken for this one, nor is the same name with other types.
    tag: u64,
    found: Found,
}

/// The tables that a session has used, each with types that were compared with the catalog's.
#[derive(Default)]
pub(crate) struct Trees {
    /// The last ones, to be found by address and tag: no name is read.
    few: Vec<Known>,
    /// The place of the next one among these.
    next: usize,
    /// All of them, by their tags: one for each name and types, however many strings the name is
    /// in. The names are copies, because a string of a library that is unloaded is gone.
    all: HashMap<u64, (Box<str>, Found)>,
    /// How many migrations had begun when the first of them was looked up.
    pub(crate) at: u64,
}

impl Trees {
    /// The table of this name and tag, if it was asked for before.
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

    /// Remembers a table, in place of what was known of it.
    #[cold]
    pub(crate) fn insert(&mut self, name: &'static str, tag: u64, found: Found) {
        self.few.retain(|known| known.tag != tag);
        if self.few.len() < FEW {
            self.next = self.few.len();
        }
        self.all.insert(tag, (name.into(), found));
        self.put_first(name, tag, found);
    }

    /// Forgets all tables, when so many migrations have begun.
    #[cold]
    pub(crate) fn renew(&mut self, at: u64) {
        *self = Self { at, ..Self::default() };
    }

    /// Has a table found by its name's address, in place of the one that was put there longest ago.
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

    /// As if a library was unloaded and another one lies there: the address and the length are the
    /// same, the bytes and so the tag are not.
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
