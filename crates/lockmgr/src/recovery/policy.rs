//! Which process decides about the locks of the dead: one that has a recovery callback, if any
//! process of the region ever had.
//!
//! A process may have none and sweep first. It keeps the owners of the dead then, as orphans that
//! are *undecided*, and a process that has a callback asks it when it sweeps next.
//!
//! ```text
//!         swept without a callback                 CAS            says no
//!  live ──────────────────────────▶ undecided ◀─────────▶ asked ──────────▶ orphaned
//!                                    │     its process died, │
//!                       adopt: CAS   ▼     or it panicked    ▼ says yes
//!                                   adopted                 free
//! ```
//!
//! The region's word (`roots::RECOVERY`) says whether any process has had a callback, and counts
//! how often owners were kept undecided, so that a sweep looks for them only if there are new ones.
//!
//! *No undecided orphan is forgotten.* A sweeper counts after it has stored the owners' states and
//! before their page is done, and one that goes on after its death does so again. A process notes
//! the count that it read before it looked, and only if it left no owner undecided or in the hands
//! of another process that asks: should that one die, this one looks again.
//!
//! *No owner is released that a callback was to decide about.* The word is stored before the
//! manager that has the callback exists. A thread of a process that saw it claims its slot later,
//! by a Release; the sweeper claims that slot by an Acquire, and reads the word then.

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

/// Says in the region that there is a process that decides.
pub(crate) fn some_decide<M: ConstMachine>(region: &Region<M>) -> Result<(), Error> {
    // Release: synchronizes with the Acquire in `kept_as`, through the slots of threads that are
    // claimed from now on. It fails where another process has said so.
    let _ = region.root(roots::RECOVERY)?.compare_exchange(0, 1, Release, Relaxed);
    Ok(())
}

impl<M: ConstMachine> Inner<M> {
    /// Asks this process's recovery callback about orphans that are undecided, if there may be any
    /// that it was not asked about.
    pub(crate) fn decide_orphans(&self) -> Result<(), Error> {
        if self.recovery.is_none() {
            return Ok(());
        }
        // Acquire: synchronizes with the AcqRel in `tell_deciders`: the orphans it counts are seen.
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
    /// As what a dead owner is kept, or nothing if it is to be released: this process's callback
    /// says so, or there is none in any process.
    pub(crate) fn kept_as(&self, id: OwnerId, label: &[u8]) -> Result<Option<OwnerState>, Error> {
        if let Some(recovery) = &self.inner().recovery {
            return Ok(if recovery(id, label) { None } else { Some(OwnerState::ORPHANED) });
        }
        // Acquire: synchronizes with the Release in `some_decide`.
        let decide = self.region().root(roots::RECOVERY)?.load(Acquire) != 0;
        Ok(decide.then_some(OwnerState::UNDECIDED))
    }

    /// Says that there are new orphans to be decided about.
    pub(crate) fn tell_deciders(&self) -> Result<(), Error> {
        self.point("undecided owners about to be counted");
        // AcqRel: synchronizes with the Acquire in `decide_orphans`.
        self.region().root(roots::RECOVERY)?.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Asks the recovery callback about each orphan that is undecided. Whether none is left, here
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
            // Undecided again if the callback does not return.
            let asking = TakenOrphan { cell, again: OwnerState::UNDECIDED };
            self.point("orphan about to be asked about");
            let id = index.id(get(&cell.generation));
            if recovery(id, &label_of(cell)) {
                // An error makes it undecided again, with what is left of its locks.
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
