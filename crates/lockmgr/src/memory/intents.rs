//! What a thread says it is about to free, before nothing leads there any more: if it dies, the
//! thread that sweeps its slot reads it.
//!
//! Several may have noted one cell: the thread that made it, the one that was about to free it, and
//! those that died as they swept these. Their slots are swept by different threads, at the same
//! time. So each that takes a cell out of its place to free it, a sweeper too, gives it a new
//! generation and then notes it (`Thread::adopt_as`): a note that names a cell of its generation,
//! to which nothing leads, is the only one. A thread that is killed between the two loses the cell,
//! if it was out of its place before: as it sweeps, or with a claim that is gone.
//!
//! A request that has left its owner's list stays noted, as the thread's *spare* one, for its next
//! lock. So a lock that comes and goes takes no cell and frees none. A noted request is in a list
//! again before the note is struck: the sweep walks the lists first.

use latchwork_machine::ConstMachine;
use latchwork_region::{Offset, Plain};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{ObjectAt, RequestAt, Table, generation_at, get, put};
use crate::memory::numbers::PartitionNumber;
use crate::memory::typed::Stored;

/// A request: generation, offset.
pub(crate) const REQUEST: usize = 0;
/// An object: generation, offset; and its partition.
pub(crate) const OBJECT: usize = 1;
pub(crate) const OBJECT_IN: usize = 2;
/// A table: generation, offset; and tier, partition.
pub(crate) const TABLE: usize = 3;
pub(crate) const TABLE_IN: usize = 4;
/// A waiting request that is between two places.
pub(crate) const AWAY: usize = 5;
/// A record of a deadlock: see `deadlock/history.rs`.
pub(crate) const RECORD: usize = 6;
pub(crate) const RECORD_TIER: usize = 7;
/// A claim or a keyspace; and its size, its partition: see `range/keyspaces.rs`.
pub(crate) const RANGE: usize = 8;
pub(crate) const RANGE_IN: usize = 9;
/// What a victim was told: generation, offset; see `deadlock/report.rs`.
pub(crate) const REPORT: usize = 10;

impl<M: ConstMachine> Memory<M> {
    /// A cell as a note names it: with its generation.
    pub(crate) fn name_cell<T: Plain>(&self, at: Offset<T>) -> Result<u64, Error> {
        let generation = generation_at(self.region(), at)?;
        Ok(u64::from(generation) << 32 | u64::from(at.raw()))
    }

    /// Notes that a request is about to be freed.
    #[inline]
    pub(crate) fn note_request(&self, at: RequestAt<M>) -> Result<(), Error> {
        // The note was the spare one's.
        if !self.spare.get().is_null() {
            self.free_spare()?;
        }
        put(&self.thread.intent()?[REQUEST], self.name_cell(at)?);
        Ok(())
    }

    /// Notes a request that is freed at once, and may be noted elsewhere.
    pub(crate) fn note_freed(&self, at: RequestAt<M>) -> Result<(), Error> {
        if !self.spare.get().is_null() {
            self.free_spare()?;
        }
        Ok(self.thread.adopt_as(at, &self.thread.intent()?[REQUEST])?)
    }

    /// Notes a request that a closer moved, and that is about to leave its queue and be freed: with
    /// the latch held, so that a sweep can tell whether it has left (`free_noted_request`
    /// in `recovery/notes.rs`).
    pub(crate) fn note_moved(&self, at: RequestAt<M>) -> Result<(), Error> {
        self.note_freed(at)?;
        self.point("moved request noted");
        Ok(())
    }

    /// Strikes the note, for the noted request is in its owner's list again.
    #[inline]
    pub(crate) fn strike_request(&self) -> Result<(), Error> {
        put(&self.thread.intent()?[REQUEST], 0);
        Ok(())
    }

    /// Frees the request that was kept for the next lock that needs one.
    pub(crate) fn free_spare(&self) -> Result<(), Error> {
        let spare = self.spare.replace(Offset::NULL);
        if spare.is_null() { Ok(()) } else { Ok(self.free_cell(spare)?) }
    }

    /// Takes over the request that the slot's last session kept for its next lock, and noted.
    pub(crate) fn take_spare(&self) -> Result<(), Error> {
        if let Some(at) = self.noted(get(&self.thread.intent()?[REQUEST]))? {
            self.spare.set(at);
        }
        Ok(())
    }

    /// Notes that an object is about to leave its chain, or has left it.
    pub(crate) fn note_object(
        &self,
        at: ObjectAt<M>,
        partition: PartitionNumber,
    ) -> Result<(), Error> {
        let notes = self.thread.intent()?;
        put(&notes[OBJECT], 0);
        put(&notes[OBJECT_IN], u64::from(partition.word()));
        Ok(self.thread.adopt_as(at, &notes[OBJECT])?)
    }

    /// Notes that a table is about to be exchanged for a larger one, or was.
    pub(crate) fn note_table(&self, table: Table, partition: PartitionNumber) -> Result<(), Error> {
        let notes = self.thread.intent()?;
        put(&notes[TABLE], 0);
        put(&notes[TABLE_IN], u64::from(table.tier) << 32 | u64::from(partition.word()));
        Ok(self.thread.adopt_as(table.at, &notes[TABLE])?)
    }

    /// Notes that a waiting request is about to change its place.
    pub(crate) fn note_away(&self, at: RequestAt<M>) -> Result<(), Error> {
        put(&self.thread.intent()?[AWAY], self.name_cell(at)?);
        Ok(())
    }

    /// A noted cell, if it has not been freed since: what is noted is freed before the note is
    /// struck, or is not struck at all.
    pub(crate) fn noted<T: Plain>(&self, word: u64) -> Result<Option<Offset<T>>, Error> {
        let at = Offset::from_raw(word as u32);
        if at.is_null() {
            return Ok(None);
        }
        let lent = self.region().lent(at)?;
        Ok((lent == Some((word >> 32) as u32)).then_some(at))
    }
}
