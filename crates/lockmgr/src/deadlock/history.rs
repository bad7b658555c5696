//! The history of deadlocks: records in the region of the last cycles and their victims, for
//! diagnostics.
//!
//! ```text
//! history  count of deadlocks; 16 slots, each tier and offset of a record, or null
//! record   number | wall clock | monotonic clock | links, links written << 32 | finder
//! link     owner: index, generation | what | thread + 1, pid | label | name
//! what     hard: 8 | held + 1: 8 | wanted: 8 | label's bytes: 8 | name's bytes: 16 | all: 16
//! finder   thread + 1, pid
//! ```
//!
//! Deadlock `n` is in slot `n % 16`; the record that was there is freed. A record is a cell of 512,
//! 4,096 or 65,536 bytes. Links that do not fit the largest size (about a thousand links do) are
//! omitted, and the record has the total number.
//!
//! The thread that holds the latch of partition 0 may use the history and free a record that it led
//! to. An intent names a record before it leaves the history; see `docs/death.md`.

use std::collections::HashMap;

use latchwork_machine::{Clock, ConstMachine};
use latchwork_region::{Dead, Offset, Plain};

use crate::memory::cells::{cell_at, get, put};
use crate::memory::numbers::PartitionNumber;
use crate::memory::typed::Stored;
use crate::memory::{Memory, intents, roots};
use crate::{Error, Link};

/// Number of deadlocks in the history.
pub(crate) const KEPT: u64 = 16;
/// The partition whose latch guards the history.
const GUARD: PartitionNumber = PartitionNumber::FIRST;
/// Words of a record before the links, and of a link before its label.
pub(crate) const HEAD: usize = 5;
pub(crate) const LINK: usize = 3;
/// Bytes of a name that are recorded.
pub(crate) const TOLD: usize = 64;
/// Words of a record, by tier.
pub(crate) const WORDS: [usize; 3] = [63, 511, 8183];

/// The offsets of the last records.
#[repr(C)]
pub(crate) struct History<M: ConstMachine> {
    /// Number of deadlocks that were broken by aborting a victim.
    pub(crate) count: M::AtomicU64,
    pub(crate) slots: [M::AtomicU64; KEPT as usize],
}

/// The record of a deadlock.
#[repr(C)]
pub(crate) struct Record<M: ConstMachine, const N: usize> {
    pub(crate) words: [M::AtomicU64; N],
}

// SAFETY: the type consists of words of a machine and nothing else.
unsafe impl<M: ConstMachine> Plain for History<M> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine, const N: usize> Plain for Record<M, N> {}

/// Returns the offset of a record, from a slot or an intent.
fn record_of<M: ConstMachine>(word: u64) -> Offset<Record<M, { WORDS[0] }>> {
    Offset::from_raw(word as u32)
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

impl<M: ConstMachine> Memory<M> {
    /// Returns the history, or `None` in a region that was laid out without one.
    fn history(&self) -> Result<Option<&History<M>>, Error> {
        let region = self.region();
        match get(region.root(roots::HISTORY)?) as u32 {
            0 => Ok(None),
            at => Ok(Some(cell_at(region, Offset::from_raw(at))?)),
        }
    }

    /// Returns the words of a record for a cycle, the victim first. Its owners wait, so it does not
    /// change.
    pub(crate) fn describe(&self, links: &[&Link]) -> Result<Vec<u64>, Error> {
        let region = self.region();
        let threads: HashMap<u32, (u32, u32)> =
            region.threads().map(|t| (t.slot, (t.process, t.process_generation))).collect();
        let place = |thread: u32| {
            let process = threads.get(&thread);
            let pid = process.and_then(|(slot, generation)| region.pid(*slot, *generation));
            u64::from(thread + 1) << 32 | u64::from(pid.unwrap_or(0))
        };
        let now = [M::now(Clock::Realtime), M::now(Clock::Monotonic)];
        let mut words = vec![0, now[0], now[1], 0, place(self.thread.number())];
        let mut written = 0u64;
        for link in links {
            let cell = self.owner_cell(link.owner.number())?.ok_or(Error::Foreign)?;
            let label: Vec<u8> = cell.label.iter().flat_map(|w| get(w).to_le_bytes()).collect();
            let label = &label[..label.iter().position(|b| *b == 0).unwrap_or(label.len())];
            let told = &link.object[..link.object.len().min(TOLD)];
            let more = LINK + label.len().div_ceil(8) + told.len().div_ceil(8);
            if words.len() + more > WORDS[2] {
                break;
            }
            let thread = self.page(link.owner.number().page())?.map_or(0, |page| get(&page.thread));
            let held = link.held.map_or(0, |mode| u64::from(mode.0) + 1);
            let what = u64::from(link.hard)
                | held << 8
                | u64::from(link.wanted.0) << 16
                | (label.len() as u64) << 24
                | (told.len() as u64) << 32
                | (link.object.len() as u64) << 48;
            words.push(link.owner.word());
            words.extend([what, thread.checked_sub(1).map_or(0, place)]);
            words.extend(words_of(label).chain(words_of(told)));
            written += 1;
        }
        words[3] = links.len() as u64 | written << 32;
        Ok(words)
    }

    /// Adds a record to the history. No latch may be held.
    pub(crate) fn record(&self, words: &[u64]) -> Result<(), Error> {
        match words.len() {
            n if n <= WORDS[0] => self.hang::<{ WORDS[0] }>(0, words),
            n if n <= WORDS[1] => self.hang::<{ WORDS[1] }>(1, words),
            _ => self.hang::<{ WORDS[2] }>(2, words),
        }
    }

    fn hang<const N: usize>(&self, tier: u64, words: &[u64]) -> Result<(), Error> {
        let Some(history) = self.history()? else { return Ok(()) };
        // The deadlock is broken already: a missing record is not an error.
        let Ok(cell) = self.thread.alloc_dirty::<Record<M, N>>() else { return Ok(()) };
        for (word, value) in cell.words.iter().zip(words) {
            put(word, *value);
        }
        self.point("deadlock described");
        let latched = self.latch(GUARD)?;
        let number = get(&history.count).wrapping_add(1);
        let slot = &history.slots[(number % KEPT) as usize];
        let (old, notes) = (get(slot), self.thread.intent()?);
        put(&cell.words[0], number);
        put(&notes[intents::RECORD], 0);
        put(&notes[intents::RECORD_TIER], old >> 32);
        if old != 0 {
            // If the record is free already, a faulty peer freed it.
            let _ = self.thread.adopt_as(record_of::<M>(old), &notes[intents::RECORD]);
        }
        self.point("deadlock about to be linked");
        put(slot, tier << 32 | u64::from(cell.offset().raw()));
        self.point("deadlock in the history");
        put(&history.count, number);
        self.point("deadlock counted");
        cell.publish();
        let _ = self.free_record(old);
        self.point("older deadlock freed");
        put(&notes[intents::RECORD], 0);
        drop(latched);
        Ok(())
    }

    fn free_record(&self, slot: u64) -> Result<(), Error> {
        let at = record_of::<M>(slot);
        if at.is_null() {
            return Ok(());
        }
        match slot >> 32 {
            0 => self.free_cell(at)?,
            1 => self.free_cell(at.cast::<Record<M, { WORDS[1] }>>())?,
            _ => self.free_cell(at.cast::<Record<M, { WORDS[2] }>>())?,
        }
        Ok(())
    }

    /// Returns the offsets of all records. The sweep needs them.
    pub(crate) fn recorded(&self) -> Result<Vec<u32>, Error> {
        let _latched = self.latch(GUARD)?;
        Ok(self.history()?.map_or(Vec::new(), |r| r.slots.iter().map(|s| get(s) as u32).collect()))
    }

    /// Frees the record that a dead thread removed from the history and did not free.
    ///
    /// The thread that removes a record frees it under the same latch. So a record that is still
    /// allocated, in the recorded generation, and not in the history must be freed for that thread.
    pub(crate) fn free_noted_record(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let notes = dead.intent();
        let noted = get(&notes[intents::RECORD]);
        let at = record_of::<M>(noted);
        if at.is_null() {
            return Ok(());
        }
        let _latched = self.latch(GUARD)?;
        let lent = self.region().lent(at)?;
        let in_history = self
            .history()?
            .is_some_and(|history| history.slots.iter().any(|slot| record_of(get(slot)) == at));
        if lent == Some((noted >> 32) as u32) && !in_history {
            let (tier, mine) = (get(&notes[intents::RECORD_TIER]), self.thread.intent()?);
            put(&mine[intents::RECORD_TIER], tier);
            self.thread.adopt_as(at, &mine[intents::RECORD])?;
            let _ = self.free_record(tier << 32 | u64::from(at.raw()));
            put(&mine[intents::RECORD], 0);
            self.point("dead one's deadlock freed");
        }
        put(&notes[intents::RECORD], 0);
        Ok(())
    }
}
