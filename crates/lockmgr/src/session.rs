//! A thread at work in a manager: what a program has in hand.

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

/// A thread at work in a manager: a thread slot of its region, and pages of owners.
///
/// It and its owners are used by one thread. Dropping it gives the slot back; what owners it
/// still has then (they were forgotten) are released.
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
    /// Opens a session for this thread. If all thread slots are held it sweeps first.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the region's thread slots are all held, and not by the dead; or by the
    /// dead, in a region that this process [cannot sweep](Self::sweep).
    pub fn session(&self) -> Result<Session<M>, Error> {
        let thread = match self.inner.region.thread() {
            Err(full @ latchwork_region::Error::Threads(_)) => match self.sweep() {
                Ok(_) => self.inner.region.thread()?,
                Err(Error::Region(latchwork_region::Error::NoRepair(_))) => Err(full)?,
                // Some of the dead cannot be swept yet: others may have been.
                Err(error) => self.inner.region.thread().map_err(|_| error)?,
            },
            thread => thread?,
        };
        Ok(Session {
            memory: Memory::new(&self.inner, thread, Memory::sweep_for_a_latch),
            manager: self.clone(),
        })
    }

    /// A session on a thread slot that the caller has claimed: of that number, or one that was
    /// [retained](Thread::retain). A thread that [keeps](crate::Owner::keep) its owners and retains
    /// its slot leaves them there with all their locks; they stay as they are until the session
    /// [releases](Session::release_left) them.
    pub fn session_on(&self, thread: Thread<M>) -> Session<M> {
        let memory = Memory::new(&self.inner, thread, Memory::sweep_for_a_latch);
        // What cannot be taken over is a cell that is lost.
        let _ = memory.take_spare();
        Session { memory, manager: self.clone() }
    }
}

impl<M: ConstMachine> Session<M> {
    /// Releases what owners hold that the last session of this thread slot left there: see
    /// [`Manager::session_on`]. The session has made no owner of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]: then what is left is released by a sweep, if the slot is
    /// [given up](Thread::abandon).
    ///
    /// # Death
    ///
    /// A sweep goes on with it.
    pub fn release_left(&self) -> Result<(), Error> {
        self.memory.release_left()
    }

    /// The manager that it works in.
    pub fn manager(&self) -> &Manager<M> {
        &self.manager
    }

    /// The thread slot that it works on, for the other layers that this thread uses: a sweep finds
    /// by one slot all that the thread left.
    pub fn thread(&self) -> &Thread<M> {
        &self.memory.thread
    }

    /// A new owner.
    ///
    /// # Errors
    ///
    /// [`Error::Cap`] with half a million owners at a time; [`Error::Region`].
    pub fn owner(&self) -> Result<Owner<'_, M>, Error> {
        self.memory.owner()
    }

    /// A new owner that is thus.
    ///
    /// # Errors
    ///
    /// As for [`owner`](Self::owner).
    pub fn owner_with(&self, options: &OwnerOptions<'_>) -> Result<Owner<'_, M>, Error> {
        self.memory.owner_with(options)
    }

    /// Tells an owner to fail: its wait, if it waits, and all its requests from now on. It keeps
    /// what it holds until it releases it.
    ///
    /// # Errors
    ///
    /// [`Error::NoOwner`], [`Error::Region`].
    pub fn kill(&self, owner: OwnerId) -> Result<(), Error> {
        self.memory.kill(owner)
    }

    /// Looks at all owners that wait, breaks each deadlock, and returns how many there were.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn detect(&self) -> Result<usize, Error> {
        self.memory.detect()
    }

    /// As [`Manager::sweep`]. A thread that waits for what a dead one may have does this.
    ///
    /// # Errors
    ///
    /// As [`Manager::sweep`].
    pub fn sweep(&self) -> Result<usize, Error> {
        self.memory.sweep()
    }

    /// Owners whose process died and whose locks are kept for recovery, those left out that a
    /// thread has adopted.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn orphans(&self) -> Result<Vec<OwnerId>, Error> {
        self.memory.orphans()
    }

    /// The orphans with their labels, zeros at the end cut off: to find one by what its process
    /// called it.
    ///
    /// # Errors
    ///
    /// As for [`orphans`](Self::orphans).
    pub fn labelled_orphans(&self) -> Result<Vec<(OwnerId, Vec<u8>)>, Error> {
        self.memory.labelled_orphans()
    }

    /// The owners that have this label, of all processes, those of the dead too: to find a
    /// transaction by the number or the name that it goes by. Several may have one label.
    ///
    /// Looks at each owner there ever was at a time, without a latch; an owner that begins or ends
    /// meanwhile may be missing or gone.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn owners_labelled(&self, label: &str) -> Result<Vec<OwnerId>, Error> {
        self.memory.owners_labelled(label)
    }

    /// Adopts an orphan: to undo its work with the locks that it holds, and others. Of several
    /// threads that try, one succeeds.
    ///
    /// Costs time in proportion to what it holds.
    ///
    /// # Errors
    ///
    /// [`Error::NoOwner`] if it is no orphan, or another thread has adopted it;
    /// [`Error::Region`].
    pub fn adopt(&self, orphan: OwnerId) -> Result<Adopted<'_, M>, Error> {
        self.memory.adopt(orphan)
    }

    /// Releases an orphan's locks, after its work was undone. Of several threads that try, one
    /// succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::NoOwner`] if it is no orphan, or another thread has adopted it;
    /// [`Error::Region`]: then it is an orphan still, with what is left of its locks.
    pub fn release_orphan(&self, orphan: OwnerId) -> Result<(), Error> {
        self.memory.release_orphan(orphan)
    }

    /// A look at a keyspace's claims, which need not be there yet.
    ///
    /// # Errors
    ///
    /// [`Error::Keyspace`], [`Error::Region`].
    pub fn keyspace_claims<'s>(&'s self, keyspace: &'s [u8]) -> Result<Claims<'s, M>, Error> {
        self.memory.keyspace_claims(keyspace)
    }

    /// What this session has done.
    pub fn stats(&self) -> Stats {
        self.memory.stats()
    }

    /// How long this session's requests waited, by mode. Counted when a wait has ended.
    pub fn waits(&self) -> Waits {
        self.memory.waits()
    }

    /// How many owners there are, the dead that nobody met yet among them. Takes no latch.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn owners(&self) -> Result<usize, Error> {
        self.memory.owners()
    }

    /// Counts what lies in each partition that has objects, at an instant of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn partition_totals(&self) -> Result<Vec<PartitionTotals>, Error> {
        self.memory.partition_totals()
    }

    /// Counts what there is. Each partition is counted at an instant, all of them at none.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn totals(&self) -> Result<Totals, Error> {
        self.memory.totals()
    }

    /// Which owners hold and wait for what. Each partition is read at an instant, all of them at
    /// none; weak locks are read as they come and go.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn snapshot(&self) -> Result<Vec<LockInfo>, Error> {
        self.memory.snapshot()
    }

    /// Address, length and name of what the manager and its region have. What changes hands lies
    /// in cells that are named by their size; what lies within something else comes after it.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    #[doc(hidden)]
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
    fn a_latch_that_is_tried_in_vain_stays_another_threads() {
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
