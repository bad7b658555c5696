//! What all processes share of a store beside its log, its pool and its locks: an area of the
//! region.
//!
//! ```text
//! word 0    whether the store is recovered, and whether snapshots see only what is durable
//! word 8    low: all that was written before it is finished
//! word 16   visible: up to where commits show that do not wait for the disk
//! word 24   the thread that makes a checkpoint: its slot's number plus one
//! word 32   where the last checkpoint was made
//! word 40   from before where the log may be given up
//! word 48   how many transactions of the dead were undone
//! word 64   a line for each thread slot: its snapshot's `low`, plus one; or zero
//! ```
//!
//! Each word has a line of its own. A snapshot is told in its slot's line, so that the history that
//! it needs is kept: the thread stores there, passes a light barrier, and looks whether the log
//! from there on may be given up already. The thread that recycles says from where on it keeps the
//! log, passes the heavy barrier, and looks at all lines: so one of the two sees the other.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_log::{COMMITS, Log, Lsn, Mode};
use latchwork_machine::{ConstMachine, Integer, Word};
use latchwork_region::{Area, AreaOptions, Region};

use crate::Error;

const STATE: u64 = 0;
const LOW: u64 = 8;
const VISIBLE: u64 = 16;
const CHECKPOINTER: u64 = 24;
const CHECKPOINT_AT: u64 = 32;
const GIVEN_UP: u64 = 40;
const UNDONE: u64 = 48;
const SLOTS: u64 = 64;
const LINE: u64 = 8;

/// In the first word: the store can be used ...
const RECOVERED: u64 = 1;
/// ... and commits are seen when they are durable, or said not to wait for that.
const DURABLE: u64 = 2;

/// The area, and what of the log decides which commits are seen.
#[derive(Debug)]
pub(crate) struct Shared<M: ConstMachine> {
    area: Area<M>,
    log: Log<M>,
    slots: u64,
}

impl<M: ConstMachine> Shared<M> {
    pub(crate) fn open(region: &Region<M>, log: &Log<M>, slots: u32) -> Result<Self, Error> {
        let slots = u64::from(slots);
        let bytes = (SLOTS + slots * LINE) * 8;
        let options = AreaOptions { first: bytes, limit: bytes, huge: false };
        let area = region.area("store", &options)?;
        Ok(Self { area, log: log.clone(), slots })
    }

    #[inline(always)]
    fn word(&self, at: u64) -> Result<&M::AtomicU64, Error> {
        Ok(self.area.word(at)?)
    }

    pub(crate) fn is_recovered(&self) -> Result<bool, Error> {
        // Acquire: synchronizes with the Release in `recovered`.
        Ok(self.word(STATE)?.load(Acquire) & RECOVERED != 0)
    }

    /// Whether commits are seen only when they are durable: as the process said that recovered it.
    #[inline(always)]
    fn is_durable(&self) -> Result<bool, Error> {
        // Relaxed: it does not change once the store is recovered.
        Ok(self.word(STATE)?.load(Relaxed) & DURABLE != 0)
    }

    /// Says that the store is recovered, and that all that was written before `low` is finished.
    pub(crate) fn recovered(&self, low: Lsn, mode: Mode) -> Result<(), Error> {
        let durable = if mode == Mode::Full { DURABLE } else { 0 };
        self.word(LOW)?.store(low.0, Relaxed);
        self.word(VISIBLE)?.store(low.0, Relaxed);
        self.word(CHECKPOINT_AT)?.store(low.0, Relaxed);
        // Release: synchronizes with the Acquire in `is_recovered`.
        self.word(STATE)?.store(RECOVERED | durable, Release);
        Ok(())
    }

    /// Before which position of the log everything is finished. A lower one is right, too.
    #[inline]
    pub(crate) fn low(&self) -> Result<u64, Error> {
        // Acquire: synchronizes with the AcqRel of the update: `visible` is loaded after it, and
        // is not less than it was then.
        Ok(self.word(LOW)?.load(Acquire))
    }

    /// Commits at or before this position are seen by a snapshot that is taken now.
    #[inline]
    pub(crate) fn visible(&self) -> Result<u64, Error> {
        let end = match self.is_durable()? {
            false => self.log.end().0,
            // Acquire: synchronizes with the Release in `show`.
            true => self.log.flushed().0.max(self.word(VISIBLE)?.load(Acquire)),
        };
        Ok(end.saturating_sub(1))
    }

    /// Shows a commit that does not wait for the disk, in a store whose commits do.
    pub(crate) fn show(&self, commit: Lsn) -> Result<(), Error> {
        if self.is_durable()? {
            raise::<M>(self.word(VISIBLE)?, commit.0 + 1);
        }
        Ok(())
    }

    /// Looks at all slots, and moves `low` up to the first record of a transaction that a snapshot
    /// may not see.
    pub(crate) fn raise_low(&self) -> Result<u64, Error> {
        let visible = self.visible()?;
        let mut low = visible + 1;
        for slot in 0..self.log.slots_high() {
            let (first, _) = self.log.open_of(slot)?;
            if first != Lsn::NEVER {
                low = low.min(first.0);
            }
            // Those that are committed and not seen yet.
            let mut unseen = 0;
            self.log.commits_of(slot, |first, commit| {
                if commit.0 <= visible {
                    return Some(());
                }
                low = low.min(first.0);
                unseen += 1;
                None
            })?;
            if unseen >= COMMITS - 1 {
                // There may be more, which the list has no room for.
                return self.low();
            }
        }
        raise::<M>(self.word(LOW)?, low);
        self.low()
    }

    /// A snapshot's position and `low`, told in the slot's line: the log is kept from `low` on
    /// until [`forget`](Self::forget).
    #[inline]
    pub(crate) fn remember(&self, slot: u16) -> Result<(u64, u64), Error> {
        let line = self.word(SLOTS + u64::from(slot) * LINE)?;
        loop {
            let low = self.low()?;
            let at = self.visible()?;
            // Release: for a thread that sees that it is gone, so are its reads.
            line.store(low + 1, Release);
            M::light_barrier();
            if self.word(GIVEN_UP)?.load(Relaxed) <= low {
                return Ok((at, low));
            }
        }
    }

    #[inline]
    pub(crate) fn forget(&self, slot: u16) {
        if let Ok(line) = self.word(SLOTS + u64::from(slot) * LINE) {
            // Release: synchronizes with the Acquire in `needed`: its reads of the log are over.
            line.store(0, Release);
        }
    }

    /// From where on snapshots need the log, those that are taken from now on counted in.
    pub(crate) fn needed(&self) -> Result<u64, Error> {
        let mut needed = self.raise_low()?;
        raise::<M>(self.word(GIVEN_UP)?, needed);
        if !M::heavy_barrier() {
            // Nobody can tell who is about to take a snapshot: all is kept.
            return Ok(0);
        }
        for slot in 0..self.slots {
            // Acquire: synchronizes with the Release in `forget`.
            match self.word(SLOTS + slot * LINE)?.load(Acquire) {
                0 => {}
                told => needed = needed.min(told - 1),
            }
        }
        Ok(needed)
    }

    /// Counts a transaction of the dead that was undone.
    pub(crate) fn count_undone(&self) -> Result<(), Error> {
        // Relaxed: a count.
        self.word(UNDONE)?.fetch_add(1, Relaxed);
        Ok(())
    }

    pub(crate) fn undone(&self) -> Result<u64, Error> {
        Ok(self.word(UNDONE)?.load(Relaxed))
    }

    /// Takes the right to make a checkpoint.
    pub(crate) fn claim_checkpoint(&self, slot: u32) -> Result<bool, Error> {
        let claim = self.word(CHECKPOINTER)?;
        // Acquire: synchronizes with the Release in `checkpoint_over`.
        Ok(claim.compare_exchange(0, u64::from(slot) + 1, Acquire, Relaxed).is_ok())
    }

    /// Gives it back; does nothing if the slot has not got it.
    pub(crate) fn checkpoint_over(&self, slot: u32) -> Result<(), Error> {
        let claim = self.word(CHECKPOINTER)?;
        // Release: synchronizes with the Acquire in `claim_checkpoint`.
        let _ = claim.compare_exchange(u64::from(slot) + 1, 0, Release, Relaxed);
        Ok(())
    }

    /// Whether so many bytes were logged since the last checkpoint.
    #[inline]
    pub(crate) fn is_due(&self, budget: u64) -> Result<bool, Error> {
        let last = self.word(CHECKPOINT_AT)?.load(Relaxed);
        Ok(self.log.end().0.saturating_sub(last) >= budget)
    }

    pub(crate) fn checkpoint_made(&self, at: Lsn) -> Result<(), Error> {
        self.word(CHECKPOINT_AT)?.store(at.0, Relaxed);
        Ok(())
    }
}

/// Makes a word no less than `to`.
fn raise<M: ConstMachine>(word: &M::AtomicU64, to: u64) {
    let mut seen = word.load(Relaxed);
    while seen < to {
        // Release: synchronizes with the Acquires of `low` and `visible`.
        match word.compare_exchange(seen, to, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}
