//! Sweeping: each layer that lives in a region repairs what a dead thread left there.
//!
//! A thread at work has one slot, whatever layers it uses. So a dead thread's slot may be free
//! only after every layer has put right what the thread left there: a latch or a page that names
//! the slot would otherwise name a living newcomer, and locks would be held by nobody.
//!
//! ```text
//!  header:       layers = { log, pool, locks, .. }          grows, never shrinks
//!  each process: repairs = { layer -> Repair }              kept by who registered them
//!
//!  sweep:  claim up to 16 dead slots
//!          ─▶ a layer of the header has no repair here? let them go, NoRepair
//!          ─▶ latches of the lock table are opened; none is handed to them any more, nor by them
//!          ─▶ log ─▶ pool ─▶ tree ─▶ locks ─▶ store: each puts right all that were claimed
//!          ─▶ one fails? let them go; claim, and put right, each by itself
//!          ─▶ for each: cells in hand that no layer leads to are freed; the slot is free
//! ```
//!
//! Invariants. A layer is in the header before any thread has intents of it. A slot becomes free by
//! its own [`Thread`](crate::Thread), or by a sweep that ran a repair for each layer of the header.
//! A repair may be run again on the same slot: its process may die before the sweep's end, or a
//! later layer's repair may fail.
//!
//! Memory order. Who sweeps reads the header's layers after its claims. A dead thread's process
//! had added its layers before it died, and the death is known only afterwards: so they are seen.

use core::any::Any;
use core::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, PoisonError, Weak};

use latchwork_machine::{ConstMachine, Deadline, Integer, Native};

use crate::slots::ThreadSlot;
use crate::sweep::{Dead, Fate, InHand};
use crate::{Error, Layer, Region, Thread};

/// Slots that one sweep claims at a time, so that a sweeper that is stopped keeps few.
const BATCH: usize = 16;

/// What a layer does for the dead. A process registers one for each layer that it uses
/// ([`Region::register`]).
///
/// It runs on the thread that sweeps, which holds no latch of this layer but may be in the midst
/// of a call of a layer above. It must not use the intent words of that thread: it takes a slot of
/// its own ([`Region::sweeper`]) if it allocates, frees or names itself in a latch.
pub trait Repair<M: ConstMachine = Native>: Send + Sync {
    /// Whose it is.
    fn layer(&self) -> Layer;

    /// Opens latches of these threads that others may wait for: of all layers before the first one
    /// repairs, for that may take long. What cannot be opened now is left to
    /// [`repair`](Self::repair), which finds it again.
    fn open(&self, dead: &[Dead<'_, M>]) {
        let _ = dead;
    }

    /// Puts right what these threads left. Their slots are claimed by this process, and stay so
    /// until all layers are done; up to 16 at a time. It opens what others wait for first: another
    /// of the dead may hold what it needs to release the locks of one.
    ///
    /// What it has done already it may be asked to do again.
    ///
    /// # Errors
    ///
    /// Then the slots stay the dead ones', for the next sweep. [`Error::Repair`] says whose repair
    /// it was, if no other error fits. [`Error::Retained`] is no failure: the slot is left as it
    /// is, to be [claimed](Region::claim_retained) by its number. Later layers do nothing for it,
    /// so the dead thread must have been at rest in those.
    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), Error>;

    /// For each of these cells, which a dead thread had taken and not yet published, whether the
    /// layer's structures lead to it. Asked after all repairs.
    ///
    /// # Errors
    ///
    /// As [`repair`](Self::repair).
    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, Error>;
}

/// A repair that was registered, if somebody keeps it still.
fn kept<M: ConstMachine>(one: &(dyn Any + Send + Sync)) -> Option<Arc<dyn Repair<M>>> {
    one.downcast_ref::<Weak<dyn Repair<M>>>()?.upgrade()
}

/// A layer's words in a thread slot: 16 of the lock manager, 8 of any other.
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
    /// Registers a repair, and says in the region that its layer lives there from now on: so no
    /// process frees a dead thread's slot that does not know how to repair this layer. To be called
    /// before any thread of this process uses the layer.
    ///
    /// The repair counts for as long as the caller keeps it. Of several for one layer the latest
    /// counts. It is known to this handle and its clones.
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

    /// This process's repairs, one for each layer: the given one if it is of that layer, or the
    /// latest that was registered.
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
    /// That there is one for each layer of the region, up to this one.
    fn covers(&self, region: &Region<M>, upto: Layer) -> Result<(), Error> {
        let missing =
            |layer: &Layer| *layer <= upto && self.0.iter().all(|repair| repair.layer() != *layer);
        region.layers()?.find(missing).map_or(Ok(()), |layer| Err(Error::NoRepair(layer)))
    }

    /// Each layer's repair of all these, before the next layer's: what a later one waits for may
    /// have been any of the dead's.
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
    /// The words in which a layer says what it has begun: 16 of the lock manager, 8 of any other.
    /// See [`intent`](Self::intent).
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
    /// The words in which a layer noted what the dead thread had begun.
    pub fn intent_of(&self, layer: Layer) -> &[M::AtomicU64] {
        words(layer, self.slot())
    }
}

impl<M: ConstMachine> Region<M> {
    /// A layer's words of a thread slot, to be looked at; none if there is no such slot.
    pub fn intent_of(&self, thread: u32, layer: Layer) -> Option<&[M::AtomicU64]> {
        self.is_slot(thread).then(|| words(layer, self.thread_slot(thread)))
    }
}

impl<M: ConstMachine> Region<M> {
    /// Sweeps every dead thread: each layer that lives in the region puts right what they left,
    /// then their slots are free. Returns how many there were.
    ///
    /// It claims 16 of the dead at a time. It costs a look at each slot that was ever used, a
    /// system call for each process found in them, and what the layers' repairs cost. Should the
    /// caller die on the way, the next sweeper goes on.
    ///
    /// # Errors
    ///
    /// [`Error::NoRepair`] if there are dead threads, and a layer for which this process has
    /// registered no repair: then none is freed. What a repair says: then those it was about stay
    /// as they are, and the others are swept. [`Error::Corrupt`] and the like, [`Error::Forked`],
    /// [`Error::View`].
    pub fn sweep(&self) -> Result<usize, Error> {
        self.sweep_with(None, None)
    }

    /// Has the layer of `own`, and those before it, repair what one dead thread left: for a thread
    /// that waits for a latch of that layer and finds its holder dead. True if that was done; the
    /// slot stays the dead one's, for a sweep. False if the thread is alive, if its slot is free,
    /// or if another thread sweeps it: the caller looks at the latch again.
    ///
    /// It is not the whole sweep because the caller may hold latches of its own layer. The repairs
    /// of later layers may wait for those, and would wait for ever.
    ///
    /// # Errors
    ///
    /// As [`sweep`](Self::sweep), for these layers.
    pub fn repair_upto(&self, own: &Arc<dyn Repair<M>>, thread: u32) -> Result<bool, Error> {
        // The claim lasts until the repairs are done: so the slot is nobody's meanwhile.
        let Some(dead) = self.dead_thread(thread)? else { return Ok(false) };
        let (repairs, upto) = (self.choose(Some(own)), own.layer());
        repairs.covers(self, upto)?;
        let mut first = repairs.0.iter().take_while(|repair| repair.layer() <= upto);
        first.try_for_each(|repair| repair.repair(core::slice::from_ref(&dead)))?;
        Ok(true)
    }

    /// As [`sweep`](Self::sweep), with this repair for its layer, in the place of what was
    /// registered for that. It claims no further threads after a deadline: those are the next
    /// sweep's. So a thread that waits for something of the dead is late by 16 of them at most.
    ///
    /// # Errors
    ///
    /// As [`sweep`](Self::sweep).
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
            // After the claims: what layers the dead had used is seen.
            repairs.covers(self, Layer::Store)?;
            let end = repairs.run(&batch);
            if end.is_ok() || batch.len() == 1 {
                batch.into_iter().for_each(|dead| done.end(dead, repairs, end));
            } else {
                // Each by itself, and none is claimed meanwhile: what one of them holds another may
                // wait for, and can have it put right then, or learns why it cannot be.
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

/// What a sweep has done.
#[derive(Default)]
struct Swept {
    /// How many slots are free now.
    count: usize,
    /// Those that could not be put right. They are claimed no longer: a thread that waits for what
    /// one of them holds finds it dead, and is told the same.
    stuck: Vec<u32>,
    /// Why the first of them could not.
    failed: Option<Error>,
}

impl Swept {
    /// Frees a slot, if the repairs went well.
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
                    // One that nothing leads to is free already, or nothing ever did.
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
