//! Sessions: a thread's access to a manager.

use core::fmt;

use latchwork_machine::{ConstMachine, Native};
use latchwork_region::Thread;

use crate::memory::Memory;
use crate::memory::handle::Owner;
use crate::meter::counters::Stats;
use crate::meter::waits::Waits;
use crate::observe::stats::{LockInfo, PartitionTotals, Totals};
use crate::options::OwnerOptions;
use crate::owner::adopted::Adopted;
use crate::range::count::Claims;
use crate::{Error, Manager, OwnerId};

/// A thread's access to a manager: a thread slot of its region, and pages of owners.
///
/// Only one thread at a time uses a session and its owners. Dropping it frees the slot, and
/// releases the locks of owners that were forgotten (`mem::forget`).
pub struct Session<M: ConstMachine = Native> {
    manager: Manager<M>,
    memory: Memory<M>,
}

impl<M: ConstMachine> fmt::Debug for Session<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("thread", &self.memory.thread.number())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<M: ConstMachine> Manager<M> {
    /// Opens a session for this thread. If all thread slots are in use, sweeps first.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if all thread slots of the region are in use by live threads, or by dead
    /// threads of a region that this process [cannot sweep](Self::sweep).
    pub fn session(&self) -> Result<Session<M>, Error> {
        let thread = match self.inner.region.thread() {
            Err(full @ latchwork_region::Error::Threads(_)) => match self.sweep() {
                Ok(_) => self.inner.region.thread()?,
                Err(Error::Region(latchwork_region::Error::NoRepair(_))) => Err(full)?,
                // Some dead threads cannot be swept yet; others may have been.
                Err(error) => self.inner.region.thread().map_err(|_| error)?,
            },
            thread => thread?,
        };
        Ok(Session {
            memory: Memory::new(&self.inner, thread, Memory::sweep_for_a_latch),
            manager: self.clone(),
        })
    }

    /// Opens a session on a thread slot that the caller has claimed: a slot of a given number, or a
    /// [retained](Thread::retain) slot. A thread that [keeps](crate::Owner::keep) its owners and
    /// retains its slot leaves the owners there with all their locks, until the session
    /// [releases](Session::release_left) them.
    pub fn session_on(&self, thread: Thread<M>) -> Session<M> {
        let memory = Memory::new(&self.inner, thread, Memory::sweep_for_a_latch);
        // If the spare cannot be taken over, one cell is lost.
        let _ = memory.take_spare();
        Session { memory, manager: self.clone() }
    }
}

impl<M: ConstMachine> Session<M> {
    /// Releases the locks of owners that the last session of this thread slot left: see
    /// [`Manager::session_on`]. The session must not have created an owner.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]: then a sweep releases the rest, if the slot is
    /// [abandoned](Thread::abandon).
    ///
    /// # Death
    ///
    /// If the process dies, a sweep completes the release.
    pub fn release_left(&self) -> Result<(), Error> {
        self.memory.release_left()
    }

    /// Returns its manager.
    pub fn manager(&self) -> &Manager<M> {
        &self.manager
    }

    /// Returns its thread slot. The other layers that this thread uses need it: a sweep finds
    /// everything that the thread left through one slot.
    pub fn thread(&self) -> &Thread<M> {
        &self.memory.thread
    }

    /// Creates an owner.
    ///
    /// # Errors
    ///
    /// [`Error::Cap`] with half a million owners at a time; [`Error::Region`].
    pub fn owner(&self) -> Result<Owner<'_, M>, Error> {
        self.memory.owner()
    }

    /// Creates an owner with these options.
    ///
    /// # Errors
    ///
    /// [`Error::Cap`] with half a million owners at a time; [`Error::Region`].
    pub fn owner_with(&self, options: &OwnerOptions<'_>) -> Result<Owner<'_, M>, Error> {
        self.memory.owner_with(options)
    }

    /// Aborts an owner: its waiting request and all later ones fail with [`Error::Aborted`]. It
    /// keeps its locks until it releases them.
    ///
    /// # Errors
    ///
    /// [`Error::NoOwner`] if the owner does not exist; [`Error::Region`].
    pub fn kill(&self, owner: OwnerId) -> Result<(), Error> {
        self.memory.kill(owner)
    }

    /// Searches all waiting owners, breaks each deadlock, and returns the number of deadlocks.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn detect(&self) -> Result<usize, Error> {
        self.memory.detect()
    }

    /// Sweeps the region, as [`Manager::sweep`] does. A thread that waits for a long time does this
    /// by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], as for [`Manager::sweep`].
    pub fn sweep(&self) -> Result<usize, Error> {
        self.memory.sweep()
    }

    /// Returns the owners whose process died and whose locks are kept for recovery, without those
    /// that a thread has adopted.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn orphans(&self) -> Result<Vec<OwnerId>, Error> {
        self.memory.orphans()
    }

    /// Returns the orphans with their labels, without trailing zeros, to find an orphan by the
    /// label that its process gave it.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn labelled_orphans(&self) -> Result<Vec<(OwnerId, Vec<u8>)>, Error> {
        self.memory.labelled_orphans()
    }

    /// Returns the owners that have this label, of all processes, including dead ones: to find a
    /// transaction by its number or name. Several owners may have one label.
    ///
    /// Reads each owner cell that was ever created, without a latch. Owners that begin or end
    /// during the call may be missing, or may have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn owners_labelled(&self, label: &str) -> Result<Vec<OwnerId>, Error> {
        self.memory.owners_labelled(label)
    }

    /// Adopts an orphan, for rolling back its work with its locks and additional ones. If several
    /// threads try, one succeeds.
    ///
    /// The cost is proportional to the number of its locks.
    ///
    /// # Errors
    ///
    /// [`Error::NoOwner`] if it is no orphan, or another thread has adopted it;
    /// [`Error::Region`].
    pub fn adopt(&self, orphan: OwnerId) -> Result<Adopted<'_, M>, Error> {
        self.memory.adopt(orphan)
    }

    /// Releases an orphan's locks, after its work was rolled back. If several threads try, one
    /// succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::NoOwner`] if it is no orphan, or another thread has adopted it; [`Error::Region`]:
    /// then it stays an orphan with its remaining locks.
    pub fn release_orphan(&self, orphan: OwnerId) -> Result<(), Error> {
        self.memory.release_orphan(orphan)
    }

    /// Returns a handle to count a keyspace's claims. The keyspace need not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Keyspace`], [`Error::Region`].
    pub fn keyspace_claims<'s>(&'s self, keyspace: &'s [u8]) -> Result<Claims<'s, M>, Error> {
        self.memory.keyspace_claims(keyspace)
    }

    /// Returns this session's counters.
    pub fn stats(&self) -> Stats {
        self.memory.stats()
    }

    /// Returns the durations of this session's waits, by mode. A wait is counted when it has ended.
    pub fn waits(&self) -> Waits {
        self.memory.waits()
    }

    /// Returns the number of owners, including dead ones that no sweep has found. Takes no latch.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn owners(&self) -> Result<usize, Error> {
        self.memory.owners()
    }

    /// Returns the totals of each partition that has objects, each at an instant of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn partition_totals(&self) -> Result<Vec<PartitionTotals>, Error> {
        self.memory.partition_totals()
    }

    /// Returns the totals over all partitions. Each partition is counted at one instant, but all of
    /// them are not.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn totals(&self) -> Result<Totals, Error> {
        self.memory.totals()
    }

    /// Returns which owners hold and wait for which locks. Each partition is read at one instant,
    /// but all of them are not. Weak locks are read without a latch.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn snapshot(&self) -> Result<Vec<LockInfo>, Error> {
        self.memory.snapshot()
    }

    /// Returns address, length and name of the parts of the manager and its region. Cells that
    /// change their use are named by their size. A part within another one comes after it.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    #[cfg(feature = "internals")]
    pub fn places(&self) -> Result<Vec<(usize, usize, String)>, Error> {
        self.memory.places()
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::cells::get;
    use crate::memory::numbers::PartitionNumber;
    use crate::memory::typed::Stored;
    use crate::{Manager, shared};

    #[test]
    fn a_failed_try_latch_leaves_the_latch_to_its_holder() {
        let manager = Manager::private(shared::modes()).unwrap();
        let (one, two) = (manager.session().unwrap(), manager.session().unwrap());
        let number = PartitionNumber::of(3);
        let held = one.memory.latch(number).unwrap();
        assert!(two.memory.try_latch(number).unwrap().is_none());
        let holder = get(&two.memory.partition(number).unwrap().latch);
        assert_eq!(holder, one.memory.thread.number() + 1, "it was opened");
        drop(held);
        assert!(two.memory.try_latch(number).unwrap().is_some());
    }
}
