//! Families, for nested transactions.
//!
//! A child is an owner that its parent's holds do not stop, nor those of the parent's parents. The
//! reverse does not hold, and siblings are strangers. So it is in Berkeley DB (5.3).

use core::fmt;
use core::ops::Deref;

use latchwork_machine::{ConstMachine, Native};

use crate::Error;
use crate::memory::cells::{RequestAt, WEAK, get, put};
use crate::memory::handle::Owner;
use crate::memory::{Memory, roots};
use crate::options::OwnerOptions;

/// A child of an owner. Dropping it releases its locks: it was in vain. To keep them call
/// [`inherit`](Self::inherit) first.
///
/// While it lives its parent should not wait for what it holds: no detector sees that as a cycle,
/// for the child does not wait.
///
/// A child belongs to its parent's session; if their process dies they are released together.
pub struct Child<'p, 's, M: ConstMachine = Native> {
    owner: Owner<'s, M>,
    parent: &'p Owner<'s, M>,
}

impl<M: ConstMachine> fmt::Debug for Child<'_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.owner.id(), self.parent.id())
    }
}

impl<'s, M: ConstMachine> Deref for Child<'_, 's, M> {
    type Target = Owner<'s, M>;

    fn deref(&self) -> &Self::Target {
        &self.owner
    }
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// A new child, of its parent's age. It may have children itself, 1,000 generations at most.
    ///
    /// # Errors
    ///
    /// As for [`Session::owner`](crate::Session::owner).
    pub fn child(&self) -> Result<Child<'_, 's, M>, Error> {
        // Asked first: in the child of a fork the cell is gone.
        let age = self.age()?;
        let options = OwnerOptions {
            priority: get(&self.cell.priority),
            age: Some(age),
            ..OwnerOptions::default()
        };
        let memory: &'s Memory<M> = self.memory;
        let owner = memory.owner_with(&options)?;
        // Before its first request, and so before the latch under which others meet that.
        if !memory.inner().has_families()? {
            put(memory.inner().region.root(roots::FAMILIES)?, 1);
        }
        put(&owner.cell.parent_generation, self.generation);
        put(&owner.cell.parent, Some(self.index));
        Ok(Child { owner, parent: self })
    }
}

impl<'s, M: ConstMachine> Child<'_, 's, M> {
    /// Its parent.
    pub fn parent(&self) -> &Owner<'s, M> {
        self.parent
    }

    /// Gives its locks to its parent, with their counts; no other owner can come in between. What
    /// both hold is held in the mode that [`Modes::convert`](crate::Modes::convert) makes of the
    /// two. The limit of locks per owner does not count here. The child is empty then, and may go
    /// on.
    ///
    /// Costs a latch for each lock; a weak one goes to the table, and so closes its bias.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`] if either waits. [`Error::NotGranted`] if a stranger's hold stops the
    /// mode that two make: [`convert`](Owner::convert) the child's to it first. [`Error::Region`].
    /// Then some locks are the parent's, and the others still the child's.
    pub fn inherit(&self) -> Result<(), Error> {
        self.owner.at_rest()?;
        self.parent.at_rest()?;
        let memory = self.owner.memory;
        if let Some(page) = self.owner.weak_page()? {
            for at in 0..WEAK {
                let to_settle = self.owner.entries.get() >> at & 1 != 0;
                if get(&page.states[at]).count == 0 && !to_settle {
                    continue;
                }
                let spot = self.memory.spot(get(&page.hashes[at]));
                let latched = memory.latch(spot.partition)?;
                latched.close(spot.bias)?;
                self.owner.settle(&latched, page, at)?;
            }
            memory.wake_all()?;
        }
        loop {
            let at = get(&self.owner.cell.head);
            if at.is_null() {
                put(&self.owner.cell.ranges, 0);
                return memory.wake_all();
            }
            if let Err(error) = self.give_to_parent(at) {
                memory.wake_all()?;
                return Err(error);
            }
        }
    }

    /// Makes one lock the parent's.
    fn give_to_parent(&self, at: RequestAt<M>) -> Result<(), Error> {
        let (memory, parent) = (self.owner.memory, self.parent);
        let mine = memory.request(at)?;
        let bytes = memory.name_of(get(&mine.object))?;
        let name = memory.named(&bytes)?;
        parent.note_hold(&bytes)?;
        let claim = self.owner.hand_over_range(at, parent)?;
        let latched = memory.latch(get(&mine.partition))?;
        if let Some(page) = parent.weak_page()?
            && let Some(entry) = parent.entry_of(page, &name)
        {
            parent.settle(&latched, page, entry)?;
        }
        self.owner.hand_over(&latched, at, parent)?;
        drop(latched);
        claim.stays();
        self.owner.discard(at, mine)
    }
}
