//! Flushing: one leader writes and syncs for all, the others wait.
//!
//! Group commit by a leader and followers, as Berkeley DB and PostgreSQL have it, without a
//! timer: the followers that come while a leader syncs are the next group.
//!
//! | a thread that wants its record durable | does |
//! |---|---|
//! | finds `flushed` past it | returns |
//! | finds `flusher` free | claims it, writes, syncs, gives it back, wakes the others |
//! | finds it claimed | says in its slot what it waits for, looks again, sleeps |
//! | has napped | looks whether the claimant is dead |
//!
//! | the leader dies | left | put right by |
//! |---|---|---|
//! | before `written` is stored | bytes in a file | the next leader, which writes them again |
//! | before `flushed` is stored | bytes not synced | the next leader, which syncs them |
//! | in the sync | perhaps a failure that nobody knows of | the next, which writes once more |
//! | with all others | the same, of what the system wrote itself | the next, likewise |
//! | before it wakes | sleepers | their naps |
//!
//! A leader that is stopped and not dead holds all commits up; nothing else can be told from
//! outside.
//!
//! A failed sync, were it for want of space, and a failed write but for want of space or of the
//! right to open the file, is final: the system may have marked as clean what it could not write,
//! so a later sync that succeeds would say nothing. So is a panic of a leader, whose thread lives
//! and would have the claim for good. `broken` is set, all waiting threads get [`Error::Broken`],
//! and only opening the files in a new region goes on: it writes them once more.
//!
//! Memory order: a follower stores `waits`, fences, loads the frontier and `flusher`; the
//! leader stores those, fences, loads `waits`. Both fences are SeqCst, so at least one sees the
//! other.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;

use latchwork_disk::{Error as DiskError, Operation};
use latchwork_machine::{Clock, ConstMachine, Deadline, Integer, Waited, Word};

use crate::buffer::Buffer;
use crate::layout::{Shared, WRITTEN, claim, unclaim};
use crate::point::point;
use crate::{Error, Log, Lsn, Session};

/// Bytes that are copied from the buffer and written in one call.
const CHUNK: usize = 256 << 10;

/// A bit of `syncing` that no position has, for these are multiples of 8: what a leader that died
/// was to make durable has been written again.
const AGAIN: u64 = 1;

/// When a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// When it is durable.
    #[default]
    Full,
    /// When it is in the buffer, and survives the death of all processes. The log is flushed
    /// when this much time has passed since it last was, by the next commit in this mode, or where
    /// a program asks for it ([`Session::tick`]; of a store its `sync`): by no thread beside, so
    /// the last commits before a pause are not flushed. A crash of the machine loses what was not.
    Periodic(Duration),
    /// When it is written, and not synced.
    Write,
    /// When it is in the buffer. A crash of the machine loses what was not flushed since.
    None,
}

/// How far a record must have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Written,
    Flushed,
}

impl<M: ConstMachine> Session<M> {
    /// Returns when the record at `lsn`, and all before it, are as durable as the mode says.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush), for the modes that wait. Then it is not known whether the
    /// record will be there after a crash.
    pub fn commit(&self, lsn: Lsn, mode: Mode) -> Result<(), Error> {
        match mode {
            Mode::Full => self.flush(lsn),
            Mode::Write => self.advance(lsn, Until::Written),
            Mode::Periodic(period) => self.tick(period).map(drop),
            Mode::None => Ok(()),
        }
    }

    /// Returns when the record that begins at `lsn`, and all before it, are durable.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`]; [`Error::NotARecord`] beyond the log's end.
    ///
    /// # Death
    ///
    /// A leader that dies is replaced by a thread that waits for it, after a nap.
    pub fn flush(&self, lsn: Lsn) -> Result<(), Error> {
        self.advance(lsn, Until::Flushed)
    }

    /// Flushes the log if that was not done for `period` and nobody is at it. Says whether it
    /// did.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn tick(&self, period: Duration) -> Result<bool, Error> {
        let shared = self.log.shared()?;
        self.check_broken(shared)?;
        if !is_due(shared, period) {
            return Ok(false);
        }
        // Nobody may ever follow a leader that died: it is asked after once it is late.
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
        loop {
            if self.arrived(shared, lsn, until) {
                return Ok(());
            }
            self.check_broken(shared)?;
            // Acquire: synchronizes with the Release in `append`.
            if shared.end.0.load(Acquire) <= lsn.0 {
                return Err(Error::NotARecord(lsn));
            }
            if claim(&shared.flusher.0, self.me()) {
                if self.arrived(shared, lsn, until) {
                    unclaim(&shared.flusher.0, self.me());
                    self.log.wake(shared)?;
                } else {
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

    /// Leads, with the claim; gives it back and wakes those who wait, whatever came of it.
    fn lead_and_wake(&self, shared: &Shared<M>, until: Until) -> Result<(), Error> {
        let leading = Leading { session: self, shared };
        let led = self.lead(shared, until);
        core::mem::forget(leading);
        let led = led.map_err(|error| match error {
            // The write may be made again: the bytes are still in the buffer. Where this process
            // cannot open the file, or read its header, another one may lead.
            Error::Disk(ref why)
                if matches!(why.subject().operation, Operation::Open | Operation::Read) =>
            {
                error
            }
            Error::Disk(DiskError::NoSpace(ref of)) if of.operation != Operation::Sync => error,
            _ => {
                // Release: what failed came before; nobody relies on more.
                shared.broken.0.store(1, Release);
                Error::Broken
            }
        });
        unclaim(&shared.flusher.0, self.me());
        point("flush: unclaimed");
        self.log.wake(shared)?;
        led
    }

    /// Writes what is in the buffer to the files, and makes it durable.
    fn lead(&self, shared: &Shared<M>, until: Until) -> Result<(), Error> {
        point("flush: claimed");
        // Again, with the claim: a leader before this one may have failed.
        self.check_broken(shared)?;
        // Acquire: synchronizes with the Release in `append`: all records below it are whole.
        let end = shared.end.0.load(Acquire);
        let (buffer, segments) = (self.log.buffer()?, &self.log.inner.segments);
        // Acquire: synchronizes with the Release below, of the leader before.
        let mut at = shared.written.0.load(Acquire);
        if end.checked_sub(at).is_none_or(|behind| behind > self.log.inner.buffer) {
            return Err(Error::Corrupt { what: "a frontier" });
        }
        // Relaxed, here and below: the claim orders, and a thread that dies has stored what it has.
        let syncing = shared.found.syncing.load(Relaxed);
        if syncing != 0 && syncing & AGAIN == 0 {
            // That one died in its sync. Should it have failed, nobody is told so any more, and
            // what it was to make durable counts as written. Once, and by the next leader of any
            // kind: what the system still has for readers it may drop.
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
        // Release: synchronizes with the Acquire in `reserve_slow`: the buffer was read before
        // it is overwritten.
        shared.written.0.store(end, Release);
        point("flush: written");
        if until == Until::Flushed {
            let flushed = shared.flushed.0.load(Relaxed);
            if flushed < end {
                // Before: what cannot be opened makes nobody write again.
                for number in segments.spans.of(flushed, end) {
                    segments.file(number)?;
                }
                shared.found.syncing.store(end, Relaxed);
                segments.sync(flushed, end)?;
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

    /// Writes what is not known to be durable below `to` once more: from the buffer what that still
    /// has, and else from the files. What the system has dropped there is lost.
    #[cold]
    fn write_again(&self, shared: &Shared<M>, to: u64) -> Result<(), Error> {
        let (log, flushed) = (&self.log.inner, shared.flushed.0.load(Relaxed));
        let mut bytes = Vec::new();
        // Nobody writes over the oldest meanwhile; but a thread that died may have begun to.
        let latched = self.latch()?;
        let over = shared.end.0.load(Relaxed) + self.log.record_max();
        let size = self.log.buffer_size(shared)?.bytes();
        let kept = over.saturating_sub(size).max(shared.buffer_from.load(Relaxed));
        let kept = kept.next_multiple_of(8).max(flushed).min(to);
        copy::<M>(&self.log.buffer()?, (kept, to), &mut bytes)?;
        latched.unchanged();
        // What is in a file that this process cannot open is not lost.
        for number in log.segments.spans.of(flushed, to) {
            log.segments.file(number)?;
        }
        log.segments.write_again(flushed, kept, to).map_err(|why| match why {
            // What cannot be read again is lost as much as what is not there.
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
        // Acquire: a change that was called for is seen together with what was stored before
        // it.
        let seen = slot.notifier.load(Acquire);
        slot.waits.store(lsn.0 | mark, Relaxed);
        // SeqCst: see the head of this file; the other one is in `wake`.
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

    /// Takes the claim of a leader that died away.
    fn forget_dead_leader(&self, shared: &Shared<M>) -> Result<(), Error> {
        let leader = shared.flusher.0.load(Relaxed);
        if self.log.is_dead(leader) {
            self.log.for_dead(leader, || unclaim(&shared.flusher.0, leader))?;
        }
        Ok(())
    }
}

/// Copies the log from one place to another from the buffer, across whose end they may lie.
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

/// A leader at work: should it panic, nobody knows what of the log is on the disk.
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

/// Whether there is something to flush, and nobody has flushed for so long.
fn is_due<M: ConstMachine>(shared: &Shared<M>, period: Duration) -> bool {
    let end = shared.end.0.load(Relaxed);
    // A flush by a process whose clock is ahead, in a time namespace of its own, was long ago.
    let age = M::now(Clock::Monotonic).checked_sub(shared.flushed_at.0.load(Relaxed));
    age.is_none_or(|age| u128::from(age) >= period.as_nanos())
        && shared.flushed.0.load(Relaxed) < end
}

impl<M: ConstMachine> Log<M> {
    /// Has what is written and not durable written once more by the next leader: for a process
    /// that is alone, and finds the log in memory that dead ones left. The system may have failed
    /// to write it since, and have told nobody, for nobody had the files open.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn doubt_unsynced(&self) -> Result<(), Error> {
        let shared = self.shared()?;
        let (written, flushed) = (shared.written.0.load(Relaxed), shared.flushed.0.load(Relaxed));
        let syncing = shared.found.syncing.load(Relaxed);
        if flushed < written && (syncing == 0 || syncing & AGAIN != 0) {
            shared.found.syncing.store(written, Relaxed);
        }
        Ok(())
    }

    /// Whether [`Session::tick`] would flush, if nobody is at it.
    pub fn is_due(&self, period: Duration) -> bool {
        self.shared().is_ok_and(|shared| is_due(shared, period))
    }

    /// Wakes the threads whose records have arrived, and of the others one, which leads next.
    pub(crate) fn wake(&self, shared: &Shared<M>) -> Result<(), Error> {
        // SeqCst: see the head of this file; the other one is in `follow`.
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
