//! The shared state of a store in addition to its log, its pool and its locks: an area of the
//! region.
//!
//! ```text
//! word 0    whether the store is recovered, and whether snapshots see durable commits only; the
//!           version of this layout; and how many migrations of tables have begun
//! word 8    low: all changes before it belong to finished transactions
//! word 16   visible: up to where commits are visible that do not wait for the disk
//! word 24   the thread that makes a checkpoint: its slot's number plus one
//! word 32   where the last checkpoint was made
//! word 40   the position before which the log may be given up
//! word 48   how many transactions of dead threads were rolled back; and the piece of a long value
//!           from which the next checkpoint looks for empty leaves: `empty_pages.rs`
//! word 56   the position before which no snapshot needs old versions, as last computed; and the
//!           end of the log at that time
//! word 64   two lines for each thread slot: its snapshot's `low` plus one, or zero; the next
//!           record of its transaction that a sweep must roll back; which thread works on the
//!           transaction; its page intents, and since when: `page_intents.rs`
//! then      five lines for each thread slot: the counts of its threads, `meter.rs`
//! ```
//!
//! Each word has a cache line of its own. A snapshot is announced in its slot's line, so that the
//! history that it needs is kept: the thread stores there, passes a light barrier, and checks
//! whether the log from there on may have been given up already. The thread that recycles the log
//! stores from where on it keeps the log, passes the heavy barrier, and reads all lines: so one of
//! the two sees the other.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_log::{COMMITS, Log, Lsn, Mode};
use latchwork_machine::{ConstMachine, Integer, Word};
use latchwork_region::{Area, AreaOptions, Region};

use crate::Error;
use crate::files::undo_ownership::{State, UndoOwnership};
use crate::stamp::Stamp;

/// Version of this layout and of the slots' lines; incremented with each change. Incremented as
/// well with the pool's layout, because this version is checked first and the memory is kept on an
/// error.
const LAYOUT: u64 = 6;

const _: () = assert!(latchwork_pool::LAYOUT == 5, "count up the store's layout, too");

const STATE: u64 = 0;
const VERSION: u64 = 1;
const MIGRATIONS: u64 = 2;
const LOW: u64 = 8;
const VISIBLE: u64 = 16;
const CHECKPOINTER: u64 = 24;
const CHECKPOINT_AT: u64 = 32;
const GIVEN_UP: u64 = 40;
/// How often a snapshot tries to find a position that is not given up.
const LOOKS: u32 = 1 << 20;
const UNDONE: u64 = 48;
const LOOKED_NUMBER: u64 = 49;
const LOOKED_INDEX: u64 = 50;
const FORGOTTEN: u64 = 56;
const LOOKED_AT: u64 = 57;
pub(crate) const SLOTS: u64 = 64;
pub(crate) const LINE: u64 = 16;
/// Words of a slot after the lines, with the counts of its threads: `meter.rs`.
pub(crate) const METER: u64 = 40;
/// How often the needs of snapshots are recomputed, in bytes of log.
const LOOK: u64 = 64 << 10;
const LOOK_SOON: u64 = 8 << 10;
/// In a slot's line.
const UNDO: u64 = 1;
const TURN: u64 = 2;

/// Instead of the position of the last checkpoint: the next one is due.
const DUE: u64 = u64::MAX;
/// In the first word: the store can be used ...
const RECOVERED: u64 = 1;
/// ... and commits are visible when they are durable, or do not wait for that.
const DURABLE: u64 = 2;

/// The area, and the log, which decides which commits are visible.
#[derive(Debug)]
pub(crate) struct Shared<M: ConstMachine> {
    area: Area<M>,
    pub(crate) log: Log<M>,
    pub(crate) slots: u64,
}

impl<M: ConstMachine> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self { area: self.area.clone(), log: self.log.clone(), slots: self.slots }
    }
}

impl<M: ConstMachine> Shared<M> {
    /// Opens the area, with as many thread slots as the log has.
    ///
    /// # Errors
    ///
    /// `Version` if a program of another version created the memory.
    pub(crate) fn open(region: &Region<M>, log: &Log<M>) -> Result<Self, Error> {
        let slots = u64::from(log.threads());
        let bytes = (SLOTS + slots * (LINE + METER)) * 8;
        let options = AreaOptions { first: bytes, limit: bytes, huge: false };
        let area = region.area("store", &options)?;
        // Acquire: synchronizes with the Release in `recovered`, behind which the version is.
        let in_use = area.word(STATE)?.load(Acquire) != 0;
        let version = area.word(VERSION)?;
        // Relaxed, all: it is a number.
        let found = match version.load(Relaxed) {
            // The first layout had no version.
            0 if in_use => 1,
            0 => version.compare_exchange(0, LAYOUT, Relaxed, Relaxed).unwrap_or_else(|now| now),
            found => found,
        };
        match found {
            0 | LAYOUT => Ok(Self { area, log: log.clone(), slots }),
            found => {
                let (found, known) = (found as u32, LAYOUT as u32);
                Err(latchwork_region::Error::Version { found, known }.into())
            }
        }
    }

    /// Returns address, length and name of each line, for reports on cache lines.
    #[cfg(feature = "internals")]
    pub(crate) fn places(&self) -> Result<Vec<(usize, usize, String)>, Error> {
        let names = [
            (STATE, "state"),
            (LOW, "low"),
            (VISIBLE, "visible"),
            (CHECKPOINTER, "checkpointer"),
            (CHECKPOINT_AT, "checkpoint_at"),
            (GIVEN_UP, "given_up"),
            (UNDONE, "undone"),
            (FORGOTTEN, "forgotten"),
        ];
        let names = names.map(|(at, name)| (at, format!("store.{name}")));
        let slots = (0..self.slots).flat_map(|slot| {
            let line = SLOTS + slot * LINE;
            [(line, format!("store-slot {slot}")), (line + 8, format!("store-hand {slot}"))]
        });
        let place = |(at, name)| {
            let word = core::ptr::from_ref(self.word(at)?);
            Ok((word.addr(), 64, name))
        };
        names.into_iter().chain(slots).map(place).collect()
    }

    #[inline(always)]
    pub(crate) fn word(&self, at: u64) -> Result<&M::AtomicU64, Error> {
        Ok(self.area.word(at)?)
    }

    /// Returns the piece from which the next search for empty leaves starts. In new memory the
    /// start is arbitrary: if it were always the first piece, the search would not advance in a
    /// store that is closed after every few checkpoints.
    pub(crate) fn looked(&self) -> Result<Vec<u8>, Error> {
        // Relaxed, both, here and below: any place is valid as a start.
        let mut number = self.word(LOOKED_NUMBER)?.load(Relaxed);
        let index = self.word(LOOKED_INDEX)?.load(Relaxed) as u32;
        if number == 0 {
            let end = self.log.end().0;
            // Fibonacci hashing (Knuth, volume 3, 6.4).
            let any = end.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let slot = (any >> 48) % u64::from(self.log.slots_high()).max(1);
            number = Stamp::new(slot as u16, (any & 0xffff_ffff_ffff) % end.max(1)).get();
        }
        Ok([&number.to_be_bytes()[..], &index.to_be_bytes()[..]].concat())
    }

    /// Records where the next search starts: at the key of a piece, or at a prefix of it that
    /// distinguishes it from the previous one.
    pub(crate) fn looked_upto(&self, key: &[u8]) -> Result<(), Error> {
        let mut whole = [0; 16];
        let given = key.len().min(12);
        whole[..given].copy_from_slice(&key[..given]);
        let whole = u128::from_be_bytes(whole);
        self.word(LOOKED_NUMBER)?.store((whole >> 64) as u64, Relaxed);
        self.word(LOOKED_INDEX)?.store((whole >> 32) as u64 & 0xffff_ffff, Relaxed);
        Ok(())
    }

    pub(crate) fn is_recovered(&self) -> Result<bool, Error> {
        // Acquire: synchronizes with the Release in `recovered`.
        Ok(self.word(STATE)?.load(Acquire) & RECOVERED != 0)
    }

    /// Returns whether only durable commits are visible, as configured by the process that
    /// recovered the store.
    #[inline(always)]
    fn is_durable(&self) -> Result<bool, Error> {
        // Relaxed: it does not change once the store is recovered.
        Ok(self.word(STATE)?.load(Relaxed) & DURABLE != 0)
    }

    /// Records that the store is recovered, with a log that ends at `end`, and that all changes
    /// before `low` belong to finished transactions.
    pub(crate) fn recovered(&self, low: Lsn, end: Lsn, mode: Mode) -> Result<(), Error> {
        let durable = if mode == Mode::Full { DURABLE } else { 0 };
        self.word(LOW)?.store(low.0, Relaxed);
        self.word(VISIBLE)?.store(end.0, Relaxed);
        self.word(CHECKPOINT_AT)?.store(end.0, Relaxed);
        // Release: synchronizes with the Acquire in `is_recovered`.
        self.word(STATE)?.store(RECOVERED | durable, Release);
        Ok(())
    }

    /// Returns how many migrations have begun. A session looks its tables up again when this number
    /// has changed.
    ///
    /// Relaxed is enough: a thread that sees a row that a migration has moved, or gets the lock of
    /// one, has it from the commit of that, which follows the store of the number.
    #[inline]
    pub(crate) fn migrations(&self) -> Result<u64, Error> {
        Ok(self.word(MIGRATIONS)?.load(Relaxed))
    }

    /// Makes all sessions look up their tables again.
    pub(crate) fn migration_begins(&self) -> Result<(), Error> {
        self.word(MIGRATIONS)?.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Returns a position before which all changes belong to finished transactions. A lower
    /// position is also correct.
    #[inline]
    pub(crate) fn low(&self) -> Result<u64, Error> {
        // Acquire: synchronizes with the AcqRel of the update: `visible` is loaded after it, and is
        // not less than it was then.
        Ok(self.word(LOW)?.load(Acquire))
    }

    /// Returns the position up to which commits are visible to a snapshot taken now.
    #[inline]
    pub(crate) fn visible(&self) -> Result<u64, Error> {
        let end = match self.is_durable()? {
            false => self.log.end().0,
            // Acquire: synchronizes with the Release in `show`.
            true => self.log.flushed().0.max(self.word(VISIBLE)?.load(Acquire)),
        };
        Ok(end.saturating_sub(1))
    }

    /// Returns the newest commit of a store whose commits wait for the disk, if snapshots do not
    /// see it yet. The thread that logged it makes it durable, unless it is dead.
    pub(crate) fn unseen(&self) -> Result<Option<Lsn>, Error> {
        if !self.is_durable()? || self.log.flushed() >= self.log.end() {
            return Ok(None);
        }
        let (newest, seen) = (self.log.newest_commit()?, self.visible()?);
        Ok(newest.filter(|commit| commit.0 > seen))
    }

    /// Makes a commit visible that does not wait for the disk, in a store whose commits do.
    pub(crate) fn show(&self, commit: Lsn) -> Result<(), Error> {
        if self.is_durable()? {
            raise::<M>(self.word(VISIBLE)?, commit.0 + 1);
        }
        Ok(())
    }

    /// Checks all slots, and raises `low` to the first record of a transaction that a snapshot may
    /// not see.
    pub(crate) fn raise_low(&self) -> Result<u64, Error> {
        let visible = self.visible()?;
        let (mut low, end) = (visible + 1, self.log.end());
        for slot in 0..self.log.slots_high() {
            let (first, _) = self.log.open_before(slot, end)?;
            if first != Lsn::NEVER {
                low = low.min(first.0);
            }
            // Transactions that are committed and not visible yet, also those behind `end`.
            let mut unseen = 0;
            self.log.commits_before(slot, Lsn(u64::MAX), |first, commit| {
                if commit.0 <= visible {
                    return Some(());
                }
                low = low.min(first.0);
                unseen += 1;
                None
            })?;
            if unseen >= COMMITS - 1 {
                // There may be more, for which the list has no room.
                return self.low();
            }
        }
        raise::<M>(self.word(LOW)?, low);
        self.low()
    }

    /// Returns the position and `low` of a new snapshot, and announces it in the slot's line: the
    /// log is kept from `low` on until [`forget`](Self::forget).
    #[inline]
    pub(crate) fn remember(&self, slot: u16) -> Result<(u64, u64), Error> {
        let line = self.word(SLOTS + u64::from(slot) * LINE)?;
        for _ in 0..LOOKS {
            let low = self.low()?;
            let at = self.visible()?;
            // Release: for a thread that sees that it is gone, so are its reads.
            line.store(low.saturating_add(1), Release);
            M::light_barrier();
            if self.word(GIVEN_UP)?.load(Relaxed) <= low {
                return Ok((at, low));
            }
        }
        line.store(0, Release);
        // The given-up position is never beyond `low` for so long.
        let what = "position up to which snapshots are given up";
        Err(latchwork_region::Error::Corrupt { what, at: GIVEN_UP * 8 }.into())
    }

    #[inline]
    pub(crate) fn forget(&self, slot: u16) {
        if let Ok(line) = self.word(SLOTS + u64::from(slot) * LINE) {
            // Release: synchronizes with the Acquire in `needed`: its reads of the log are over.
            line.store(0, Release);
        }
    }

    /// Records that a dead slot's transaction is rolled back except for the record at `next` and
    /// those before it, so that the next sweep continues there.
    pub(crate) fn undone_upto(&self, slot: u16, next: u64) -> Result<(), Error> {
        // Relaxed: the sweeper's claim on the slot orders; rolling a record back twice is harmless.
        self.word(SLOTS + u64::from(slot) * LINE + UNDO)?.store(next, Relaxed);
        Ok(())
    }

    /// Returns where to continue the rollback of a transaction with these first and last records:
    /// at the last, or where a sweep stopped. A position that an earlier transaction of the slot
    /// left lies before `first`.
    pub(crate) fn undo_from(&self, slot: u16, first: u64, last: u64) -> Result<u64, Error> {
        let next = self.word(SLOTS + u64::from(slot) * LINE + UNDO)?.load(Relaxed);
        Ok(if (first..last).contains(&next) { next } else { last })
    }

    pub(crate) fn turn(&self, slot: u16) -> Result<UndoOwnership<'_, M>, Error> {
        Ok(UndoOwnership { word: self.word(SLOTS + u64::from(slot) * LINE + TURN)? })
    }

    /// Returns the slots whose transaction this thread has taken or is inspecting.
    pub(crate) fn taken_by(&self, taker: u32) -> Result<Vec<u16>, Error> {
        let mut all = Vec::new();
        for slot in 0..self.slots.min(1 << 15) as u16 {
            if [State::Taken(taker), State::Looks(taker)].contains(&self.turn(slot)?.now()) {
                all.push(slot);
            }
        }
        Ok(all)
    }

    /// Returns the position from which snapshots need the log, including snapshots taken from now
    /// on.
    pub(crate) fn needed(&self) -> Result<u64, Error> {
        let mut needed = self.raise_low()?;
        raise::<M>(self.word(GIVEN_UP)?, needed);
        if !M::heavy_barrier() {
            // Without the barrier, a snapshot in progress cannot be detected: keep everything.
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

    /// Returns the number of snapshots, and the position from which the oldest one needs the log.
    pub(crate) fn snapshots(&self) -> Result<(u64, Option<u64>), Error> {
        let (mut count, mut oldest) = (0, None);
        for slot in 0..self.slots {
            // Relaxed: for information only.
            if let Some(low) = self.word(SLOTS + slot * LINE)?.load(Relaxed).checked_sub(1) {
                count += 1;
                oldest = Some(oldest.map_or(low, |oldest: u64| oldest.min(low)));
            }
        }
        Ok((count, oldest))
    }

    /// Returns a position: a record that was removed before it is removed for every snapshot,
    /// including those taken from now on. Recomputed at intervals; an older result stays correct.
    pub(crate) fn forgotten(&self) -> Result<u64, Error> {
        self.forgotten_within(LOOK)
    }

    /// Returns that position, recomputed more often: for a thread that would otherwise pass over
    /// many records.
    pub(crate) fn forgotten_soon(&self) -> Result<u64, Error> {
        self.forgotten_within(LOOK_SOON)
    }

    fn forgotten_within(&self, bytes: u64) -> Result<u64, Error> {
        let (word, looked) = (self.word(FORGOTTEN)?, self.word(LOOKED_AT)?);
        let (end, last) = (self.log.end().0, looked.load(Relaxed));
        if end >= last.saturating_add(bytes)
            && looked.compare_exchange(last, end, Relaxed, Relaxed).is_ok()
        {
            self.look_again()?;
        }
        // Acquire: synchronizes with the Release in `raise`.
        Ok(word.load(Acquire))
    }

    /// Returns that position as last computed.
    pub(crate) fn forgotten_before(&self) -> Result<u64, Error> {
        // Acquire: as above.
        Ok(self.word(FORGOTTEN)?.load(Acquire))
    }

    /// Recomputes that position.
    pub(crate) fn look_again(&self) -> Result<(), Error> {
        raise::<M>(self.word(FORGOTTEN)?, self.needed()?);
        Ok(())
    }

    /// Counts a rolled back transaction of a dead thread.
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

    /// Returns the claim on that right as stored, and the slot that it names. In damaged memory the
    /// slot may not exist.
    pub(crate) fn checkpointer(&self) -> Result<Option<(u64, u32)>, Error> {
        // Relaxed: the thread that has it may release it at once.
        let claim = self.word(CHECKPOINTER)?.load(Relaxed);
        Ok(claim.checked_sub(1).map(|slot| (claim, u32::try_from(slot).unwrap_or(u32::MAX))))
    }

    /// Releases the right, unless the slot does not have it.
    pub(crate) fn checkpoint_over(&self, slot: u32) -> Result<(), Error> {
        self.end_claim(u64::from(slot) + 1)
    }

    #[cfg(test)]
    pub(crate) fn set_claim(&self, claim: u64) {
        self.word(CHECKPOINTER).unwrap().store(claim, Relaxed);
    }

    /// Releases a claim as stored.
    pub(crate) fn end_claim(&self, claim: u64) -> Result<(), Error> {
        // Release: synchronizes with the Acquire in `claim_checkpoint`.
        let _ = self.word(CHECKPOINTER)?.compare_exchange(claim, 0, Release, Relaxed);
        Ok(())
    }

    /// Returns whether this many bytes were logged since the last checkpoint, or one was requested.
    #[inline]
    pub(crate) fn is_due(&self, budget: u64) -> Result<bool, Error> {
        let last = self.word(CHECKPOINT_AT)?.load(Relaxed);
        Ok(last == DUE || self.log.end().0.saturating_sub(last) >= budget)
    }

    /// Makes the next transaction make a checkpoint, however little was logged since the last one.
    #[cold]
    pub(crate) fn make_due(&self) -> Result<(), Error> {
        self.checkpoint_made(Lsn(DUE))
    }

    pub(crate) fn checkpoint_made(&self, at: Lsn) -> Result<(), Error> {
        self.word(CHECKPOINT_AT)?.store(at.0, Relaxed);
        Ok(())
    }
}

/// Reads the lines of the slots and writes nothing.
#[derive(Debug)]
pub(crate) struct SlotLines<M: ConstMachine> {
    area: Area<M>,
}

impl<M: ConstMachine> SlotLines<M> {
    /// Opens the lines of a region, which may be a view; `None` if it has no lines of this layout.
    pub(crate) fn open(region: &Region<M>) -> Result<Option<Self>, Error> {
        // An existing area keeps its own sizes.
        let sizes = AreaOptions { first: 1 << 16, limit: 1 << 16, huge: false };
        let area = match region.area("store", &sizes) {
            Ok(area) => area,
            Err(latchwork_region::Error::NotFound) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        let is_known = area.word(VERSION)?.load(Relaxed) == LAYOUT;
        Ok(is_known.then_some(Self { area }))
    }

    /// Returns the position from which a slot's snapshot needs the log; `None` if it has no
    /// snapshot.
    pub(crate) fn snapshot(&self, slot: u32) -> Result<Option<u64>, Error> {
        let at = SLOTS + u64::from(slot) * LINE;
        if at + LINE > self.area.words()? {
            return Ok(None);
        }
        // Relaxed: it is printed, and no decision depends on it.
        Ok(self.area.word(at)?.load(Relaxed).checked_sub(1))
    }

    /// Returns how many transactions of dead processes were rolled back.
    pub(crate) fn undone(&self) -> Result<u64, Error> {
        // Relaxed: as above.
        Ok(self.area.word(UNDONE)?.load(Relaxed))
    }

    /// Returns the slot whose thread makes a checkpoint.
    pub(crate) fn checkpointer(&self) -> Result<Option<u32>, Error> {
        // Relaxed: as above.
        let claim = self.area.word(CHECKPOINTER)?.load(Relaxed);
        Ok(claim.checked_sub(1).and_then(|slot| u32::try_from(slot).ok()))
    }
}

impl<M: ConstMachine> Shared<M> {
    /// Returns a reader of the same lines.
    pub(crate) fn lines(&self) -> SlotLines<M> {
        SlotLines { area: self.area.clone() }
    }
}

/// Raises a word to at least `to`.
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
