//! What is kept of the log: pins, checkpoints, and the recycling of what nobody needs; and when the
//! control file is written.
//!
//! `oldest` is where the log begins. It moves up under the latch, to the least of what is asked
//! for, the last checkpoint's redo point, all pins, and `flushed`; then the segments below it
//! are recycled. A pin is set under the latch too, so it is below no segment that is already
//! given up.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_disk::Open;
use latchwork_machine::{ConstMachine, Word};

use crate::control::Control;
use crate::flush::Until;
use crate::layout::{Claimed, PINS, Shared, claim, unclaim};
use crate::options::YIELDS;
use crate::point::point;
use crate::{Error, Log, Lsn, Session};

/// The control file says what is durable this often in a segment's length, when a segment has
/// begun, and when there is something behind a redo point.
const SAID: u64 = 8;

/// A checkpoint, as the layer above has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The checkpoint's own record; [`Lsn::NEVER`] for none.
    pub lsn: Lsn,
    /// Recovery reads the log from here on.
    pub redo: Lsn,
    /// Whether nothing is to be redone or undone.
    pub clean: bool,
}

/// A pin, as found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinInfo {
    /// Its number.
    pub pin: u32,
    /// Its name, 16 bytes at most.
    pub name: String,
    /// The log is kept from here on.
    pub lsn: Lsn,
    /// The thread slot that made it.
    pub slot: u32,
}

impl<M: ConstMachine> Session<M> {
    /// Keeps the log from `lsn` on, until [`unpin`](Self::unpin) or until this thread is dead
    /// and swept. The name, of which 16 bytes count, is what [`Log::pins`] shows. Returns the
    /// pin's number.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] if the log begins later; [`Error::Pins`].
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

    /// Moves a pin of this thread up. It does nothing if the pin is another's, or already
    /// beyond.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
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

    /// Takes a pin of this thread away. It does nothing if the pin is another's.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn unpin(&self, pin: u32) -> Result<(), Error> {
        let shared = self.log.shared()?;
        let latched = self.latch()?;
        if let Some(pin) = shared.pins.get(pin as usize) {
            unclaim(&pin.owner, self.me());
        }
        drop(latched);
        Ok(())
    }

    /// Makes a checkpoint known: flushes the log up to its record, and writes the control file.
    ///
    /// The caller has made durable what the log says of all before `redo`.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for a redo point before that of the last checkpoint, perhaps another
    /// thread's: the log before that one may be given up. [`Error::Disk`]: then the last checkpoint
    /// still counts. [`Error::Broken`].
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

    /// Writes the control file, with the maker's claim.
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
        // First: behind a thread that is killed here the next one writes the other block, and by
        // what this one says, which is known to nobody then, nothing is recycled.
        found.sequence.store(sequence, Relaxed);
        point("control: counted");
        // Release, all: behind it.
        found.redo.store(checkpoint.redo.0, Release);
        found.checkpoint.store(checkpoint.lsn.0, Release);
        found.clean.store(u64::from(checkpoint.clean), Release);
        found.said.store(flushed.0, Release);
        Ok(())
    }

    /// Lets the control file say what is durable, now and then, if nobody has the maker's claim:
    /// for a log whose last segment is gone, with all records that would say it. What fails is
    /// tried again at the next flush; until then the file says what it said.
    pub(crate) fn say_durable(&self, shared: &Shared<M>) {
        let (found, flushed) = (&shared.found, shared.flushed.0.load(Relaxed));
        let (spans, said) = (self.log.inner.segments.spans, found.said.load(Relaxed));
        // Of the segment that the last byte before a place is in.
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

    /// Gives up the log before `upto`, as far as no pin and no checkpoint needs it. Returns
    /// where the log begins now.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`]: some segments are left, for the next call.
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

    /// Makes the segment that begins at `prepared`, or waits for the thread that does.
    pub(crate) fn make_segment(&self, prepared: u64) -> Result<(), Error> {
        let shared = self.log.shared()?;
        self.with_maker(|| self.make_next(shared, prepared))
    }

    /// The same, with the maker's claim.
    fn make_next(&self, shared: &Shared<M>, prepared: u64) -> Result<(), Error> {
        if shared.prepared.0.load(Relaxed) > prepared {
            return Ok(());
        }
        let segments = &self.log.inner.segments;
        // Acquire: synchronizes with the Release in `lead`.
        let flushed = Lsn(shared.flushed.0.load(Acquire));
        let number = segments.spans.number(prepared);
        segments.make(number, flushed)?;
        // Release: synchronizes with the Acquire in `reserve_slow`: the file is there.
        shared.prepared.0.store(segments.spans.end(number), Release);
        Ok(())
    }

    /// Makes the next segment if nobody does. What fails will fail again where it matters: it is
    /// tried a few times on the way there, for each time it sets a file's room aside and gives it
    /// back.
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

    /// Does something with the maker's claim.
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
    /// All pins: what keeps the log. A snapshot.
    pub fn pins(&self) -> Vec<PinInfo> {
        self.shared().map(pins_of).unwrap_or_default()
    }
}

/// All pins, of one moment each.
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
