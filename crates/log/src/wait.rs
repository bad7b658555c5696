//! How a thread waits for the part that other threads have in its append.
//!
//! A thread spins while the log's end moves. If the end does not move for a *period* of [`SPINS`]
//! looks, the thread that should move it may not be running. Then the waiting thread moves the end
//! itself if the next record is whole, and otherwise yields its processor. After [`YIELDS`] yields
//! without progress it sleeps for moments, and completes the work of dead and stopped threads.
//!
//! On a machine of several nodes a period is [`GROUPS`] times as long, since a group waits for its
//! turn among all groups.
//!
//! With more threads than processors, a thread that yields earlier makes others wait for it, and
//! these yield in turn. The end is moved before the yield, because other threads may have the
//! processor for milliseconds. 96 simulated threads on 24 processors append 7.3 M records a second
//! so, and 1.1 M if they yield before they move the end.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{ConstMachine, Level, Word};

use crate::flush::Until;
use crate::group::{GROUPS, Group, Request, State};
use crate::layout::Shared;
use crate::options::SPINS;
use crate::{Error, Lsn, Session};

/// How often a thread yields without progress before it sleeps.
const YIELDS: u32 = 64;

/// After this many looks a wait is long.
const LONG: u64 = (SPINS * YIELDS) as u64;

/// Returns the looks of a period.
fn period<M: ConstMachine>() -> u64 {
    u64::from(SPINS) * if M::spread(Level::Node) { GROUPS as u64 } else { 1 }
}

/// A wait, and what the thread saw in it.
pub(crate) struct Wait<'a, M: ConstMachine> {
    group: &'a Group<M>,
    /// The number of looks, and of yields without progress.
    looks: u64,
    yields: u32,
    /// The end of the log at the last period.
    end: u64,
}

impl<'a, M: ConstMachine> Wait<'a, M> {
    pub(crate) fn new(group: &'a Group<M>) -> Self {
        Self { group, looks: 0, yields: 0, end: 0 }
    }

    /// Returns the number of looks so far.
    pub(crate) fn looks(&self) -> u64 {
        self.looks
    }

    /// Returns whether the thread for which this one waits may be stopped or dead.
    pub(crate) fn is_long(&self) -> bool {
        self.looks >= LONG
    }

    /// Ends the period with the next look.
    pub(crate) fn end_period(&mut self) {
        self.looks = (self.looks + 1).next_multiple_of(period::<M>()) - 1;
    }
}

impl<M: ConstMachine> Session<M> {
    /// Waits a moment.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Broken`] if the log is broken, and the errors of a repair.
    pub(crate) fn wait(&self, shared: &Shared<M>, wait: &mut Wait<'_, M>) -> Result<(), Error> {
        wait.looks += 1;
        if !wait.looks.is_multiple_of(SPINS.into()) || !wait.looks.is_multiple_of(period::<M>()) {
            M::relax();
            return Ok(());
        }
        if wait.looks.is_multiple_of(LONG) {
            // Requests of dead threads do not delay the end, but a thread may need their words.
            self.check_broken(shared)?;
            self.end_dead_flights()?;
        }
        // The threads of the group poll the line of this copy anyway.
        let end = wait.group.end.0.load(Relaxed);
        if wait.end != end {
            (wait.end, wait.yields) = (end, 0);
            return Ok(());
        }
        self.check_broken(shared)?;
        if wait.yields >= YIELDS {
            return self.wait_long(shared);
        }
        if !self.help(shared, wait.group)? {
            wait.yields += 1;
            M::yield_now();
        }
        Ok(())
    }

    /// Moves the group's copy of the end, or the end, if the thread that should do it is late.
    /// Returns whether it moved.
    fn help(&self, shared: &Shared<M>, group: &Group<M>) -> Result<bool, Error> {
        let end = shared.end.0.load(Relaxed);
        if group.end.0.load(Relaxed) < end {
            group.raise_end(end);
            return Ok(true);
        }
        // Relaxed: a hint, for a look without the latch.
        let is_front = |word: &M::AtomicU64| {
            let request = Request(word.load(Relaxed));
            request.state() == State::Done && request.lsn() == end
        };
        if !shared.groups.iter().flat_map(Group::requests).any(is_front) {
            return Ok(false);
        }
        let Some(latched) = shared.append.latch.try_lock(self) else { return Ok(false) };
        self.move_end(shared)?;
        drop(latched);
        Ok(shared.end.0.load(Relaxed) != end)
    }

    /// Sleeps a moment and completes the work of dead and stopped threads.
    fn wait_long(&self, shared: &Shared<M>) -> Result<(), Error> {
        let before = shared.end.0.load(Relaxed);
        self.nap();
        self.end_dead_flights()?;
        let end = shared.end.0.load(Relaxed);
        // A leader may be stopped or dead between the end and its group's copy of it.
        shared.groups.iter().for_each(|group| group.raise_end(end));
        if end == before {
            let latched = self.latch()?;
            self.move_end(shared)?;
            let has_room = self.pass_over(shared)?;
            drop(latched);
            if !has_room {
                // A failure is ignored here: the write is tried again after the next nap.
                let _ = self.advance(Lsn(before.saturating_sub(1)), Until::Written);
                let _ = self.make_segment(shared.prepared.0.load(Relaxed));
            }
        }
        Ok(())
    }
}
