//! What lies in the region: only words, found by offsets and numbers.
//!
//! | cell | bytes | whose |
//! |---|---|---|
//! | partitions | 65,472 | 1,022 lines in each of 4 or 16 blocks; a latch in each guards it |
//! | biases | 65,472 | a line of 16 for each partition; written under its latch, read by all |
//! | heads | 48 to 65,472 | a partition's hash chains |
//! | object | 64 and more | a name that is locked; guarded by its partition's latch |
//! | request | 48 | a lock held or waited for; guarded by the latch, but for the owner's own list |
//! | owner page | 4,096 | 31 owners of one thread |
//! | weak page | 4,096 | 32 weak locks of one owner |
//! | history | 256 | where the last 16 deadlocks are; guarded by partition 0's latch |
//! | record | 512, 4,096 or 65,536 | one of them: see `deadlock/history.rs` |
//!
//! A process may be killed between any two stores. So one link of each list is the truth (`next`,
//! `own_next`), and an insertion or removal is one store to it; everything else (`prev`, `tail`,
//! counts, masks) can be made anew from those, and is, in `recovery/repair.rs`.

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

/// Partitions of a block: as many lines as one has.
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

/// Reads what the latch, or being its only writer, keeps still.
#[inline(always)]
pub(crate) fn get<W: Word>(word: &W) -> W::Value {
    word.load(Relaxed)
}

/// Writes so that a process killed between two of these has done the first and not the second.
#[inline(always)]
pub(crate) fn put<W: Word>(word: &W, value: W::Value) {
    // Release: keeps the stores in order for `recovery/repair.rs`, which reads them after the death
    // of the thread that made them; on x86 it costs nothing.
    word.store(value, Release);
}

/// The `T` in the cell at an offset that a word of the region, or a root, leads to.
///
/// # Errors
///
/// As [`Region::resolve`].
#[inline(always)]
pub(crate) fn cell_at<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    at: Offset<T>,
) -> Result<&T, latchwork_region::Error> {
    // SAFETY: a word of the region names cells of one type, and a cell is lent out as another type
    // only after all such words were changed under the latch that guards them. A thread that
    // followed such a word without the latch has perhaps an old offset; it only loads, and looks
    // afterwards whether the owner, the request or the generation is still the one it came for, as
    // `Region::resolve` describes. In a region that somebody has damaged a word may name any cell:
    // then each load gives some number, and all numbers are looked at before they are used.
    unsafe { region.resolve(at) }
}

/// How often the cell at an offset was lent out.
///
/// # Errors
///
/// As [`Region::resolve`].
#[inline(always)]
pub(crate) fn generation_at<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    at: Offset<T>,
) -> Result<u32, latchwork_region::Error> {
    // SAFETY: as in `cell_at`: it leads to a cell, of whatever type by now.
    unsafe { region.generation(at) }
}

/// The first words of the cell at an offset, all of one size.
///
/// # Errors
///
/// As [`Region::resolve`].
#[inline(always)]
pub(crate) fn words64_at<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    at: Offset<T>,
    count: usize,
) -> Result<&[M::AtomicU64], latchwork_region::Error> {
    // SAFETY: as in `cell_at`, of the part of a cell that is made of such words.
    unsafe { region.words64(at, count as u32) }
}

/// The chains of a table: all words of its cell.
///
/// # Errors
///
/// As [`Region::resolve`].
#[inline(always)]
pub(crate) fn chains_at<M: ConstMachine>(
    region: &Region<M>,
    at: Offset<Heads<M, 1>>,
    count: u32,
) -> Result<&[M::AtomicU32], latchwork_region::Error> {
    // SAFETY: as in `cell_at`.
    unsafe { region.words32(at, count) }
}

/// A part of the table: one line.
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
    /// Objects in it, idle ones too.
    pub(crate) objects: M::AtomicU32,
    /// By bias: strong requests in the table. At the top, 65,535 at a time, it stays there: the
    /// bias is never opened again, which costs weak requests time and changes nothing else.
    pub(crate) strong: [M::AtomicU16; BIASES as usize],
}

/// A table: its chains, and the tier that says how many they are.
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

/// A block of partitions. The padding puts each in a line of its own.
#[repr(C)]
pub(crate) struct Partitions<M: Machine> {
    pad: [M::AtomicU64; 7],
    pub(crate) lines: [Partition<M>; LINES as usize],
}

/// A word that says what a bias is.
pub(crate) type BiasWord<M> = Typed<<M as Machine>::AtomicU32, Bias>;

/// The biases of a partition.
pub(crate) type BiasLine<M> = [BiasWord<M>; BIASES as usize];

/// By partition of a block, its biases: odd is open to weak locks, even is closed. See
/// `memory/bias.rs`.
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

/// A name that is locked, `W` words long at most.
#[repr(C)]
pub(crate) struct Object<M: Machine, const W: usize> {
    /// The next in its chain.
    pub(crate) next: Link<M, Small<M>>,
    /// Its requests, those that wait in the order of their turn.
    pub(crate) head: Link<M, Request<M>>,
    pub(crate) tail: Link<M, Request<M>>,
    /// No request before this one waits.
    pub(crate) first: Link<M, Request<M>>,
    /// The low half of the hash.
    pub(crate) hash: M::AtomicU32,
    pub(crate) masks: Typed<M::AtomicU32, Masks>,
    /// Requests.
    pub(crate) length: M::AtomicU32,
    /// The name's length in 12 bits, and above it the count of conversions that wait: of each owner
    /// one at most, and there are fewer than 2^20.
    pub(crate) info: M::AtomicU32,
    pub(crate) name: [M::AtomicU64; W],
}

/// Words of an object before its name.
pub(crate) const NAME_AT: usize = 4;

/// An object with the shortest name: what all begin with.
pub(crate) type Small<M> = Object<M, 3>;

/// Where an object lies.
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
    /// How often its owner took it, and whether it is `MOVED`.
    pub(crate) count: M::AtomicU32,
    pub(crate) partition: Typed<M::AtomicU32, PartitionNumber>,
    /// When its owner took it, counted by the owner; see `owner/savepoint.rs`.
    pub(crate) mark: M::AtomicU32,
}

/// Where a request lies.
pub(crate) type RequestAt<M> = Offset<Request<M>>;

/// Of a request's count: a closer made it, and its owner has not come by; see `fastpath/weak.rs`.
pub(crate) const MOVED: u32 = 1 << 31;

impl<M: Machine> Request<M> {
    /// How often its owner took it.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        get(&self.count) & !MOVED
    }

    pub(crate) fn is_moved(&self) -> bool {
        get(&self.count) & MOVED != 0
    }
}

/// Bits of an object's `info` that are its name's length.
pub(crate) const LENGTH_BITS: u32 = 12;
/// One conversion, in an object's `info`.
pub(crate) const CONVERSION: u32 = 1 << LENGTH_BITS;

const _: () = assert!((OWNERS as usize) * PAGES < 1 << (32 - LENGTH_BITS));

/// The length of a name, out of an object's `info`.
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

    /// How many conversions wait.
    #[inline(always)]
    pub(crate) fn conversions(&self) -> u32 {
        get(&self.info) >> LENGTH_BITS
    }

    /// Makes the count of conversions anew.
    pub(crate) fn set_conversions(&self, count: u32) {
        put(&self.info, self.name_length() as u32 | count << LENGTH_BITS);
    }

    /// Which bias of its partition it counts in.
    #[inline(always)]
    pub(crate) fn bias(&self) -> u32 {
        get(&self.hash) % BIASES
    }
}

/// An owner of locks.
#[repr(C)]
pub(crate) struct OwnerCell<M: Machine> {
    pub(crate) state: Typed<M::AtomicU32, OwnerState>,
    /// Counts its owners: 2^32 are 72 minutes of a million a second. To take one for another that
    /// had the number before, a thread must have stopped for exactly so many of them between two
    /// looks at the cell, or keep the id of an owner that has ended.
    pub(crate) generation: M::AtomicU32,
    /// Its parent, if it has one.
    pub(crate) parent: Typed<M::AtomicU32, Option<OwnerNumber>>,
    pub(crate) priority: M::AtomicU32,
    /// Its requests, the last one first.
    pub(crate) head: Link<M, Request<M>>,
    pub(crate) held: M::AtomicU32,
    /// Which of its cell's owners the parent is.
    pub(crate) parent_generation: M::AtomicU32,
    /// Its weak page: stays with the slot for good.
    pub(crate) weak: Link<M, WeakPage<M>>,
    /// The request that it waits for, and the partition of it.
    pub(crate) waiting: Link<M, Request<M>>,
    pub(crate) partition: Typed<M::AtomicU32, PartitionNumber>,
    /// Counts its waits, of all the cell's owners: 2^32 of at least a microsecond are 72 minutes. A
    /// thread that stopped for exactly so many of them, and then refuses what it had found to wait,
    /// makes a wait in the same partition fail as retryable.
    pub(crate) ticket: M::AtomicU32,
    /// Why its next request, or the one that waits, is to fail; see `owner/wait.rs`.
    pub(crate) abort: M::AtomicU32,
    /// How often it was chosen as a victim.
    pub(crate) spared: M::AtomicU16,
    /// One more than the process that is to be notified for it; see `wakeup/notifier.rs`.
    pub(crate) notifier: M::AtomicU16,
    /// The last mark that it gave; it stays at the top, see `owner/savepoint.rs`.
    pub(crate) marks: M::AtomicU32,
    /// When it began, in nanoseconds: the smaller, the older.
    pub(crate) age: M::AtomicU64,
    /// When its wait began.
    pub(crate) since: M::AtomicU64,
    /// For people.
    pub(crate) label: [M::AtomicU64; 4],
    /// The cycle of which it was the victim; see `deadlock/report.rs`.
    pub(crate) report: M::AtomicU64,
    /// Ranges that it has claims on, at least; see `range/claims.rs`.
    pub(crate) ranges: M::AtomicU32,
    /// By bit, the entries of its weak page that are reserved for the slot, perhaps; see
    /// `fastpath/reserved.rs`.
    pub(crate) reserved: M::AtomicU32,
    /// Of the request that it waits for: its place among the conversions of the object, ...
    pub(crate) position: M::AtomicU32,
    /// ... and how often it was moved forward; see `deadlock/detect.rs`.
    pub(crate) forward: M::AtomicU32,
}

impl<M: Machine> OwnerCell<M> {
    /// The request that it waits for, or null; the partition of it; and which wait it is.
    ///
    /// Read without the latch the partition may be a later wait's. A thread that then takes that
    /// latch and reads the same once more has found a wait that neither ends nor began since.
    #[inline]
    pub(crate) fn wait(&self) -> (RequestAt<M>, PartitionNumber, u32) {
        // Acquire: synchronizes with the Release in `begin_wait`. The partition and the ticket,
        // that were stored before, are not those of an earlier wait.
        let at = self.waiting.load(Acquire);
        (at, get(&self.partition), get(&self.ticket))
    }
}

/// Of a page's thread: the page has orphans, and is no thread's. Below it is how often it came to
/// this, so that what was seen of a page once is not believed of it later.
pub(crate) const ORPHANAGE: u32 = 1 << 31;

/// Owners of one thread.
#[repr(C)]
pub(crate) struct OwnerPage<M: Machine> {
    /// One more than the thread slot that they belong to; zero is nobody's. Or `ORPHANAGE`.
    pub(crate) thread: M::AtomicU32,
    /// Owners from here on never had a weak page: a closer does not look at them.
    pub(crate) weak_end: M::AtomicU32,
    /// Whether it is in the list of pages that are nobody's, and one more than the next;
    /// `memory/pages.rs`.
    pub(crate) listed: M::AtomicU32,
    pub(crate) next_free: M::AtomicU32,
    /// Biases under which its owners have entries that count, and perhaps others; see
    /// `fastpath/bias.rs`.
    pub(crate) filter: M::AtomicU64,
    /// How often it was a page of orphans; see `recovery/orphans.rs`. It wraps after 2^31 deaths of
    /// the page's threads, 245,000 years of one an hour.
    pub(crate) orphanages: M::AtomicU32,
    pad: [M::AtomicU32; 7],
    pub(crate) owners: [OwnerCell<M>; OWNERS as usize],
    rest: [M::AtomicU64; 8],
}

/// Pages of owners, in the order in which they were made; null is the end.
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
    /// The requests that closers made of the entries, perhaps; written under the partition's latch.
    pub(crate) moved: [Link<M, Request<M>>; WEAK],
    /// By group, a byte of the hash of each entry that is reserved; see `fastpath/reserved.rs`.
    pub(crate) tags: [M::AtomicU64; WEAK / GROUP],
}

/// Says that types are made of words alone.
macro_rules! plain {
    ($($kind:ident $(, $n:ident)?);*) => {$(
        // SAFETY: it is made of words of a machine, and nothing else.
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

/// Where a hash leads: see `Blocks::spot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) partition: PartitionNumber,
    pub(crate) bias: u32,
}

impl Spot {
    /// Its bit in the filters of owner pages.
    #[inline(always)]
    pub(crate) fn filter(self) -> u64 {
        1 << ((self.partition.word() ^ self.bias << 2) % 64)
    }
}
