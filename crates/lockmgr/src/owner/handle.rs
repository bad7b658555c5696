//! The beginning and end of an owner, and the ways to take one lock.

use core::cell::{Cell, OnceCell};
use core::fmt;
use std::time::Duration;

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::error::reason;
use crate::ids::OwnerId;
use crate::memory::Memory;
use crate::memory::cells::{get, put};
use crate::memory::handle::{Owner, Watch};
use crate::memory::owner_state::OwnerState;
use crate::mode::Mode;
use crate::options::{OwnerOptions, Step, Wait};

impl<M: ConstMachine> Memory<M> {
    /// Creates an owner.
    pub(crate) fn owner(&self) -> Result<Owner<'_, M>, Error> {
        self.owner_with(&OwnerOptions::default())
    }

    /// Creates an owner with these options.
    pub(crate) fn owner_with(&self, options: &OwnerOptions<'_>) -> Result<Owner<'_, M>, Error> {
        if !self.ended.borrow().is_empty() {
            self.release_ended();
        }
        let (index, cell) = self.free_owner()?;
        let filter = &self.page(index.page())?.ok_or(Error::Foreign)?.filter;
        let generation = get(&cell.generation).wrapping_add(1);
        put(&cell.parent, None);
        put(&cell.head, Offset::NULL);
        put(&cell.held, 0);
        put(&cell.waiting, Offset::NULL);
        put(&cell.abort, 0);
        put(&cell.spared, 0);
        put(&cell.marks, 0);
        put(&cell.priority, options.priority);
        put(&cell.age, options.age.unwrap_or_else(|| self.now()));
        for (word, chunk) in cell.label.iter().zip(label_words(options.label)) {
            put(word, chunk);
        }
        if !self.reserves {
            // A process that reserves names may have left this value. This process does not
            // maintain it.
            put(&cell.reserved, 0);
        }
        put(&cell.generation, generation);
        put(&cell.state, OwnerState::LIVE);
        let owner = Owner {
            memory: self,
            cell,
            filter,
            index,
            generation,
            pending: Cell::new(Offset::NULL),
            converting: Cell::new(false),
            entries: Cell::new(0),
            reserved: Cell::new(if self.reserves { get(&cell.reserved) } else { 0 }),
            in_table: Cell::new(0),
            last_entry: Cell::new(None),
            last: Cell::new(None),
            page: Cell::new(None),
            watch: Watch::default(),
            kept: Cell::new(false),
            journal: OnceCell::new(),
        };
        if owner.reserved.get() != 0 {
            owner.weak_page()?;
        }
        Ok(owner)
    }
}

/// Returns a label in the form that a cell stores.
pub(crate) fn label_words(label: &str) -> [u64; 4] {
    let mut words = [0; 4];
    for (at, byte) in label.bytes().take(32).enumerate() {
        words[at / 8] |= u64::from(byte) << (at % 8 * 8);
    }
    words
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Returns the owner's id, by which other sessions name it.
    pub fn id(&self) -> OwnerId {
        self.index.id(self.generation)
    }

    /// Returns the time at which it began. Pass it to the owner of a retry, so that the retry is
    /// not younger.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn age(&self) -> Result<u64, Error> {
        self.memory.region().check()?;
        Ok(get(&self.cell.age))
    }

    /// Takes a lock, and blocks until it is granted. A lock that is already held is counted, and
    /// converted if the mode is stronger.
    ///
    /// # Errors
    ///
    /// [`Error::Mode`], [`Error::Name`], [`Error::Deadlock`], [`Error::Aborted`],
    /// [`Error::Waiting`], [`Error::Cap`], [`Error::Region`]. At an error, locks that were held
    /// before stay held.
    #[inline]
    pub fn lock(&self, name: &[u8], mode: Mode) -> Result<(), Error> {
        match self.request(name, mode, Wait::Detect)? {
            Step::Granted => Ok(()),
            Step::Waiting => self.finish(None),
        }
    }

    /// Takes a lock if that is possible without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`], and the errors of [`lock`](Self::lock).
    pub fn try_lock(&self, name: &[u8], mode: Mode) -> Result<(), Error> {
        self.request(name, mode, Wait::Never).map(|_| ())
    }

    /// Takes a lock, or fails after a timeout.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], and the errors of [`lock`](Self::lock).
    pub fn lock_timeout(&self, name: &[u8], mode: Mode, wait: Duration) -> Result<(), Error> {
        self.lock_with(name, mode, Wait::Until(self.memory.after(wait)))
    }

    /// Takes a lock, waiting as `wait` says.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), and those of each [`Wait`].
    pub fn lock_with(&self, name: &[u8], mode: Mode, wait: Wait) -> Result<(), Error> {
        let deadline = if let Wait::Until(deadline) = wait { Some(deadline) } else { None };
        match self.request(name, mode, wait)? {
            Step::Granted => Ok(()),
            Step::Waiting => self.finish(deadline),
        }
    }

    #[inline]
    pub(crate) fn allowed(&self, mode: Mode) -> Result<(), Error> {
        if self.memory.modes().has(mode) { Ok(()) } else { Err(Error::Mode(mode)) }
    }

    /// Checks that the owner is not waiting. Checks first that this is not the child of a fork,
    /// where its cell is unmapped.
    #[inline]
    pub(crate) fn at_rest(&self) -> Result<(), Error> {
        self.memory.region().check()?;
        if !self.pending.get().is_null() { Err(Error::Waiting) } else { Ok(()) }
    }

    /// Checks that the owner may request a lock now.
    #[inline]
    pub(crate) fn ready(&self) -> Result<(), Error> {
        self.at_rest()?;
        match self.told() {
            0 => Ok(()),
            why => Err(reason(why)),
        }
    }
}

/// Shows what the handle stores; reads nothing from the region.
impl<M: ConstMachine> fmt::Debug for Owner<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("id", &format_args!("{}", self.id()))
            .field("waits", &(!self.pending.get().is_null()))
            .field("weak", &self.entries.get().count_ones())
            .finish_non_exhaustive()
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Makes dropping the owner release nothing. Its locks are then released when its session is
    /// dropped, or by a sweep if the session [abandoned its
    /// slot](latchwork_region::Thread::abandon). For an owner whose work could not be rolled back.
    pub fn keep(&self) {
        self.kept.set(true);
    }
}

impl<M: ConstMachine> Drop for Owner<'_, M> {
    fn drop(&mut self) {
        if self.kept.get() {
            return;
        }
        let _ = self.cancel();
        if self.release_all().is_err() {
            // The holder of a latch is dead and cannot be swept now.
            self.memory.ended.borrow_mut().push(self.index);
        } else if get(&self.cell.generation) == self.generation {
            put(&self.cell.state, OwnerState::FREE);
            self.memory.give_owner(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::granular::{X, modes};
    use crate::{Error, Manager, Reason};

    /// An aborted owner may have ended before the abort, and another may have its cell.
    #[test]
    fn an_abort_does_not_affect_the_next_owner_of_the_cell() {
        let manager = Manager::private(modes()).unwrap();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        let (id, memory) = (owner.id(), owner.memory);
        memory.abort(id, Reason::Wounded).unwrap();
        assert_eq!(owner.lock(b"a", X), Err(Error::Aborted(Reason::Wounded)));
        drop(owner);
        let next = session.owner().unwrap();
        assert_eq!(next.id().number(), id.number(), "it has the same cell");
        memory.abort(id, Reason::Wounded).unwrap();
        next.lock(b"a", X).unwrap();
    }

    /// If an owner ends and a latch cannot be taken, its locks are released when the next owner
    /// begins.
    #[test]
    fn locks_that_could_not_be_released_are_released_later() {
        let manager = Manager::private(modes()).unwrap();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        owner.lock(b"a", X).unwrap();
        let memory = owner.memory;
        let spot = memory.spot(memory.named(b"a").unwrap().hash);
        // Held by the thread that drops the owner, for which waiting is an error.
        let latched = memory.latch(spot.partition).unwrap();
        drop(owner);
        drop(latched);
        let other = manager.session().unwrap();
        let wants = other.owner().unwrap();
        assert_eq!(wants.try_lock(b"a", X), Err(Error::NotGranted));
        drop(session.owner().unwrap());
        wants.lock(b"a", X).unwrap();
    }
}
