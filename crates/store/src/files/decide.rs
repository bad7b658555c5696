//! Deciding about a prepared transaction, by any thread.
//!
//! The thread claims the retained slot, and is then the transaction's own: it logs the commit, or
//! undoes the records, and lets the locks go.
//!
//! | step | who is killed after it leaves |
//! |---|---|
//! | claim the slot | a dead thread's slot, which the sweep retains again |
//! | log the commit | a committed owner: the sweep lets the locks go |
//! | or log the first record that undoes | a transaction that the sweep undoes |
//! | let the locks go, free the slot | nothing |

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use latchwork_machine::ConstMachine;
use latchwork_region::Error::{Handed, Repair};
use latchwork_region::Layer;

use crate::Error;
use crate::engine::{Chain, Engine};
use crate::files::inner::StoreInner;
use crate::files::prepare::Look;
use crate::files::session::{Leave, SMALL, StoreSession};
use crate::files::undo::{NAPS, pause};

impl<M: ConstMachine> StoreInner<M> {
    /// Takes a prepared transaction to decide about it. Waits for a thread that is preparing or
    /// deciding it. If what is returned is dropped, it is prepared still.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`]; those of the parts.
    pub(crate) fn take_prepared(self: &Arc<Self>, gid: &[u8]) -> Result<StoreSession<M>, Error> {
        let region = self.manager.region();
        // The child of a fork sees no slots, and must not say that there is no such transaction.
        region.check()?;
        let mut waits = 0;
        loop {
            let slot =
                self.slot_of(gid)?.ok_or_else(|| Error::NotPrepared { gid: gid.to_vec() })?;
            if let Some(thread) = region.claim_retained(slot)? {
                let worker = StoreSession::of_retained(self.clone(), thread)?;
                // It may have been decided since, and the slot be another's.
                if self.prepared_in(slot)?.is_some_and(|found| found.gid == gid) {
                    return Ok(worker);
                }
            } else {
                self.wait_for(slot, &mut waits)?;
            }
        }
    }

    /// The slot whose transaction is prepared under this id. Waits for a thread that just appends
    /// to a slot's: it may be deciding this one, and die before it has.
    ///
    /// O(1) where an earlier walk of this process has seen it, else O(slots): so to decide about
    /// all that are prepared takes one walk.
    pub(crate) fn slot_of(&self, gid: &[u8]) -> Result<Option<u32>, Error> {
        let known = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known().remove(gid);
        if let Some(slot) = seen
            && matches!(self.look_at(slot), Ok(Look::Prepared(found)) if found.gid == gid)
        {
            return Ok(Some(slot));
        }
        let (mut all, mut its, mut unread) = (HashMap::new(), None, Ok::<(), Error>(()));
        for slot in 0..self.log.slots_high() {
            match self.prepared_once_appended(slot, its.is_some()) {
                Ok(Some(found)) if found == gid => its = Some(slot),
                Ok(found) => all.extend(found.map(|found| (found, slot))),
                // It may be of any other transaction.
                Err(why) => unread = unread.and(Err(why)),
            }
        }
        *known() = all;
        if its.is_none() {
            unread?;
        }
        Ok(its)
    }

    /// The id under which a slot's transaction is prepared. Waits for a thread that just appends to
    /// it, unless it is told not to.
    fn prepared_once_appended(&self, slot: u32, at_once: bool) -> Result<Option<Vec<u8>>, Error> {
        let mut waits = 0;
        loop {
            match self.look_at(slot)? {
                Look::Prepared(found) => return Ok(Some(found.gid)),
                Look::Other => return Ok(None),
                Look::Appending if at_once => return Ok(None),
                Look::Appending => self.wait_for(slot, &mut waits)?,
            }
        }
    }

    /// Waits a moment for the thread of a slot, and sweeps it if it is dead.
    fn wait_for(&self, slot: u32, waits: &mut u32) -> Result<(), Error> {
        if self.manager.region().is_dead(slot) {
            let swept = self.sweep();
            if self.manager.region().is_dead(slot) {
                self.may_go_on(slot, swept.err(), *waits)?;
            }
        }
        *waits = waits.saturating_add(1);
        pause::<M>(*waits);
        Ok(())
    }

    /// Whether to wait on for a dead slot that a sweep has not freed.
    fn may_go_on(&self, slot: u32, why: Option<Error>, waits: u32) -> Result<(), Error> {
        let own = match &why {
            // That of another is no matter here: a living thread may just sweep this one.
            Some(Error::NotUndone { .. }) => self.why_not_undone(slot),
            // So it may; and one that is stopped while it hands a latch over goes on some time.
            None | Some(Error::Region(Repair(Layer::Tree) | Handed(_))) => None,
            why => why.clone(),
        };
        let late = || {
            let what =
                "sweeps the slot of a prepared transaction for minutes, and comes to nothing";
            why.unwrap_or_else(|| Error::Engine(format!("another process {what} (slot {slot})")))
        };
        match own {
            Some(why) => Err(why),
            None if waits >= NAPS => Err(late()),
            None => Ok(()),
        }
    }
}

/// Dropped, it leaves the slot to a sweep.
struct Abandons<'w, M: ConstMachine>(&'w StoreSession<M>);

impl<M: ConstMachine> Drop for Abandons<'_, M> {
    fn drop(&mut self) {
        self.0.leave(Leave::Abandoned);
    }
}

impl<M: ConstMachine> StoreSession<M> {
    /// Commits the prepared transaction of the slot; returns the position of the commit record.
    pub(crate) fn commit_prepared(&self) -> Result<u64, Error> {
        self.decided(|| self.log_commit())
    }

    /// Undoes the prepared transaction of the slot; returns where the log ends then.
    pub(crate) fn roll_back_prepared(&self) -> Result<u64, Error> {
        self.decided(|| self.undo_prepared())
    }

    fn log_commit(&self) -> Result<u64, Error> {
        let last = self.home.log.open_of(self.log.slot())?.1;
        let mut chain = Chain { slot: self.slot(), last: last.0, committed: 0 };
        self.log.take_aside(self.log.slot(), SMALL, 0)?;
        let committed = self.commit(&mut chain);
        if committed.is_err() {
            self.log.put_aside(self.log.slot(), SMALL, 0)?;
        }
        committed
    }

    fn undo_prepared(&self) -> Result<u64, Error> {
        let mut at = self.home.log.open_of(self.log.slot())?.1.0;
        let mut chain = Chain { slot: self.slot(), last: at, committed: 0 };
        while at != 0 {
            at = match self.undo(&mut chain, at) {
                // Another thread undoes it from here on: it keeps too much of the log.
                Err(Error::TransactionTooOld) => 0,
                undone => undone.map_err(|why| self.not_undone(at, why))?,
            };
        }
        self.ended(&mut chain)?;
        Ok(self.home.log.end().0 - 1)
    }

    /// Decides, and does what follows: the locks go, or the transaction is prepared still, or the
    /// slot is left to a sweep, which does the rest: so it is if the decision panics.
    fn decided(&self, decide: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
        let panicked = Abandons(self);
        let end = decide();
        core::mem::forget(panicked);
        let undecided = self.home.prepared_in(self.log.slot());
        let released = match (&end, undecided) {
            (_, Ok(Some(_))) => return end,
            (Ok(_), Ok(None)) => self.locks()?.release_left(),
            // Or nobody knows whether it is prepared still: the sweep looks again.
            (Err(_), Ok(None)) | (_, Err(_)) => {
                self.leave(Leave::Abandoned);
                return end;
            }
        };
        self.leave(if released.is_ok() { Leave::Free } else { Leave::Abandoned });
        end
    }
}
