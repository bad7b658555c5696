//! What all processes share of a log: an area of the region.
//!
//! ```text
//! word 0      Shared: identity and sizes, the frontiers, the claims, what the latch guards, pins
//! word 512    Slot x threads: what each thread slot has in the log
//! then        the buffer: the log's newest bytes; see `buffer.rs`
//! ```
//!
//! Frontiers, each on a line of its own: `flushed <= written <= end`. Bytes below `end` are
//! whole records. Bytes below `written` are in the files, those below `flushed` durable. `end -
//! written` plus all credit is never more than the buffer has now.
//!
//! A *claim* is a word that names a thread slot, as its number plus one. What a dead thread
//! claimed, another claims from it by a compare-exchange.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_latch::OptLatch;
use latchwork_machine::{Machine, Word};
use latchwork_region::Plain;

use crate::Lsn;

/// Words before the slots.
pub(crate) const SLOTS_AT: u64 = 512;
/// Commits that a slot remembers, and one more.
pub const COMMITS: usize = 64;
/// How far what is durable may be behind what is written, for records to say it. What they say is
/// taken for right 64 GiB behind them; they are appended within the buffer's size.
const DURABLE_LAG: u64 = 32 << 30;
/// Pins that a log has.
pub(crate) const PINS: usize = 16;

/// A word on a line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<M: Machine>(pub(crate) M::AtomicU64, [M::AtomicU64; 7]);

/// The area's first words.
#[repr(C, align(64))]
pub(crate) struct Shared<M: Machine> {
    /// One when all the rest is right.
    pub(crate) ready: M::AtomicU64,
    /// The bytes that the buffer may grow to.
    pub(crate) buffer: M::AtomicU64,
    pub(crate) segment: M::AtomicU64,
    pub(crate) threads: M::AtomicU64,
    pub(crate) id: [M::AtomicU64; 2],
    /// From which LSN on the buffer holds the log.
    pub(crate) buffer_from: M::AtomicU64,
    /// Claim: the thread that opens the files.
    pub(crate) opening: M::AtomicU64,
    /// Bytes of the first segment; `segment` is what those of full size have.
    pub(crate) first_segment: M::AtomicU64,
    /// How many bytes the buffer has, and whether that is final.
    pub(crate) buffer_size: M::AtomicU64,
    /// What was found when the files were opened.
    pub(crate) found: Found<M>,
    pub(crate) end: Line<M>,
    pub(crate) written: Line<M>,
    pub(crate) flushed: Line<M>,
    /// Claim: the thread that writes and syncs.
    pub(crate) flusher: Line<M>,
    /// Claim: the thread that makes or recycles segments, or writes the control file.
    pub(crate) maker: Line<M>,
    /// One when a write or a sync has failed.
    pub(crate) broken: Line<M>,
    /// Up to where segments exist.
    pub(crate) prepared: Line<M>,
    /// When the log was last flushed, in nanoseconds of the monotonic clock.
    pub(crate) flushed_at: Line<M>,
    pub(crate) append: Append<M>,
    pub(crate) pins: [Pin<M>; PINS],
}

impl<M: Machine> Shared<M> {
    /// Up to where the log is durable, for a record to say. Nothing if that is so far behind that
    /// a record's 36 bits of it might mean a later place.
    pub(crate) fn known_durable(&self) -> Lsn {
        // Relaxed, both: they say nothing of other words, and an older one is as true.
        let (written, flushed) = (self.written.0.load(Relaxed), self.flushed.0.load(Relaxed));
        if written.saturating_sub(flushed) < DURABLE_LAG { Lsn(flushed) } else { Lsn::NEVER }
    }
}

/// What was found when the files were opened, and what checkpoints said since.
#[repr(C, align(64))]
pub(crate) struct Found<M: Machine> {
    pub(crate) end: M::AtomicU64,
    pub(crate) redo: M::AtomicU64,
    pub(crate) checkpoint: M::AtomicU64,
    pub(crate) clean: M::AtomicU64,
    pub(crate) sequence: M::AtomicU64,
    /// Where the log ended when it was last marked; see [`Session::mark`](crate::Session::mark).
    pub(crate) marked: M::AtomicU64,
    /// Up to where the control file says that the log is durable.
    pub(crate) said: M::AtomicU64,
    /// Up to where a sync is to make the log durable that has begun and not ended; see `flush.rs`.
    pub(crate) syncing: M::AtomicU64,
}

/// What the latch guards; with it, `end`, the slots' own words and the pins.
#[repr(C, align(64))]
pub(crate) struct Append<M: Machine> {
    pub(crate) latch: OptLatch<M>,
    /// The sum of all slots' credit.
    pub(crate) credit: M::AtomicU64,
    /// Below this LSN segments may be gone.
    pub(crate) oldest: M::AtomicU64,
    /// How a slot was before the record at `note_lsn`: restored if `end` never passed it.
    pub(crate) note_lsn: M::AtomicU64,
    pub(crate) note_slot: M::AtomicU64,
    pub(crate) note_first: M::AtomicU64,
    pub(crate) note_last: M::AtomicU64,
    pub(crate) note_commits: M::AtomicU64,
    /// The sum of what all slots have set aside.
    pub(crate) aside: M::AtomicU64,
    /// What is set aside for pages that undoing logs whole, and how much that is for each.
    pub(crate) images: M::AtomicU64,
    pub(crate) image: M::AtomicU64,
}

/// A named place that the log is kept from.
#[repr(C)]
pub(crate) struct Pin<M: Machine> {
    /// Claim of the thread slot that made it.
    pub(crate) owner: M::AtomicU64,
    pub(crate) lsn: M::AtomicU64,
    pub(crate) name: [M::AtomicU64; 2],
}

/// What one thread slot has in the log.
#[repr(C, align(64))]
pub(crate) struct Slot<M: Machine> {
    /// The LSN that its thread waits for, with [`WRITTEN`] if to be written is enough; or zero.
    pub(crate) waits: M::AtomicU64,
    /// Changes when its thread is to look again.
    pub(crate) notifier: M::AtomicU32,
    /// The slot, plus one, from whose `aside` it took credit last; zero if it never did.
    pub(crate) took_of: M::AtomicU32,
    /// Bytes that it may append.
    pub(crate) credit: M::AtomicU64,
    /// The first record of its transaction, or zero.
    pub(crate) first: M::AtomicU64,
    /// The last record of its transaction, or zero.
    pub(crate) last: M::AtomicU64,
    /// How many transactions of the slot have committed.
    pub(crate) commits: M::AtomicU64,
    /// The last record that its thread appended, of whatever kind.
    pub(crate) newest: M::AtomicU64,
    /// Bytes that are set aside for undoing its transaction.
    pub(crate) aside: M::AtomicU64,
    /// First record and commit of each of the last transactions.
    pub(crate) list: [[M::AtomicU64; 2]; COMMITS],
}

/// In [`Slot::waits`]: LSNs are multiples of 16.
pub(crate) const WRITTEN: u64 = 1;

const _: () = assert!(size_of::<Shared<latchwork_machine::Native>>() <= SLOTS_AT as usize * 8);

// SAFETY: it is made of words of a machine and of a latch, which is such a word; nothing drops.
unsafe impl<M: Machine> Plain for Shared<M> {}
// SAFETY: it is made of words of a machine.
unsafe impl<M: Machine> Plain for Slot<M> {}

/// Words of a slot.
pub(crate) const SLOT_WORDS: u64 = (size_of::<Slot<latchwork_machine::Native>>() / 8) as u64;

/// Takes a claim that is free.
pub(crate) fn claim<A: Word<Value = u64>>(word: &A, me: u64) -> bool {
    // Acquire: synchronizes with the Release in `unclaim`.
    word.compare_exchange(0, me, Acquire, Relaxed).is_ok()
}

/// Gives back a claim that `holder` has; does nothing if it has not.
pub(crate) fn unclaim<A: Word<Value = u64>>(word: &A, holder: u64) {
    // Release: synchronizes with the Acquire in `claim`.
    let _ = word.compare_exchange(holder, 0, Release, Relaxed);
}

/// A claim that is given back when this is dropped, by a panic as well.
pub(crate) struct Claimed<'a, A: Word<Value = u64>> {
    pub(crate) word: &'a A,
    pub(crate) me: u64,
}

impl<A: Word<Value = u64>> Drop for Claimed<'_, A> {
    fn drop(&mut self) {
        unclaim(self.word, self.me);
    }
}

/// What a thread slot has in the log: a snapshot, of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotView {
    /// The first record of the present transaction; [`Lsn::NEVER`] if it has none.
    pub first: Lsn,
    /// The last one.
    pub last: Lsn,
    /// How many transactions have committed.
    pub commits: u64,
    /// First record and commit of the last 63 of them, oldest first.
    pub recent: Vec<(Lsn, Lsn)>,
}
