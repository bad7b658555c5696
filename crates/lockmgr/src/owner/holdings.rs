//! The locks of an owner by name, so that they can be stored and taken again in a new region.

use core::ops::Bound;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::get;
use crate::memory::handle::Owner;
use crate::mode::Mode;
use crate::options::Wait;
use crate::range::cells::{bounds_of, claim, is_that, of_ticket, space_name};
use crate::range::keyspaces::what;
use crate::range::kinds::{KeyRange, RangeKind};

/// A range that an owner holds: see [`Owner::holdings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRange {
    /// The keyspace.
    pub keyspace: Vec<u8>,
    /// The first key.
    pub from: Vec<u8>,
    /// The key before which the range ends, or `None` if it has no end.
    pub to: Option<Vec<u8>>,
    /// The kind of lock.
    pub kind: RangeKind,
}

/// The locks of an owner, by names and keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Names, and the modes in which they are held.
    pub locks: Vec<(Vec<u8>, Mode)>,
    /// Ranges.
    pub ranges: Vec<HeldRange>,
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Returns the locks that it holds, for another owner to [take](Self::take_held).
    ///
    /// The cost is that of [`locks`](Self::locks).
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn holdings(&self) -> Result<Held, Error> {
        let (region, mut held) = (self.memory.region(), Held::default());
        for lock in self.named_locks()? {
            let Some(id) = of_ticket(region, &lock.object) else {
                held.locks.push((lock.object, lock.mode));
                continue;
            };
            // A waiting owner may briefly hold the ticket of another owner's claim, which may have
            // ended.
            if is_that(region, id) != Ok(true) {
                continue;
            }
            let it = self.memory.claim(id.0)?;
            let (kind, state) = what(it)?;
            if get(&it.owner) == self.index && state == claim::HELD {
                let (from, to) = bounds_of(region, id.0)?;
                let keyspace = space_name(region, get(&it.space))?;
                held.ranges.push(HeldRange { keyspace, from, to, kind });
            }
        }
        Ok(held)
    }

    /// Takes the locks that another owner held, without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`] if another owner holds a conflicting lock; the errors of
    /// [`lock`](Self::lock) and [`lock_range`](Self::lock_range).
    pub fn take_held(&self, held: &Held) -> Result<(), Error> {
        for (name, mode) in &held.locks {
            self.try_lock(name, *mode)?;
        }
        for range in &held.ranges {
            let to = range.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let keys = KeyRange { from: Bound::Included(&range.from), to };
            self.lock_range(&range.keyspace, keys, range.kind, Wait::Never)?;
        }
        Ok(())
    }
}
