//! The journal of an owner: its locks on the names that it requested again after a savepoint.

use core::cell::{Cell, RefCell, RefMut};
use std::collections::HashSet;

use crate::mode::Mode;

/// A lock before the request: name, mode, count.
pub(crate) type Hold = (Vec<u8>, Mode, u32);

/// The locks of an owner that may have grown, each as it was at the first request for its name
/// after a savepoint. It lies in the process's own memory, because no other process uses
/// savepoints.
#[derive(Default)]
pub(crate) struct Journal {
    holds: RefCell<Vec<Hold>>,
    /// Names that were requested since the last savepoint.
    asked: RefCell<HashSet<Vec<u8>>>,
    /// The last mark before each savepoint, without the savepoints before the last release of all
    /// locks; and how many those are. The marks are stored here and not in the savepoints because
    /// they are [renumbered].
    ///
    /// [renumbered]: crate::memory::handle::Owner::renumber
    marks: RefCell<Vec<u32>>,
    forgotten: Cell<u64>,
}

impl Journal {
    /// Begins a savepoint and returns its position in the journal.
    pub(crate) fn begin(&self) -> usize {
        self.asked.borrow_mut().clear();
        self.holds.borrow().len()
    }

    /// Returns the number of a savepoint after this mark. Savepoints without a mark between them
    /// share one number.
    pub(crate) fn number(&self, mark: u32) -> u64 {
        let mut marks = self.marks.borrow_mut();
        if marks.last() != Some(&mark) {
            marks.push(mark);
        }
        self.forgotten.get() + marks.len() as u64 - 1
    }

    /// Returns the last mark before a savepoint, or `None` if all locks were released since.
    pub(crate) fn mark_of(&self, number: u64) -> Option<u32> {
        let at = number.checked_sub(self.forgotten.get())?;
        self.marks.borrow().get(at as usize).copied()
    }

    /// Returns the last marks before savepoints, for renumbering.
    pub(crate) fn marks(&self) -> RefMut<'_, Vec<u32>> {
        self.marks.borrow_mut()
    }

    pub(crate) fn is_asked(&self, name: &[u8]) -> bool {
        self.asked.borrow().contains(name)
    }

    /// Records a requested name, and what is held of it.
    pub(crate) fn note(&self, name: &[u8], held: Option<(Mode, u32)>) {
        self.asked.borrow_mut().insert(name.to_vec());
        if let Some((mode, count)) = held {
            self.holds.borrow_mut().push((name.to_vec(), mode, count));
        }
    }

    /// Restores the locks that were recorded since a savepoint, the last one first. At an error,
    /// the failed one and the remaining ones stay recorded.
    pub(crate) fn put_back<E>(
        &self,
        to: usize,
        mut put: impl FnMut(&Hold) -> Result<(), E>,
    ) -> Result<(), E> {
        self.asked.borrow_mut().clear();
        loop {
            let last = self.holds.borrow().get(to..).and_then(|holds| holds.last().cloned());
            let Some(hold) = last else { return Ok(()) };
            put(&hold)?;
            self.holds.borrow_mut().pop();
        }
    }

    /// Forgets all savepoints.
    pub(crate) fn clear(&self) {
        let gone = self.marks.borrow_mut().drain(..).len() as u64;
        self.forgotten.set(self.forgotten.get() + gone);
        self.asked.borrow_mut().clear();
        self.holds.borrow_mut().clear();
    }
}
