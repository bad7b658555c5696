//! Retention: pins, checkpoints, and the recycling of segments that are no longer needed. Also
//! decides when the control file is written.
//!
//! `oldest` is the beginning of the log. It is raised under the latch, to the minimum of the
//! requested place, the last checkpoint's redo point, all pins, and `flushed`. Then the segments
//! below it are recycled. A pin is also set under the latch, so it never lies in a segment that is
//! already given up.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_disk::Open;
use latchwork_machine::{ConstMachine, Word};

use crate::control::Control;
use crate::flush::Until;
use crate::layout::{Claimed, PINS, Shared, claim, unclaim};
use crate::options::YIELDS;
use crate::point::point;
use crate::{Error, Log, Lsn, Session};

/// How often per segment length the control file states the durable place. It also does so when a
/// segment has begun, and when there are durable bytes after a redo point.
const SAID: u64 = 8;

/// A checkpoint, made by the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The checkpoint's own record; [`Lsn::NEVER`] for none.
    pub lsn: Lsn,
    /// Recovery reads the log from here on.
    pub redo: Lsn,
    /// Whether neither redo nor rollback is needed.
    pub clean: bool,
}

/// A pin of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinInfo {
    /// The number of the pin.
    pub pin: u32,
    /// The name of the pin, at most 16 bytes.
    pub name: String,
    /// The place from which on the log is kept.
    pub lsn: Lsn,
    /// The thread slot that created the pin.
    pub slot: u32,
}

impl<M: ConstMachine> Session<M> {
    /// Keeps the log from `lsn` on, until [`unpin`](Self::unpin) or until this thread has died and
    /// was swept. [`Log::pins`] shows the first 16 bytes of the name. Returns the number of the
    /// pin.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Gone`] if the log begins after `lsn`, and [`Error::Pins`] if all pins are
    /// in use.
    pub fn pin(&self, name: &str, lsn: Lsn) -> Result<u32, Error> {
        let shared = self.log.shared()?;
        let mut bytes = [0; 16];
        let count = name.len().min(16);
        bytes[..count].copy_from_slice(&name.as_bytes()[..count]);
        let latched = self.latch()?;
        let oldest = Lsn(shared.append.oldest.load(Relaxed));
        let free = shared.pins.iter().position(|pin| pin.owner.load(Relaxed) == 0);
        let pinned = match free {
            _ if lsn < oldest => Err(Error::Gone { oldest }),
            None => Err(Error::Pins(PINS as u32)),
            Some(index) => {
                let (pin, words) = (&shared.pins[index], u128::from_le_bytes(bytes));
                pin.lsn.store(lsn.0, Relaxed);
                pin.name[0].store(words as u64, Relaxed);
                pin.name[1].store((words >> 64) as u64, Relaxed);
                // Release: a thread that is killed here has made the pin whole, or none.
                pin.owner.store(self.me(), Release);
                Ok(index as u32)
            }
        };
        drop(latched);
        pinned
    }

    /// Moves a pin of this thread up to `lsn`. Does nothing if the pin belongs to another thread or
    /// is already beyond `lsn`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn move_pin(&self, pin: u32, lsn: Lsn) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let latched = self.latch()?;
        if let Some(pin) = shared.pins.get(pin as usize)
            && pin.owner.load(Relaxed) == self.me()
            && pin.lsn.load(Relaxed) < lsn.0
        {
            pin.lsn.store(lsn.0, Relaxed);
        }
        drop(latched);
        Ok(())
    }

    /// Removes a pin of this thread. Does nothing if the pin belongs to another thread.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn unpin(&self, pin: u32) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let latched = self.latch()?;
        if let Some(pin) = shared.pins.get(pin as usize) {
            unclaim(&pin.owner, self.me());
        }
        drop(latched);
        Ok(())
    }

    /// Records a checkpoint: flushes the log up to the checkpoint's record, and writes the control
    /// file.
    ///
    /// The caller has made all changes durable that the log describes before `redo`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Gone`] for a redo point before that of the last checkpoint, which may be
    /// another thread's: the log before that point may be recycled. Returns [`Error::Disk`] if the
    /// disk fails; then the last checkpoint stays valid. Returns [`Error::Broken`] if a write or a
    /// sync of the log has failed.
    pub fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let needed = checkpoint.lsn.0.max(checkpoint.redo.0.saturating_sub(1));
        if shared.flushed.0.load(Relaxed) <= needed {
            self.advance(Lsn(needed), Until::Flushed)?;
        }
        self.with_maker(|| {
            let oldest = Lsn(shared.found.redo.load(Relaxed));
            if checkpoint.redo < oldest {
                return Err(Error::Gone { oldest });
            }
            self.write_control(shared, &checkpoint)
        })
    }

    /// Writes the control file. This thread has the maker's claim.
    fn write_control(&self, shared: &Shared<M>, checkpoint: &Checkpoint) -> Result<(), Error> {
        let (found, segments) = (&shared.found, &self.log.inner.segments);
        let sequence = found.sequence.load(Relaxed) + 1;
        // Acquire: synchronizes with the Release in `lead`.
        let flushed = Lsn(shared.flushed.0.load(Acquire));
        let control = Control {
            id: segments.id,
            sequence,
            spans: segments.spans,
            checkpoint: checkpoint.lsn,
            redo: checkpoint.redo,
            flushed,
            clean: checkpoint.clean,
            clearing: false,
        };
        let (at, bytes) = control.encode();
        let file = segments.disk.open(&segments.folder.join("control"), Open::WRITE)?;
        file.write(at, &bytes)?;
        point("control: written");
        file.sync()?;
        // Stored first: if this thread is killed here, the next thread writes the other block. No
        // thread knows the contents of this block yet, so they cause no recycling.
        found.sequence.store(sequence, Relaxed);
        point("control: counted");
        // Release, all: after the write of the file.
        found.redo.store(checkpoint.redo.0, Release);
        found.checkpoint.store(checkpoint.lsn.0, Release);
        found.clean.store(u64::from(checkpoint.clean), Release);
        found.said.store(flushed.0, Release);
        Ok(())
    }

    /// Writes the durable place to the control file from time to time, if no thread has the maker's
    /// claim. Recovery needs it for a log whose last segment is missing, with all records that
    /// would state the place. After an error the next flush tries again; until then the file keeps
    /// the old place.
    pub(crate) fn say_durable(&self, shared: &Shared<M>) {
        let (found, flushed) = (&shared.found, shared.flushed.0.load(Relaxed));
        let (spans, said) = (self.log.inner.segments.spans, found.said.load(Relaxed));
        // The segment of the last byte before a place.
        let segment = |place: u64| spans.number(place.saturating_sub(1));
        let known = flushed < said.saturating_add(spans.length(segment(flushed)) / SAID)
            && segment(flushed) == segment(said)
            && found.redo.load(Relaxed) < said;
        if known || !claim(&shared.maker.0, self.me()) {
            return;
        }
        let _claimed = Claimed { word: &shared.maker.0, me: self.me() };
        point("control: claimed");
        let (lsn, redo) = (Lsn(found.checkpoint.load(Relaxed)), Lsn(found.redo.load(Relaxed)));
        let clean = found.clean.load(Relaxed) != 0;
        let _ = self.write_control(shared, &Checkpoint { lsn, redo, clean });
    }

    /// Gives up the log before `upto`, except the part that a pin or a checkpoint needs. Returns
    /// where the log begins now.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if some segments could not be recycled; the next call tries again.
    pub fn recycle(&self, upto: Lsn) -> Result<Lsn, Error> {
        let shared = self.log.shared()?;
        let latched = self.latch()?;
        let pins = shared.pins.iter().filter(|pin| pin.owner.load(Relaxed) != 0);
        let pinned = pins.map(|pin| pin.lsn.load(Relaxed)).min().unwrap_or(u64::MAX);
        let limits = [shared.found.redo.load(Relaxed), shared.flushed.0.load(Relaxed), pinned];
        let oldest = limits.iter().fold(upto.0, |least, limit| least.min(*limit));
        let oldest = oldest.max(shared.append.oldest.load(Relaxed));
        shared.append.oldest.store(oldest, Relaxed);
        drop(latched);
        point("recycle: decided");
        let segments = &self.log.inner.segments;
        self.with_maker(|| segments.recycle_below(segments.spans.number(oldest)))?;
        Ok(Lsn(oldest))
    }

    /// Creates the segment that begins at `prepared`, or waits for the thread that does.
    pub(crate) fn make_segment(&self, prepared: u64) -> Result<(), Error> {
        let shared = self.log.shared()?;
        self.with_maker(|| self.make_next(shared, prepared))
    }

    /// Creates the next segment. This thread has the maker's claim.
    fn make_next(&self, shared: &Shared<M>, prepared: u64) -> Result<(), Error> {
        if shared.prepared.0.load(Relaxed) > prepared {
            return Ok(());
        }
        let segments = &self.log.inner.segments;
        // Acquire: synchronizes with the Release in `lead`.
        let flushed = Lsn(shared.flushed.0.load(Acquire));
        let number = segments.spans.number(prepared);
        segments.make(number, flushed)?;
        // Release: synchronizes with the Acquire in `grant`: the file exists.
        shared.prepared.0.store(segments.spans.end(number), Release);
        Ok(())
    }

    /// Creates the next segment if no other thread does. An error is ignored, because it occurs
    /// again where the segment is needed. The attempt is repeated only a few times on the way
    /// there: each one allocates a file's space and frees it.
    pub(crate) fn prepare_ahead(&self, prepared: u64, end: u64) {
        let Log { inner, .. } = &self.log;
        let spans = inner.segments.spans;
        let (stopped, step) = (inner.stopped_at.load(Relaxed), spans.length(spans.number(end)) / 8);
        if (stopped == 0 || end >= stopped + step)
            && let Ok(shared) = self.log.shared()
            && claim(&shared.maker.0, self.me())
        {
            let _claimed = Claimed { word: &shared.maker.0, me: self.me() };
            point("ahead: claimed");
            let made = self.make_next(shared, prepared);
            inner.stopped_at.store(if made.is_ok() { 0 } else { end }, Relaxed);
        }
    }

    /// Runs `work` with the maker's claim.
    fn with_maker<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let maker = &self.log.shared()?.maker.0;
        let mut looks = 0_u32;
        while !claim(maker, self.me()) {
            looks += 1;
            if looks < YIELDS {
                M::yield_now();
                continue;
            }
            self.nap();
            let other = maker.load(Relaxed);
            if self.log.is_dead(other) {
                self.log.for_dead(other, || unclaim(maker, other))?;
            }
        }
        let _claimed = Claimed { word: maker, me: self.me() };
        point("maker: claimed");
        work()
    }
}

impl<M: ConstMachine> Log<M> {
    /// Returns all pins, which keep the log. The pins are read one after another.
    pub fn pins(&self) -> Vec<PinInfo> {
        self.shared().map(pins_of).unwrap_or_default()
    }
}

/// Returns all pins. Each is read at its own instant.
pub(crate) fn pins_of<M: ConstMachine>(shared: &Shared<M>) -> Vec<PinInfo> {
    let pins = shared.pins.iter().enumerate();
    let info = |(index, pin): (usize, &crate::layout::Pin<M>)| {
        let owner = pin.owner.load(Relaxed);
        let name = pin.name.iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        (owner != 0).then(|| PinInfo {
            pin: index as u32,
            name: String::from_utf8_lossy(&name).into_owned(),
            lsn: Lsn(pin.lsn.load(Relaxed)),
            slot: (owner - 1) as u32,
        })
    };
    pins.filter_map(info).collect()
}
