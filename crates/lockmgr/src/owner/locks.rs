//! The list of an owner's locks.

use std::collections::HashMap;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::get;
use crate::memory::handle::Owner;
use crate::memory::names;
use crate::mode::Mode;
use crate::range::cells::told;

/// A lock that its owner holds: see [`Owner::locks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name, or the description of a range.
    pub object: Vec<u8>,
    /// The mode.
    pub mode: Mode,
    /// How often it was taken.
    pub count: u32,
    /// Whether all of it is in the owner's own memory.
    pub weak: bool,
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Returns its locks in the order in which they were acquired. A lock that was taken again or
    /// converted stands where it was first taken; an inherited lock where it was inherited. If the
    /// owner took 2^32 locks without a savepoint, the later ones come last, in no order.
    ///
    /// Takes a latch for each lock in the owner's own memory. The rest costs time proportional to
    /// the number of locks.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn locks(&self) -> Result<Vec<HeldLock>, Error> {
        let mut locks = self.named_locks()?;
        for lock in &mut locks {
            lock.object = told(self.memory.region(), core::mem::take(&mut lock.object));
        }
        Ok(locks)
    }

    /// Returns its locks; ranges by the names of their tickets.
    pub(crate) fn named_locks(&self) -> Result<Vec<HeldLock>, Error> {
        let memory = self.memory;
        let mut found: Vec<(u32, HeldLock)> = Vec::new();
        if let Some(page) = self.weak_page()? {
            for at in self.entries_among(u32::MAX) {
                let latched = memory.latch(memory.spot(get(&page.hashes[at])).partition)?;
                self.settle(&latched, page, at)?;
                let entry = get(&page.states[at]);
                if entry.count != 0 {
                    let object = names::read::<M>(&page.names[at], entry.length);
                    let (mode, count) = (entry.mode, entry.count);
                    let lock = HeldLock { object, mode, count, weak: true };
                    found.push((get(&page.marks[at]), lock));
                }
            }
            memory.wake_all()?;
        }
        for at in memory.own_list(self.cell)? {
            let request = memory.request(at)?;
            let state = get(&request.state);
            if state.holds() {
                let object = memory.name_of(get(&request.object))?;
                let (mode, count) = (state.mode, request.count());
                let lock = HeldLock { object, mode, count, weak: false };
                found.push((get(&request.mark), lock));
            }
        }
        found.sort_by_key(|(mark, _)| *mark);
        let mut locks: Vec<HeldLock> = Vec::new();
        let mut places = HashMap::new();
        for (_, lock) in found {
            // A lock that was taken while its bias was closed is in the table; a later lock of the
            // same name may be in the owner's own memory.
            let place = *places.entry(lock.object.clone()).or_insert(locks.len());
            let Some(first) = locks.get_mut(place) else {
                locks.push(lock);
                continue;
            };
            first.mode = memory.modes().convert(first.mode, lock.mode);
            first.count = first.count.saturating_add(lock.count);
            first.weak &= lock.weak;
        }
        Ok(locks)
    }
}
