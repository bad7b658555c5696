//! Inspects a log without taking part in it: no slot, no latch, no store to shared memory.
//!
//! Words are read one after another, so two of them may be of different instants.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Native, Word};
use latchwork_region::{Area, AreaOptions, Error as RegionError, Region};

use crate::group::{Request, State};
use crate::layout::{SLOT_WORDS, Shared, Slot};
use crate::log::{Log, shared_in, slot_in};
use crate::pins::{PinInfo, pins_of};
use crate::{Error, Lsn};

/// A view of a log, which changes nothing.
#[derive(Debug)]
pub struct LogView<M: ConstMachine = Native> {
    area: Area<M>,
}

/// A claim on a log that a thread holds while it works, and for which other threads wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogWork {
    /// The thread gives places to records, or copies a record to its place. No append returns
    /// before it finishes.
    Append,
    /// The thread writes the log to its files, or syncs them. Commits that must be durable wait for
    /// it.
    Flush,
    /// The thread creates or recycles a segment, or writes the control file.
    Segment,
}

impl<M: ConstMachine> LogView<M> {
    /// Inspects the log of a region, which may be a [view](Region::view). Returns `None` if the
    /// region has no log.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn open(region: &Region<M>) -> Result<Option<Self>, Error> {
        // An existing area keeps its own sizes.
        let sizes = AreaOptions { first: 1 << 16, limit: 1 << 16, huge: false };
        let area = match region.area("log", &sizes) {
            Ok(area) => area,
            Err(RegionError::NotFound) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        let view = Self { area };
        // Acquire: synchronizes with the Release in `open`: all that was opened is seen.
        let ready = view.shared()?.ready.load(Acquire) != 0;
        Ok(ready.then_some(view))
    }

    fn shared(&self) -> Result<&Shared<M>, Error> {
        shared_in(&self.area)
    }

    /// Returns how many thread slots the log has.
    fn threads(&self) -> Result<u32, Error> {
        let room = (self.area.words()? / SLOT_WORDS).min(1 << 16);
        // Relaxed: a number that does not change.
        Ok(self.shared()?.threads.load(Relaxed).min(room) as u32)
    }

    fn slot_of(&self, slot: u32) -> Result<&Slot<M>, Error> {
        if slot >= self.threads()? {
            return Err(Error::Threads(slot));
        }
        slot_in(&self.area, slot)
    }

    /// Returns four positions: the end, the durable end, the start of redo after a crash, and the
    /// beginning of the log.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn ends(&self) -> Result<[Lsn; 4], Error> {
        let shared = self.shared()?;
        // Relaxed, all: they are printed, and no decision depends on them.
        let all = [&shared.end.0, &shared.flushed.0, &shared.found.redo, &shared.append.oldest];
        Ok(all.map(|word| Lsn(word.load(Relaxed))))
    }

    /// Returns the place up to which the log is written to its files.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn written(&self) -> Result<Lsn, Error> {
        Ok(Lsn(self.shared()?.written.0.load(Relaxed)))
    }

    /// Returns how many transactions the slot's threads have committed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn commits_of(&self, slot: u32) -> Result<u64, Error> {
        Ok(self.slot_of(slot)?.commits.load(Relaxed))
    }

    /// Returns the first record of the slot's transaction that has no end; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the log has no such slot, and [`Error::Region`] if the region
    /// fails or was opened before a fork.
    pub fn open_of(&self, slot: u32) -> Result<Option<Lsn>, Error> {
        let first = self.slot_of(slot)?.first.load(Relaxed);
        Ok((first != 0).then_some(Lsn(first)))
    }

    /// Lists the claims on the log, with the thread slots that hold them.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn work(&self) -> Result<Vec<(u32, LogWork)>, Error> {
        let shared = self.shared()?;
        let appends = shared.append.latch.holder().map(|(holder, _)| holder.get() - 1);
        let claim = |word: &M::AtomicU64| word.load(Relaxed).checked_sub(1).map(|slot| slot as u32);
        let mut found = vec![
            (appends, LogWork::Append),
            (claim(&shared.flusher.0), LogWork::Flush),
            (claim(&shared.maker.0), LogWork::Segment),
        ];
        for group in &shared.groups {
            for word in group.requests() {
                let request = Request(word.load(Relaxed));
                if request.state() == State::Copying {
                    found.push((request.slot(), LogWork::Append));
                }
            }
        }
        let mut all = Vec::new();
        for (slot, work) in found {
            all.extend(slot.map(|slot| (slot, work)).filter(|known| !all.contains(known)));
        }
        Ok(all)
    }

    /// Lists the pins of the log.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn pins(&self) -> Result<Vec<PinInfo>, Error> {
        Ok(pins_of(self.shared()?))
    }
}

impl<M: ConstMachine> Log<M> {
    /// Returns a view of the same log.
    pub fn view(&self) -> LogView<M> {
        LogView { area: self.inner.area.clone() }
    }
}
