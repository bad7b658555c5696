//! The cells in the region. They contain only words, addressed by offsets and numbers.
//!
//! | cell | bytes | contents |
//! |---|---|---|
//! | partitions | 65,472 | 1,022 lines in each of 4 or 16 blocks; a latch in each guards it |
//! | biases | 65,472 | a line of 16 for each partition; written under its latch, read by all |
//! | heads | 48 to 65,472 | a partition's hash chains |
//! | object | 64 and more | a name that is locked; guarded by its partition's latch |
//! | request | 48 | a lock held or waited for; guarded by the latch, but for the owner's own list |
//! | owner page | 4,096 | 31 owners of one thread |
//! | weak page | 4,096 | 32 weak locks of one owner |
//! | history | 256 | offsets of the last 16 records; guarded by partition 0's latch |
//! | record | 512, 4,096 or 65,536 | one deadlock: see `deadlock/history.rs` |
//!
//! A process may be killed between any two stores. So one link of each list is authoritative
//! (`next`, `own_next`), and an insertion or removal is one store to it. All other fields (`prev`,
//! `tail`, counts, masks) are derived, and `recovery/repair.rs` rebuilds them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Machine, Word};
use latchwork_region::{Offset, Plain, Region};

use crate::memory::bias::Bias;
use crate::memory::entry::{Entry, WEAK_WORDS};
use crate::memory::masks::Masks;
use crate::memory::numbers::{OWNERS, OwnerNumber, PartitionNumber};
use crate::memory::owner_state::OwnerState;
use crate::memory::state::State;
use crate::memory::typed::{Link, Stored, Typed};

/// Partitions of a block, one cache line each.
pub(crate) const LINES: u32 = 1022;
/// Blocks of partitions, and of biases, that a manager has at most: see `memory/blocks.rs`.
pub(crate) const BLOCKS_MAX: usize = 16;
pub(crate) const PARTITIONS_MAX: u32 = LINES * BLOCKS_MAX as u32;
/// Biases of each partition.
pub(crate) const BIASES: u32 = 16;
/// Pages of owners.
pub(crate) const PAGES: usize = 16_366;
/// Weak locks of an owner's page, and of each group in it.
pub(crate) const WEAK: usize = 32;
pub(crate) const GROUP: usize = 8;

/// Loads a word that does not change now: the caller holds its latch, or is its only writer.
#[inline(always)]
pub(crate) fn get<W: Word>(word: &W) -> W::Value {
    word.load(Relaxed)
}

/// Stores a word so that stores of a killed process become visible in program order.
#[inline(always)]
pub(crate) fn put<W: Word>(word: &W, value: W::Value) {
    // Release: keeps the stores in order for `recovery/repair.rs`, which reads them after the death
    // of the thread that made them; on x86 it costs nothing.
    word.store(value, Release);
}

/// Returns the `T` in the cell at an offset that was read from a word of the region, or from a
/// root.
///
/// # Errors
///
/// The errors of [`Region::resolve`].
#[inline(always)]
pub(crate) fn cell_at<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    at: Offset<T>,
) -> Result<&T, latchwork_region::Error> {
    // SAFETY: a word of the region names cells of one type, and a cell is reused for another type
    // only after all such words were changed under the latch that guards them. A thread that
    // followed such a word without the latch may have an old offset; it only loads, and checks
    // afterwards whether the owner, the request or the generation is still the expected one, as
    // `Region::resolve` describes. In a damaged region a word may name any cell: then each load
    // gives some number, and all numbers are checked before they are used.
    unsafe { region.resolve(at) }
}

/// Returns how often the cell at an offset was allocated.
///
/// # Errors
///
/// The errors of [`Region::resolve`].
#[inline(always)]
pub(crate) fn generation_at<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    at: Offset<T>,
) -> Result<u32, latchwork_region::Error> {
    // SAFETY: as in `cell_at`: the offset leads to a cell, of whatever type now.
    unsafe { region.generation(at) }
}

/// Returns the first words of the cell at an offset, all of one size.
///
/// # Errors
///
/// The errors of [`Region::resolve`].
#[inline(always)]
pub(crate) fn words64_at<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    at: Offset<T>,
    count: usize,
) -> Result<&[M::AtomicU64], latchwork_region::Error> {
    // SAFETY: as in `cell_at`; this part of a cell consists of such words.
    unsafe { region.words64(at, count as u32) }
}

/// Returns the chains of a table: all words of its cell.
///
/// # Errors
///
/// The errors of [`Region::resolve`].
#[inline(always)]
pub(crate) fn chains_at<M: ConstMachine>(
    region: &Region<M>,
    at: Offset<Heads<M, 1>>,
    count: u32,
) -> Result<&[M::AtomicU32], latchwork_region::Error> {
    // SAFETY: as in `cell_at`.
    unsafe { region.words32(at, count) }
}

/// A partition of the table: one cache line.
#[repr(C)]
pub(crate) struct Partition<M: Machine> {
    /// One more than the thread slot of its holder; see `memory/latch.rs`.
    pub(crate) latch: M::AtomicU32,
    /// When a bias is worth opening; see `fastpath/learned.rs`.
    pub(crate) learned: M::AtomicU32,
    /// Its chains; see `table/objects.rs`. None until the first object.
    pub(crate) heads: Typed<M::AtomicU64, Table>,
    /// The larger table that its objects move to, or none.
    pub(crate) fresh: Typed<M::AtomicU64, Table>,
    /// The object that is between the two tables.
    pub(crate) moving: Link<M, Small<M>>,
    /// Number of objects in it, including idle ones.
    pub(crate) objects: M::AtomicU32,
    /// By bias, the number of strong requests in the table. The counter saturates at 65,535: then
    /// the bias is never opened again, so weak requests of its names stay slow. Nothing else
    /// changes.
    pub(crate) strong: [M::AtomicU16; BIASES as usize],
}

/// A table: its chains, and the tier that determines their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) at: Offset<()>,
    pub(crate) tier: u32,
}

impl Table {
    pub(crate) const NONE: Self = Self { at: Offset::NULL, tier: 0 };

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl Stored for Table {
    type In = u64;

    #[inline(always)]
    fn of(word: u64) -> Self {
        Self { at: Offset::from_raw(word as u32), tier: (word >> 32) as u32 }
    }

    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.tier) << 32 | u64::from(self.at.raw())
    }
}

/// A block of partitions. The padding aligns each partition to a cache line.
#[repr(C)]
pub(crate) struct Partitions<M: Machine> {
    pad: [M::AtomicU64; 7],
    pub(crate) lines: [Partition<M>; LINES as usize],
}

/// The word that holds a bias.
pub(crate) type BiasWord<M> = Typed<<M as Machine>::AtomicU32, Bias>;

/// The biases of a partition.
pub(crate) type BiasLine<M> = [BiasWord<M>; BIASES as usize];

/// The biases of a block, by partition. See `memory/bias.rs`.
#[repr(C)]
pub(crate) struct Biases<M: Machine> {
    pad: [M::AtomicU64; 7],
    pub(crate) lines: [BiasLine<M>; LINES as usize],
}

/// Chains of objects.
#[repr(C)]
pub(crate) struct Heads<M: Machine, const N: usize> {
    pub(crate) heads: [M::AtomicU32; N],
}

/// A locked name of at most `W` words.
#[repr(C)]
pub(crate) struct Object<M: Machine, const W: usize> {
    /// The next object in its chain.
    pub(crate) next: Link<M, Small<M>>,
    /// Its requests; waiters in queue order.
    pub(crate) head: Link<M, Request<M>>,
    pub(crate) tail: Link<M, Request<M>>,
    /// No request before this one waits.
    pub(crate) first: Link<M, Request<M>>,
    /// The low half of the hash.
    pub(crate) hash: M::AtomicU32,
    pub(crate) masks: Typed<M::AtomicU32, Masks>,
    /// Number of requests.
    pub(crate) length: M::AtomicU32,
    /// The name's length in 12 bits, and above it the number of conversions that wait: at most one
    /// per owner, and there are fewer than 2^19 owners. The highest bit is [`SCATTERED`].
    pub(crate) info: M::AtomicU32,
    pub(crate) name: [M::AtomicU64; W],
}

/// Words of an object before its name.
pub(crate) const NAME_AT: usize = 4;

/// An object with the shortest name. All objects begin with these fields.
pub(crate) type Small<M> = Object<M, 3>;

/// The offset of an object.
pub(crate) type ObjectAt<M> = Offset<Small<M>>;

/// An owner's lock on an object, held or waited for.
#[repr(C)]
pub(crate) struct Request<M: Machine> {
    pub(crate) object: Link<M, Small<M>>,
    pub(crate) owner: Typed<M::AtomicU32, OwnerNumber>,
    pub(crate) next: Link<M, Request<M>>,
    pub(crate) prev: Link<M, Request<M>>,
    /// The word that a waiter sleeps on.
    pub(crate) state: Typed<M::AtomicU32, State>,
    pub(crate) own_next: Link<M, Request<M>>,
    pub(crate) own_prev: Link<M, Request<M>>,
    /// How often its owner locked it, and whether it is `MOVED`.
    pub(crate) count: M::AtomicU32,
    pub(crate) partition: Typed<M::AtomicU32, PartitionNumber>,
    /// When its owner took it, in marks of the owner; see `owner/savepoint.rs`.
    pub(crate) mark: M::AtomicU32,
}

/// The offset of a request.
pub(crate) type RequestAt<M> = Offset<Request<M>>;

/// A bit of a request's count: a closer created the request from an entry, and its owner has not
/// settled it yet; see `fastpath/weak.rs`.
pub(crate) const MOVED: u32 = 1 << 31;

impl<M: Machine> Request<M> {
    /// Returns how often its owner locked it.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        get(&self.count) & !MOVED
    }

    pub(crate) fn is_moved(&self) -> bool {
        get(&self.count) & MOVED != 0
    }
}

/// Bits of an object's `info` that hold its name's length.
pub(crate) const LENGTH_BITS: u32 = 12;
/// One conversion, in an object's `info`.
pub(crate) const CONVERSION: u32 = 1 << LENGTH_BITS;
/// A bit of an object's `info`: a holder may be behind `first`. Without it, all holders are before
/// `first`.
pub(crate) const SCATTERED: u32 = 1 << 31;

const _: () = assert!((OWNERS as usize) * PAGES < 1 << (31 - LENGTH_BITS));

/// Returns the length of a name from an object's `info`.
#[inline(always)]
pub(crate) const fn length_of(info: u32) -> usize {
    (info & (CONVERSION - 1)) as usize
}

impl<M: Machine> Small<M> {
    /// The name's length.
    #[inline(always)]
    pub(crate) fn name_length(&self) -> usize {
        length_of(get(&self.info))
    }

    /// Returns how many conversions wait.
    #[inline(always)]
    pub(crate) fn conversions(&self) -> u32 {
        (get(&self.info) & !SCATTERED) >> LENGTH_BITS
    }

    /// Stores the number of conversions, of a list in which a holder may be behind `first`.
    pub(crate) fn set_conversions(&self, count: u32) {
        put(&self.info, self.name_length() as u32 | count << LENGTH_BITS | SCATTERED);
    }

    /// Returns whether a holder may be behind `first`.
    pub(crate) fn is_scattered(&self) -> bool {
        get(&self.info) & SCATTERED != 0
    }

    /// Records whether a holder may be behind `first`.
    pub(crate) fn scatter(&self, may: bool) {
        let info = get(&self.info);
        put(&self.info, if may { info | SCATTERED } else { info & !SCATTERED });
    }

    /// Returns the bias of its partition under which it counts.
    #[inline(always)]
    pub(crate) fn bias(&self) -> u32 {
        get(&self.hash) % BIASES
    }
}

/// An owner of locks.
#[repr(C)]
pub(crate) struct OwnerCell<M: Machine> {
    pub(crate) state: Typed<M::AtomicU32, OwnerState>,
    /// Counts the owners of this cell. It wraps after 2^32 owners: 72 minutes at a million a
    /// second. A thread confuses an owner with an earlier one of the same number only if it stopped
    /// for exactly that many owners between two reads, or if it keeps the id of an owner that has
    /// ended.
    pub(crate) generation: M::AtomicU32,
    /// Its parent, if it has one.
    pub(crate) parent: Typed<M::AtomicU32, Option<OwnerNumber>>,
    pub(crate) priority: M::AtomicU32,
    /// Its requests, the last one first.
    pub(crate) head: Link<M, Request<M>>,
    pub(crate) held: M::AtomicU32,
    /// The generation of the parent's cell when it was the parent.
    pub(crate) parent_generation: M::AtomicU32,
    /// Its weak page. It stays with the cell permanently.
    pub(crate) weak: Link<M, WeakPage<M>>,
    /// The request that it waits for, and that request's partition.
    pub(crate) waiting: Link<M, Request<M>>,
    pub(crate) partition: Typed<M::AtomicU32, PartitionNumber>,
    /// Counts the waits of all owners of this cell. It wraps after 2^32 waits, each of at least a
    /// microsecond: 72 minutes. A thread that stops for exactly that many waits and then refuses
    /// the wait that it found makes another wait in the same partition fail with a retryable error.
    pub(crate) ticket: M::AtomicU32,
    /// Why its waiting or next request must fail; see `owner/wait.rs`.
    pub(crate) abort: M::AtomicU32,
    /// How often it was chosen as a victim.
    pub(crate) spared: M::AtomicU16,
    /// One more than the process that must be notified for it; see `wakeup/notifier.rs`.
    pub(crate) notifier: M::AtomicU16,
    /// The last mark that it assigned. It saturates; see `owner/savepoint.rs`.
    pub(crate) marks: M::AtomicU32,
    /// When it began, in nanoseconds. The smaller value is the older owner.
    pub(crate) age: M::AtomicU64,
    /// When its wait began.
    pub(crate) since: M::AtomicU64,
    /// A text for diagnostics.
    pub(crate) label: [M::AtomicU64; 4],
    /// The cycle in which it was the victim; see `deadlock/report.rs`.
    pub(crate) report: M::AtomicU64,
    /// An upper bound of the ranges that it has claims on; see `range/claims.rs`.
    pub(crate) ranges: M::AtomicU32,
    /// By bit, the entries of its weak page that may be reserved for the cell; see
    /// `fastpath/reserved.rs`.
    pub(crate) reserved: M::AtomicU32,
    /// Of the request that it waits for: its position among the conversions of the object, ...
    pub(crate) position: M::AtomicU32,
    /// ... and how often it was moved forward; see `deadlock/detect.rs`.
    pub(crate) forward: M::AtomicU32,
}

impl<M: Machine> OwnerCell<M> {
    /// Returns the request that it waits for, or null; that request's partition; and the ticket of
    /// the wait.
    ///
    /// Without the latch, the partition may belong to a later wait. A thread that takes that
    /// partition's latch and then reads the same three values has found a wait that neither ends
    /// nor begins while the latch is held.
    #[inline]
    pub(crate) fn wait(&self) -> (RequestAt<M>, PartitionNumber, u32) {
        // Acquire: synchronizes with the Release in `begin_wait`. The partition and the ticket,
        // which were stored before it, are not those of an earlier wait.
        let at = self.waiting.load(Acquire);
        (at, get(&self.partition), get(&self.ticket))
    }
}

/// A value of a page's `thread`: the page has orphans and belongs to no thread. The bits below
/// count how often the page entered this state, so that a thread notices if an earlier observation
/// is out of date.
pub(crate) const ORPHANAGE: u32 = 1 << 31;

/// Owners of one thread.
#[repr(C)]
pub(crate) struct OwnerPage<M: Machine> {
    /// One more than the thread slot that the page belongs to; zero if free. Or `ORPHANAGE`.
    pub(crate) thread: M::AtomicU32,
    /// Owners from this index on never had a weak page, so a closer skips them.
    pub(crate) weak_end: M::AtomicU32,
    /// Whether the page is in the list of free pages, and one more than the next page of the list;
    /// see `memory/pages.rs`.
    pub(crate) listed: M::AtomicU32,
    pub(crate) next_free: M::AtomicU32,
    /// At least the biases under which its owners have entries that count; see `fastpath/bias.rs`.
    pub(crate) filter: M::AtomicU64,
    /// How often the page had orphans; see `recovery/orphans.rs`. It wraps after 2^31 deaths of the
    /// page's threads: 245,000 years at one an hour.
    pub(crate) orphanages: M::AtomicU32,
    pad: [M::AtomicU32; 7],
    pub(crate) owners: [OwnerCell<M>; OWNERS as usize],
    rest: [M::AtomicU64; 8],
}

/// Pages of owners in the order of their creation; null is the end.
#[repr(C)]
pub(crate) struct Directory<M: Machine> {
    pub(crate) pages: [Link<M, OwnerPage<M>>; PAGES],
}

/// Weak locks of one owner: see `fastpath/weak.rs`.
#[repr(C)]
pub(crate) struct WeakPage<M: Machine> {
    pad: [M::AtomicU64; 7],
    pub(crate) states: [Typed<M::AtomicU64, Entry>; WEAK],
    pub(crate) hashes: [M::AtomicU64; WEAK],
    pub(crate) names: [[M::AtomicU64; WEAK_WORDS]; WEAK],
    pub(crate) marks: [M::AtomicU32; WEAK],
    /// The requests that closers may have created from the entries; written under the partition's
    /// latch.
    pub(crate) moved: [Link<M, Request<M>>; WEAK],
    /// By group, a byte of the hash of each entry that is reserved; see `fastpath/reserved.rs`.
    pub(crate) tags: [M::AtomicU64; WEAK / GROUP],
}

/// Declares that types consist of words only.
macro_rules! plain {
    ($($kind:ident $(, $n:ident)?);*) => {$(
        // SAFETY: the type consists of words of a machine and nothing else.
        unsafe impl<M: ConstMachine $(, const $n: usize)?> Plain for $kind<M $(, $n)?> {}
    )*};
}

plain!(Partitions; Biases; Heads, N; Object, W; Request; OwnerPage; Directory; WeakPage);

const _: () = {
    use latchwork_machine::Native;
    assert!(size_of::<Partition<Native>>() == 64);
    assert!(size_of::<Partitions<Native>>() == 65_464);
    assert!(size_of::<Biases<Native>>() == 65_464);
    assert!(size_of::<Small<Native>>() == 56);
    assert!(core::mem::offset_of!(Small<Native>, name) == NAME_AT * 8);
    assert!(size_of::<Request<Native>>() == 40);
    assert!(size_of::<OwnerCell<Native>>() == 128);
    assert!(size_of::<OwnerPage<Native>>() == 4088);
    assert!(size_of::<Directory<Native>>() == 65_464);
    assert!(size_of::<WeakPage<Native>>() <= 4088);
};

/// The partition and bias of a hash: see `Blocks::spot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) partition: PartitionNumber,
    pub(crate) bias: u32,
}

impl Spot {
    /// Returns its bit in the filters of owner pages.
    #[inline(always)]
    pub(crate) fn filter(self) -> u64 {
        1 << ((self.partition.word() ^ self.bias << 2) % 64)
    }
}
