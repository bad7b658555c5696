//! The slots of processes and threads: 128 and 768 bytes. All zero is unused.
//!
//! A thread slot's `owner` word determines which thread may access the rest:
//!
//! ```text
//!  63            32 31       16 15      0
//! | process generation | process | state |      0 free   1 held   2 being swept   3 retained
//! ```
//!
//! A process generation is reused only after 2^32 - 1 others, so a dead owner stays recognizable
//! even when its process slot has a new owner. The count skips generation 0, which never lives.
//!
//! A process slot that is joined and left 1,000 times per second passes 2^32 after 50 days. A word
//! that names an owner of the first round then names the living one, if it was neither swept nor
//! taken over in 2^32 joins of that slot. No such word exists: each sweep takes over the words of
//! dead owners that it finds and gives those that it cannot finish the generation 0, and a stopped
//! process keeps its slot, which no other process can join. One case remains: a thread that stops
//! between a load of such a word and its exchange for exactly that many joins.
//!
//! A *retained* slot belongs to no thread, and no sweep touches it: what its last owner has in the
//! layers stays as it is, until a thread claims the slot by its number
//! ([`Region::claim_retained`]).
//!
//! ```text
//!         thread                 retain                claim_retained
//!  free ──────────▶ held ────────────────▶ retained ──────────────────▶ held
//!                    │ its process dies       ▲
//!                    ▼         a layer says   │
//!                 being swept ────────────────┘
//! ```
//!
//! [`Region::claim_retained`]: crate::Region::claim_retained

use latchwork_machine::{ConstMachine, Machine};

use crate::header::CLASSES;

/// Words in a thread slot for the lock manager's intents, 128 bytes: two cache lines.
pub const INTENT_WORDS: usize = 16;

/// Words in a thread slot for the intents of each other layer, 64 bytes: one cache line.
pub const LAYER_WORDS: usize = 8;

/// How many cells a thread may have in hand: allocated and not yet published.
pub(crate) const TAKING: usize = 7;

pub(crate) const FREE: u64 = 0;
pub(crate) const HELD: u64 = 1;
pub(crate) const SWEPT: u64 = 2;
pub(crate) const RETAINED: u64 = 3;

/// Combines two 32-bit halves to a word.
#[inline(always)]
pub(crate) const fn pack(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Splits a word into its halves.
#[inline(always)]
pub(crate) const fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Creates an owner word.
pub(crate) const fn owner(generation: u32, process: u32, state: u64) -> u64 {
    pack(generation, process << 16) | state
}

/// Returns its generation, process and state.
pub(crate) const fn owned(word: u64) -> (u32, u32, u64) {
    ((word >> 32) as u32, (word >> 16) as u32 & 0xffff, word & 0xffff)
}

/// A process slot. The process that holds the lock on the byte of its number is its living owner;
/// the rest is informational.
#[repr(C, align(128))]
pub(crate) struct ProcessSlot<M: Machine> {
    /// Counts its owners, skipping 0; see above.
    pub(crate) generation: M::AtomicU32,
    pub(crate) pid: M::AtomicU32,
    /// The start time of the process, in clock ticks since boot.
    pub(crate) start: M::AtomicU64,
    /// The inode of its pid namespace, in which the pid is valid.
    pub(crate) namespace: M::AtomicU64,
    /// Not zero while its owner lives, for regions without a file to lock.
    pub(crate) held: M::AtomicU32,
}

/// A thread's free cells of one size.
#[repr(C)]
pub(crate) struct List<M: Machine> {
    /// The first free cell.
    pub(crate) head: M::AtomicU32,
    /// Approximate number of cells.
    pub(crate) count: M::AtomicU32,
    /// The first of another batch.
    pub(crate) spare: M::AtomicU32,
    pub(crate) pad: M::AtomicU32,
}

/// A thread slot.
#[repr(C, align(128))]
pub(crate) struct ThreadSlot<M: Machine> {
    pub(crate) owner: M::AtomicU64,
    /// Counts its owners: 2^32 are 72 minutes of a million per second. Only the log compares it for
    /// the thread that is opening the log's files. To mistake a later owner for that thread, no
    /// other thread may have opened the log for exactly 2^32 owners of the slot.
    pub(crate) generation: M::AtomicU32,
    pub(crate) pad: M::AtomicU32,
    /// The number of the block that is being taken, plus one.
    pub(crate) block: M::AtomicU64,
    pub(crate) unused: [M::AtomicU64; 5],
    /// Cells in hand: generation and offset.
    pub(crate) taking: [M::AtomicU64; TAKING],
    /// The cell that is being freed.
    pub(crate) giving: M::AtomicU64,
    /// The lock manager's intents.
    pub(crate) intent: [M::AtomicU64; INTENT_WORDS],
    pub(crate) lists: [List<M>; CLASSES],
    /// The unused cells of this thread's block: end and beginning.
    pub(crate) carve: [M::AtomicU64; CLASSES],
    pub(crate) rest: [M::AtomicU64; 5],
    /// The intents of the other layers, each in its own line; see `layer.rs`.
    pub(crate) layers: [[M::AtomicU64; LAYER_WORDS]; 4],
}

impl<M: Machine> ThreadSlot<M> {
    /// The intent words of all layers.
    pub(crate) fn intents(&self) -> impl Iterator<Item = &M::AtomicU64> {
        self.intent.iter().chain(self.layers.iter().flatten())
    }
}

pub(crate) const PROCESS_BYTES: usize = 128;
pub(crate) const THREAD_BYTES: usize = 768;

/// Does not compile if `M`'s words have another size than their values, or a destructor.
pub(crate) const fn bare<M: ConstMachine>() {
    assert!(size_of::<M::AtomicU8>() == 1 && size_of::<M::AtomicU16>() == 2);
    assert!(size_of::<M::AtomicU32>() == 4 && align_of::<M::AtomicU32>() == 4);
    assert!(size_of::<M::AtomicU64>() == 8 && align_of::<M::AtomicU64>() == 8);
    assert!(!core::mem::needs_drop::<M::AtomicU64>() && !core::mem::needs_drop::<M::AtomicU32>());
    assert!(size_of::<ThreadSlot<M>>() == THREAD_BYTES);
    assert!(size_of::<ProcessSlot<M>>() == PROCESS_BYTES);
}

/// The state of a process slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its number.
    pub slot: u32,
    /// The number of its owners so far; the current owner has this number.
    pub generation: u32,
    /// The owner's pid, in its own pid namespace.
    pub pid: u32,
    /// The owner's start time, in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start: u64,
    /// The inode of the owner's pid namespace.
    pub namespace: u64,
    /// Whether the kernel reports its owner as alive.
    pub alive: bool,
}

/// The state of a thread slot that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// Its number.
    pub slot: u32,
    /// The number of its owners so far; the current owner has this number.
    pub generation: u32,
    /// The process slot of its owner, or of its sweeper.
    pub process: u32,
    /// The generation of that process slot.
    pub process_generation: u32,
    /// Whether it is being swept.
    pub swept: bool,
    /// Whether it is retained: kept as it is, without a thread.
    pub retained: bool,
}
