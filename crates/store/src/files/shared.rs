//! What all processes share of a store beside its log, its pool and its locks: an area of the
//! region.
//!
//! ```text
//! word 0    whether the store is recovered, and whether snapshots see only what is durable; the
//!           version of this layout; and how many migrations of tables have begun
//! word 8    low: all that was written before it is finished
//! word 16   visible: up to where commits show that do not wait for the disk
//! word 24   the thread that makes a checkpoint: its slot's number plus one
//! word 32   where the last checkpoint was made
//! word 40   from before where the log may be given up
//! word 48   how many transactions of the dead were undone; and from which piece of a long value on
//!           the next checkpoint looks for leaves that are empty: `empty_pages.rs`
//! word 56   before where no snapshot needs old versions, as was found last; and where the log was
//! word 64   two lines for each thread slot: its snapshot's `low`, plus one, or zero; what a sweep
//!           is to undo next of its transaction; who is at work on that; the pages that it has in
//!           hand, and since when: `page_intents.rs`
//! then      five lines for each thread slot: what its threads have counted, `meter.rs`
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
use crate::files::undo_ownership::{State, Turn};
use crate::stamp::Stamp;

/// Of what is below, and in the lines of the slots: counted up with each change. And with each of
/// the pool's: this is looked at first, and the memory kept.
const LAYOUT: u64 = 5;

const _: () = assert!(latchwork_pool::LAYOUT == 5, "count up the store's layout, too");

const STATE: u64 = 0;
const VERSION: u64 = 1;
const MIGRATIONS: u64 = 2;
const LOW: u64 = 8;
const VISIBLE: u64 = 16;
const CHECKPOINTER: u64 = 24;
const CHECKPOINT_AT: u64 = 32;
const GIVEN_UP: u64 = 40;
/// How often a snapshot looks for a position that is not given up yet.
const LOOKS: u32 = 1 << 20;
const UNDONE: u64 = 48;
const LOOKED_NUMBER: u64 = 49;
const LOOKED_INDEX: u64 = 50;
const FORGOTTEN: u64 = 56;
const LOOKED_AT: u64 = 57;
pub(crate) const SLOTS: u64 = 64;
pub(crate) const LINE: u64 = 16;
/// Words of a slot behind the lines, for what its threads count: `meter.rs`.
pub(crate) const METER: u64 = 40;
/// How often it is looked what snapshots need, in bytes of log.
const LOOK: u64 = 64 << 10;
const LOOK_SOON: u64 = 8 << 10;
/// In a slot's line.
const UNDO: u64 = 1;
const TURN: u64 = 2;

/// In place of where the last checkpoint was made: the next one is due.
const DUE: u64 = u64::MAX;
/// In the first word: the store can be used ...
const RECOVERED: u64 = 1;
/// ... and commits are seen when they are durable, or said not to wait for that.
const DURABLE: u64 = 2;

/// The area, and what of the log decides which commits are seen.
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
    /// Of as many thread slots as the log has.
    ///
    /// # Errors
    ///
    /// `Version` of memory that a program of another version made.
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

    /// Address, length and name of each line, for reports on cache lines.
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

    /// The piece at which the next look for empty leaves begins. In new memory it is anywhere: one
    /// that always began in front would come no further in a store that is closed after each few
    /// checkpoints.
    pub(crate) fn looked(&self) -> Result<Vec<u8>, Error> {
        // Relaxed, both, here and below: a wrong place to begin is a place.
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

    /// Says where the next look begins: at the key of a piece, or what of it tells it from the one
    /// before.
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

    /// Whether commits are seen only when they are durable: as the process said that recovered it.
    #[inline(always)]
    fn is_durable(&self) -> Result<bool, Error> {
        // Relaxed: it does not change once the store is recovered.
        Ok(self.word(STATE)?.load(Relaxed) & DURABLE != 0)
    }

    /// Says that the store is recovered, with a log that ends at `end`, and that all that was
    /// written before `low` is finished.
    pub(crate) fn recovered(&self, low: Lsn, end: Lsn, mode: Mode) -> Result<(), Error> {
        let durable = if mode == Mode::Full { DURABLE } else { 0 };
        self.word(LOW)?.store(low.0, Relaxed);
        self.word(VISIBLE)?.store(end.0, Relaxed);
        self.word(CHECKPOINT_AT)?.store(end.0, Relaxed);
        // Release: synchronizes with the Acquire in `is_recovered`.
        self.word(STATE)?.store(RECOVERED | durable, Release);
        Ok(())
    }

    /// How many migrations have begun. A session that has found a table looks it up again when
    /// this is another number.
    ///
    /// Relaxed is enough: a thread that sees a row that a migration has moved, or gets the lock
    /// of one, has it from the commit of that, which follows the store of the number.
    #[inline]
    pub(crate) fn migrations(&self) -> Result<u64, Error> {
        Ok(self.word(MIGRATIONS)?.load(Relaxed))
    }

    /// Has all sessions look up their tables again.
    pub(crate) fn migration_begins(&self) -> Result<(), Error> {
        self.word(MIGRATIONS)?.fetch_add(1, Relaxed);
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

    /// The newest commit of a store whose commits wait for the disk, if snapshots do not see it
    /// yet: the thread that logged it makes it durable, unless it is dead.
    pub(crate) fn unseen(&self) -> Result<Option<Lsn>, Error> {
        if !self.is_durable()? || self.log.flushed() >= self.log.end() {
            return Ok(None);
        }
        let (newest, seen) = (self.log.newest_commit()?, self.visible()?);
        Ok(newest.filter(|commit| commit.0 > seen))
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
        // What is given up is never beyond `low` for so long.
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

    /// Notes that a dead slot's transaction is undone but for the record at `next` and those before
    /// it, so that the next sweep goes on there.
    pub(crate) fn undone_upto(&self, slot: u16, next: u64) -> Result<(), Error> {
        // Relaxed: the sweeper's claim on the slot orders; what is undone twice is undone.
        self.word(SLOTS + u64::from(slot) * LINE + UNDO)?.store(next, Relaxed);
        Ok(())
    }

    /// Where to go on with a transaction that has these first and last records: at the last, or
    /// where a sweep has stopped. What an earlier transaction of the slot left lies before `first`.
    pub(crate) fn undo_from(&self, slot: u16, first: u64, last: u64) -> Result<u64, Error> {
        let next = self.word(SLOTS + u64::from(slot) * LINE + UNDO)?.load(Relaxed);
        Ok(if (first..last).contains(&next) { next } else { last })
    }

    pub(crate) fn turn(&self, slot: u16) -> Result<Turn<'_, M>, Error> {
        Ok(Turn { word: self.word(SLOTS + u64::from(slot) * LINE + TURN)? })
    }

    /// The slots whose transaction this thread has taken, or looks at.
    pub(crate) fn taken_by(&self, taker: u32) -> Result<Vec<u16>, Error> {
        let mut all = Vec::new();
        for slot in 0..self.slots.min(1 << 15) as u16 {
            if [State::Taken(taker), State::Looks(taker)].contains(&self.turn(slot)?.now()) {
                all.push(slot);
            }
        }
        Ok(all)
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

    /// How many snapshots there are, and from where on the oldest of them needs the log.
    pub(crate) fn snapshots(&self) -> Result<(u64, Option<u64>), Error> {
        let (mut count, mut oldest) = (0, None);
        for slot in 0..self.slots {
            // Relaxed: it is looked at, and nothing is done about it.
            if let Some(low) = self.word(SLOTS + slot * LINE)?.load(Relaxed).checked_sub(1) {
                count += 1;
                oldest = Some(oldest.map_or(low, |oldest: u64| oldest.min(low)));
            }
        }
        Ok((count, oldest))
    }

    /// What was removed before this position is removed for every snapshot, those that are taken
    /// from now on counted in. Found anew now and then; what was found once stays true.
    pub(crate) fn forgotten(&self) -> Result<u64, Error> {
        self.forgotten_within(LOOK)
    }

    /// The same, found anew more often: for a thread that would go past many records otherwise.
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

    /// The same, as it was found last.
    pub(crate) fn forgotten_before(&self) -> Result<u64, Error> {
        // Acquire: as above.
        Ok(self.word(FORGOTTEN)?.load(Acquire))
    }

    /// Finds that position anew.
    pub(crate) fn look_again(&self) -> Result<(), Error> {
        raise::<M>(self.word(FORGOTTEN)?, self.needed()?);
        Ok(())
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

    /// The claim on that right, as it is in memory, and the slot that it names. Damaged memory may
    /// name none that there is.
    pub(crate) fn checkpointer(&self) -> Result<Option<(u64, u32)>, Error> {
        // Relaxed: the thread that has it may give it back at once.
        let claim = self.word(CHECKPOINTER)?.load(Relaxed);
        Ok(claim.checked_sub(1).map(|slot| (claim, u32::try_from(slot).unwrap_or(u32::MAX))))
    }

    /// Gives it back; does nothing if the slot has not got it.
    pub(crate) fn checkpoint_over(&self, slot: u32) -> Result<(), Error> {
        self.end_claim(u64::from(slot) + 1)
    }

    #[cfg(test)]
    pub(crate) fn set_claim(&self, claim: u64) {
        self.word(CHECKPOINTER).unwrap().store(claim, Relaxed);
    }

    /// The same, of a claim as it is in memory.
    pub(crate) fn end_claim(&self, claim: u64) -> Result<(), Error> {
        // Release: synchronizes with the Acquire in `claim_checkpoint`.
        let _ = self.word(CHECKPOINTER)?.compare_exchange(claim, 0, Release, Relaxed);
        Ok(())
    }

    /// Whether so many bytes were logged since the last checkpoint, or one is due all the same.
    #[inline]
    pub(crate) fn is_due(&self, budget: u64) -> Result<bool, Error> {
        let last = self.word(CHECKPOINT_AT)?.load(Relaxed);
        Ok(last == DUE || self.log.end().0.saturating_sub(last) >= budget)
    }

    /// Has the next transaction make a checkpoint, however little was logged since the last one.
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
    /// Opens the lines of a region, which may be a view; none if it has none of this layout.
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

    /// From where on a slot's snapshot needs the log; none if it has none.
    pub(crate) fn snapshot(&self, slot: u32) -> Result<Option<u64>, Error> {
        let at = SLOTS + u64::from(slot) * LINE;
        if at + LINE > self.area.words()? {
            return Ok(None);
        }
        // Relaxed: it is printed, and no decision depends on it.
        Ok(self.area.word(at)?.load(Relaxed).checked_sub(1))
    }

    /// The number of transactions of dead processes that were undone.
    pub(crate) fn undone(&self) -> Result<u64, Error> {
        // Relaxed: as above.
        Ok(self.area.word(UNDONE)?.load(Relaxed))
    }

    /// The slot whose thread makes a checkpoint.
    pub(crate) fn checkpointer(&self) -> Result<Option<u32>, Error> {
        // Relaxed: as above.
        let claim = self.area.word(CHECKPOINTER)?.load(Relaxed);
        Ok(claim.checked_sub(1).and_then(|slot| u32::try_from(slot).ok()))
    }
}

impl<M: ConstMachine> Shared<M> {
    /// Reads the same lines.
    pub(crate) fn lines(&self) -> SlotLines<M> {
        SlotLines { area: self.area.clone() }
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
