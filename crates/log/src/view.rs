//! Inspects a log without taking part in it: no slot, no latch, no store to shared memory.
//!
//! Words are read one after another, so two of them may be of different instants.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Native, Word};
use latchwork_region::{Area, AreaOptions, Error as RegionError, Region};

use crate::layout::{SLOT_WORDS, Shared, Slot};
use crate::log::{Log, shared_in, slot_in};
use crate::pins::{PinInfo, pins_of};
use crate::{Error, Lsn};

/// A log that is only looked at.
#[derive(Debug)]
pub struct LogView<M: ConstMachine = Native> {
    area: Area<M>,
}

/// A claim on a log that a thread holds while it works, and for which other threads wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogWork {
    /// It appends a record: no other thread can write.
    Append,
    /// It writes the log to its files, or syncs them: commits that are to be durable wait.
    Flush,
    /// It makes or recycles a segment, or writes the control file.
    Segment,
}

impl<M: ConstMachine> LogView<M> {
    /// Inspects the log of a region, which may be a [view](Region::view); none if it has no log.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn open(region: &Region<M>) -> Result<Option<Self>, Error> {
        // An existing area keeps its own sizes.
        let sizes = AreaOptions { first: 1 << 16, limit: 1 << 16, huge: false };
        let area = match region.area("log", &sizes) {
            Ok(area) => area,
            Err(RegionError::NotFound) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        let view = Self { area };
        // Acquire: synchronizes with the Release in `open`: what is opened is seen.
        let ready = view.shared()?.ready.load(Acquire) != 0;
        Ok(ready.then_some(view))
    }

    fn shared(&self) -> Result<&Shared<M>, Error> {
        shared_in(&self.area)
    }

    /// How many thread slots the log has.
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

    /// Four positions: the end, the durable end, the start of redo after a crash, the beginning.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn ends(&self) -> Result<[Lsn; 4], Error> {
        let shared = self.shared()?;
        // Relaxed, all: they are printed, and no decision depends on them.
        let all = [&shared.end.0, &shared.flushed.0, &shared.found.redo, &shared.append.oldest];
        Ok(all.map(|word| Lsn(word.load(Relaxed))))
    }

    /// How far the log is in its files.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn written(&self) -> Result<Lsn, Error> {
        Ok(Lsn(self.shared()?.written.0.load(Relaxed)))
    }

    /// The number of transactions that the slot's threads have committed.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn commits_of(&self, slot: u32) -> Result<u64, Error> {
        Ok(self.slot_of(slot)?.commits.load(Relaxed))
    }

    /// The first record of the slot's transaction that has no end; none if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`], [`Error::Region`].
    pub fn open_of(&self, slot: u32) -> Result<Option<Lsn>, Error> {
        let first = self.slot_of(slot)?.first.load(Relaxed);
        Ok((first != 0).then_some(Lsn(first)))
    }

    /// Lists the claims on the log, with the thread slots that hold them.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn work(&self) -> Result<Vec<(u32, LogWork)>, Error> {
        let shared = self.shared()?;
        let appends = shared.append.latch.holder().map(|(holder, _)| holder.get() - 1);
        let claim = |word: &M::AtomicU64| word.load(Relaxed).checked_sub(1).map(|slot| slot as u32);
        let found = [
            (appends, LogWork::Append),
            (claim(&shared.flusher.0), LogWork::Flush),
            (claim(&shared.maker.0), LogWork::Segment),
        ];
        Ok(found.into_iter().filter_map(|(slot, work)| Some((slot?, work))).collect())
    }

    /// Lists the pins of the log.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn pins(&self) -> Result<Vec<PinInfo>, Error> {
        Ok(pins_of(self.shared()?))
    }
}

impl<M: ConstMachine> Log<M> {
    /// The same log, to be looked at.
    pub fn view(&self) -> LogView<M> {
        LogView { area: self.inner.area.clone() }
    }
}
