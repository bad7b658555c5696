//! The cells of locks on ranges.
//!
//! | cell | bytes | contents |
//! |---|---|---|
//! | chains of keyspaces | 65,472 | one or four chains per partition, guarded by its latch |
//! | keyspace | 256 | a name, its claims, and the root of their tree |
//! | claim | 128 and more | an owner's range, held or waited for |
//!
//! The latch of the partition of a keyspace's name guards the keyspace and all its claims. A claim
//! is found by its owner and through its ticket (`range/claims.rs`); it is removed before the
//! ticket is.

use core::cmp::Ordering;

use latchwork_machine::{ConstMachine, Machine};
use latchwork_region::{Cell, Offset, Plain, Region};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{PARTITIONS_MAX, cell_at, get, put};
use crate::memory::numbers::OwnerNumber;
use crate::memory::typed::{Link, Stored, Typed};
use crate::range::kinds::{RangeInfo, RangeKind, Span};

/// The longest name of a keyspace, in bytes.
pub const KEYSPACE_MAX: usize = 200;

/// The length that stands for the end of the last range: a key beyond all others.
const SUPREMUM: u32 = 0xffff;

/// The chains of keyspaces. A partition's latch guards each: see `chain_of`.
#[repr(C)]
pub(crate) struct Keyspaces<M: Machine> {
    pub(crate) heads: [Link<M, Keyspace<M>>; PARTITIONS_MAX as usize],
}

/// A keyspace.
#[repr(C)]
pub(crate) struct Keyspace<M: Machine> {
    /// The next in its chain.
    pub(crate) next: Link<M, Keyspace<M>>,
    /// Its claims, in no order.
    pub(crate) head: Link<M, Short<M>>,
    /// The root of their tree.
    pub(crate) root: Link<M, Short<M>>,
    /// Not zero while the links of the claims change: all links but `next` must be rebuilt.
    pub(crate) dirty: M::AtomicU32,
    /// The number of its chain.
    pub(crate) chain: M::AtomicU32,
    /// Length of the name.
    pub(crate) length: M::AtomicU32,
    /// Number of its claims, held and waited for; see `range/count.rs`.
    pub(crate) claims: M::AtomicU32,
    pad: M::AtomicU32,
    /// Number of claims that it ever had.
    pub(crate) turns: M::AtomicU64,
    pub(crate) name: [M::AtomicU64; KEYSPACE_MAX / 8],
}

/// The offset of a keyspace.
pub(crate) type KeyspaceAt<M> = Offset<Keyspace<M>>;

/// An owner's range, with `W` words for the two keys.
#[repr(C)]
pub(crate) struct Claim<M: Machine, const W: usize> {
    /// The next claim of the keyspace.
    pub(crate) next: Link<M, Short<M>>,
    pub(crate) prev: Link<M, Short<M>>,
    /// The tree: ordered by begin and end of the ranges, and a heap by `rank`.
    pub(crate) left: Link<M, Short<M>>,
    pub(crate) right: Link<M, Short<M>>,
    /// Of this claim and its subtree: a claim that ends last, and a mask of all kinds.
    pub(crate) top: Link<M, Short<M>>,
    pub(crate) within: M::AtomicU32,
    pub(crate) space: Link<M, Keyspace<M>>,
    pub(crate) owner: Typed<M::AtomicU32, OwnerNumber>,
    pub(crate) what: Typed<M::AtomicU32, What>,
    /// How often its owner locked it.
    pub(crate) count: M::AtomicU32,
    pub(crate) lengths: Typed<M::AtomicU32, Lengths>,
    /// Size class of its cell.
    pub(crate) tier: M::AtomicU32,
    /// Its position among the waiting claims.
    pub(crate) turn: M::AtomicU64,
    /// Both keys, each beginning at a new word. The first byte of a word is its highest.
    pub(crate) keys: [M::AtomicU64; W],
}

/// A claim with short keys. All claims begin with these fields.
pub(crate) type Short<M> = Claim<M, 8>;

/// The offset of a claim.
pub(crate) type ClaimAt<M> = Offset<Short<M>>;

/// The kind and the state of a claim; see `claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) kind: u32,
    pub(crate) state: u32,
}

impl What {
    /// Returns its kind's bit in a mask of kinds.
    #[inline(always)]
    pub(crate) fn bit(self) -> u32 {
        1 << (self.kind & 7)
    }
}

impl Stored for What {
    type In = u32;

    #[inline(always)]
    fn of(word: u32) -> Self {
        Self { kind: word & 255, state: word >> 8 }
    }

    #[inline(always)]
    fn word(self) -> u32 {
        self.kind | self.state << 8
    }
}

/// The lengths of a claim's first key and of the key that ends it, which may be `SUPREMUM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    from: u32,
    to: u32,
}

impl Lengths {
    fn of_span(span: &Span) -> Self {
        let to = span.to.as_ref().map_or(SUPREMUM, |to| to.len() as u32);
        Self { from: span.from.len() as u32, to }
    }

    /// Returns the number of words of the first key, and of both.
    #[inline(always)]
    fn words(self) -> (usize, usize) {
        let first = words(self.from);
        (first, first + words(self.to))
    }
}

impl Stored for Lengths {
    type In = u32;

    #[inline(always)]
    fn of(word: u32) -> Self {
        Self { from: word & 0xffff, to: word >> 16 }
    }

    #[inline(always)]
    fn word(self) -> u32 {
        self.from | self.to << 16
    }
}

/// States of a claim.
pub(crate) mod claim {
    /// In no list and no tree.
    pub(crate) const GONE: u32 = 0;
    pub(crate) const HELD: u32 = 1;
    pub(crate) const WAITING: u32 = 2;
}

// SAFETY: the type consists of words of a machine and nothing else.
unsafe impl<M: ConstMachine> Plain for Keyspaces<M> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine> Plain for Keyspace<M> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine, const W: usize> Plain for Claim<M, W> {}

const _: () = {
    use latchwork_machine::Native;
    assert!(size_of::<Keyspaces<Native>>() == 65_408);
    assert!(size_of::<Keyspace<Native>>() <= 248);
    assert!(size_of::<Short<Native>>() == 120);
    assert!(size_of::<Claim<Native, 504>>() == 4088);
};

/// A key in the region.
pub(crate) struct Key<'a, M: Machine> {
    words: &'a [M::AtomicU64],
    length: u32,
}

impl<M: Machine> Clone for Key<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for Key<'_, M> {}

impl<M: Machine> Key<'_, M> {
    /// Compares by bytes: first by words, which are padded with zeros, then by length.
    pub(crate) fn order(self, other: Self) -> Ordering {
        if self.length == SUPREMUM || other.length == SUPREMUM {
            return self.length.cmp(&other.length);
        }
        let words = self.words.iter().zip(other.words);
        let differ = words.map(|(a, b)| get(a).cmp(&get(b))).find(|order| order.is_ne());
        differ.unwrap_or(self.length.cmp(&other.length))
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| get(w).to_be_bytes()).collect();
        bytes.truncate(self.length as usize);
        bytes
    }
}

fn words(length: u32) -> usize {
    if length == SUPREMUM { 0 } else { (length as usize).div_ceil(8) }
}

/// Returns the size class of a claim's cell, from the words of both keys.
fn tier_of(words: usize) -> usize {
    [8, 24, 56, 120, 248].iter().position(|room| words <= *room).unwrap_or(5)
}

/// Returns whether a claim's cell has the size that its keys need.
pub(crate) fn is_of_size<M: ConstMachine>(claim: &Short<M>) -> bool {
    tier_of(get(&claim.lengths).words().1) == get(&claim.tier) as usize
}

fn write_key<M: Machine>(to: &[M::AtomicU64], key: &[u8]) {
    for (word, chunk) in to.iter().zip(key.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        put(word, u64::from_be_bytes(bytes));
    }
}

/// Calls a macro with the number of words of a size class.
macro_rules! by_tier {
    ($tier:expr, $do:ident) => {
        match $tier {
            0 => $do!(8),
            1 => $do!(24),
            2 => $do!(56),
            3 => $do!(120),
            4 => $do!(248),
            _ => $do!(504),
        }
    };
}

/// Returns the claim at an offset.
pub(crate) fn resolve<M: ConstMachine>(
    region: &Region<M>,
    at: ClaimAt<M>,
) -> Result<&Short<M>, Error> {
    Ok(cell_at(region, at)?)
}

/// The keys at which a claim begins and ends.
pub(crate) type Keys<'a, M> = (Key<'a, M>, Key<'a, M>);

/// The keys of a range in this process's own memory.
pub(crate) struct OwnKeys<M: Machine> {
    words: Vec<M::AtomicU64>,
    lengths: Lengths,
}

impl<M: ConstMachine> OwnKeys<M> {
    pub(crate) fn of(span: &Span) -> Self {
        let lengths = Lengths::of_span(span);
        let (first, both) = lengths.words();
        let all: Vec<_> = (0..both).map(|_| M::U64).collect();
        write_key::<M>(&all, &span.from);
        write_key::<M>(&all[first..], span.to.as_deref().unwrap_or_default());
        Self { words: all, lengths }
    }

    pub(crate) fn keys(&self) -> Keys<'_, M> {
        let Lengths { from, to } = self.lengths;
        let (first, second) = self.words.split_at(words(from));
        (Key { words: first, length: from }, Key { words: second, length: to })
    }
}

/// Returns the keys of a claim.
pub(crate) fn keys_of<M: ConstMachine>(
    region: &Region<M>,
    at: ClaimAt<M>,
) -> Result<Keys<'_, M>, Error> {
    let short = resolve(region, at)?;
    let lengths = get(&short.lengths);
    macro_rules! keys {
        ($n:literal) => {
            &cell_at(region, at.cast::<Claim<M, $n>>())?.keys[..]
        };
    }
    let all = by_tier!(get(&short.tier), keys);
    let (first, both) = lengths.words();
    // More words than its cell has: a faulty peer wrote it, or the cell was reused during the read.
    let (Some(a), Some(b)) = (all.get(..first), all.get(first..both)) else {
        return Err(Error::Foreign);
    };
    Ok((Key { words: a, length: lengths.from }, Key { words: b, length: lengths.to }))
}

/// Returns the first key of a claim's range and the key that ends it, or `None` if it has no end.
pub(crate) fn bounds_of<M: ConstMachine>(
    region: &Region<M>,
    at: ClaimAt<M>,
) -> Result<(Vec<u8>, Option<Vec<u8>>), Error> {
    let (from, to) = keys_of(region, at)?;
    Ok((from.bytes(), (to.length != SUPREMUM).then(|| to.bytes())))
}

/// Length of a ticket's name in bytes.
pub(crate) const TICKET: usize = 24;

/// Returns the name of a claim's ticket: 16 bytes that are specific to the region, so that other
/// names begin with them only on purpose, then the claim's offset and generation.
pub(crate) fn ticket<M: ConstMachine>(
    region: &Region<M>,
    at: ClaimAt<M>,
    generation: u32,
) -> [u8; TICKET] {
    let mut name = [0; TICKET];
    name[..16].copy_from_slice(&magic(region));
    name[16..20].copy_from_slice(&at.raw().to_be_bytes());
    name[20..].copy_from_slice(&generation.to_be_bytes());
    name
}

fn magic<M: ConstMachine>(region: &Region<M>) -> [u8; 16] {
    const MIX: u128 = 0x6c1d_29f7_83a4_5be0_d192_4f7c_08b6_e335;
    region.creation().wrapping_mul(MIX | 1).rotate_left(59).to_be_bytes()
}

/// Identifies a claim: its cell and generation.
pub(crate) type ClaimId<M> = (ClaimAt<M>, u32);

/// No claim.
pub(crate) const fn no_claim<M: ConstMachine>() -> ClaimId<M> {
    (Offset::NULL, 0)
}

/// Returns the claim whose ticket has this name.
pub(crate) fn of_ticket<M: ConstMachine>(region: &Region<M>, name: &[u8]) -> Option<ClaimId<M>> {
    let (magic_part, rest) = name.split_first_chunk::<16>()?;
    if name.len() != TICKET || *magic_part != magic(region) {
        return None;
    }
    let at = u32::from_be_bytes(*rest.first_chunk()?);
    Some((Offset::from_raw(at), u32::from_be_bytes(*rest.last_chunk()?)))
}

/// Returns whether a claim still exists.
pub(crate) fn is_that<M: ConstMachine>(
    region: &Region<M>,
    (at, generation): ClaimId<M>,
) -> Result<bool, Error> {
    Ok(region.lent(at)? == Some(generation))
}

/// Returns the name of an object as shown to a user: of a ticket, its range.
///
/// ```text
/// orders gap [b, d) #5f01.3        orders insert c #5f03.1 (waiting)
/// ```
pub(crate) fn told<M: ConstMachine>(region: &Region<M>, name: Vec<u8>) -> Vec<u8> {
    let Some(id) = of_ticket(region, &name) else { return name };
    let text = describe(region, id.0);
    let tail = format!(" #{:x}.{:x}", id.0.raw(), id.1);
    match text {
        // The text is valid if the claim still exists.
        Ok((mut text, waits)) if is_that(region, id) == Ok(true) => {
            text.extend(tail.bytes());
            text.extend_from_slice(if waits { b" (waiting)" } else { b"" });
            text
        }
        _ => format!("range{tail} (gone)").into_bytes(),
    }
}

fn describe<M: ConstMachine>(region: &Region<M>, at: ClaimAt<M>) -> Result<(Vec<u8>, bool), Error> {
    let claim = resolve(region, at)?;
    let what = get(&claim.what);
    let mut text = space_name(region, get(&claim.space))?;
    text.extend(format!(" {} ", RangeKind::of(what.kind)?.name()).bytes());
    let (from, to) = keys_of(region, at)?;
    let (from, to, open) = (from.bytes(), to.bytes(), to.length == SUPREMUM);
    if !open && to.len() == from.len() + 1 && to.last() == Some(&0) && to.starts_with(&from) {
        text.extend(from);
    } else {
        text.push(b'[');
        text.extend(from);
        text.extend(b", ");
        text.extend(to);
        text.extend_from_slice(if open { b"..)" } else { b")" });
    }
    Ok((text, what.state == claim::WAITING))
}

/// Returns the range of a ticket's name, or `None` if the name is no ticket's or the claim has
/// ended.
pub(crate) fn range_of<M: ConstMachine>(region: &Region<M>, name: &[u8]) -> Option<RangeInfo> {
    let id = of_ticket(region, name)?;
    let claim = resolve(region, id.0).ok()?;
    let what = get(&claim.what);
    let (from, to) = bounds_of(region, id.0).ok()?;
    let found = RangeInfo {
        keyspace: space_name(region, get(&claim.space)).ok()?,
        kind: RangeKind::of(what.kind).ok()?,
        from,
        to,
        waiting: what.state == claim::WAITING,
    };
    // The result is valid if the claim still exists.
    (is_that(region, id) == Ok(true)).then_some(found)
}

/// Returns the name of a keyspace.
pub(crate) fn space_name<M: ConstMachine>(
    region: &Region<M>,
    at: KeyspaceAt<M>,
) -> Result<Vec<u8>, Error> {
    let space = cell_at(region, at)?;
    Ok(crate::memory::names::read::<M>(
        &space.name,
        (get(&space.length) as usize).min(KEYSPACE_MAX),
    ))
}

/// A new claim of any size, in no list yet.
pub(crate) struct NewClaim<'s, M: ConstMachine> {
    pub(crate) at: ClaimAt<M>,
    pub(crate) generation: u32,
    cell: Sized<'s, M>,
}

macro_rules! sizes {
    ($($name:ident: $n:literal),*) => {
        enum Sized<'s, M: ConstMachine> {
            $($name(Cell<'s, Claim<M, $n>, M>),)*
        }

        impl<M: ConstMachine> NewClaim<'_, M> {
            /// Completes the creation, after the claim was linked.
            pub(crate) fn publish(self) {
                match self.cell {
                    $(Sized::$name(cell) => { cell.publish(); })*
                }
            }
        }
    };
}

sizes!(A: 8, B: 24, C: 56, D: 120, E: 248, F: 504);

impl<M: ConstMachine> Memory<M> {
    pub(crate) fn claim(&self, at: ClaimAt<M>) -> Result<&Short<M>, Error> {
        resolve(self.region(), at)
    }

    pub(crate) fn keyspace(&self, at: KeyspaceAt<M>) -> Result<&Keyspace<M>, Error> {
        Ok(cell_at(self.region(), at)?)
    }

    /// Creates a claim that is in no list.
    pub(crate) fn new_claim(
        &self,
        owner: OwnerNumber,
        span: &Span,
        kind: RangeKind,
    ) -> Result<NewClaim<'_, M>, Error> {
        let lengths = Lengths::of_span(span);
        let (first, both) = lengths.words();
        let tier = tier_of(both);
        macro_rules! new {
            ($name:ident, $n:literal) => {{
                let cell = self.thread.alloc_dirty::<Claim<M, $n>>()?;
                put(&cell.what, What { kind: kind as u32, state: claim::GONE });
                put(&cell.owner, owner);
                put(&cell.space, Offset::NULL);
                put(&cell.count, 1);
                put(&cell.lengths, lengths);
                put(&cell.tier, tier as u32);
                put(&cell.turn, u64::MAX);
                write_key::<M>(&cell.keys, &span.from);
                write_key::<M>(&cell.keys[first..], span.to.as_deref().unwrap_or_default());
                let (at, generation) = (cell.offset().cast(), cell.generation());
                NewClaim { at, generation, cell: Sized::$name(cell) }
            }};
        }
        Ok(match tier {
            0 => new!(A, 8),
            1 => new!(B, 24),
            2 => new!(C, 56),
            3 => new!(D, 120),
            4 => new!(E, 248),
            _ => new!(F, 504),
        })
    }

    /// Frees the cell of a claim to which nothing links.
    pub(crate) fn free_claim(&self, at: ClaimAt<M>, tier: u32) -> Result<(), Error> {
        macro_rules! free {
            ($n:literal) => {
                self.free_cell(at.cast::<Claim<M, $n>>())?
            };
        }
        by_tier!(tier, free);
        Ok(())
    }
}
