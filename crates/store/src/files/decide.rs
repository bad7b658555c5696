//! Deciding a prepared transaction, by any thread.
//!
//! The thread claims the retained slot and then owns the transaction: it logs the commit, or rolls
//! back the records, and releases the locks.
//!
//! | step | state after a death |
//! |---|---|
//! | claim the slot | a dead thread's slot, which the sweep retains again |
//! | log the commit | a committed owner, whose locks the sweep releases |
//! | or log the first record of the rollback | a transaction that the sweep rolls back |
//! | release the locks, free the slot | nothing to do |

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use latchwork_machine::ConstMachine;
use latchwork_region::Error::{Handed, Repair};
use latchwork_region::Layer;

use crate::Error;
use crate::engine::{Engine, UndoChain};
use crate::files::inner::StoreInner;
use crate::files::prepare::LastRecord;
use crate::files::session::{Leave, SMALL, StoreSession};
use crate::files::undo::{NAPS, pause};

impl<M: ConstMachine> StoreInner<M> {
    /// Takes a prepared transaction to decide it. Waits for a thread that is preparing or deciding
    /// it. If the returned session is dropped, the transaction is still prepared.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`]; errors of the store's parts.
    pub(crate) fn take_prepared(self: &Arc<Self>, gid: &[u8]) -> Result<StoreSession<M>, Error> {
        let region = self.manager.region();
        // The child of a fork sees no slots, and must not report that the transaction does not
        // exist.
        region.check()?;
        let mut waits = 0;
        loop {
            let slot =
                self.slot_of(gid)?.ok_or_else(|| Error::NotPrepared { gid: gid.to_vec() })?;
            if let Some(thread) = region.claim_retained(slot)? {
                let worker = StoreSession::of_retained(self.clone(), thread)?;
                // It may have been decided since, and the slot reused.
                if self.prepared_in(slot)?.is_some_and(|found| found.gid == gid) {
                    return Ok(worker);
                }
            } else {
                self.wait_for(slot, &mut waits)?;
            }
        }
    }

    /// Returns the slot whose transaction is prepared under this id. Waits for a thread that
    /// appends to a slot's transaction: it may be deciding this one, and die before it has.
    ///
    /// O(1) if an earlier search of this process has seen the transaction, otherwise O(slots). So
    /// deciding all prepared transactions takes one search.
    pub(crate) fn slot_of(&self, gid: &[u8]) -> Result<Option<u32>, Error> {
        let known = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known().remove(gid);
        if let Some(slot) = seen
            && let Ok(LastRecord::Prepared(found)) = self.last_record_of(slot)
            && found.gid == gid
        {
            return Ok(Some(slot));
        }
        let (mut all, mut its, mut unread) = (HashMap::new(), None, Ok::<(), Error>(()));
        for slot in 0..self.log.slots_high() {
            match self.prepared_once_appended(slot, its.is_some()) {
                Ok(Some(found)) if found == gid => its = Some(slot),
                Ok(found) => all.extend(found.map(|found| (found, slot))),
                // The error may concern any other transaction.
                Err(why) => unread = unread.and(Err(why)),
            }
        }
        *known() = all;
        if its.is_none() {
            unread?;
        }
        Ok(its)
    }

    /// Returns the id under which a slot's transaction is prepared. Waits for a thread that appends
    /// to it, unless `at_once`.
    fn prepared_once_appended(&self, slot: u32, at_once: bool) -> Result<Option<Vec<u8>>, Error> {
        let mut waits = 0;
        loop {
            match self.last_record_of(slot)? {
                LastRecord::Prepared(found) => return Ok(Some(found.gid)),
                LastRecord::Other => return Ok(None),
                LastRecord::Appending if at_once => return Ok(None),
                LastRecord::Appending => self.wait_for(slot, &mut waits)?,
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

    /// Returns an error unless the caller should keep waiting for a dead slot that a sweep has not
    /// freed.
    fn may_go_on(&self, slot: u32, why: Option<Error>, waits: u32) -> Result<(), Error> {
        let own = match &why {
            // The error of another slot does not matter: a living thread may be sweeping this one.
            Some(Error::NotUndone { .. }) => self.why_not_undone(slot),
            // The same applies here; and a thread that is stopped while it hands over a latch will
            // continue at some time.
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

/// Leaves the slot to a sweep when it is dropped.
struct Abandons<'w, M: ConstMachine>(&'w StoreSession<M>);

impl<M: ConstMachine> Drop for Abandons<'_, M> {
    fn drop(&mut self) {
        self.0.leave(Leave::Abandoned);
    }
}

impl<M: ConstMachine> StoreSession<M> {
    /// Commits the prepared transaction of the slot. Returns the position of the commit record.
    pub(crate) fn commit_prepared(&self) -> Result<u64, Error> {
        self.decided(|| self.log_commit())
    }

    /// Rolls back the prepared transaction of the slot. Returns the end of the log after it.
    pub(crate) fn roll_back_prepared(&self) -> Result<u64, Error> {
        self.decided(|| self.undo_prepared())
    }

    fn log_commit(&self) -> Result<u64, Error> {
        let last = self.home.log.open_of(self.log.slot())?.1;
        let mut chain = UndoChain { slot: self.slot(), last: last.0, committed: 0 };
        self.log.take_aside(self.log.slot(), SMALL, 0)?;
        let committed = self.commit(&mut chain);
        if committed.is_err() {
            self.log.put_aside(self.log.slot(), SMALL, 0)?;
        }
        committed
    }

    fn undo_prepared(&self) -> Result<u64, Error> {
        let mut at = self.home.log.open_of(self.log.slot())?.1.0;
        let mut chain = UndoChain { slot: self.slot(), last: at, committed: 0 };
        while at != 0 {
            at = match self.undo(&mut chain, at) {
                // Another thread continues the rollback, because the transaction retains too much
                // log.
                Err(Error::TransactionTooOld) => 0,
                undone => undone.map_err(|why| self.not_undone(at, why))?,
            };
        }
        self.ended(&mut chain)?;
        Ok(self.home.log.end().0 - 1)
    }

    /// Runs a decision and its consequences: the locks are released, or the transaction is still
    /// prepared, or the slot is left to a sweep, which does the rest; the last also if the decision
    /// panics.
    fn decided(&self, decide: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
        let panicked = Abandons(self);
        let end = decide();
        core::mem::forget(panicked);
        let undecided = self.home.prepared_in(self.log.slot());
        let released = match (&end, undecided) {
            (_, Ok(Some(_))) => return end,
            (Ok(_), Ok(None)) => self.locks()?.release_left(),
            // It is unknown whether it is still prepared; the sweep checks again.
            (Err(_), Ok(None)) | (_, Err(_)) => {
                self.leave(Leave::Abandoned);
                return end;
            }
        };
        self.leave(if released.is_ok() { Leave::Free } else { Leave::Abandoned });
        end
    }
}
