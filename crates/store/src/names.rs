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

/// The trees that a session was asked for.
#[derive(Default)]
pub(crate) struct Trees {
    /// Those that were found last, to be found by address: no name is read.
    few: Vec<(&'static str, u32)>,
    /// The place of the next one among these.
    next: usize,
    /// All of them: one for each name, however many strings that is in.
    all: HashMap<&'static str, u32>,
}

impl Trees {
    /// The tree of this name, if it was asked for before.
    #[inline]
    pub(crate) fn find(&mut self, name: &'static str) -> Option<u32> {
        match self.few.iter().find(|(known, _)| core::ptr::eq(*known, name)) {
            Some((_, tree)) => Some(*tree),
            None => self.find_by_name(name),
        }
    }

    #[cold]
    fn find_by_name(&mut self, name: &'static str) -> Option<u32> {
        let tree = *self.all.get(name)?;
        self.put_first(name, tree);
        Some(tree)
    }

    /// Remembers a tree.
    #[cold]
    pub(crate) fn insert(&mut self, name: &'static str, tree: u32) {
        self.all.insert(name, tree);
        self.put_first(name, tree);
    }

    /// Has a tree found by its name's address, in place of the one that was put there longest ago.
    fn put_first(&mut self, name: &'static str, tree: u32) {
        match self.few.get_mut(self.next) {
            Some(place) => *place = (name, tree),
            None => self.few.push((name, tree)),
        }
        self.next = (self.next + 1) % FEW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(trees.find(name), (number > 0).then_some(7));
            if number == 0 {
                trees.insert(name, 7);
            }
            assert_eq!(trees.find(name), Some(7));
        }
        assert_eq!((trees.all.len(), trees.few.len()), (1, FEW));
    }

    #[test]
    fn many_names_are_all_found_and_the_last_ones_by_address() {
        let names: Vec<_> = (0..1000).map(|number| kept(&format!("table {number}"))).collect();
        let mut trees = Trees::default();
        for (tree, name) in names.iter().enumerate() {
            assert_eq!(trees.find(name), None);
            trees.insert(name, tree as u32);
        }
        for _ in 0..2 {
            for (tree, name) in names.iter().enumerate() {
                assert_eq!(trees.find(name), Some(tree as u32));
                assert!(trees.few.contains(&(*name, tree as u32)));
            }
        }
        assert_eq!((trees.all.len(), trees.few.len()), (1000, FEW));
        // A few that are used by turns stay.
        for round in 0..100 {
            for name in &names[..FEW] {
                trees.find(name);
            }
            let few = trees.few.clone();
            assert!(
                round == 0
                    || names[..FEW]
                        .iter()
                        .all(|name| { few.iter().any(|(known, _)| core::ptr::eq(*known, *name)) })
            );
        }
    }
}
