//! What a process and a thread leave in the region: 128 and 768 bytes. All zero is unused.
//!
//! A thread slot's `owner` word says who may touch the rest:
//!
//! ```text
//!  63            32 31       16 15      0
//! | process generation | process | state |      0 free   1 held   2 being swept   3 retained
//! ```
//!
//! A process generation is used again only after 2^32 - 1 others, so an owner that has died stays
//! recognisable even when its process slot has a new owner. Generation 0 never lives: the count
//! passes over it.
//!
//! One process slot that is joined and left 1,000 times a second passes 2^32 after 50 days. Then a
//! word that names an owner of the first round names the living one, if it was neither swept nor
//! taken over in 2^32 joins of that slot. No such word exists: each sweep takes over the words of
//! the dead that it finds, and gives those that it cannot finish the generation 0; a stopped
//! process keeps its slot, which no other process can join. What remains is a thread that is
//! stopped between a load of such a word and its exchange for exactly as many joins.
//!
//! A *retained* slot is no thread's, and no sweep touches it: what its last owner has in the layers
//! stays as it is, until a thread claims the slot by its number ([`Region::claim_retained`]).
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

/// How many cells a thread may have in hand: taken, and not yet published.
pub(crate) const TAKING: usize = 7;

pub(crate) const FREE: u64 = 0;
pub(crate) const HELD: u64 = 1;
pub(crate) const SWEPT: u64 = 2;
pub(crate) const RETAINED: u64 = 3;

/// Two 32-bit halves in a word.
#[inline(always)]
pub(crate) const fn pack(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Its two halves.
#[inline(always)]
pub(crate) const fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// An owner word.
pub(crate) const fn owner(generation: u32, process: u32, state: u64) -> u64 {
    pack(generation, process << 16) | state
}

/// Its generation, process and state.
pub(crate) const fn owned(word: u64) -> (u32, u32, u64) {
    ((word >> 32) as u32, (word >> 16) as u32 & 0xffff, word & 0xffff)
}

/// A process. Who holds the lock on the byte of its number lives; the rest is for people.
#[repr(C, align(128))]
pub(crate) struct ProcessSlot<M: Machine> {
    /// Counts its owners, without 0; see above.
    pub(crate) generation: M::AtomicU32,
    pub(crate) pid: M::AtomicU32,
    /// When the process began, in clock ticks since boot.
    pub(crate) start: M::AtomicU64,
    /// The inode of its pid namespace, without which a pid says nothing.
    pub(crate) namespace: M::AtomicU64,
    /// Not zero while its owner lives, where there is no file to lock.
    pub(crate) held: M::AtomicU32,
}

/// The cells of one size that a thread has ready.
#[repr(C)]
pub(crate) struct List<M: Machine> {
    /// The first free cell.
    pub(crate) head: M::AtomicU32,
    /// About how many there are.
    pub(crate) count: M::AtomicU32,
    /// The first of another batch.
    pub(crate) spare: M::AtomicU32,
    pub(crate) pad: M::AtomicU32,
}

/// A thread.
#[repr(C, align(128))]
pub(crate) struct ThreadSlot<M: Machine> {
    pub(crate) owner: M::AtomicU64,
    /// Counts its owners: 2^32 are 72 minutes of a million a second. Only the log compares it, for
    /// the thread that is opening the log's files: to take a later owner for that thread, no other
    /// thread may have opened the log for exactly 2^32 owners of the slot.
    pub(crate) generation: M::AtomicU32,
    pub(crate) pad: M::AtomicU32,
    /// One more than the number of the block that is being taken.
    pub(crate) block: M::AtomicU64,
    pub(crate) unused: [M::AtomicU64; 5],
    /// Cells in hand: generation and offset.
    pub(crate) taking: [M::AtomicU64; TAKING],
    /// The cell that is being freed.
    pub(crate) giving: M::AtomicU64,
    /// What the lock manager has begun.
    pub(crate) intent: [M::AtomicU64; INTENT_WORDS],
    pub(crate) lists: [List<M>; CLASSES],
    /// The cells of this thread's block that were never used: end and beginning.
    pub(crate) carve: [M::AtomicU64; CLASSES],
    pub(crate) rest: [M::AtomicU64; 5],
    /// What the other layers have begun, each in a line of its own; see `layer.rs`.
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

/// Fails to compile if `M`'s words are not bare: of the size of what they hold, and no destructor.
pub(crate) const fn bare<M: ConstMachine>() {
    assert!(size_of::<M::AtomicU8>() == 1 && size_of::<M::AtomicU16>() == 2);
    assert!(size_of::<M::AtomicU32>() == 4 && align_of::<M::AtomicU32>() == 4);
    assert!(size_of::<M::AtomicU64>() == 8 && align_of::<M::AtomicU64>() == 8);
    assert!(!core::mem::needs_drop::<M::AtomicU64>() && !core::mem::needs_drop::<M::AtomicU32>());
    assert!(size_of::<ThreadSlot<M>>() == THREAD_BYTES);
    assert!(size_of::<ProcessSlot<M>>() == PROCESS_BYTES);
}

/// A process slot, as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its number.
    pub slot: u32,
    /// How many owners it has had; the present one is this.
    pub generation: u32,
    /// The owner's number, in its own pid namespace.
    pub pid: u32,
    /// When the owner began, in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start: u64,
    /// The inode of the owner's pid namespace.
    pub namespace: u64,
    /// Whether the kernel says that its owner lives.
    pub alive: bool,
}

/// A thread slot that is not free, as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// Its number.
    pub slot: u32,
    /// How many owners it has had; the present one is this.
    pub generation: u32,
    /// The process slot of its owner, or of who sweeps it.
    pub process: u32,
    /// The generation of that process slot.
    pub process_generation: u32,
    /// Whether somebody is putting right what its owner left.
    pub swept: bool,
    /// Whether it is no thread's, and kept as it is.
    pub retained: bool,
}
