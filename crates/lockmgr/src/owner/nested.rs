//! Child owners, for nested transactions.
//!
//! A child's requests do not conflict with locks of its parent or the parent's ancestors. A
//! parent's requests do conflict with locks of its children, and siblings conflict like unrelated
//! owners. Berkeley DB (5.3) does the same.

use core::fmt;
use core::ops::Deref;

use latchwork_machine::{ConstMachine, Native};

use crate::Error;
use crate::memory::cells::{RequestAt, WEAK, get, put};
use crate::memory::handle::Owner;
use crate::memory::{Memory, roots};
use crate::options::OwnerOptions;

/// A child of an owner. Dropping it releases its locks. To keep them, call
/// [`inherit`](Self::inherit) first, which gives them to the parent.
///
/// While the child exists, its parent must not wait for a lock that the child holds. The detector
/// does not find such a wait, because the child does not wait.
///
/// A child belongs to its parent's session. If their process dies they are released together.
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
    /// Creates a child of the same age. A child may have children, up to 1,000 generations.
    ///
    /// # Errors
    ///
    /// [`Error::Cap`] with half a million owners at a time; [`Error::Region`].
    pub fn child(&self) -> Result<Child<'_, 's, M>, Error> {
        // First, because in the child of a fork the cell is unmapped.
        let age = self.age()?;
        let options = OwnerOptions {
            priority: get(&self.cell.priority),
            age: Some(age),
            ..OwnerOptions::default()
        };
        let memory: &'s Memory<M> = self.memory;
        let owner = memory.owner_with(&options)?;
        // Before its first request, and so before the latch under which other threads find that.
        if !memory.inner().has_families()? {
            put(memory.inner().region.root(roots::FAMILIES)?, 1);
        }
        put(&owner.cell.parent_generation, self.generation);
        put(&owner.cell.parent, Some(self.index));
        Ok(Child { owner, parent: self })
    }
}

impl<'s, M: ConstMachine> Child<'_, 's, M> {
    /// Returns its parent.
    pub fn parent(&self) -> &Owner<'s, M> {
        self.parent
    }

    /// Gives its locks to its parent, with their counts. No other owner can get a lock in between.
    /// A lock that both hold is held in the mode that [`Modes::convert`](crate::Modes::convert)
    /// gives for the two. The limit of locks per owner does not apply. The child then holds nothing
    /// and can be used further.
    ///
    /// Takes a latch for each lock. A weak lock is moved to the table, which closes its bias.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`] if either waits. [`Error::NotGranted`] if an unrelated owner's lock
    /// conflicts with a combined mode: [`convert`](Owner::convert) the child's lock to that mode
    /// first. [`Error::Region`]. At an error some locks belong to the parent, the others still to
    /// the child.
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

    /// Gives one lock to the parent.
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
