//! The shared state of a log: one area of the region.
//!
//! ```text
//! word 0      Shared: identity and sizes, the frontiers, the claims, the words under the latch,
//!             pins, and the requests of each group of threads: see `group.rs`
//! word 1024   Slot x threads: the state of each thread slot in the log
//! then        the buffer: the log's newest bytes; see `buffer.rs`
//! ```
//!
//! Frontiers: `flushed <= written <= end <= reserved <= promised`. Bytes below `flushed` are
//! durable, those below `written` are in the files, and those below `end` are whole records. Bytes
//! below `reserved` belong to records that may still be in copying. `promised` is where `reserved`
//! will be when all credit is used: `promised - written` never exceeds the present size of the
//! buffer.
//!
//! A *claim* is a word that names a thread slot, as its number plus one. Another thread takes over
//! the claim of a dead thread with a compare-exchange.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_latch::OptLatch;
use latchwork_machine::{Level, Machine, Word};
use latchwork_region::Plain;

use crate::Lsn;
use crate::gather::Gather;
use crate::group::{GROUPS, Group};
use crate::line::Line;
use crate::turn::Turns;

/// Words before the slots.
pub(crate) const SLOTS_AT: u64 = 1024;
/// The commits that a slot remembers, plus one.
pub const COMMITS: usize = 64;
/// The maximum distance between `flushed` and `written` at which records state the durable place.
/// Recovery interprets that place within 64 GiB before the record, and records are appended within
/// the buffer's size of `written`.
const DURABLE_LAG: u64 = 32 << 30;
/// The number of pins of a log.
pub(crate) const PINS: usize = 16;

/// The first words of the area.
#[repr(C, align(64))]
pub(crate) struct Shared<M: Machine> {
    /// One when all other words are valid.
    pub(crate) ready: M::AtomicU64,
    /// The maximum size of the buffer in bytes.
    pub(crate) buffer: M::AtomicU64,
    pub(crate) segment: M::AtomicU64,
    pub(crate) threads: M::AtomicU64,
    pub(crate) id: [M::AtomicU64; 2],
    /// The LSN from which on the buffer holds the log.
    pub(crate) buffer_from: M::AtomicU64,
    /// Claim: the thread that opens the files.
    pub(crate) opening: M::AtomicU64,
    /// Bytes of the first segment; `segment` is the full size.
    pub(crate) first_segment: M::AtomicU64,
    /// The present size of the buffer, and whether it is final.
    pub(crate) buffer_size: M::AtomicU64,
    /// The state that was found when the files were opened.
    pub(crate) found: Found<M>,
    pub(crate) end: Line<M>,
    pub(crate) written: Line<M>,
    pub(crate) flushed: Line<M>,
    /// Claim: the thread that writes and syncs.
    pub(crate) flusher: Line<M>,
    /// Claim: the thread that makes or recycles segments, or writes the control file.
    pub(crate) maker: Line<M>,
    /// One after a write or a sync has failed.
    pub(crate) broken: Line<M>,
    /// The end of the existing segments.
    pub(crate) prepared: Line<M>,
    /// The time of the last flush, in nanoseconds of the monotonic clock.
    pub(crate) flushed_at: Line<M>,
    pub(crate) gather: Gather<M>,
    pub(crate) append: Append<M>,
    pub(crate) pins: [Pin<M>; PINS],
    pub(crate) groups: [Group<M>; GROUPS],
    pub(crate) turns: Turns<M>,
}

impl<M: Machine> Shared<M> {
    /// Returns the group of the calling thread's node, and the group's number.
    pub(crate) fn group(&self) -> (usize, &Group<M>) {
        let node = if M::spread(Level::Node) { M::place().node() } else { 0 };
        let number = node as usize % GROUPS;
        (number, &self.groups[number])
    }

    /// Returns the place up to which the log is durable, to store in a record. Returns
    /// [`Lsn::NEVER`](crate::Lsn::NEVER) if the place is so far back that the 36 bits of it in a
    /// record are ambiguous.
    pub(crate) fn known_durable(&self) -> Lsn {
        // Relaxed, both: no other word depends on them, and an older value is also true.
        let (written, flushed) = (self.written.0.load(Relaxed), self.flushed.0.load(Relaxed));
        if written.saturating_sub(flushed) < DURABLE_LAG { Lsn(flushed) } else { Lsn::NEVER }
    }
}

/// The state that was found when the files were opened, and the last checkpoint's state.
#[repr(C, align(64))]
pub(crate) struct Found<M: Machine> {
    pub(crate) end: M::AtomicU64,
    pub(crate) redo: M::AtomicU64,
    pub(crate) checkpoint: M::AtomicU64,
    pub(crate) clean: M::AtomicU64,
    pub(crate) sequence: M::AtomicU64,
    /// The end of the log when it was last marked; see [`Session::mark`](crate::Session::mark).
    /// Changed under the latch; threads read it before each append.
    pub(crate) marked: M::AtomicU64,
    /// The place up to which the control file states that the log is durable.
    pub(crate) said: M::AtomicU64,
    /// The place up to which an unfinished sync makes the log durable; see `flush.rs`.
    pub(crate) syncing: M::AtomicU64,
}

/// The words that the latch guards. It also guards the pins, and the words `granted` and `aside` of
/// each slot.
#[repr(C, align(64))]
pub(crate) struct Append<M: Machine> {
    pub(crate) latch: OptLatch<M>,
    /// The place of the next record.
    pub(crate) reserved: M::AtomicU64,
    /// The value of `reserved` when all credit is used: `base` and the sum of the bytes granted to
    /// all slots.
    pub(crate) promised: M::AtomicU64,
    /// The sum of the bytes that all slots have set aside.
    pub(crate) aside: M::AtomicU64,
    /// Bytes set aside for pages that rollback logs whole, and the bytes for each page.
    pub(crate) images: M::AtomicU64,
    pub(crate) image: M::AtomicU64,
    /// The end of the log when it was opened, plus the bytes of places that no slot has used.
    pub(crate) base: M::AtomicU64,
    /// The size in bytes of the place that the holder fills for a late owner.
    pub(crate) filled_bytes: M::AtomicU64,
    /// The value of `base` after that place is filled.
    pub(crate) filled_base: M::AtomicU64,
    /// Segments below this LSN may have been recycled.
    pub(crate) oldest: M::AtomicU64,
}

/// A named place from which on the log is kept.
#[repr(C)]
pub(crate) struct Pin<M: Machine> {
    /// The claim of the thread slot that created it.
    pub(crate) owner: M::AtomicU64,
    pub(crate) lsn: M::AtomicU64,
    pub(crate) name: [M::AtomicU64; 2],
}

/// The state of one thread slot in the log.
///
/// Only the slot's thread changes these words, or after its death a repair that has claimed the
/// slot; `granted` and `aside` are changed under the latch.
#[repr(C, align(64))]
pub(crate) struct Slot<M: Machine> {
    /// The LSN that the thread waits for, with [`WRITTEN`] if a write is enough; or zero.
    pub(crate) waits: M::AtomicU64,
    /// Changes when the thread must check again.
    pub(crate) notifier: M::AtomicU32,
    /// The slot, plus one, from whose `aside` the thread took credit last; zero if it never did.
    pub(crate) took_of: M::AtomicU32,
    /// The first record of its transaction, or zero.
    pub(crate) first: M::AtomicU64,
    /// The last record of its transaction, or zero.
    pub(crate) last: M::AtomicU64,
    /// How many transactions of the slot have committed.
    pub(crate) commits: M::AtomicU64,
    /// The last record of any kind that the thread appended.
    pub(crate) newest: M::AtomicU64,
    /// Bytes of credit ever granted, less the bytes returned.
    pub(crate) granted: M::AtomicU64,
    /// Bytes set aside for the rollback of its transaction.
    pub(crate) aside: M::AtomicU64,
    /// Bytes ever appended.
    pub(crate) used: M::AtomicU64,
    /// Bytes of credit kept for the rollback of its transaction, and not yet in `aside`.
    pub(crate) held: M::AtomicU64,
    /// The bytes of the record that the thread appends, shifted by [`BYTES_SHIFT`], and the number
    /// of the request word that it used last.
    pub(crate) flight: M::AtomicU64,
    /// The state of the slot before the record that the thread appends.
    pub(crate) note: Note<M>,
    /// First record and commit record of each of the last transactions.
    pub(crate) list: [[M::AtomicU64; 2]; COMMITS],
}

/// The state of a slot before the record at `lsn`. The slot is restored from it if the thread dies
/// before the record is in the buffer.
#[repr(C)]
pub(crate) struct Note<M: Machine> {
    pub(crate) lsn: M::AtomicU64,
    pub(crate) first: M::AtomicU64,
    pub(crate) last: M::AtomicU64,
    pub(crate) commits: M::AtomicU64,
    pub(crate) used: M::AtomicU64,
}

/// In [`Slot::flight`]: above the number of a request word, counted over all groups.
pub(crate) const BYTES_SHIFT: u32 = 16;

const _: () = assert!(GROUPS * crate::group::REQUESTS <= 1 << BYTES_SHIFT);

impl<M: Machine> Slot<M> {
    /// The bytes of the record that its thread appends.
    pub(crate) fn flight_bytes(&self) -> u64 {
        self.flight.load(Relaxed) >> BYTES_SHIFT
    }
}

/// A bit of [`Slot::waits`]; LSNs are multiples of 16.
pub(crate) const WRITTEN: u64 = 1;

const _: () = assert!(size_of::<Shared<latchwork_machine::Native>>() <= SLOTS_AT as usize * 8);

// SAFETY: it is made of words of a machine and of a latch, which is such a word; nothing drops.
unsafe impl<M: Machine> Plain for Shared<M> {}
// SAFETY: it is made of words of a machine.
unsafe impl<M: Machine> Plain for Slot<M> {}

/// Words of a slot.
pub(crate) const SLOT_WORDS: u64 = (size_of::<Slot<latchwork_machine::Native>>() / 8) as u64;

/// Takes a claim that is free. Returns whether it succeeded.
pub(crate) fn claim<A: Word<Value = u64>>(word: &A, me: u64) -> bool {
    // Acquire: synchronizes with the Release in `unclaim`.
    word.compare_exchange(0, me, Acquire, Relaxed).is_ok()
}

/// Releases the claim if `holder` has it.
pub(crate) fn unclaim<A: Word<Value = u64>>(word: &A, holder: u64) {
    // Release: synchronizes with the Acquire in `claim`.
    let _ = word.compare_exchange(holder, 0, Release, Relaxed);
}

/// A claim that is released on drop, also during a panic.
pub(crate) struct Claimed<'a, A: Word<Value = u64>> {
    pub(crate) word: &'a A,
    pub(crate) me: u64,
}

impl<A: Word<Value = u64>> Drop for Claimed<'_, A> {
    fn drop(&mut self) {
        unclaim(self.word, self.me);
    }
}

/// The state of a thread slot in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotView {
    /// The first record of the present transaction; [`Lsn::NEVER`] if there is none.
    pub first: Lsn,
    /// The last record of the present transaction.
    pub last: Lsn,
    /// The number of committed transactions.
    pub commits: u64,
    /// First record and commit record of the last 63 committed transactions, oldest first.
    pub recent: Vec<(Lsn, Lsn)>,
}
