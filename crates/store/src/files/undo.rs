//! Rollback of the transactions of dead threads, by the thread that sweeps them.
//!
//! The rollback precedes the release of their locks by the lock manager, so that no transaction
//! sees their changes. A slot's chain of records leads from its last one to its first. Each is
//! rolled back in place by a log record that points to the next one to roll back. If a sweep dies
//! on the way, the next one does the rest. Rolling a record back twice is harmless, because the
//! transaction's locks are still held: the stamp of the tree's record shows that a part of its
//! value was restored before.
//!
//! A record that cannot be rolled back, because its page cannot be read or there is no space, stops
//! only its own transaction. The transaction keeps all its locks and its slot, and is reported as
//! [`Error::NotUndone`]. Each later sweep starts again at that record, so that the attempts log
//! nothing.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use latchwork_log::Lsn;
use latchwork_machine::{ConstMachine, Deadline};
use latchwork_region::{Dead, Error as RegionError, InHand, Layer, Repair};
use latchwork_tree::{Change, Error as TreeError};

use crate::Error;
use crate::engine::UndoChain;
use crate::events;
use crate::files::inner::{StoreInner, Stuck};
use crate::files::meter::now;
use crate::files::session::StoreSession;
use crate::files::undo_ownership::{State, UndoOwnership};

/// How often a thread that waits for a rollback yields before it sleeps, and how long each sleep
/// is.
const YIELDS: u32 = 1 << 10;
const NAP: Duration = Duration::from_millis(1);
/// After this many sleeps without progress, some minutes, the rollback counts as stuck.
pub(crate) const NAPS: u32 = 1 << 18;
/// How often a sweep waits for a check of the transaction before it leaves the slot to the next
/// sweep.
const LOOKS: u32 = 1 << 20;

/// How long a thread has waited for the rollback of its transaction, and the progress of that
/// rollback.
#[derive(Default)]
struct Waits {
    count: u32,
    undone: u64,
}

/// Waits a moment for a thread that sends no wakeup: yields at first, and later sleeps.
pub(crate) fn pause<M: ConstMachine>(count: u32) {
    if count < YIELDS {
        return M::yield_now();
    }
    let word = M::U32;
    M::wait(&word, 0, Some(Deadline::after::<M>(NAP)));
}

/// Marks that its thread is in a call that changes the transaction.
pub(crate) struct AtWork<'w, M: ConstMachine>(UndoOwnership<'w, M>);

impl<M: ConstMachine> Drop for AtWork<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(State::Idle);
    }
}

/// Another slot's transaction that this thread has taken. When this is dropped, also by an error or
/// a panic, the slot's next thread or the next sweep continues from `state`.
struct Ends<'s, M: ConstMachine> {
    turn: UndoOwnership<'s, M>,
    state: State,
}

impl<M: ConstMachine> Drop for Ends<'_, M> {
    fn drop(&mut self) {
        self.turn.set(self.state);
    }
}

/// The repair of a store during a sweep. Before the store is open, no thread has written.
pub(crate) struct UndoDead<M: ConstMachine> {
    pub(crate) home: Arc<OnceLock<Weak<StoreInner<M>>>>,
}

impl<M: ConstMachine> Repair<M> for UndoDead<M> {
    fn layer(&self) -> Layer {
        Layer::Tree
    }

    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), RegionError> {
        let home = self.home.get().and_then(Weak::upgrade);
        let home = home.ok_or(RegionError::NoRepair(Layer::Tree))?;
        // First, so that the next checkpoint does not wait for rollbacks.
        for dead in dead {
            let over = home.shared.checkpoint_over(dead.number());
            over.map_err(|_| RegionError::Repair(Layer::Tree))?;
        }
        let (mut worker, mut end) = (None, Ok(()));
        for dead in dead {
            let undone = home.undo_dead(dead.number(), &mut worker);
            home.note_stuck(dead.number(), undone.as_ref().err());
            // The others are rolled back even so.
            end = end.and(undone.map_err(|why| match why {
                Error::Region(why) => why,
                _ => RegionError::Repair(Layer::Tree),
            }));
        }
        // The next commit or sync reports an error of this.
        let _ = home.flush_for_dead(&mut worker);
        end
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, RegionError> {
        // A store has no cells of the region.
        Ok(vec![false; cells.len()])
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Sweeps the region. Returns an error if a transaction could not be rolled back.
    pub(crate) fn sweep(&self) -> Result<usize, Error> {
        let (_span, from) = (events::sweep(), now::<M>());
        let swept = self.manager.region().sweep();
        events::swept(swept.as_ref().map_or(0, |count| *count), now::<M>().saturating_sub(from));
        swept.map_err(|why| match why {
            RegionError::Repair(Layer::Tree) => {
                // Only errors of dead slots: a living thread may be rolling back a transaction.
                let is_dead = |slot: &u32| self.manager.region().is_dead(*slot);
                let of_dead = self.stuck().into_iter().find(|(slot, _)| is_dead(slot));
                of_dead.map_or(Error::Region(why), |(_, stuck)| stuck.why)
            }
            why => Error::Region(why),
        })
    }

    /// Returns the failed rollbacks by slot: of dead threads, and of living threads whose rollback
    /// another thread had begun.
    fn stuck(&self) -> BTreeMap<u32, Stuck> {
        let region = self.manager.region();
        if region.check().is_err() {
            return BTreeMap::new();
        }
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        // Another process may have completed the rollback since, and the slot may have another
        // transaction.
        let is_it = |slot, first| {
            first != Lsn::NEVER && self.log.open_of(slot).is_ok_and(|now| now.0 == first)
        };
        let is_left = |slot| {
            let turn = u16::try_from(slot).ok().and_then(|slot| self.shared.turn(slot).ok());
            turn.is_some_and(|turn| turn.now() == State::Left)
        };
        stuck.retain(|slot, one| {
            is_it(*slot, one.first) && (region.is_dead(*slot) || is_left(*slot))
        });
        stuck.clone()
    }

    /// Returns whether a rollback of a dead thread's transaction has failed.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck().keys().any(|slot| self.manager.region().is_dead(*slot))
    }

    /// Returns the failed rollbacks.
    pub(crate) fn not_undone(&self) -> Vec<Error> {
        self.stuck().into_values().map(|stuck| stuck.why).collect()
    }

    /// Returns why the transaction of a dead slot was not rolled back, if this process has tried.
    pub(crate) fn why_not_undone(&self, slot: u32) -> Option<Error> {
        self.stuck().remove(&slot).map(|stuck| stuck.why)
    }

    fn note_stuck(&self, slot: u32, why: Option<&Error>) {
        let first = self.log.open_of(slot).map_or(Lsn::NEVER, |open| open.0);
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why @ Error::NotUndone { .. }) => {
                stuck.insert(slot, Stuck { first, why: why.clone() });
            }
            _ => drop(stuck.remove(&slot)),
        }
    }

    /// Makes commits durable whose threads died before they could: other transactions have read
    /// them, and snapshots see them only then.
    fn flush_for_dead(self: &Arc<Self>, worker: &mut Option<StoreSession<M>>) -> Result<(), Error> {
        let Some(commit) = self.shared.unseen()? else { return Ok(()) };
        Ok(self.sweeper(worker)?.log.flush(commit)?)
    }

    /// Returns the worker of a sweep, which is created at its first use.
    fn sweeper<'w>(
        self: &Arc<Self>,
        worker: &'w mut Option<StoreSession<M>>,
    ) -> Result<&'w mut StoreSession<M>, Error> {
        Ok(match worker {
            Some(worker) => worker,
            none => none
                .insert(StoreSession::of_sweeper(self.clone(), self.manager.region().sweeper()?)?),
        })
    }

    /// Rolls back the changes of a dead slot's transaction, and releases its claims. The worker is
    /// created for the first slot that needs one.
    fn undo_dead(
        self: &Arc<Self>,
        slot: u32,
        worker: &mut Option<StoreSession<M>>,
    ) -> Result<(), Error> {
        let Ok(number) = u16::try_from(slot) else { return Ok(()) };
        self.shared.forget(number);
        let (first, _) = self.log.open_of(slot)?;
        let taken = self.shared.taken_by(slot)?;
        let turn = self.shared.turn(number)?;
        let empty = self.shared.hand(number)?.is_empty();
        let of_others = matches!(turn.now(), State::Taken(_) | State::Looks(_));
        if first == Lsn::NEVER && empty && taken.is_empty() && !of_others {
            turn.set(State::Idle);
            return self.shared.if_empty_handed(number);
        }
        let worker = self.sweeper(worker)?;
        let mut all = Ok(());
        for other in taken {
            let ended = worker.end_for(other, slot);
            self.note_stuck(u32::from(other), ended.as_ref().err());
            all = all.and(ended);
        }
        let prepared = worker.undo_dead(number)?;
        // If this fails, the slot's next owner tries again.
        let _ = worker.settle_all(number, true);
        all?;
        if prepared { Err(RegionError::Retained.into()) } else { Ok(()) }
    }
}

impl<M: ConstMachine> StoreSession<M> {
    /// Rolls back the transaction of a dead slot, unless a living thread does: it must end first.
    /// Returns whether the transaction is prepared and therefore not rolled back.
    fn undo_dead(&self, slot: u16) -> Result<bool, Error> {
        let (shared, region) = (&self.home.shared, self.home.manager.region());
        let turn = shared.turn(slot)?;
        let lives = |by| by != self.log.slot() && !region.is_dead(by);
        let mut looks = 0;
        turn.heal();
        let seen = loop {
            match turn.now() {
                State::Looks(by) if lives(by) && looks < LOOKS => {
                    M::yield_now();
                    looks += 1;
                }
                State::Looks(by) | State::Taken(by) if lives(by) => {
                    return Err(RegionError::Repair(Layer::Tree).into());
                }
                seen => break seen,
            }
        };
        if !turn.pass(seen, State::Taken(self.log.slot())) {
            return Err(RegionError::Repair(Layer::Tree).into());
        }
        let mut ends = Ends { turn, state: State::Left };
        let (first, last) = self.home.log.open_of(u32::from(slot))?;
        let prepared = self.home.prepared_in(u32::from(slot)).map(|found| found.is_some());
        if last != Lsn::NEVER && matches!(prepared, Ok(false)) {
            self.undo_all(slot, first, last)?;
            ends.state = State::Idle;
            shared.count_undone()?;
            return Ok(false);
        }
        if first != Lsn::NEVER && last == Lsn::NEVER {
            // It is rolled back, and a thread died before it cleared the state.
            self.log.forget(u32::from(slot))?;
        }
        ends.state = State::Idle;
        // If its last record cannot be read, it is unknown whether it is prepared.
        prepared.map_err(|why| self.not_undone(last.0, why))
    }

    /// Rolls back the transaction of a living slot for its thread, if it retains the log before
    /// `least` and is between two calls. Returns whether it did.
    pub(crate) fn end_old(&self, slot: u16, least: u64) -> Result<bool, Error> {
        let is_old = || -> Result<bool, Error> {
            let slot = u32::from(slot);
            let old = (1..least).contains(&self.home.log.open_of(slot)?.0.0);
            // A prepared transaction retains the log without limit.
            Ok(old && self.home.prepared_in(slot)?.is_none())
        };
        // Most transactions are young, and are not disturbed.
        if !is_old()? || !self.home.shared.turn(slot)?.take(self.log.slot(), is_old)? {
            return Ok(false);
        }
        self.end_taken(slot).map(|()| true)
    }

    /// Continues the rollback of a living slot that a dead thread had begun.
    fn end_for(&self, slot: u16, dead: u32) -> Result<(), Error> {
        match self.home.shared.turn(slot)?.take_over(dead, self.log.slot()) {
            true => self.end_taken(slot),
            false => Ok(()),
        }
    }

    fn end_taken(&self, slot: u16) -> Result<(), Error> {
        let mut ends = Ends { turn: self.home.shared.turn(slot)?, state: State::Left };
        // The dead thread may have taken it over from another dead thread without checking it.
        if self.home.prepared_in(u32::from(slot))?.is_some() {
            ends.state = State::Idle;
            return Ok(());
        }
        let (first, last) = self.home.log.open_of(u32::from(slot))?;
        self.undo_left(slot, (first, last))?;
        ends.state = State::Ended;
        Ok(())
    }

    /// Rolls back what is left of a slot's transaction. Nothing is left if a thread completed the
    /// rollback and died before it recorded that, or before it cleared the state.
    fn undo_left(&self, slot: u16, (first, last): (Lsn, Lsn)) -> Result<(), Error> {
        match last {
            Lsn::NEVER if first == Lsn::NEVER => Ok(()),
            Lsn::NEVER => Ok(self.log.forget(u32::from(slot))?),
            _ => self.undo_all(slot, first, last),
        }
    }

    /// Ends the rollback of this thread's own transaction, also if another thread has begun it.
    pub(crate) fn end_own(&self) -> Result<(), Error> {
        loop {
            match self.enter() {
                Err(Error::TransactionTooOld) => {}
                work => {
                    let _work = work?;
                    return self.end(self.slot());
                }
            }
            let turn = self.home.shared.turn(self.slot())?;
            match turn.now() {
                State::Ended => {
                    turn.set(State::Idle);
                    return Ok(());
                }
                State::Left if turn.resume() => return self.end_left(turn),
                State::Busy => return Err(Error::TransactionTooOld),
                // Another thread continues the rollback.
                _ => {}
            }
        }
    }

    /// Completes the rollback that another thread has begun of this thread's transaction.
    fn end_left(&self, turn: UndoOwnership<'_, M>) -> Result<(), Error> {
        let mut ends = Ends { turn, state: State::Left };
        self.undo_left(self.slot(), self.home.log.open_of(self.log.slot())?)?;
        ends.state = State::Idle;
        Ok(())
    }

    /// Begins a call that changes this thread's transaction. The call ends when the returned value
    /// is dropped. Waits for a thread that is rolling the transaction back.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooOld`] if another thread has rolled the transaction back;
    /// [`Error::Engine`] if the slot has a transaction that could not be rolled back.
    #[inline]
    pub(crate) fn enter(&self) -> Result<AtWork<'_, M>, Error> {
        if self.is_given_up() {
            return Err(Error::Engine("a transaction before could not be undone".to_owned()));
        }
        let turn = self.home.shared.turn(self.slot())?;
        let mut waits = Waits::default();
        match turn.enter(|by| self.wait_for(by, &mut waits))? {
            true => Ok(AtWork(turn)),
            false => Err(Error::TransactionTooOld),
        }
    }

    /// Waits for the thread of a slot that works on this one's transaction.
    #[cold]
    fn wait_for(&self, by: u32, waits: &mut Waits) -> Result<(), Error> {
        let (shared, region) = (&self.home.shared, self.home.manager.region());
        let turn = shared.turn(self.slot())?;
        // In damaged memory, the slot may have no thread, or be this one.
        if by == self.log.slot() {
            turn.take_back(by);
        }
        region.while_free(by, || turn.take_back(by))?;
        if region.is_dead(by) {
            // A failed rollback is left to this thread, whose next rollback reports it.
            let _ = self.home.sweep();
        }
        let undone = shared.undo_from(self.slot(), 0, u64::MAX)?;
        if core::mem::replace(&mut waits.undone, undone) != undone {
            waits.count = 0;
        }
        waits.count += 1;
        if waits.count >= NAPS {
            // Damaged memory may also name a living slot that does not work on it.
            let why = format!(
                "thread slot {by} has been undoing this transaction for minutes, and comes to \
                 nothing: its process may be stopped; let it go on, or end it"
            );
            return Err(Error::Engine(why));
        }
        pause::<M>(waits.count);
        Ok(())
    }

    /// Rolls back a slot's transaction from its last record, or from where a sweep stopped, and
    /// ends it.
    pub(crate) fn undo_all(&self, slot: u16, first: Lsn, last: Lsn) -> Result<(), Error> {
        let mut chain = UndoChain { slot, ..UndoChain::default() };
        let mut at = self.home.shared.undo_from(slot, first.0, last.0)?;
        while at != 0 {
            self.home.shared.undone_upto(slot, at)?;
            at = self.undo_one(&mut chain, at).map_err(|why| self.not_undone(at, why))?;
        }
        self.end(slot).map_err(|why| self.not_undone(first.0, why))
    }

    /// Creates the error of a rollback that failed at a record.
    pub(crate) fn not_undone(&self, at: u64, why: Error) -> Error {
        let (mut tree, mut page, mut key) = (0, 0, Vec::new());
        if let Ok(entry) = self.log.log().read(Lsn(at)) {
            (tree, page) = (entry.head.aux, entry.head.page);
            if let Some(of) =
                Change::decode(&entry.payload).and_then(|change| change.undo()?.record_key())
            {
                key = of.to_vec();
            }
        }
        if let Error::Pool(why) | Error::Tree(TreeError::Pool(why)) = &why {
            page = why.page().unwrap_or(page);
        }
        Error::NotUndone { table: self.home.table(tree), page, key, why: Box::new(why) }
    }
}
