//! Locks on ranges: what lies in the region.
//!
//! | cell | bytes | whose |
//! |---|---|---|
//! | chains of keyspaces | 65,472 | one chain, or four, for each partition, guarded by its latch |
//! | keyspace | 256 | a name, its claims, and the root of their tree |
//! | claim | 128 and more | an owner's range, held or waited for |
//!
//! A keyspace and all its claims are guarded by the latch of the partition that its name falls to.
//! A claim's owner and its own ticket (`range/claims.rs`) lead to it; it goes before the ticket
//! goes.

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

/// The length of a key beyond all others.
const SUPREMUM: u32 = 0xffff;

/// The chains of keyspaces, each guarded by a partition's latch: see `chain_of`.
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
    /// Not zero while the claims' links are changed: all but `next` is to be made anew.
    pub(crate) dirty: M::AtomicU32,
    /// The number of its chain.
    pub(crate) chain: M::AtomicU32,
    /// Of the name.
    pub(crate) length: M::AtomicU32,
    /// Its claims, held and waited for; see `range/count.rs`.
    pub(crate) claims: M::AtomicU32,
    pad: M::AtomicU32,
    /// Counts its claims, ever.
    pub(crate) turns: M::AtomicU64,
    pub(crate) name: [M::AtomicU64; KEYSPACE_MAX / 8],
}

/// Where a keyspace lies.
pub(crate) type KeyspaceAt<M> = Offset<Keyspace<M>>;

/// An owner's range, with `W` words for the two keys.
#[repr(C)]
pub(crate) struct Claim<M: Machine, const W: usize> {
    /// The next of the keyspace.
    pub(crate) next: Link<M, Short<M>>,
    pub(crate) prev: Link<M, Short<M>>,
    /// The tree: ordered by where ranges begin and end, and a heap by `rank`.
    pub(crate) left: Link<M, Short<M>>,
    pub(crate) right: Link<M, Short<M>>,
    /// Of this claim and those below it: one that ends last, and all kinds.
    pub(crate) top: Link<M, Short<M>>,
    pub(crate) within: M::AtomicU32,
    pub(crate) space: Link<M, Keyspace<M>>,
    pub(crate) owner: Typed<M::AtomicU32, OwnerNumber>,
    pub(crate) what: Typed<M::AtomicU32, What>,
    /// How often its owner took it.
    pub(crate) count: M::AtomicU32,
    pub(crate) lengths: Typed<M::AtomicU32, Lengths>,
    /// The size of its cell.
    pub(crate) tier: M::AtomicU32,
    /// Its place among those that wait.
    pub(crate) turn: M::AtomicU64,
    /// Both keys, each from a new word on; the first byte of a word is its highest.
    pub(crate) keys: [M::AtomicU64; W],
}

/// A claim on short keys: what all begin with.
pub(crate) type Short<M> = Claim<M, 8>;

/// Where a claim lies.
pub(crate) type ClaimAt<M> = Offset<Short<M>>;

/// Of a claim: the number of its kind, and its state; see `claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) kind: u32,
    pub(crate) state: u32,
}

impl What {
    /// Its kind's bit in a mask of kinds.
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

/// The length of the key that a claim begins with, and of the one that it ends before, which may be
/// `SUPREMUM`.
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

    /// The words of the first key, and of both.
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
    /// In no index.
    pub(crate) const GONE: u32 = 0;
    pub(crate) const HELD: u32 = 1;
    pub(crate) const WAITING: u32 = 2;
}

// SAFETY: it is made of words of a machine, and nothing else.
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
    /// The order of their bytes: that of their words, which are padded with zeros, and then that
    /// of their lengths.
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

/// The size of a claim's cell, by the words of both keys.
fn tier_of(words: usize) -> usize {
    [8, 24, 56, 120, 248].iter().position(|room| words <= *room).unwrap_or(5)
}

/// Whether a claim is in a cell of the size that its keys need.
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

/// Reads, resolves or frees a claim by the size of its cell.
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

/// The claim at an offset.
pub(crate) fn resolve<M: ConstMachine>(
    region: &Region<M>,
    at: ClaimAt<M>,
) -> Result<&Short<M>, Error> {
    Ok(cell_at(region, at)?)
}

/// Where a claim begins and ends.
pub(crate) type Keys<'a, M> = (Key<'a, M>, Key<'a, M>);

/// A range's keys, in this process's own memory.
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

/// The keys of a claim.
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
    // More words than its cell has: a peer's doing, or it became another while it was read.
    let (Some(a), Some(b)) = (all.get(..first), all.get(first..both)) else {
        return Err(Error::Foreign);
    };
    Ok((Key { words: a, length: lengths.from }, Key { words: b, length: lengths.to }))
}

/// Where the range of a claim begins, and before which key it ends: none if it has no end.
pub(crate) fn bounds_of<M: ConstMachine>(
    region: &Region<M>,
    at: ClaimAt<M>,
) -> Result<(Vec<u8>, Option<Vec<u8>>), Error> {
    let (from, to) = keys_of(region, at)?;
    Ok((from.bytes(), (to.length != SUPREMUM).then(|| to.bytes())))
}

/// Bytes of a ticket's name.
pub(crate) const TICKET: usize = 24;

/// The name of a claim's ticket: 16 bytes of the region's own, which nobody else begins a name
/// with but by intent, and the claim.
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

/// Names a claim: a cell, and its generation.
pub(crate) type ClaimId<M> = (ClaimAt<M>, u32);

/// No claim.
pub(crate) const fn no_claim<M: ConstMachine>() -> ClaimId<M> {
    (Offset::NULL, 0)
}

/// The claim whose ticket has this name.
pub(crate) fn of_ticket<M: ConstMachine>(region: &Region<M>, name: &[u8]) -> Option<ClaimId<M>> {
    let (magic_part, rest) = name.split_first_chunk::<16>()?;
    if name.len() != TICKET || *magic_part != magic(region) {
        return None;
    }
    let at = u32::from_be_bytes(*rest.first_chunk()?);
    Some((Offset::from_raw(at), u32::from_be_bytes(*rest.last_chunk()?)))
}

/// Whether a claim is still the one that was meant.
pub(crate) fn is_that<M: ConstMachine>(
    region: &Region<M>,
    (at, generation): ClaimId<M>,
) -> Result<bool, Error> {
    Ok(region.lent(at)? == Some(generation))
}

/// What people are told of an object: its name, or if that is a ticket's, the range behind it.
///
/// ```text
/// orders gap [b, d) #5f01.3        orders insert c #5f03.1 (waiting)
/// ```
pub(crate) fn told<M: ConstMachine>(region: &Region<M>, name: Vec<u8>) -> Vec<u8> {
    let Some(id) = of_ticket(region, &name) else { return name };
    let text = describe(region, id.0);
    let tail = format!(" #{:x}.{:x}", id.0.raw(), id.1);
    match text {
        // What was read counts if the claim is still the same.
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

/// The range behind a ticket's name; none if the name is no ticket's, or the claim has ended.
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
    // What was read counts if the claim is still the same.
    (is_that(region, id) == Ok(true)).then_some(found)
}

/// The name of a keyspace.
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

/// A new claim, of any size, in no index yet.
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
            /// The index leads to it from now on.
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

    /// Writes a claim, in hand.
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

    /// Frees the cell of a claim that nothing leads to.
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
