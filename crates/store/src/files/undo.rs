//! The transactions of dead threads are undone, by the thread that sweeps them.
//!
//! It comes before the lock manager lets their locks go, so that nobody sees what is not undone. A
//! slot's chain of records leads from its last one to its first; each is undone in place by a
//! record that leads to what is undone next. A sweep that dies on the way leaves the rest to the
//! next one: what is undone twice is as it was before, for the transaction's locks are still held.
//!
//! A record that cannot be undone, for its page cannot be read or there is no room, stops its own
//! transaction only. That keeps its locks, all of them, and its slot; it is told as
//! [`Error::NotUndone`]; and each later sweep begins again at that record, so that trying logs
//! nothing.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use latchwork_log::Lsn;
use latchwork_machine::{ConstMachine, Deadline};
use latchwork_region::{Dead, Error as RegionError, InHand, Layer, Repair};
use latchwork_tree::{Change, Error as TreeError};

use crate::Error;
use crate::engine::Chain;
use crate::events;
use crate::files::inner::{StoreInner, Stuck};
use crate::files::meter::now;
use crate::files::session::StoreSession;
use crate::files::undo_ownership::{State, Turn};

/// How often a thread that waits for one that undoes lets others run before it naps, and for how
/// long it naps then.
const YIELDS: u32 = 1 << 10;
const NAP: Duration = Duration::from_millis(1);
/// After so many naps in which nothing was undone, some minutes, nobody is at it.
pub(crate) const NAPS: u32 = 1 << 18;
/// How often a sweep waits for a look before it leaves the slot to the next one.
const LOOKS: u32 = 1 << 20;

/// How long a thread has waited for one that undoes its transaction, and how far that was.
#[derive(Default)]
struct Waits {
    count: u32,
    undone: u64,
}

/// Waits a moment for a thread that calls nobody: it yields at first, and naps from some time on.
pub(crate) fn pause<M: ConstMachine>(count: u32) {
    if count < YIELDS {
        return M::yield_now();
    }
    let word = M::U32;
    M::wait(&word, 0, Some(Deadline::after::<M>(NAP)));
}

/// A call that changes the transaction of its thread.
pub(crate) struct AtWork<'w, M: ConstMachine>(Turn<'w, M>);

impl<M: ConstMachine> Drop for AtWork<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(State::Idle);
    }
}

/// The transaction of another slot, which this thread has taken. When it is dropped, be it by an
/// error or a panic, the slot's next thread, or the next sweep, goes on from this state.
struct Ends<'s, M: ConstMachine> {
    turn: Turn<'s, M>,
    state: State,
}

impl<M: ConstMachine> Drop for Ends<'_, M> {
    fn drop(&mut self) {
        self.turn.set(self.state);
    }
}

/// What a sweep does in a store. Until the store is open nobody has written.
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
        // First of all: the next checkpoint does not wait until others' work is undone.
        for dead in dead {
            let over = home.shared.checkpoint_over(dead.number());
            over.map_err(|_| RegionError::Repair(Layer::Tree))?;
        }
        let (mut worker, mut end) = (None, Ok(()));
        for dead in dead {
            let undone = home.undo_dead(dead.number(), &mut worker);
            home.note_stuck(dead.number(), undone.as_ref().err());
            // The others are undone nevertheless.
            end = end.and(undone.map_err(|why| match why {
                Error::Region(why) => why,
                _ => RegionError::Repair(Layer::Tree),
            }));
        }
        // What fails here is reported by the next commit or sync.
        let _ = home.flush_for_dead(&mut worker);
        end
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, RegionError> {
        // A store has no cells of the region.
        Ok(vec![false; cells.len()])
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Sweeps the region. What could not be undone is the error.
    pub(crate) fn sweep(&self) -> Result<usize, Error> {
        let (_span, from) = (events::sweep(), now::<M>());
        let swept = self.manager.region().sweep();
        events::swept(swept.as_ref().map_or(0, |count| *count), now::<M>().saturating_sub(from));
        swept.map_err(|why| match why {
            RegionError::Repair(Layer::Tree) => {
                // Of the dead: it may be that a living thread is just at it.
                let is_dead = |slot: &u32| self.manager.region().is_dead(*slot);
                let of_dead = self.stuck().into_iter().find(|(slot, _)| is_dead(slot));
                of_dead.map_or(Error::Region(why), |(_, stuck)| stuck.why)
            }
            why => Error::Region(why),
        })
    }

    /// What was not undone, by its slot: of a dead thread, or of a living one for which another has
    /// begun.
    fn stuck(&self) -> BTreeMap<u32, Stuck> {
        let region = self.manager.region();
        if region.check().is_err() {
            return BTreeMap::new();
        }
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        // Another process may have undone it since, and the slot have another transaction.
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

    /// Whether a transaction of the dead is stuck.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck().keys().any(|slot| self.manager.region().is_dead(*slot))
    }

    /// What was not undone.
    pub(crate) fn not_undone(&self) -> Vec<Error> {
        self.stuck().into_values().map(|stuck| stuck.why).collect()
    }

    /// Why the transaction of a dead slot was not undone, if this process has tried.
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

    /// Makes durable what the dead had committed and died before they could: other transactions
    /// read it already, and snapshots see it only then.
    fn flush_for_dead(self: &Arc<Self>, worker: &mut Option<StoreSession<M>>) -> Result<(), Error> {
        let Some(commit) = self.shared.unseen()? else { return Ok(()) };
        Ok(self.sweeper(worker)?.log.flush(commit)?)
    }

    /// The worker of a sweep, which is opened when it is needed first.
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

    /// Undoes what a dead slot's transaction has written, and takes back what it had claimed. The
    /// worker is opened for the first slot that needs one.
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
        // What fails is tried again by the slot's next owner.
        let _ = worker.settle_all(number, true);
        all?;
        if prepared { Err(RegionError::Retained.into()) } else { Ok(()) }
    }
}

impl<M: ConstMachine> StoreSession<M> {
    /// Undoes the transaction of a dead slot, unless a living thread does: then that is to end
    /// first. Says whether the transaction is prepared: then it is not undone.
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
            // It is undone, and a thread died that was to forget it.
            self.log.forget(u32::from(slot))?;
        }
        ends.state = State::Idle;
        // Where its last record cannot be read nobody knows whether it is prepared.
        prepared.map_err(|why| self.not_undone(last.0, why))
    }

    /// Undoes the transaction of a living slot for its thread, if it keeps the log from before
    /// `least` and is between two calls. Whether that was so.
    pub(crate) fn end_old(&self, slot: u16, least: u64) -> Result<bool, Error> {
        let is_old = || -> Result<bool, Error> {
            let slot = u32::from(slot);
            let old = (1..least).contains(&self.home.log.open_of(slot)?.0.0);
            // One that is prepared keeps the log for as long as it takes.
            Ok(old && self.home.prepared_in(slot)?.is_none())
        };
        // Most are young, and are not disturbed.
        if !is_old()? || !self.home.shared.turn(slot)?.take(self.log.slot(), is_old)? {
            return Ok(false);
        }
        self.end_taken(slot).map(|()| true)
    }

    /// Goes on with the transaction of a living slot that a dead thread had taken.
    fn end_for(&self, slot: u16, dead: u32) -> Result<(), Error> {
        match self.home.shared.turn(slot)?.take_over(dead, self.log.slot()) {
            true => self.end_taken(slot),
            false => Ok(()),
        }
    }

    fn end_taken(&self, slot: u16) -> Result<(), Error> {
        let mut ends = Ends { turn: self.home.shared.turn(slot)?, state: State::Left };
        // The dead thread may have taken it from another dead one, and not have looked yet.
        if self.home.prepared_in(u32::from(slot))?.is_some() {
            ends.state = State::Idle;
            return Ok(());
        }
        let (first, last) = self.home.log.open_of(u32::from(slot))?;
        self.undo_left(slot, (first, last))?;
        ends.state = State::Ended;
        Ok(())
    }

    /// Undoes what is left of a slot's transaction. There is none if it was undone by a thread that
    /// died before it said so; that may have been about to forget it.
    fn undo_left(&self, slot: u16, (first, last): (Lsn, Lsn)) -> Result<(), Error> {
        match last {
            Lsn::NEVER if first == Lsn::NEVER => Ok(()),
            Lsn::NEVER => Ok(self.log.forget(u32::from(slot))?),
            _ => self.undo_all(slot, first, last),
        }
    }

    /// Ends the rollback of this thread's own transaction: that of another thread, if one has
    /// begun it.
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
                // Another thread has begun with the rest.
                _ => {}
            }
        }
    }

    /// Undoes what another thread has left of this thread's transaction.
    fn end_left(&self, turn: Turn<'_, M>) -> Result<(), Error> {
        let mut ends = Ends { turn, state: State::Left };
        self.undo_left(self.slot(), self.home.log.open_of(self.log.slot())?)?;
        ends.state = State::Idle;
        Ok(())
    }

    /// Begins a call that changes this thread's transaction. It ends when what is returned is
    /// dropped. Waits for a thread that ends the transaction.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooOld`] if another thread has ended the transaction;
    /// [`Error::Engine`] if the slot has one that could not be undone.
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

    /// Waits for the thread of a slot that is at work on this one's transaction.
    #[cold]
    fn wait_for(&self, by: u32, waits: &mut Waits) -> Result<(), Error> {
        let (shared, region) = (&self.home.shared, self.home.manager.region());
        let turn = shared.turn(self.slot())?;
        // A slot that nobody has, or this one: damaged memory may say so.
        if by == self.log.slot() {
            turn.take_back(by);
        }
        region.while_free(by, || turn.take_back(by))?;
        if region.is_dead(by) {
            // What cannot be undone is left to this thread, or told by its next rollback.
            let _ = self.home.sweep();
        }
        let undone = shared.undo_from(self.slot(), 0, u64::MAX)?;
        if core::mem::replace(&mut waits.undone, undone) != undone {
            waits.count = 0;
        }
        waits.count += 1;
        if waits.count >= NAPS {
            // Damaged memory may name a living slot that knows nothing of it, too.
            let why = format!(
                "thread slot {by} has been undoing this transaction for minutes, and comes to \
                 nothing: its process may be stopped; let it go on, or end it"
            );
            return Err(Error::Engine(why));
        }
        pause::<M>(waits.count);
        Ok(())
    }

    /// Undoes a slot's transaction from its last record on, or from where a sweep has stopped, and
    /// ends it.
    pub(crate) fn undo_all(&self, slot: u16, first: Lsn, last: Lsn) -> Result<(), Error> {
        let mut chain = Chain { slot, ..Chain::default() };
        let mut at = self.home.shared.undo_from(slot, first.0, last.0)?;
        while at != 0 {
            self.home.shared.undone_upto(slot, at)?;
            at = self.undo_one(&mut chain, at).map_err(|why| self.not_undone(at, why))?;
        }
        self.end(slot).map_err(|why| self.not_undone(first.0, why))
    }

    /// Why the record at `at` is not undone, with its names.
    pub(crate) fn not_undone(&self, at: u64, why: Error) -> Error {
        let (mut tree, mut page, mut key) = (0, 0, Vec::new());
        if let Ok(entry) = self.log.log().read(Lsn(at)) {
            (tree, page) = (entry.head.aux, entry.head.page);
            if let Some(Change::Ghost { key: of, .. } | Change::Restore { key: of, .. }) =
                Change::decode(&entry.payload).and_then(|change| change.undo())
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
