//! Savepoints: an owner's locks as they were.
//!
//! What was locked for the first time after a savepoint is told by its mark. What was held before,
//! and was asked for again, is told by the owner's journal; an owner that never had a savepoint
//! has none.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::ids::OwnerId;
use crate::memory::cells::get;
use crate::memory::handle::Owner;
use crate::memory::journal::{Hold, Journal};

/// An instant in the life of an owner: see [`Owner::savepoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    owner: OwnerId,
    mark: u32,
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
    /// [`Error::Waiting`]; [`Error::Region`] in the child of a fork.
    pub fn savepoint(&self) -> Result<Savepoint, Error> {
        self.at_rest()?;
        let journal = self.journal.get_or_init(Box::default).begin();
        Ok(Savepoint { owner: self.id(), mark: get(&self.cell.marks), journal })
    }

    /// Releases the locks that were taken, or inherited, since a savepoint, and gives those that
    /// were held then their mode and count back, so far as they have grown. What was given back or
    /// downgraded since stays so; ranges that were held keep kind and count. The savepoint may be
    /// used again, for as long as fewer than 2^31 locks are taken after it; later ones are void.
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
        self.release_some(|_, mark, _| mark.wrapping_sub(savepoint.mark) as i32 > 0)?;
        let Some(journal) = self.journal.get() else { return Ok(()) };
        journal.put_back(savepoint.journal, |hold| self.shrink_to(hold))
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
