//! What an owner held of names that it asked for again after a savepoint.

use core::cell::{Cell, RefCell, RefMut};
use std::collections::HashSet;

use crate::mode::Mode;

/// A hold as it was: name, mode, count.
pub(crate) type Hold = (Vec<u8>, Mode, u32);

/// The holds of an owner that may have grown, each as it was at the first request for its name
/// after a savepoint. It lies in the process's own memory, for a savepoint is of no use to others.
#[derive(Default)]
pub(crate) struct Journal {
    holds: RefCell<Vec<Hold>>,
    /// Names that were asked for since the last savepoint.
    asked: RefCell<HashSet<Vec<u8>>>,
    /// The last mark before each savepoint, without those before the last release of all; and how
    /// many these are. Here and not in the savepoints, because marks are [renumbered].
    ///
    /// [renumbered]: crate::memory::handle::Owner::renumber
    marks: RefCell<Vec<u32>>,
    forgotten: Cell<u64>,
}

impl Journal {
    /// Begins a savepoint, and says where.
    pub(crate) fn begin(&self) -> usize {
        self.asked.borrow_mut().clear();
        self.holds.borrow().len()
    }

    /// Numbers a savepoint behind this mark. Savepoints with no mark between them are one.
    pub(crate) fn number(&self, mark: u32) -> u64 {
        let mut marks = self.marks.borrow_mut();
        if marks.last() != Some(&mark) {
            marks.push(mark);
        }
        self.forgotten.get() + marks.len() as u64 - 1
    }

    /// The last mark before a savepoint; none if all was released since.
    pub(crate) fn mark_of(&self, number: u64) -> Option<u32> {
        let at = number.checked_sub(self.forgotten.get())?;
        self.marks.borrow().get(at as usize).copied()
    }

    /// The last marks before savepoints, to be renumbered.
    pub(crate) fn marks(&self) -> RefMut<'_, Vec<u32>> {
        self.marks.borrow_mut()
    }

    pub(crate) fn is_asked(&self, name: &[u8]) -> bool {
        self.asked.borrow().contains(name)
    }

    /// Notes a name that is asked for, and what is held of it.
    pub(crate) fn note(&self, name: &[u8], held: Option<(Mode, u32)>) {
        self.asked.borrow_mut().insert(name.to_vec());
        if let Some((mode, count)) = held {
            self.holds.borrow_mut().push((name.to_vec(), mode, count));
        }
    }

    /// Puts back what was noted since a savepoint, the last first. What fails, and what comes after
    /// it, stays noted.
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
