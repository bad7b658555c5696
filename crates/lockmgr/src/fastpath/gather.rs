//! A name that an owner has in two places, made one request.
//!
//! A weak lock that is taken while its bias is closed goes to the table. When the bias is open, the
//! next one of the same name is an entry of the owner's page. Both are one lock, with one count and
//! one mode: what is given back first must leave the mode of both. So where one count decides they
//! are made one before, under the latch of the partition, by which no closer is at work. That needs
//! no room, and closes no bias: what two weak modes make is weak (`Modes::new`).

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{Spot, get};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::names;
use crate::memory::names::Name;

/// A name's bit of [`Owner::in_table`], by that half of its hash which an object has.
#[inline(always)]
fn bit_of(hash: u64) -> u64 {
    1 << (hash as u32 >> 26)
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Notes that the owner may have a name in the table in a weak mode.
    #[inline(always)]
    pub(crate) fn note_in_table(&self, hash: u64) {
        self.in_table.set(self.in_table.get() | bit_of(hash));
    }

    /// Whether the owner may have any name in both places.
    #[inline(always)]
    pub(crate) fn has_two_places(&self) -> bool {
        self.in_table.get() != 0 && self.entries.get() != 0
    }

    /// Makes one request of what the owner has of a name.
    pub(crate) fn gather(&self, latched: &Latched<'_, M>, name: &Name<'_>) -> Result<(), Error> {
        let Some(page) = self.weak_page()? else { return Ok(()) };
        let Some(at) = self.entry_of(page, name) else { return Ok(()) };
        // What a closer has moved becomes one with the request.
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

    /// The same, if the name may be in both places: false if not.
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

    /// The same for all names.
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

    /// Makes what is held of a name one request in the table, wherever it is, and closes its bias.
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
