//! Merging the two parts of a lock that its owner has in two places.
//!
//! A weak lock that is taken while its bias is closed is in the table. After the bias opens, the
//! next lock of the same name is an entry of the owner's page. Both are one lock, with one count
//! and one mode: releasing either part must leave the mode of both. So before an operation that
//! needs the total count, they are merged under the latch of the partition, which excludes closers.
//! The merge needs no memory and closes no bias, because two weak modes combine to a weak mode
//! (`Modes::new`).

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{Spot, get};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::names;
use crate::memory::names::Name;

/// Returns a name's bit of [`Owner::in_table`], from the half of its hash that an object has.
#[inline(always)]
fn bit_of(hash: u64) -> u64 {
    1 << (hash as u32 >> 26)
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Records that the owner may hold a name in the table in a weak mode.
    #[inline(always)]
    pub(crate) fn note_in_table(&self, hash: u64) {
        self.in_table.set(self.in_table.get() | bit_of(hash));
    }

    /// Returns whether the owner may hold any name in both places.
    #[inline(always)]
    pub(crate) fn has_two_places(&self) -> bool {
        self.in_table.get() != 0 && self.entries.get() != 0
    }

    /// Merges the owner's locks on a name into one request.
    pub(crate) fn gather(&self, latched: &Latched<'_, M>, name: &Name<'_>) -> Result<(), Error> {
        let Some(page) = self.weak_page()? else { return Ok(()) };
        let Some(at) = self.entry_of(page, name) else { return Ok(()) };
        // A moved request is merged with the own one.
        self.settle(latched, page, at)?;
        let object_at = latched.find(name)?;
        if object_at.is_null() || get(&page.states[at]).count == 0 {
            return Ok(());
        }
        let own = self.find_own(latched, object_at, self.memory.object(object_at)?)?;
        if own.is_null() {
            return Ok(());
        }
        self.add_to(latched, own, page, (at, get(&page.states[at]).mode))?;
        self.strike(page, at);
        Ok(())
    }

    /// Merges the owner's locks on a name that may be in both places. Returns false if it cannot
    /// be.
    #[cold]
    #[inline(never)]
    pub(crate) fn gather_one(&self, name: &Name<'_>, spot: Spot) -> Result<bool, Error> {
        if self.in_table.get() & bit_of(name.hash) == 0 {
            return Ok(false);
        }
        let latched = self.memory.latch(spot.partition)?;
        self.gather(&latched, name)?;
        drop(latched);
        self.memory.wake_all()?;
        Ok(true)
    }

    /// Merges the locks of all names.
    pub(crate) fn gather_all(&self) -> Result<(), Error> {
        let page = if self.has_two_places() { self.weak_page()? } else { None };
        let Some(page) = page else { return Ok(()) };
        for at in self.entries_among(u32::MAX) {
            let (length, hash) = (get(&page.states[at]).length, get(&page.hashes[at]));
            let bytes = names::read::<M>(&page.names[at], length);
            self.gather_one(&Name { bytes: &bytes, hash }, self.memory.spot(hash))?;
        }
        Ok(())
    }

    /// Moves the owner's lock on a name to one request in the table, and closes its bias.
    pub(crate) fn gather_in_table(&self, name: &Name<'_>, spot: Spot) -> Result<(), Error> {
        let latched = self.memory.latch(spot.partition)?;
        latched.close(spot.bias)?;
        if let Some(page) = self.weak_page()?
            && let Some(at) = self.entry_of(page, name)
        {
            self.settle(&latched, page, at)?;
        }
        drop(latched);
        self.memory.wake_all()
    }
}
