//! Sweeping: each layer that lives in a region repairs what a dead thread left there.
//!
//! A thread has one slot, whatever layers it uses. So a dead thread's slot may become free only
//! after every layer has repaired what the thread left. Otherwise a latch or a page that names the
//! slot would name a new living thread, and locks would have no holder.
//!
//! ```text
//!  header:       layers = { log, pool, locks, .. }          grows, never shrinks
//!  each process: repairs = { layer -> Repair }              owned by their registrants
//!
//!  sweep:  claim up to 16 dead slots
//!          ─▶ a layer of the header has no repair here? let them go, NoRepair
//!          ─▶ latches of the lock table are opened; none is handed to them any more, nor by them
//!          ─▶ log ─▶ pool ─▶ tree ─▶ locks ─▶ store: each repairs all claimed slots
//!          ─▶ one fails? let them go; claim and repair each separately
//!          ─▶ for each: cells in hand that no layer leads to are freed; the slot is free
//! ```
//!
//! Invariants. A layer is in the header before any thread has intents of it. A slot becomes free by
//! its own [`Thread`](crate::Thread), or by a sweep that ran a repair for each layer of the header.
//! A repair may run again on the same slot: its process may be killed before the sweep's end, or a
//! later layer's repair may fail.
//!
//! Memory order. A sweeper reads the header's layers after its claims. A dead thread's process had
//! added its layers before it died, and the death is known only afterwards, so the layers are
//! visible.

use core::any::Any;
use core::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, PoisonError, Weak};

use latchwork_machine::{ConstMachine, Deadline, Integer, Native};

use crate::slots::ThreadSlot;
use crate::sweep::{Dead, Fate, InHand};
use crate::{Error, Layer, Region, Thread};

/// Slots that one sweep claims at a time, so that a stopped sweeper holds few.
const BATCH: usize = 16;

/// A layer's repair after the death of a thread. A process registers one for each layer that it
/// uses ([`Region::register`]).
///
/// It runs on the sweeping thread, which holds no latch of this layer but may be in a call of an
/// upper layer. It must not use the intent words of that thread. If it allocates, frees, or names
/// itself in a latch, it takes a slot of its own ([`Region::sweeper`]).
pub trait Repair<M: ConstMachine = Native>: Send + Sync {
    /// Returns the layer.
    fn layer(&self) -> Layer;

    /// Opens latches of these threads for which others may wait. Called for all layers before the
    /// first repair, which may take long. Latches that cannot be opened now are left to
    /// [`repair`](Self::repair), which finds them again.
    fn open(&self, dead: &[Dead<'_, M>]) {
        let _ = dead;
    }

    /// Repairs what these threads left: up to 16, whose slots this process has claimed until all
    /// layers are done. It first opens what others wait for, because releasing the locks of one
    /// dead thread may need something that another dead thread holds.
    ///
    /// It must be idempotent.
    ///
    /// # Errors
    ///
    /// On an error the slots stay for the next sweep. [`Error::Repair`] names the layer if no other
    /// error fits. [`Error::Retained`] is no failure: the slot is left as it is, to be
    /// [claimed](Region::claim_retained) by its number. Later layers do nothing for it, so the
    /// killed thread must have been at rest in those.
    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), Error>;

    /// Returns for each of these cells, which a dead thread had allocated and not yet published,
    /// whether the layer's structures lead to it. Called after all repairs.
    ///
    /// # Errors
    ///
    /// The errors of [`repair`](Self::repair).
    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, Error>;
}

/// A registered repair, if its owner still keeps it.
fn kept<M: ConstMachine>(one: &(dyn Any + Send + Sync)) -> Option<Arc<dyn Repair<M>>> {
    one.downcast_ref::<Weak<dyn Repair<M>>>()?.upgrade()
}

/// A layer's words in a thread slot: 16 for the lock manager, 8 for any other layer.
fn words<M: ConstMachine>(layer: Layer, slot: &ThreadSlot<M>) -> &[M::AtomicU64] {
    match layer {
        Layer::Log => &slot.layers[0],
        Layer::Pool => &slot.layers[1],
        Layer::Tree => &slot.layers[2],
        Layer::Locks => &slot.intent,
        Layer::Store => &slot.layers[3],
    }
}

/// The repairs of one sweep, in order, one for each layer.
struct Chosen<M: ConstMachine>(Vec<Arc<dyn Repair<M>>>);

impl<M: ConstMachine> Region<M> {
    /// Registers a repair, and records in the region that its layer lives there. From then on,
    /// processes without a repair for this layer do not free slots of dead threads. Call it before
    /// any thread of this process uses the layer.
    ///
    /// The repair is used as long as the caller keeps it; the latest of several for one layer is
    /// used. This handle and its clones share it.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::View`].
    pub fn register(&self, repair: &Arc<dyn Repair<M>>) -> Result<(), Error> {
        self.process()?;
        let mut known = self.inner.repairs.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| kept::<M>(&**one).is_some());
        known.push(Box::new(Arc::downgrade(repair)));
        drop(known);
        // AcqRel: synchronizes with the Acquire in `layers`.
        self.live().layers.fetch_or(repair.layer().bit(), AcqRel);
        Ok(())
    }

    /// This process's repairs, one for each layer: the given one for its layer, otherwise the
    /// latest registered.
    fn choose(&self, own: Option<&Arc<dyn Repair<M>>>) -> Chosen<M> {
        let known = self.inner.repairs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.iter().filter_map(|one| kept::<M>(&**one)).collect();
        drop(known);
        all.extend(own.cloned());
        // The last of each layer stays.
        all.reverse();
        all.sort_by_key(|repair| repair.layer());
        all.dedup_by_key(|repair| repair.layer());
        Chosen(all)
    }
}

impl<M: ConstMachine> Chosen<M> {
    /// Checks that each layer of the region up to this one has a repair.
    fn covers(&self, region: &Region<M>, upto: Layer) -> Result<(), Error> {
        let missing =
            |layer: &Layer| *layer <= upto && self.0.iter().all(|repair| repair.layer() != *layer);
        region.layers()?.find(missing).map_or(Ok(()), |layer| Err(Error::NoRepair(layer)))
    }

    /// Runs each layer's repair for all threads before the next layer's, because a later layer may
    /// wait for something that any of the killed threads held.
    fn run(&self, batch: &[Dead<'_, M>]) -> Result<(), Error> {
        self.0.iter().for_each(|repair| repair.open(batch));
        batch.first().map_or(Ok(()), |dead| dead.region().forget_waiters(batch))?;
        self.0.iter().try_for_each(|repair| repair.repair(batch))
    }

    /// The cells that a dead thread had in hand and that some layer leads to.
    fn led_to(&self, dead: &Dead<'_, M>) -> Result<Vec<InHand>, Error> {
        let cells = dead.in_hand();
        let mut led = vec![false; cells.len()];
        for repair in self.0.iter().filter(|_| !cells.is_empty()) {
            let told = repair.leads_to(&cells)?;
            led.iter_mut().zip(told).for_each(|(led, told)| *led |= told);
        }
        Ok(cells.into_iter().zip(led).filter(|(_, led)| *led).map(|(cell, _)| cell).collect())
    }
}

impl<M: ConstMachine> Thread<M> {
    /// Returns the words in which a layer records its intents: 16 for the lock manager, 8 for any
    /// other layer. See [`intent`](Self::intent).
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    #[inline(always)]
    pub fn intent_of(&self, layer: Layer) -> Result<&[M::AtomicU64], Error> {
        Ok(words(layer, self.slot()?))
    }
}

impl<M: ConstMachine> Dead<'_, M> {
    /// Returns the words in which a layer recorded the intents of the killed thread.
    pub fn intent_of(&self, layer: Layer) -> &[M::AtomicU64] {
        words(layer, self.slot())
    }
}

impl<M: ConstMachine> Region<M> {
    /// Returns a layer's words of a thread slot, for inspection; none if the slot does not exist.
    pub fn intent_of(&self, thread: u32, layer: Layer) -> Option<&[M::AtomicU64]> {
        self.is_slot(thread).then(|| words(layer, self.thread_slot(thread)))
    }
}

impl<M: ConstMachine> Region<M> {
    /// Sweeps every dead thread: each layer that lives in the region repairs what they left, then
    /// their slots are free. Returns their number.
    ///
    /// It claims 16 dead threads at a time. It costs a look at each slot that was ever used, a
    /// system call for each process found in them, and the repairs of the layers. If the caller is
    /// killed, the next sweeper continues.
    ///
    /// # Errors
    ///
    /// [`Error::NoRepair`] if dead threads exist and this process has registered no repair for some
    /// layer: then no slot is freed. Errors of a repair: its threads then stay unswept, and the
    /// others are swept. [`Error::Corrupt`] and similar, [`Error::Forked`], [`Error::View`].
    pub fn sweep(&self) -> Result<usize, Error> {
        self.sweep_with(None, None)
    }

    /// Has the layer of `own`, and those before it, repair what one dead thread left for a thread
    /// that waits for a latch of that layer and finds its holder dead. Returns true if that was
    /// done; the slot stays claimed as dead until a sweep. Returns false if the thread is alive, if
    /// its slot is free, or if another thread sweeps it: the caller must look at the latch again.
    ///
    /// It does not run a whole sweep, because the caller may hold latches of its own layer. The
    /// repairs of later layers could wait for those latches for ever.
    ///
    /// # Errors
    ///
    /// The errors of [`sweep`](Self::sweep), for these layers.
    pub fn repair_upto(&self, own: &Arc<dyn Repair<M>>, thread: u32) -> Result<bool, Error> {
        // The claim lasts until the repairs are done, so no thread gets the slot in between.
        let Some(dead) = self.dead_thread(thread)? else { return Ok(false) };
        let (repairs, upto) = (self.choose(Some(own)), own.layer());
        repairs.covers(self, upto)?;
        let mut first = repairs.0.iter().take_while(|repair| repair.layer() <= upto);
        first.try_for_each(|repair| repair.repair(core::slice::from_ref(&dead)))?;
        Ok(true)
    }

    /// [`sweep`](Self::sweep) with this repair for its layer, instead of the registered one. It
    /// claims no further threads after a deadline and leaves them to the next sweep, so a waiting
    /// thread is late by at most 16 of them.
    ///
    /// # Errors
    ///
    /// The errors of [`sweep`](Self::sweep).
    pub fn sweep_with(
        &self,
        own: Option<&Arc<dyn Repair<M>>>,
        deadline: Option<Deadline>,
    ) -> Result<usize, Error> {
        let (mut done, mut repairs) = (Swept::default(), None);
        loop {
            let new = |dead: &Dead<'_, M>| !done.stuck.contains(&dead.number());
            let batch: Vec<_> = self.dead_threads()?.filter(new).take(BATCH).collect();
            if batch.is_empty() {
                return done.failed.map_or(Ok(done.count), Err);
            }
            let repairs = repairs.get_or_insert_with(|| self.choose(own));
            // After the claims, so that the layers that the killed threads used are visible.
            repairs.covers(self, Layer::Store)?;
            let end = repairs.run(&batch);
            if end.is_ok() || batch.len() == 1 {
                batch.into_iter().for_each(|dead| done.end(dead, repairs, end));
            } else {
                // Each separately, with none claimed in between: another thread may wait for
                // something that one of them holds, and can then have it repaired, or learns why
                // that fails.
                let numbers: Vec<_> = batch.iter().map(Dead::number).collect();
                drop(batch);
                for number in numbers {
                    // None: another process sweeps it.
                    if let Some(dead) = self.dead_thread(number)? {
                        // It may be a later thread of the slot.
                        repairs.covers(self, Layer::Store)?;
                        let end = repairs.run(core::slice::from_ref(&dead));
                        done.end(dead, repairs, end);
                    }
                }
            }
            if deadline.is_some_and(|deadline| deadline.passed::<M>()) {
                return done.failed.map_or(Ok(done.count), Err);
            }
        }
    }
}

/// The result of a sweep.
#[derive(Default)]
struct Swept {
    /// How many slots are now free.
    count: usize,
    /// Threads that could not be repaired. They are no longer claimed: a thread that waits for
    /// something of theirs finds them dead and gets the same error.
    stuck: Vec<u32>,
    /// The first error.
    failed: Option<Error>,
}

impl Swept {
    /// Frees a slot, if the repairs succeeded.
    fn end<M: ConstMachine>(
        &mut self,
        dead: Dead<'_, M>,
        repairs: &Chosen<M>,
        end: Result<(), Error>,
    ) {
        let region = dead.region();
        match end.and_then(|()| repairs.led_to(&dead)) {
            Ok(kept) => {
                self.count += 1;
                let end = dead.release(|cell| {
                    let lent = region.lent(cell.offset) == Ok(Some(cell.generation));
                    // A cell that no structure leads to is free already, or was never linked.
                    if kept.contains(&cell) || !lent { Fate::Keep } else { Fate::Free }
                });
                self.failed = self.failed.take().or(end.err());
            }
            Err(Error::Retained) => dead.retain(),
            Err(error) => {
                self.failed = self.failed.take().or(Some(error));
                self.stuck.push(dead.number());
            }
        }
    }
}
