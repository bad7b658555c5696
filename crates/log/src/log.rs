//! The log as seen by one process, and the session of a thread.

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use std::path::Path;
use std::sync::{Arc, Weak};

use latchwork_disk::Disk;
use latchwork_latch::{Holder, HolderNumber, OptLatch};
use latchwork_machine::{ConstMachine, Deadline, Native, Word};
use latchwork_region::{Area, AreaOptions, Error as RegionError, Region, Repair, Thread};

use crate::buffer::Size;
use crate::layout::{Claimed, SLOT_WORDS, SLOTS_AT, Shared, Slot, claim, unclaim};
use crate::options::{Options, Recovered, YIELDS};
use crate::point::point;
use crate::record::RECORD_MAX;
use crate::segment::Segments;
use crate::spans::Spans;
use crate::{Error, Lsn, Record};

/// The number of threads that are granted the largest portions of credit.
const FEW: u64 = 64;

/// A log, opened in this process. Clones refer to the same log.
pub struct Log<M: ConstMachine = Native> {
    pub(crate) inner: Arc<Inner<M>>,
}

impl<M: ConstMachine> Clone for Log<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<M: ConstMachine> {
    pub(crate) area: Area<M>,
    pub(crate) segments: Segments,
    /// The maximum size of the buffer in bytes.
    pub(crate) buffer: u64,
    /// The word of the area at which the buffer begins.
    pub(crate) buffer_at: u64,
    /// The LSN at that word.
    pub(crate) buffer_base: u64,
    pub(crate) threads: u32,
    /// The initial value of checksums.
    pub(crate) seed: u32,
    pub(crate) nap: Duration,
    /// The end of the log when this process failed to create a segment ahead; 0 if it did not fail.
    pub(crate) stopped_at: M::AtomicU64,
    pub(crate) recovered: Recovered,
    /// The log's part of a sweep, registered with the region until this is dropped.
    repair: Arc<dyn Repair<M>>,
}

/// The log's part of a sweep.
pub(crate) struct LogRepair<M: ConstMachine> {
    pub(crate) log: Weak<Inner<M>>,
}

/// The session of one thread in a log. It lives as long as the thread slot, and a slot has at most
/// one session in use at a time.
pub struct Session<M: ConstMachine = Native> {
    pub(crate) log: Log<M>,
    pub(crate) slot: u32,
    number: HolderNumber,
}

impl<M: ConstMachine> Log<M> {
    /// Opens the log in `folder`. Creates the log if it does not exist, joins the processes that
    /// have it open, or finds the end of its files after a crash. Every process makes the same
    /// call, with a thread slot of the region.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LogDamaged`], [`Error::Corrupt`], [`Error::NoControl`] or
    /// [`Error::Version`] for the files, [`Error::Options`] for an invalid option,
    /// [`Error::Threads`] if the region has more thread slots than latches can name, and the errors
    /// of the disk and the region.
    ///
    /// # Death
    ///
    /// If a thread dies while it opens the log, another thread starts over.
    pub fn open(
        region: &Region<M>,
        disk: Arc<dyn Disk>,
        folder: &Path,
        options: &Options,
        thread: &Thread<M>,
    ) -> Result<Self, Error> {
        options.check()?;
        // Any thread of the region may have to repair the log, and sweepers have the last slots.
        if region.thread_slots() > HolderNumber::MAX {
            return Err(Error::Threads(region.thread_slots() - 1));
        }
        let slots = u64::from(options.threads) * SLOT_WORDS;
        let (buffer_at, at_first) = (SLOTS_AT + slots, Size::first(options).bytes());
        let bytes = |buffer: u64| buffer_at * 8 + buffer;
        let (first, limit) = (bytes(at_first), bytes(options.buffer));
        let area = region.area("log", &AreaOptions { first, limit, huge: false })?;
        let shared = shared_in(&area)?;
        let me = u64::from(thread.generation()?) << 32 | u64::from(thread.number() + 1);
        // Acquire: synchronizes with the Release below, so that all that was opened is seen.
        let mut looks = 0_u32;
        while shared.ready.load(Acquire) == 0 {
            number_of(thread.number(), options.threads)?;
            point("open: looked");
            let other = shared.opening.load(Relaxed);
            if other != 0 && other != me && is_over(region, other) {
                unclaim(&shared.opening, other);
            }
            if other != me && !claim(&shared.opening, me) {
                looks = looks.saturating_add(1);
                pause::<M>(looks, options.nap);
                continue;
            }
            let _claimed = Claimed { word: &shared.opening, me };
            // Acquire: synchronizes with the Release in `unclaim`: another thread may have opened
            // the log since the check, and an open log must not be opened a second time.
            if shared.ready.load(Acquire) != 0 {
                break;
            }
            // A thread that died before it had opened the log may have created the area with a
            // smaller size.
            if area.limit() < buffer_at + options.buffer / 8 {
                return Err(RegionError::OutOfArea(area.limit()).into());
            }
            area.grow(buffer_at + at_first / 8)?;
            let recovered =
                crate::recover::open(shared, &disk, folder, options, region.creation())?;
            // Release: synchronizes with the Acquire above.
            shared.ready.store(1, Release);
            return Self::join(area.clone(), disk, folder, options, Some(recovered));
        }
        let log = Self::join(area, disk, folder, options, None)?;
        number_of(thread.number(), log.threads())?;
        Ok(log)
    }

    /// Returns how many thread slots of the region may append, as given by the process that opened
    /// the log first.
    pub fn threads(&self) -> u32 {
        self.inner.threads
    }

    /// Returns how many bytes of credit a thread is granted at a time and may keep while idle. The
    /// number is larger while few thread slots have been used. All threads together keep at most
    /// three quarters of the buffer.
    pub fn portion(&self) -> u64 {
        let size = self.shared().and_then(|shared| self.buffer_size(shared));
        // A growing buffer may reach its maximum size.
        let bytes =
            size.map_or(0, |size| if size.is_final() { size.bytes() } else { self.inner.buffer });
        // Thread n keeps at most `few / max(n, FEW)`: in sum, of 16,383 threads, 6.5 x `few`.
        let few = bytes / 16 / u64::from(self.slots_used()).max(FEW);
        few.max(bytes / 4 / u64::from(self.inner.threads))
    }

    /// Joins a log that is open.
    fn join(
        area: Area<M>,
        disk: Arc<dyn Disk>,
        folder: &Path,
        options: &Options,
        recovered: Option<Recovered>,
    ) -> Result<Self, Error> {
        let shared = shared_in(&area)?;
        let (buffer, segment) = (shared.buffer.load(Relaxed), shared.segment.load(Relaxed));
        let threads = shared.threads.load(Relaxed);
        let kept = Options {
            buffer,
            segment,
            threads: u32::try_from(threads).map_err(|_| Error::Corrupt { what: "area" })?,
            ..*options
        };
        kept.check().map_err(|_| Error::Corrupt { what: "area" })?;
        let buffer_at = SLOTS_AT + threads * SLOT_WORDS;
        let buffer_base = shared.buffer_from.load(Relaxed);
        if area.limit() < buffer_at + buffer / 8 {
            return Err(Error::Corrupt { what: "area" });
        }
        let id =
            u128::from(shared.id[0].load(Relaxed)) | u128::from(shared.id[1].load(Relaxed)) << 64;
        let found = &shared.found;
        let recovered = recovered.unwrap_or(Recovered {
            warm: true,
            redo: Lsn(found.redo.load(Relaxed)),
            checkpoint: Lsn(found.checkpoint.load(Relaxed)),
            end: Lsn(found.end.load(Relaxed)),
            clean: found.clean.load(Relaxed) == 1,
        });
        let spans = Spans::new(shared.first_segment.load(Relaxed), segment);
        let spans = spans.ok_or(Error::Corrupt { what: "area" })?;
        let segments = Segments::new(disk, folder, id, spans);
        let (threads, seed, nap) = (kept.threads, id as u32, options.nap);
        let region = area.region().clone();
        let inner = Arc::new_cyclic(|log: &Weak<Inner<M>>| {
            let repair: Arc<dyn Repair<M>> = Arc::new(LogRepair { log: log.clone() });
            let stopped_at = M::U64;
            Inner {
                area,
                segments,
                buffer,
                buffer_at,
                buffer_base,
                threads,
                seed,
                nap,
                stopped_at,
                recovered,
                repair,
            }
        });
        region.register(&inner.repair)?;
        Ok(Self { inner })
    }

    /// Creates the session of this thread slot.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Threads`] if the slot's number is not below [`Options::threads`].
    pub fn session(&self, thread: &Thread<M>) -> Result<Session<M>, Error> {
        let number = number_of(thread.number(), self.inner.threads)?;
        Ok(Session { log: self.clone(), slot: thread.number(), number })
    }

    /// Returns the maximum size of the buffer and the full size of a segment, in bytes.
    pub fn sizes(&self) -> (u64, u64) {
        (self.inner.buffer, self.inner.segments.spans.size())
    }

    /// Returns the state that was found when this process opened the log.
    pub fn recovered(&self) -> Recovered {
        self.inner.recovered
    }

    /// Returns the identity of the log's files.
    pub fn id(&self) -> u128 {
        self.inner.segments.id
    }

    /// Returns the end of the log: the place after the last whole record.
    pub fn end(&self) -> Lsn {
        // Acquire: synchronizes with the Release in `publish`: the records before it are whole.
        self.look(|shared| shared.end.0.load(Acquire))
    }

    /// Returns the place up to which the log is written to its files.
    pub fn written(&self) -> Lsn {
        // Acquire: synchronizes with the Release in `lead`.
        self.look(|shared| shared.written.0.load(Acquire))
    }

    /// Returns the place up to which the log is durable.
    pub fn flushed(&self) -> Lsn {
        // Acquire: synchronizes with the Release in `lead`.
        self.look(|shared| shared.flushed.0.load(Acquire))
    }

    /// Returns the place from which on the log is kept.
    pub fn oldest(&self) -> Lsn {
        self.look(|shared| shared.append.oldest.load(Relaxed))
    }

    /// Returns where the log was last [marked](Session::mark). The value is a hint until a record
    /// is [appended since](Session::append_since) it.
    #[inline]
    pub fn marked(&self) -> Lsn {
        self.look(|shared| shared.found.marked.load(Relaxed))
    }

    /// Returns whether a write or a sync has failed in any process: see [`Error::Broken`].
    pub fn is_broken(&self) -> bool {
        self.look(|shared| shared.broken.0.load(Relaxed)).0 != 0
    }

    /// Returns the maximum size of a record of this log, in bytes.
    pub fn record_max(&self) -> u64 {
        (self.inner.buffer / 8).min(RECORD_MAX as u64)
    }

    /// Returns a shared word; zero in the child of a fork.
    fn look(&self, word: impl FnOnce(&Shared<M>) -> u64) -> Lsn {
        Lsn(self.shared().map_or(0, word))
    }

    pub(crate) fn shared(&self) -> Result<&Shared<M>, Error> {
        shared_in(&self.inner.area)
    }

    pub(crate) fn slot_of(&self, slot: u32) -> Result<&Slot<M>, Error> {
        if slot >= self.inner.threads {
            return Err(Error::Threads(slot));
        }
        slot_in(&self.inner.area, slot)
    }

    /// Returns how many thread slots were ever used.
    pub(crate) fn slots_used(&self) -> u32 {
        self.inner.area.region().threads_high().min(self.inner.threads)
    }

    /// Returns whether the thread with this number in claims is dead. It may have been swept since.
    pub(crate) fn is_dead(&self, number: u64) -> bool {
        number != 0 && self.inner.area.region().is_dead((number - 1) as u32)
    }

    /// Runs `repair` for the dead thread with this number, while this process has claimed its slot,
    /// so that the number belongs to no living thread during the call. If the slot is free, it has
    /// no thread, and is kept free during the call. Returns `None` if `repair` did not run.
    pub(crate) fn for_dead<R>(
        &self,
        number: u64,
        repair: impl FnOnce() -> R,
    ) -> Result<Option<R>, Error> {
        let region = self.inner.area.region();
        let mut dead = region.dead_threads()?;
        if let Some(_claimed) = dead.find(|dead| u64::from(dead.number()) + 1 == number) {
            return Ok(Some(repair()));
        }
        drop(dead);
        Ok(region.while_free((number - 1) as u32, repair)?)
    }
}

impl<M: ConstMachine> Session<M> {
    /// Creates the session of a repairing thread. Its slot may belong to the sweepers, which append
    /// nothing.
    pub(crate) fn of_sweeper(log: &Log<M>, thread: &Thread<M>) -> Result<Self, Error> {
        let slot = thread.number();
        let number = HolderNumber::new(slot + 1).ok_or(Error::Threads(slot))?;
        Ok(Self { log: log.clone(), slot, number })
    }

    /// Returns the log.
    pub fn log(&self) -> &Log<M> {
        &self.log
    }

    /// Returns the number of the thread slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the thread's number in claims.
    pub(crate) fn me(&self) -> u64 {
        u64::from(self.number.get())
    }

    /// Builds a record of this slot, with its checksum.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the record or a field of its header is too large.
    pub fn build(&self, head: &crate::Head, payload: &[&[u8]]) -> Result<Record, Error> {
        self.build_for(self.slot, head, payload)
    }

    /// Builds a record that names another slot, to undo the changes of a dead thread. The record
    /// must be [`SYSTEM`](crate::Flags::SYSTEM), because it belongs to no transaction of this slot.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the record or a field of its header is too large.
    pub fn build_for(
        &self,
        slot: u32,
        head: &crate::Head,
        payload: &[&[u8]],
    ) -> Result<Record, Error> {
        let mut record = Record::default();
        self.rebuild_for(&mut record, slot, head, payload)?;
        Ok(record)
    }

    /// Builds the same record as [`build_for`](Self::build_for), in the memory of a record that is
    /// no longer needed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the record or a field of its header is too large.
    pub fn rebuild_for(
        &self,
        record: &mut Record,
        slot: u32,
        head: &crate::Head,
        payload: &[&[u8]],
    ) -> Result<(), Error> {
        let limit = self.log.record_max();
        let length = payload.iter().map(|part| part.len()).sum();
        if Record::size(length) as u64 > limit {
            return Err(Error::TooLarge { limit });
        }
        let (seed, durable) = (self.log.inner.seed, self.log.shared()?.known_durable());
        record.rebuild(seed, slot, durable, head, payload).ok_or(Error::TooLarge { limit })
    }
}

impl<M: ConstMachine> Drop for Session<M> {
    /// Returns the remaining credit to the log, except in the child of a fork.
    fn drop(&mut self) {
        if self.log.inner.area.region().check().is_ok() {
            let _ = self.give_back(0);
        }
    }
}

impl<M: ConstMachine> Holder<M> for Session<M> {
    fn number(&self) -> HolderNumber {
        self.number
    }

    fn name(&self, latch: &OptLatch<M>) -> u64 {
        match self.log.inner.area.region().has_file() {
            // The latch has a different address in each process. Frames of a pool have other names.
            true => u64::MAX - 1,
            // Logs of this process alone share one table of waiters.
            false => (&raw const *latch).addr() as u64,
        }
    }

    fn nap(&self) -> Option<Duration> {
        Some(self.log.inner.nap)
    }

    fn is_dead(&self, number: HolderNumber) -> bool {
        self.log.is_dead(u64::from(number.get()))
    }
}

/// Returns the words of a slot. The number must be below the number of the log's slots.
pub(crate) fn slot_in<M: ConstMachine>(area: &Area<M>, slot: u32) -> Result<&Slot<M>, Error> {
    let at = SLOTS_AT + u64::from(slot) * SLOT_WORDS;
    // SAFETY: the words of slot `slot`, which have this type in every use.
    Ok(unsafe { area.resolve(at) }?)
}

/// Returns the shared words at the beginning of the log's area.
pub(crate) fn shared_in<M: ConstMachine>(area: &Area<M>) -> Result<&Shared<M>, Error> {
    // SAFETY: these words are a `Shared` in every use; the slots and the buffer come after them.
    Ok(unsafe { area.resolve(0) }?)
}

fn number_of(slot: u32, threads: u32) -> Result<HolderNumber, Error> {
    let number = HolderNumber::new(slot + 1).filter(|_| slot < threads);
    number.ok_or(Error::Threads(slot))
}

/// Yields, and naps after many yields.
fn pause<M: ConstMachine>(looks: u32, nap: Duration) {
    if looks < YIELDS {
        return M::yield_now();
    }
    let word = M::U32;
    M::wait(&word, 0, Some(Deadline::after::<M>(nap)));
}

/// Returns whether the thread that opens the files is dead. Slot and generation distinguish it from
/// a later thread of the slot.
fn is_over<M: ConstMachine>(region: &Region<M>, claim: u64) -> bool {
    let (slot, generation) = ((claim as u32).wrapping_sub(1), (claim >> 32) as u32);
    let now = region.threads().find(|thread| thread.slot == slot);
    region.is_dead(slot) || now.is_none_or(|thread| thread.generation != generation)
}

impl<M: ConstMachine> fmt::Debug for Log<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("end", &self.end().0)
            .field("written", &self.written().0)
            .field("flushed", &self.flushed().0)
            .field("oldest", &self.oldest().0)
            .field("broken", &self.is_broken())
            .finish()
    }
}

impl<M: ConstMachine> fmt::Debug for Session<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.slot)
    }
}
