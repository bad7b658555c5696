//! Flushing: one leader writes and syncs for all threads; the others wait.
//!
//! Group commit by a leader and followers, as in Berkeley DB and PostgreSQL: the followers that
//! arrive while a leader syncs form the next group. Before it begins, the next leader waits a
//! moment for the threads that the last sync released (`gather.rs`).
//!
//! | a thread that waits for durability | action |
//! |---|---|
//! | finds `flushed` past its record | returns |
//! | finds `flusher` free | claims it, gathers, writes, syncs, releases it, wakes the others |
//! | finds it claimed | stores the LSN it waits for in its slot, checks again, sleeps |
//! | wakes from a nap | checks whether the claimant is dead |
//!
//! | the leader dies | left | repaired by |
//! |---|---|---|
//! | before `written` is stored | bytes in a file | the next leader, which writes them again |
//! | before `flushed` is stored | bytes not synced | the next leader, which syncs them |
//! | in the sync | perhaps an unreported failure | the next leader, which writes once more |
//! | with all processes | perhaps a failure of the system's writeback | the next leader, as above |
//! | before it wakes followers | sleepers | their naps |
//!
//! A leader that is stopped but not dead delays all commits. Other threads cannot distinguish it
//! from a slow one.
//!
//! A failed sync is final, even for lack of space. A failed write is final unless the cause is lack
//! of space or a missing permission to open the file. The system may have marked as clean the pages
//! that it could not write, so a later successful sync proves nothing. A panic of a leader is also
//! final, because its thread lives and would keep the claim. In these cases `broken` is set, all
//! waiting threads return [`Error::Broken`], and the files must be opened in a new region, which
//! writes the doubtful bytes once more.
//!
//! Memory order: a follower stores `waits`, fences, loads the frontier and `flusher`; the leader
//! stores those, fences, loads `waits`. Both fences are SeqCst, so at least one sees the other.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;

use latchwork_disk::{Error as DiskError, Operation};
use latchwork_machine::{Clock, ConstMachine, Deadline, Integer, Waited, Word};

use crate::buffer::Buffer;
use crate::layout::{Shared, WRITTEN, claim, unclaim};
use crate::point::point;
use crate::{Error, Log, Lsn, Session};

/// Bytes copied from the buffer and written per call.
const CHUNK: usize = 256 << 10;

/// A bit of `syncing` that no position has, because positions are multiples of 8. It is set when
/// the bytes that a dead leader was about to make durable have been written again.
const AGAIN: u64 = 1;

/// The point at which a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The commit returns when its record is durable.
    #[default]
    Full,
    /// The commit returns when its record is in the buffer. The record survives the death of all
    /// processes.
    ///
    /// The log is flushed when this much time has passed since the last flush, by the next commit
    /// in this mode, or where a program calls [`Session::tick`] or a store's `sync`. No background
    /// thread flushes it, so the last commits before a pause stay unflushed. A crash of the machine
    /// loses the records that were not flushed.
    Periodic(Duration),
    /// The commit returns when its record is written to the file, but not synced.
    Write,
    /// The commit returns when its record is in the buffer. A crash of the machine loses the
    /// records that were not flushed.
    None,
}

/// The state that a record must have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Written,
    Flushed,
}

impl<M: ConstMachine> Session<M> {
    /// Waits until the record at `lsn`, and all records before it, are as durable as the mode
    /// requires.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`flush`](Self::flush) in the modes that wait. After an error it is
    /// unknown whether the record survives a crash.
    pub fn commit(&self, lsn: Lsn, mode: Mode) -> Result<(), Error> {
        match mode {
            Mode::Full => self.flush(lsn),
            Mode::Write => self.advance(lsn, Until::Written),
            Mode::Periodic(period) => self.tick(period).map(drop),
            Mode::None => Ok(()),
        }
    }

    /// Waits until the record that begins at `lsn`, and all records before it, are durable.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if a file cannot be opened or there is no room; the call can then be
    /// repeated. Returns [`Error::Broken`] if a write or a sync of the log has failed, and
    /// [`Error::NotARecord`] for an `lsn` beyond the log's end.
    ///
    /// # Death
    ///
    /// If the leader dies, a thread that waits for it takes over after a nap.
    pub fn flush(&self, lsn: Lsn) -> Result<(), Error> {
        self.advance(lsn, Until::Flushed)
    }

    /// Flushes the log if the last flush was at least `period` ago and no thread is flushing.
    /// Returns whether it flushed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`flush`](Self::flush).
    pub fn tick(&self, period: Duration) -> Result<bool, Error> {
        let shared = self.log.shared()?;
        self.check_broken(shared)?;
        if !is_due(shared, period) {
            return Ok(false);
        }
        // A dead leader may never have a follower, so it is checked for once it is late.
        if is_due(shared, period.saturating_mul(2)) {
            self.forget_dead_leader(shared)?;
        }
        if !claim(&shared.flusher.0, self.me()) {
            return Ok(false);
        }
        self.lead_and_wake(shared, Until::Flushed)?;
        Ok(true)
    }

    pub(crate) fn advance(&self, lsn: Lsn, until: Until) -> Result<(), Error> {
        let shared = self.log.shared()?;
        if until == Until::Flushed && !self.arrived(shared, lsn, until) {
            shared.gather.ask();
        }
        loop {
            if self.arrived(shared, lsn, until) {
                return Ok(());
            }
            self.check_broken(shared)?;
            // Acquire: synchronizes with the Release in `publish`.
            if shared.end.0.load(Acquire) <= lsn.0 {
                return Err(Error::NotARecord(lsn));
            }
            if claim(&shared.flusher.0, self.me()) {
                if self.arrived(shared, lsn, until) {
                    unclaim(&shared.flusher.0, self.me());
                    self.log.wake(shared)?;
                } else {
                    if until == Until::Flushed {
                        shared.gather.wait();
                    }
                    self.lead_and_wake(shared, until)?;
                }
            } else {
                self.follow(shared, lsn, until)?;
            }
        }
    }

    fn arrived(&self, shared: &Shared<M>, lsn: Lsn, until: Until) -> bool {
        let frontier = match until {
            Until::Written => &shared.written.0,
            Until::Flushed => &shared.flushed.0,
        };
        // Acquire: synchronizes with the Release in `lead`.
        frontier.load(Acquire) > lsn.0
    }

    /// Leads, with the claim held. Then releases the claim and wakes the waiting threads, also
    /// after an error.
    fn lead_and_wake(&self, shared: &Shared<M>, until: Until) -> Result<(), Error> {
        let leading = Leading { session: self, shared };
        let led = self.lead(shared, until);
        core::mem::forget(leading);
        let led = led.map_err(|error| match error {
            // The write can be repeated: the bytes are still in the buffer. If this process cannot
            // open the file or read its header, another process may lead.
            Error::Disk(ref why)
                if matches!(why.subject().operation, Operation::Open | Operation::Read) =>
            {
                error
            }
            Error::Disk(DiskError::NoSpace(ref of)) if of.operation != Operation::Sync => error,
            _ => {
                // Release: the failure came before; no thread relies on later stores.
                shared.broken.0.store(1, Release);
                Error::Broken
            }
        });
        unclaim(&shared.flusher.0, self.me());
        point("flush: unclaimed");
        self.log.wake(shared)?;
        led
    }

    /// Writes the contents of the buffer to the files, and makes them durable.
    fn lead(&self, shared: &Shared<M>, until: Until) -> Result<(), Error> {
        point("flush: claimed");
        // Checked again under the claim: the previous leader may have failed.
        self.check_broken(shared)?;
        // Acquire: synchronizes with the Release in `publish`: all records below it are whole.
        let end = shared.end.0.load(Acquire);
        let (buffer, segments) = (self.log.buffer()?, &self.log.inner.segments);
        // Acquire: synchronizes with the Release below, of the leader before.
        let mut at = shared.written.0.load(Acquire);
        if end.checked_sub(at).is_none_or(|behind| behind > self.log.inner.buffer) {
            return Err(Error::Corrupt { what: "a frontier" });
        }
        // Relaxed, here and below: the claim orders, and a thread that dies has made its stores.
        let syncing = shared.found.syncing.load(Relaxed);
        if syncing != 0 && syncing & AGAIN == 0 {
            // The previous leader died in its sync. If that sync failed, the failure is not
            // reported again, and the bytes count as written. The next leader of any kind writes
            // them again, once, because the system may drop the copy that it still keeps for
            // readers.
            self.write_again(shared, syncing.min(at))?;
            shared.found.syncing.store(syncing | AGAIN, Relaxed);
        }
        let mut bytes = Vec::with_capacity(CHUNK.min((end - at) as usize));
        while at < end {
            bytes.clear();
            let stop = end.min(at + CHUNK as u64);
            copy::<M>(&buffer, (at, stop), &mut bytes)?;
            segments.write(at, &bytes)?;
            at = stop;
            point("flush: chunk");
        }
        // Release: synchronizes with the Acquire in `grant`: the buffer was read before
        // it is overwritten.
        shared.written.0.store(end, Release);
        point("flush: written");
        if until == Until::Flushed {
            let flushed = shared.flushed.0.load(Relaxed);
            if flushed < end {
                // Before that: if a file cannot be opened, no leader writes again.
                for number in segments.spans.of(flushed, end) {
                    segments.file(number)?;
                }
                shared.found.syncing.store(end, Relaxed);
                let begun = M::now(Clock::Monotonic);
                segments.sync(flushed, end)?;
                // A hint: after a sync that succeeded, no error may follow.
                shared.gather.synced(begun, self.log.waiting(end).unwrap_or(0));
            }
            point("flush: synced");
            // Release: synchronizes with the Acquire in `arrived`.
            shared.flushed.0.store(end, Release);
            shared.found.syncing.store(0, Relaxed);
            shared.flushed_at.0.store(M::now(Clock::Monotonic), Relaxed);
            self.say_durable(shared);
        }
        point("flush: done");
        Ok(())
    }

    /// Writes the bytes below `to` that are not known to be durable once more: from the buffer if
    /// it still holds them, otherwise from the files. Bytes that the system has dropped there are
    /// lost.
    #[cold]
    fn write_again(&self, shared: &Shared<M>, to: u64) -> Result<(), Error> {
        let (log, flushed) = (&self.log.inner, shared.flushed.0.load(Relaxed));
        let mut bytes = Vec::new();
        // No append overwrites the oldest bytes while the latch is held, but a thread that died may
        // have begun to.
        let latched = self.latch()?;
        let over = shared.end.0.load(Relaxed) + self.log.record_max();
        let size = self.log.buffer_size(shared)?.bytes();
        let kept = over.saturating_sub(size).max(shared.buffer_from.load(Relaxed));
        let kept = kept.next_multiple_of(8).max(flushed).min(to);
        copy::<M>(&self.log.buffer()?, (kept, to), &mut bytes)?;
        latched.unchanged();
        // Bytes in a file that this process cannot open are not lost.
        for number in log.segments.spans.of(flushed, to) {
            log.segments.file(number)?;
        }
        log.segments.write_again(flushed, kept, to).map_err(|why| match why {
            // Bytes that cannot be read back are as lost as missing ones.
            Error::Disk(ref of) if of.subject().operation == Operation::Read => {
                Error::Corrupt { what: "a record that was not durable yet" }
            }
            why => why,
        })?;
        log.segments.write(kept, &bytes)
    }

    /// Waits for the leader.
    fn follow(&self, shared: &Shared<M>, lsn: Lsn, until: Until) -> Result<(), Error> {
        let slot = self.log.slot_of(self.slot)?;
        let mark = if until == Until::Written { WRITTEN } else { 0 };
        // Acquire: a requested change is seen together with the stores before it.
        let seen = slot.notifier.load(Acquire);
        slot.waits.store(lsn.0 | mark, Relaxed);
        // SeqCst: see the head of this file; its partner is in `wake`.
        M::fence(SeqCst);
        let idle = shared.flusher.0.load(Relaxed) == 0 || shared.broken.0.load(Relaxed) != 0;
        if !idle && !self.arrived(shared, lsn, until) {
            point("follow: sleeps");
            let deadline = Deadline::after::<M>(self.log.inner.nap);
            if M::wait(&slot.notifier, seen, Some(deadline)) == Waited::TimedOut {
                self.forget_dead_leader(shared)?;
            }
        }
        slot.waits.store(0, Relaxed);
        Ok(())
    }

    /// Clears the claim of a leader that died.
    fn forget_dead_leader(&self, shared: &Shared<M>) -> Result<(), Error> {
        let leader = shared.flusher.0.load(Relaxed);
        if self.log.is_dead(leader) {
            self.log.for_dead(leader, || unclaim(&shared.flusher.0, leader))?;
        }
        Ok(())
    }
}

/// Copies a range of the log from the buffer. The range may extend across the buffer's end.
fn copy<M: ConstMachine>(
    buffer: &Buffer<'_, M>,
    (from, to): (u64, u64),
    into: &mut Vec<u8>,
) -> Result<(), Error> {
    let (first, second) = buffer.parts(from, ((to - from) / 8) as usize)?;
    M::append_words(first, into);
    M::append_words(second, into);
    Ok(())
}

/// A leader that is working. If it panics, it is unknown which part of the log is on the disk.
struct Leading<'a, M: ConstMachine> {
    session: &'a Session<M>,
    shared: &'a Shared<M>,
}

impl<M: ConstMachine> Drop for Leading<'_, M> {
    fn drop(&mut self) {
        // Release: as in `lead_and_wake`.
        self.shared.broken.0.store(1, Release);
        unclaim(&self.shared.flusher.0, self.session.me());
        let _ = self.session.log.wake(self.shared);
    }
}

/// Returns whether there are unflushed bytes and the last flush was at least `period` ago.
fn is_due<M: ConstMachine>(shared: &Shared<M>, period: Duration) -> bool {
    let end = shared.end.0.load(Relaxed);
    // The last flush counts as long ago if a process in another time namespace, whose clock is
    // ahead, made it.
    let age = M::now(Clock::Monotonic).checked_sub(shared.flushed_at.0.load(Relaxed));
    age.is_none_or(|age| u128::from(age) >= period.as_nanos())
        && shared.flushed.0.load(Relaxed) < end
}

impl<M: ConstMachine> Log<M> {
    /// Requests that the next leader write the bytes that are written but not durable once more.
    /// Call it in a process that is alone and finds the log in memory that dead processes left. The
    /// system may have failed to write them without reporting it, because no process had the files
    /// open.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
    pub fn doubt_unsynced(&self) -> Result<(), Error> {
        let shared = self.shared()?;
        let (written, flushed) = (shared.written.0.load(Relaxed), shared.flushed.0.load(Relaxed));
        let syncing = shared.found.syncing.load(Relaxed);
        if flushed < written && (syncing == 0 || syncing & AGAIN != 0) {
            shared.found.syncing.store(written, Relaxed);
        }
        Ok(())
    }

    /// Returns whether [`Session::tick`] would flush if no other thread is flushing.
    pub fn is_due(&self, period: Duration) -> bool {
        self.shared().is_ok_and(|shared| is_due(shared, period))
    }

    /// Returns the number of threads that wait until the log is durable up to `end`, or less far.
    fn waiting(&self, end: u64) -> Result<u64, Error> {
        let mut count = 0;
        for slot in self.each_slot() {
            let waits = self.slot_of(slot)?.waits.load(Relaxed);
            count += u64::from(waits != 0 && waits & WRITTEN == 0 && waits < end);
        }
        Ok(count)
    }

    /// Wakes the threads whose records have arrived, and one of the others, which leads next.
    pub(crate) fn wake(&self, shared: &Shared<M>) -> Result<(), Error> {
        // SeqCst: see the head of this file; its partner is in `follow`.
        M::fence(SeqCst);
        let (written, flushed) = (shared.written.0.load(Relaxed), shared.flushed.0.load(Relaxed));
        let all = shared.broken.0.load(Relaxed) != 0;
        let mut next = false;
        for slot in self.each_slot() {
            let slot = self.slot_of(slot)?;
            let waits = slot.waits.load(Relaxed);
            if waits == 0 {
                continue;
            }
            let frontier = if waits & WRITTEN != 0 { written } else { flushed };
            if all || frontier > waits & !WRITTEN || !next {
                next |= frontier <= waits & !WRITTEN;
                // Release: synchronizes with the Acquire in `follow`.
                slot.notifier.fetch_add(1, Release);
                M::wake(&slot.notifier);
            }
        }
        Ok(())
    }
}
