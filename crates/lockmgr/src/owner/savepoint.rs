//! Savepoints: an owner's locks as they were.
//!
//! What was locked for the first time after a savepoint is told by its mark: each lock gets the
//! next one. Marks have 32 bits, 72 minutes of a million locks a second by one owner, and stay at
//! the last: a lock that is marked so was taken after each savepoint, because a savepoint that
//! finds more than 2^31 of them gives those in use their ranks. What was held before, and was asked
//! for again, is told by the owner's journal; an owner that never had a savepoint has none.

use std::collections::{BTreeSet, HashMap};

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::ids::OwnerId;
use crate::memory::cells::{get, put};
use crate::memory::handle::Owner;
use crate::memory::journal::{Hold, Journal};

/// From so many marks on a savepoint renumbers them first.
const MANY: u32 = 1 << 31;

/// An instant in the life of an owner: see [`Owner::savepoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    owner: OwnerId,
    /// Its number in the journal.
    number: u64,
    /// How long the journal was.
    journal: usize,
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Notes what is held now.
    ///
    /// From here on the first request for a name after each savepoint costs one look more at what
    /// is held of it, under the latch, and memory of the name's size, until all is released.
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

    /// Releases the locks that were taken, or inherited, since a savepoint, and gives those that
    /// were held then their mode and count back, so far as they have grown. What was given back or
    /// downgraded since stays so; ranges that were held keep kind and count. The savepoint may be
    /// used again; later ones are void.
    ///
    /// # Errors
    ///
    /// [`Error::Family`] if the savepoint is another owner's; [`Error::Waiting`];
    /// [`Error::Region`], then some of it is done, and the rest when it is rolled back again. It
    /// needs no room.
    pub fn roll_back_to(&self, savepoint: Savepoint) -> Result<(), Error> {
        if savepoint.owner != self.id() {
            return Err(Error::Family);
        }
        let Some(journal) = self.journal.get() else { return Ok(()) };
        let before = journal.mark_of(savepoint.number);
        self.release_some(|_, mark, _| before.is_none_or(|before| mark > before))?;
        journal.put_back(savepoint.journal, |hold| self.shrink_to(hold))
    }

    /// Gives marks their ranks, those of savepoints among them: the order stays, and room is made
    /// for 2^31 more.
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
        // Entries first, each under the latch under which others move it: what was moved is in the
        // owner's list then, with its old mark.
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

    /// Gives back what is held of a name beyond this.
    fn shrink_to(&self, (name, mode, count): &Hold) -> Result<(), Error> {
        let Some((now, times)) = self.holds(name)? else { return Ok(()) };
        for _ in *count..times {
            self.unlock(name)?;
        }
        let grown = now != *mode && self.memory.modes().covers(now, *mode);
        if grown { self.downgrade(name, *mode) } else { Ok(()) }
    }

    /// Notes what is held of a name that is asked for, once after each savepoint.
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

    /// Locks that were taken 2^32 locks ago are older than a savepoint, and those of an earlier
    /// savepoint younger.
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
