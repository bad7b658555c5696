//! Intents: a thread records which cell it will free before the last link to that cell is removed.
//! If the thread dies, the thread that sweeps its slot reads the record.
//!
//! Several slots may have recorded one cell: that of the thread that created it, that of the thread
//! that was about to free it, and those of sweepers that died. These slots may be swept by
//! different threads at the same time. So every thread that unlinks a cell in order to free it,
//! including a sweeper, first gives the cell a new generation and then records it
//! (`Thread::adopt_as`). An intent that names a cell by its current generation, when nothing links
//! to the cell, is therefore the only one. A thread that is killed between these two steps loses
//! the cell if the cell was unlinked before: during a sweep, or for a removed claim.
//!
//! A request that has left its owner's list stays recorded as the thread's *spare* request and
//! serves its next lock. So a lock that is taken and released allocates no cell and frees none. The
//! request is linked into a list again before the intent is cleared, and the sweep walks the lists
//! first.

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
/// A waiting request that is between two places of its queue.
pub(crate) const AWAY: usize = 5;
/// A record of a deadlock: see `deadlock/history.rs`.
pub(crate) const RECORD: usize = 6;
pub(crate) const RECORD_TIER: usize = 7;
/// A claim or a keyspace; and its size, its partition: see `range/keyspaces.rs`.
pub(crate) const RANGE: usize = 8;
pub(crate) const RANGE_IN: usize = 9;
/// The report to a victim: generation, offset; see `deadlock/report.rs`.
pub(crate) const REPORT: usize = 10;

impl<M: ConstMachine> Memory<M> {
    /// Returns the word by which an intent names a cell: its generation and offset.
    pub(crate) fn name_cell<T: Plain>(&self, at: Offset<T>) -> Result<u64, Error> {
        let generation = generation_at(self.region(), at)?;
        Ok(u64::from(generation) << 32 | u64::from(at.raw()))
    }

    /// Records that a request is about to be freed.
    #[inline]
    pub(crate) fn note_request(&self, at: RequestAt<M>) -> Result<(), Error> {
        // The record held the spare request.
        if !self.spare.get().is_null() {
            self.free_spare()?;
        }
        put(&self.thread.intent()?[REQUEST], self.name_cell(at)?);
        Ok(())
    }

    /// Records a request that is freed immediately, and may be recorded elsewhere.
    pub(crate) fn note_freed(&self, at: RequestAt<M>) -> Result<(), Error> {
        if !self.spare.get().is_null() {
            self.free_spare()?;
        }
        Ok(self.thread.adopt_as(at, &self.thread.intent()?[REQUEST])?)
    }

    /// Records a request that a closer moved and that is about to leave its queue and be freed. The
    /// latch is held, so that a sweep can determine whether the request has left
    /// (`free_noted_request` in `recovery/notes.rs`).
    pub(crate) fn note_moved(&self, at: RequestAt<M>) -> Result<(), Error> {
        self.note_freed(at)?;
        self.point("moved request noted");
        Ok(())
    }

    /// Clears the record, because the request is in its owner's list again.
    #[inline]
    pub(crate) fn strike_request(&self) -> Result<(), Error> {
        put(&self.thread.intent()?[REQUEST], 0);
        Ok(())
    }

    /// Frees the spare request.
    pub(crate) fn free_spare(&self) -> Result<(), Error> {
        let spare = self.spare.replace(Offset::NULL);
        if spare.is_null() { Ok(()) } else { Ok(self.free_cell(spare)?) }
    }

    /// Takes over the spare request that the slot's last session recorded.
    pub(crate) fn take_spare(&self) -> Result<(), Error> {
        if let Some(at) = self.noted(get(&self.thread.intent()?[REQUEST]))? {
            self.spare.set(at);
        }
        Ok(())
    }

    /// Records that an object is about to leave its chain, or has left it.
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

    /// Records that a table is about to be replaced by a larger one, or was.
    pub(crate) fn note_table(&self, table: Table, partition: PartitionNumber) -> Result<(), Error> {
        let notes = self.thread.intent()?;
        put(&notes[TABLE], 0);
        put(&notes[TABLE_IN], u64::from(table.tier) << 32 | u64::from(partition.word()));
        Ok(self.thread.adopt_as(table.at, &notes[TABLE])?)
    }

    /// Records that a waiting request is about to change its place in the queue.
    pub(crate) fn note_away(&self, at: RequestAt<M>) -> Result<(), Error> {
        put(&self.thread.intent()?[AWAY], self.name_cell(at)?);
        Ok(())
    }

    /// Returns the recorded cell if it was not freed since. A recorded cell is freed before the
    /// record is cleared, or the record is not cleared at all.
    pub(crate) fn noted<T: Plain>(&self, word: u64) -> Result<Option<Offset<T>>, Error> {
        let at = Offset::from_raw(word as u32);
        if at.is_null() {
            return Ok(None);
        }
        let lent = self.region().lent(at)?;
        Ok((lent == Some((word >> 32) as u32)).then_some(at))
    }
}
