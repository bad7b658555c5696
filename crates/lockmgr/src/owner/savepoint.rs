//! Savepoints: return to an earlier set of locks.
//!
//! Each lock gets the next mark of its owner, so its mark shows whether it was first taken after a
//! savepoint. Marks have 32 bits, 72 minutes at a million locks a second by one owner, and
//! saturate. A lock with the last mark was taken after every savepoint, because a savepoint that
//! finds more than 2^31 marks renumbers the marks in use by rank. The owner's journal has the locks
//! that were held before a savepoint and requested again after it; an owner that never had a
//! savepoint has no journal.

use std::collections::{BTreeSet, HashMap};

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::ids::OwnerId;
use crate::memory::cells::{get, put};
use crate::memory::handle::Owner;
use crate::memory::journal::{Hold, Journal};

/// From this many marks on, a savepoint renumbers them first.
const MANY: u32 = 1 << 31;

/// A savepoint of an owner: see [`Owner::savepoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    owner: OwnerId,
    /// Its number in the journal.
    number: u64,
    /// The length of the journal at the savepoint.
    journal: usize,
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Creates a savepoint: records which locks are held now.
    ///
    /// From then on, the first request for a name after each savepoint reads the owner's lock on
    /// that name under the latch and stores a copy of the name, until all locks are released.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`]; [`Error::Region`].
    pub fn savepoint(&self) -> Result<Savepoint, Error> {
        self.at_rest()?;
        let journal = self.journal.get_or_init(Box::default);
        if get(&self.cell.marks) >= MANY {
            self.renumber(journal)?;
        }
        let number = journal.number(get(&self.cell.marks));
        Ok(Savepoint { owner: self.id(), number, journal: journal.begin() })
    }

    /// Releases the locks that were taken or inherited since a savepoint, and restores the mode and
    /// count of locks that have grown since. Locks that were released or downgraded since stay so.
    /// Ranges that were held at the savepoint keep their kind and count. The savepoint may be used
    /// again; later ones are void.
    ///
    /// # Errors
    ///
    /// [`Error::Family`] if the savepoint belongs to another owner; [`Error::Waiting`];
    /// [`Error::Region`]: then the rollback is partly done, and calling this again completes it.
    /// Needs no memory.
    pub fn roll_back_to(&self, savepoint: Savepoint) -> Result<(), Error> {
        if savepoint.owner != self.id() {
            return Err(Error::Family);
        }
        let Some(journal) = self.journal.get() else { return Ok(()) };
        let before = journal.mark_of(savepoint.number);
        self.release_some(|_, mark, _| before.is_none_or(|before| mark > before))?;
        journal.put_back(savepoint.journal, |hold| self.shrink_to(hold))
    }

    /// Replaces marks, including those of savepoints, by their ranks. This keeps their order and
    /// makes room for 2^31 more.
    #[cold]
    fn renumber(&self, journal: &Journal) -> Result<(), Error> {
        let memory = self.memory;
        let (page, entries) = (self.weak_page()?, self.entries_among(u32::MAX));
        let entries: Vec<usize> = if page.is_some() { entries.collect() } else { Vec::new() };
        let mut marks: BTreeSet<u32> = journal.marks().iter().copied().collect();
        for at in memory.own_list(self.cell)? {
            marks.insert(get(&memory.request(at)?.mark));
        }
        marks.extend(page.iter().flat_map(|page| entries.iter().map(|at| get(&page.marks[*at]))));
        let ranks: HashMap<u32, u32> = marks.into_iter().zip(1..).collect();
        let rank = |mark: u32| ranks.get(&mark).copied().unwrap_or(mark);
        // Entries first, each under the latch under which closers move it: a moved entry is then in
        // the owner's list, with its old mark.
        for at in entries {
            let Some(page) = page else { break };
            let latched = memory.latch(memory.spot(get(&page.hashes[at])).partition)?;
            self.settle(&latched, page, at)?;
            put(&page.marks[at], rank(get(&page.marks[at])));
        }
        memory.wake_all()?;
        for at in memory.own_list(self.cell)? {
            let request = memory.request(at)?;
            put(&request.mark, rank(get(&request.mark)));
        }
        journal.marks().iter_mut().for_each(|mark| *mark = rank(*mark));
        put(&self.cell.marks, ranks.len() as u32);
        Ok(())
    }

    /// Reduces the lock on a name to a recorded mode and count.
    fn shrink_to(&self, (name, mode, count): &Hold) -> Result<(), Error> {
        let Some((now, times)) = self.holds(name)? else { return Ok(()) };
        for _ in *count..times {
            self.unlock(name)?;
        }
        let grown = now != *mode && self.memory.modes().covers(now, *mode);
        if grown { self.downgrade(name, *mode) } else { Ok(()) }
    }

    /// Records the lock on a requested name, once after each savepoint.
    #[inline(always)]
    pub(crate) fn note_hold(&self, name: &[u8]) -> Result<(), Error> {
        match self.journal.get() {
            None => Ok(()),
            Some(journal) => self.note_hold_in(journal, name),
        }
    }

    #[inline(never)]
    fn note_hold_in(&self, journal: &Journal, name: &[u8]) -> Result<(), Error> {
        if !journal.is_asked(name) {
            journal.note(name, self.holds(name)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Manager, shared};

    /// Locks that were taken 2^32 locks ago are older than a savepoint, and locks taken after an
    /// earlier savepoint are younger than the latter.
    #[test]
    fn savepoints_survive_the_last_mark() {
        for taken in [MANY - 3, MANY, u32::MAX - 3, u32::MAX] {
            let manager = Manager::private(shared::modes()).unwrap();
            let session = manager.session().unwrap();
            let owner = session.owner().unwrap();
            let lock = |name: &[u8], mode| owner.lock(name, mode).unwrap();
            let held = || -> BTreeSet<Vec<u8>> {
                owner.locks().unwrap().into_iter().map(|lock| lock.object).collect()
            };
            let all = |names: &[&[u8]]| names.iter().map(|name| name.to_vec()).collect();
            lock(b"before", shared::X);
            let first = owner.savepoint().unwrap();
            lock(b"weak", shared::S);
            lock(b"old", shared::X);
            put(&owner.cell.marks, taken);
            lock(b"high", shared::X);
            for _ in 0..10 {
                lock(b"other", shared::S);
                owner.unlock(b"other").unwrap();
            }
            lock(b"more", shared::X);
            let second = owner.savepoint().unwrap();
            assert_eq!(owner.savepoint(), Ok(second), "nothing was taken");
            lock(b"later", shared::X);
            lock(b"later, weak", shared::S);
            owner.roll_back_to(second).unwrap();
            let then: BTreeSet<_> = all(&[b"before", b"weak", b"old", b"high", b"more"]);
            assert_eq!(held(), then, "{taken}");
            owner.roll_back_to(first).unwrap();
            assert_eq!(held(), all(&[b"before"]), "{taken}");
            owner.release_all().unwrap();
            lock(b"behind all", shared::X);
            owner.roll_back_to(second).unwrap();
            assert!(held().is_empty(), "all of it was taken later");
        }
    }
}
