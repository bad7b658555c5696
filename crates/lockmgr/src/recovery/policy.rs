//! The process that decides about the locks of dead owners: a process with a recovery callback, if
//! any process of the region ever had one.
//!
//! A process without a callback may sweep first. It then keeps the dead owners as *undecided*
//! orphans, and the next sweep of a process with a callback asks that callback.
//!
//! ```text
//!         swept without a callback                 CAS            returns false
//!  live ──────────────────────────▶ undecided ◀─────────▶ asked ──────────▶ orphaned
//!                                    │     its process died, │
//!                       adopt: CAS   ▼     or it panicked    ▼ returns true
//!                                   adopted                 free
//! ```
//!
//! The region's word (`roots::RECOVERY`) records whether any process has had a callback, and counts
//! how often owners were kept undecided, so that a sweep searches for them only if there are new
//! ones.
//!
//! *No undecided orphan is forgotten.* A sweeper increments the count after it has stored the
//! owners' states and before their page is done, and a sweeper that continues after its death does
//! so again. A process records the count that it read before its search, and only if it left no
//! owner undecided or being asked about by another process: if that process dies, this one searches
//! again.
//!
//! *No owner is released without the callback's decision.* The word is stored before the manager
//! with the callback exists. A thread of a process that saw it claims its slot later, by a Release;
//! the sweeper claims that slot by an Acquire, and reads the word then.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Integer, Word};
use latchwork_region::Region;

use crate::Error;
use crate::ids::OwnerId;
use crate::memory::cells::{get, put};
use crate::memory::inner::Inner;
use crate::memory::owner_state::OwnerState;
use crate::memory::{Memory, roots};
use crate::recovery::orphans::{TakenOrphan, label_of};

/// Records in the region that a process has a callback.
pub(crate) fn some_decide<M: ConstMachine>(region: &Region<M>) -> Result<(), Error> {
    // Release: synchronizes with the Acquire in `kept_as`, through the slots of threads that are
    // claimed from now on. It fails if another process has recorded this.
    let _ = region.root(roots::RECOVERY)?.compare_exchange(0, 1, Release, Relaxed);
    Ok(())
}

impl<M: ConstMachine> Inner<M> {
    /// Asks this process's recovery callback about undecided orphans, if there may be any that it
    /// was not asked about.
    pub(crate) fn decide_orphans(&self) -> Result<(), Error> {
        if self.recovery.is_none() {
            return Ok(());
        }
        // Acquire: synchronizes with the AcqRel in `tell_deciders`: the orphans that it counts are
        // visible.
        let told = self.region.root(roots::RECOVERY)?.load(Acquire);
        if told == get(&self.decided) {
            return Ok(());
        }
        let all = self.repair.in_session(|memory| memory.ask_about_orphans())?;
        if all {
            put(&self.decided, told);
        }
        Ok(())
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Returns the state in which a dead owner is kept, or `None` if it must be released: this
    /// process's callback returned true, or no process has a callback.
    pub(crate) fn kept_as(&self, id: OwnerId, label: &[u8]) -> Result<Option<OwnerState>, Error> {
        if let Some(recovery) = &self.inner().recovery {
            return Ok(if recovery(id, label) { None } else { Some(OwnerState::ORPHANED) });
        }
        // Acquire: synchronizes with the Release in `some_decide`.
        let decide = self.region().root(roots::RECOVERY)?.load(Acquire) != 0;
        Ok(decide.then_some(OwnerState::UNDECIDED))
    }

    /// Counts that there are new undecided orphans.
    pub(crate) fn tell_deciders(&self) -> Result<(), Error> {
        self.point("undecided owners about to be counted");
        // AcqRel: synchronizes with the Acquire in `decide_orphans`.
        self.region().root(roots::RECOVERY)?.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Asks the recovery callback about each undecided orphan. Returns whether none is left, here
    /// or in another process that asks.
    fn ask_about_orphans(&self) -> Result<bool, Error> {
        let Some(recovery) = &self.inner().recovery else { return Ok(false) };
        let mine = OwnerState::asked_by(self.thread.number());
        let mut all = true;
        for (index, cell) in self.each_owner() {
            // AcqRel: as in `take_orphan`.
            if let Err(seen) =
                cell.state.compare_exchange(OwnerState::UNDECIDED, mine, AcqRel, Relaxed)
            {
                all &= !seen.is_asked();
                continue;
            }
            // Makes it undecided again if the callback does not return.
            let asking = TakenOrphan { cell, again: OwnerState::UNDECIDED };
            self.point("orphan about to be asked about");
            let id = index.id(get(&cell.generation));
            if recovery(id, &label_of(cell)) {
                // An error makes it undecided again, with its remaining locks.
                self.release_cell(index, cell)?;
                asking.ends();
                #[cfg(feature = "tracing")]
                crate::meter::events::orphan_released(id);
                self.after_orphan(index)?;
            } else {
                asking.ends();
                put(&cell.state, OwnerState::ORPHANED);
            }
        }
        Ok(all)
    }
}
