//! Adopted orphans. `recovery/orphans.rs` describes orphans.

use core::cell::{Cell, OnceCell};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use latchwork_machine::{ConstMachine, Native};
use latchwork_region::Offset;

use crate::memory::Memory;
use crate::memory::cells::{get, put};
use crate::memory::handle::{Owner, Watch};
use crate::memory::owner_state::OwnerState;
use crate::{Error, OwnerId};

/// An orphan that this thread has adopted: an owner that acts for an owner of a dead process. It
/// holds that owner's locks, and can take and release locks.
///
/// Dropping it makes it an orphan again, with the locks that it then holds. The same happens if its
/// process dies. [`end`](Self::end) releases it.
pub struct Adopted<'s, M: ConstMachine = Native> {
    owner: ManuallyDrop<Owner<'s, M>>,
}

impl<M: ConstMachine> fmt::Debug for Adopted<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adopted({})", self.owner.id())
    }
}

impl<'s, M: ConstMachine> Deref for Adopted<'s, M> {
    type Target = Owner<'s, M>;

    fn deref(&self) -> &Self::Target {
        &self.owner
    }
}

impl<M: ConstMachine> Adopted<'_, M> {
    /// Releases all its locks and ends the orphan.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`], [`Error::Region`]: then it is an orphan again.
    pub fn end(self) -> Result<(), Error> {
        self.owner.release_all()?;
        let (memory, index) = (self.owner.memory, self.owner.index);
        memory.clear_abort(self.owner.cell)?;
        put(&self.owner.cell.ranges, 0);
        put(&self.owner.cell.state, OwnerState::FREE);
        // Dropping the owner would give its cell to this session, which does not have the page.
        core::mem::forget(self);
        memory.after_orphan(index)
    }
}

impl<M: ConstMachine> Drop for Adopted<'_, M> {
    fn drop(&mut self) {
        let _ = self.owner.cancel();
        // In the child of a fork the cell is unmapped.
        if self.owner.memory.region().check().is_ok() {
            put(&self.owner.cell.state, OwnerState::ORPHANED);
        }
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Adopts an orphan, for rolling back its work with its locks and additional ones. If several
    /// threads try, one succeeds.
    pub(crate) fn adopt(&self, orphan: OwnerId) -> Result<Adopted<'_, M>, Error> {
        let (memory, index, generation) = (self, orphan.number(), orphan.generation);
        let filter = &self.page(index.page())?.ok_or(Error::NoOwner(orphan))?.filter;
        let cell = self.take_orphan(orphan)?;
        self.point("orphan adopted");
        if !self.reserves {
            // As in `owner_with`.
            put(&cell.reserved, 0);
        }
        let owner = Owner {
            memory,
            cell,
            filter,
            index,
            generation,
            pending: Cell::new(Offset::NULL),
            converting: Cell::new(false),
            entries: Cell::new(0),
            reserved: Cell::new(if self.reserves { get(&cell.reserved) } else { 0 }),
            in_table: Cell::new(u64::MAX),
            last_entry: Cell::new(None),
            last: Cell::new(None),
            page: Cell::new(None),
            watch: Watch::default(),
            kept: Cell::new(false),
            journal: OnceCell::new(),
        };
        let adopted = Adopted { owner: ManuallyDrop::new(owner) };
        // From here on an error makes it an orphan again.
        let mut holds = true;
        for at in memory.own_list(cell)? {
            holds &= get(&memory.request(at)?.state).holds();
            holds &= !memory.is_idle_ticket(memory.request(at)?)?;
        }
        if !holds {
            // The last thread that adopted it could not withdraw its request.
            memory.withdraw_of(cell)?;
            memory.renew_list(cell)?;
        }
        memory.clear_abort(cell)?;
        if let Some(page) = adopted.owner.weak_page()? {
            let counts = |at: &usize| get(&page.states[*at]).count != 0;
            let entries = (0..page.states.len()).filter(counts).map(|at| 1u32 << at);
            adopted.owner.entries.set(entries.sum());
            adopted.owner.settle_given_back(page)?;
        }
        Ok(adopted)
    }
}
