//! Savepoints: an owner's locks as they were.
//!
//! What was locked for the first time after a savepoint is told by its mark. What was held before,
//! and was asked for again, is told by the owner's journal; an owner that never had a savepoint
//! has none.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::fastpath::entry::Entry;
use crate::ids::OwnerId;
use crate::memory::cells::{get, put};
use crate::memory::handle::Owner;
use crate::memory::journal::{Hold, Journal};
use crate::memory::names::Name;
use crate::mode::Mode;

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
    /// [`Error::Region`], then some of it is done, and the rest when it is rolled back again.
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
        if self.shrink_weak_to(&self.memory.named(name)?, *mode, *count)? {
            return Ok(());
        }
        let Some((now, times)) = self.holds(name)? else { return Ok(()) };
        for _ in *count..times {
            self.unlock(name)?;
        }
        let grown = now != *mode && self.memory.modes().covers(now, *mode);
        if grown { self.memory.with_room(|| self.downgrade(name, *mode)) } else { Ok(()) }
    }

    /// The same for what is in the owner's own memory alone, and was there: so the table that is
    /// locked to read and then to write does not close its bias when the write is undone.
    fn shrink_weak_to(&self, name: &Name<'_>, mode: Mode, count: u32) -> Result<bool, Error> {
        let modes = self.memory.modes();
        let spot = self.memory.spot(name.hash);
        let Some(page) = self.weak_page()?.filter(|_| modes.is_weak(mode)) else {
            return Ok(false);
        };
        // While it is held nobody closes the bias.
        let latched = self.memory.latch(spot.partition)?;
        let Some(at) = self.entry_of(page, name) else { return Ok(false) };
        let entry = Entry::of(get(&page.states[at]));
        let open = get(&self.memory.biases(spot.partition)?[spot.bias as usize]);
        if entry.count == 0 || entry.bias != open || self.find_held(&latched, name, spot)? != 0 {
            return Ok(false);
        }
        let mode = if modes.covers(entry.mode, mode) { mode } else { entry.mode };
        put(&page.states[at], Entry { mode, count: entry.count.min(count), ..entry }.word());
        Ok(true)
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
