//! Keyspaces, and the claims in them.
//!
//! The list of a keyspace's claims is the truth; the tree, and the links back, can be made anew
//! from it, and are, by the next thread that comes, if a process died while `dirty` was set. A
//! claim is of no account until its state says so, which is the last store of its linking and the
//! first of its unlinking.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::blocks::chain_of;
use crate::memory::cells::{PARTITIONS_MAX, cell_at, get, put};
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::typed::Stored;
use crate::memory::{Memory, intents, roots};
use crate::range::cells::{
    ClaimAt, ClaimId, Keyspace, KeyspaceAt, Keyspaces, Short, What, claim, is_that, keys_of,
};
use crate::range::kinds::RangeKind;

/// A list that is longer is corrupt.
const LIST_MAX: u32 = 1 << 26;

/// A claim's kind and state.
pub(crate) fn what<M: ConstMachine>(it: &Short<M>) -> Result<(RangeKind, u32), Error> {
    let what = get(&it.what);
    Ok((RangeKind::of(what.kind)?, what.state))
}

fn set_state<M: ConstMachine>(it: &Short<M>, state: u32) {
    put(&it.what, What { state, ..get(&it.what) });
}

impl<M: ConstMachine> Memory<M> {
    /// The chains of keyspaces; none before the first one.
    pub(crate) fn keyspaces(&self) -> Result<Option<&Keyspaces<M>>, Error> {
        let region = self.region();
        // Acquire: synchronizes with the exchange in `keyspaces_or_new`.
        match region.root(roots::KEYSPACES)?.load(Acquire) as u32 {
            0 => Ok(None),
            at => Ok(Some(cell_at(region, Offset::from_raw(at))?)),
        }
    }

    pub(crate) fn keyspaces_or_new(&self) -> Result<&Keyspaces<M>, Error> {
        if let Some(known) = self.keyspaces()? {
            return Ok(known);
        }
        let region = self.region();
        let cell = self.thread.alloc::<Keyspaces<M>>()?;
        let (word, at) = (region.root(roots::KEYSPACES)?, cell.offset());
        // AcqRel: synchronizes with the Acquire in `keyspaces`.
        match word.compare_exchange(0, u64::from(at.raw()), AcqRel, Acquire) {
            Ok(_) => {
                self.point("chains of keyspaces made");
                cell.publish();
                Ok(cell_at(region, at)?)
            }
            Err(other) => Ok(cell_at(region, Offset::from_raw(other as u32))?),
        }
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// All keyspaces of the partition.
    pub(crate) fn each_keyspace(&self) -> Result<Vec<KeyspaceAt<M>>, Error> {
        let Some(known) = self.memory.keyspaces()? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for chain in self.memory.blocks.chains(self.number) {
            self.follow_chain(known, chain, &mut found)?;
        }
        Ok(found)
    }

    /// Appends the keyspaces of a chain.
    fn follow_chain(
        &self,
        known: &Keyspaces<M>,
        chain: u32,
        found: &mut Vec<KeyspaceAt<M>>,
    ) -> Result<(), Error> {
        let mut at = get(&known.heads[chain as usize]);
        while !at.is_null() {
            found.push(at);
            at = get(&self.memory.keyspace(at)?.next);
            if found.len() > LIST_MAX as usize {
                return corrupt_list();
            }
        }
        Ok(())
    }

    /// All claims of a keyspace.
    pub(crate) fn each_claim(&self, space: KeyspaceAt<M>) -> Result<Vec<ClaimAt<M>>, Error> {
        let (mut found, mut at) = (Vec::new(), get(&self.memory.keyspace(space)?.head));
        while !at.is_null() {
            found.push(at);
            at = get(&self.memory.claim(at)?.next);
            if found.len() > LIST_MAX as usize {
                return corrupt_list();
            }
        }
        Ok(found)
    }

    /// The keyspace of this name, if it has claims or had some, put right.
    pub(crate) fn find_keyspace(&self, name: &Name<'_>) -> Result<KeyspaceAt<M>, Error> {
        let Some(known) = self.memory.keyspaces()? else { return Ok(Offset::NULL) };
        let mut at = get(&known.heads[chain_of(name.hash) as usize]);
        for _ in 0..LIST_MAX {
            if at.is_null() {
                return Ok(Offset::NULL);
            }
            let space = self.memory.keyspace(at)?;
            if get(&space.length) as usize == name.bytes.len() && name.is_in(&space.name) {
                self.repair_keyspace(at)?;
                return Ok(at);
            }
            at = get(&space.next);
        }
        corrupt_list()
    }

    /// The keyspace of this name, made if there is none.
    pub(crate) fn find_or_make_keyspace(&self, name: &Name<'_>) -> Result<KeyspaceAt<M>, Error> {
        let found = self.find_keyspace(name)?;
        if !found.is_null() {
            return Ok(found);
        }
        let number = chain_of(name.hash);
        let chain = &self.memory.keyspaces_or_new()?.heads[number as usize];
        let cell = self.memory.thread.alloc::<Keyspace<M>>()?;
        put(&cell.chain, number);
        put(&cell.length, name.bytes.len() as u32);
        name.write(&cell.name);
        put(&cell.next, get(chain));
        let at = cell.offset();
        put(chain, at);
        self.memory.point("keyspace linked");
        cell.publish();
        Ok(at)
    }

    /// Takes a keyspace without claims out of its chain, if there is another such one: the last
    /// one stays, for an owner that comes again and again.
    fn retire_keyspace(&self, at: KeyspaceAt<M>) -> Result<(), Error> {
        let known = self.memory.keyspaces_or_new()?;
        let chain = get(&self.memory.keyspace(at)?.chain) % PARTITIONS_MAX;
        let mut all = Vec::new();
        self.follow_chain(known, chain, &mut all)?;
        let idle = |at| Ok::<bool, Error>(get(&self.memory.keyspace(at)?.head).is_null());
        let mut other = false;
        for each in &all {
            other |= *each != at && idle(*each)?;
        }
        let Some(place) = all.iter().position(|each| *each == at && other) else { return Ok(()) };
        self.memory.note_range_alone(at.cast(), KEYSPACE_TIER, self.number)?;
        let next = get(&self.memory.keyspace(at)?.next);
        match place {
            0 => put(&known.heads[chain as usize], next),
            _ => put(&self.memory.keyspace(all[place - 1])?.next, next),
        }
        self.memory.point("keyspace unlinked");
        Ok(self.memory.free_cell(at)?)
    }

    /// Makes the tree anew, if somebody died at it.
    pub(crate) fn repair_keyspace(&self, at: KeyspaceAt<M>) -> Result<(), Error> {
        let space = self.memory.keyspace(at)?;
        if get(&space.dirty) == 0 {
            return Ok(());
        }
        let (mut prev, mut tree, mut count) = (Offset::NULL, Offset::NULL, 0);
        let mut seen = get(&space.head);
        for _ in 0..LIST_MAX {
            if seen.is_null() {
                put(&space.claims, count);
                put(&space.root, tree);
                self.memory.point("tree made anew");
                put(&space.dirty, 0);
                return Ok(());
            }
            let it = self.memory.claim(seen)?;
            let next = get(&it.next);
            if what(it)?.1 == claim::GONE {
                // It was about to leave, or to come; the thread that noted it frees it.
                if prev.is_null() {
                    put(&space.head, next);
                } else {
                    put(&self.memory.claim(prev)?.next, next);
                }
            } else {
                put(&it.prev, prev);
                tree = self.insert(tree, seen, 0)?;
                count += 1;
                prev = seen;
            }
            seen = next;
        }
        corrupt_list()
    }

    /// Links a claim, which is held or waits from then on.
    pub(crate) fn link_claim(
        &self,
        space_at: KeyspaceAt<M>,
        at: ClaimAt<M>,
        state: u32,
    ) -> Result<(), Error> {
        let (space, it) = (self.memory.keyspace(space_at)?, self.memory.claim(at)?);
        let (turn, head) = (get(&space.turns) + 1, get(&space.head));
        put(&space.turns, turn);
        put(&it.turn, turn);
        put(&it.space, space_at);
        put(&it.next, head);
        put(&it.prev, Offset::NULL);
        put(&space.dirty, 1);
        self.memory.point("claim about to be linked");
        put(&space.head, at);
        self.memory.point("claim linked");
        if !head.is_null() {
            put(&self.memory.claim(head)?.prev, at);
        }
        put(&space.root, self.insert(get(&space.root), at, 0)?);
        self.memory.point("claim in the tree");
        put(&space.claims, get(&space.claims).wrapping_add(1));
        set_state(it, state);
        put(&space.dirty, 0);
        Ok(())
    }

    /// Takes a claim out, and frees it. Nothing is done to one that is out already.
    pub(crate) fn drop_claim(&self, space_at: KeyspaceAt<M>, at: ClaimAt<M>) -> Result<(), Error> {
        let (space, it) = (self.memory.keyspace(space_at)?, self.memory.claim(at)?);
        if what(it)?.1 == claim::GONE {
            return Ok(());
        }
        let tier = get(&it.tier);
        self.memory.note_range(at.cast(), tier, self.number)?;
        put(&space.dirty, 1);
        set_state(it, claim::GONE);
        self.memory.thread.adopt_as(at, &self.memory.thread.intent()?[intents::RANGE])?;
        self.memory.point("claim about to be unlinked");
        let (prev, next) = (get(&it.prev), get(&it.next));
        if prev.is_null() {
            put(&space.head, next);
        } else {
            put(&self.memory.claim(prev)?.next, next);
        }
        self.memory.point("claim unlinked");
        if !next.is_null() {
            put(&self.memory.claim(next)?.prev, prev);
        }
        put(&space.root, self.remove(get(&space.root), at, 0)?);
        put(&space.claims, get(&space.claims).saturating_sub(1));
        put(&space.dirty, 0);
        self.memory.point("claim out of the tree");
        self.memory.free_claim(at, tier)?;
        if get(&space.head).is_null() { self.retire_keyspace(space_at) } else { Ok(()) }
    }

    /// Grants a waiting claim.
    pub(crate) fn grant_claim(&self, at: ClaimAt<M>) -> Result<(), Error> {
        set_state(self.memory.claim(at)?, claim::HELD);
        Ok(())
    }

    /// A claim that stands in the way of another, which may be in no index yet: held by a stranger
    /// to its owner, or a stranger's earlier claim that waits, if those count.
    ///
    /// A waiting claim does not count if what the owner or its ancestors hold stops it: that one
    /// would wait for ever.
    pub(crate) fn in_the_way(
        &self,
        space_at: KeyspaceAt<M>,
        at: ClaimAt<M>,
        waiting: bool,
    ) -> Result<Option<ClaimAt<M>>, Error> {
        let root = get(&self.memory.keyspace(space_at)?.root);
        let me = self.memory.claim(at)?;
        let (owner, turn, stops) = (get(&me.owner), get(&me.turn), what(me)?.0.stopped_by());
        let mut found = None;
        let keys = keys_of(self.memory.region(), at)?;
        self.search(root, keys, stops, 0, &mut |other_at, other| {
            let waits = what(other)?.1 == claim::WAITING;
            let counts = other_at != at
                && !self.is_kin(get(&other.owner), owner)?
                && (!waits || waiting && get(&other.turn) < turn)
                && !(waits && self.stopped_by_kin(root, other_at, owner)?);
            found = counts.then_some(other_at);
            Ok(counts)
        })?;
        Ok(found)
    }

    /// Whether a waiting claim is stopped by what an owner or its ancestors hold.
    fn stopped_by_kin(
        &self,
        root: ClaimAt<M>,
        waiting: ClaimAt<M>,
        owner: OwnerNumber,
    ) -> Result<bool, Error> {
        let stops = what(self.memory.claim(waiting)?)?.0.stopped_by();
        let keys = keys_of(self.memory.region(), waiting)?;
        self.search(root, keys, stops, 0, &mut |_, other| {
            Ok(what(other)?.1 == claim::HELD && self.is_kin(get(&other.owner), owner)?)
        })
    }
}

/// In the place of a claim's tier: it is a keyspace.
const KEYSPACE_TIER: u32 = 6;

impl<M: ConstMachine> Memory<M> {
    /// Notes that a claim is about to be gone. Other notes of it are void only when it is: its
    /// ticket names it by its generation.
    fn note_range(
        &self,
        at: Offset<()>,
        tier: u32,
        partition: PartitionNumber,
    ) -> Result<(), Error> {
        let name = self.name_cell(at)?;
        put(self.range_note(tier, partition)?, name);
        Ok(())
    }

    /// Notes that a keyspace is about to be freed, or that a claim is which is gone. All other
    /// notes of it are void.
    fn note_range_alone(
        &self,
        at: Offset<()>,
        tier: u32,
        partition: PartitionNumber,
    ) -> Result<(), Error> {
        Ok(self.thread.adopt_as(at, self.range_note(tier, partition)?)?)
    }

    fn range_note(&self, tier: u32, partition: PartitionNumber) -> Result<&M::AtomicU64, Error> {
        let notes = self.thread.intent()?;
        put(&notes[intents::RANGE], 0);
        put(&notes[intents::RANGE_IN], u64::from(tier) << 32 | u64::from(partition.word()));
        Ok(&notes[intents::RANGE])
    }

    /// Frees what a dead thread had taken out of a keyspace, or out of their chain.
    pub(crate) fn free_noted_range(&self, notes: &[M::AtomicU64]) -> Result<(), Error> {
        let Some(at) = self.noted::<()>(get(&notes[intents::RANGE]))? else { return Ok(()) };
        let of = &notes[intents::RANGE_IN];
        let (tier, partition) = ((get(of) >> 32) as u32, PartitionNumber::of(get(of) as u32));
        let latched = self.latch(partition.within(self.partitions()))?;
        // Once more, under the latch: it may be another by now.
        let is_it = self.noted::<()>(get(&notes[intents::RANGE]))?.is_some();
        if !is_it || latched.all_of_ranges()?.contains(&at) {
            return Ok(());
        }
        self.note_range_alone(at, tier, latched.number)?;
        if tier == KEYSPACE_TIER {
            let _ = self.free_cell(at.cast::<Keyspace<M>>());
        } else {
            let _ = self.free_claim(at.cast(), tier);
        }
        Ok(())
    }

    /// Puts a claim's keyspace right, and takes the claim out of it. For its owner, or the sweeper
    /// that releases that.
    pub(crate) fn remove_claim(&self, id: ClaimId<M>) -> Result<(), Error> {
        let region = self.region();
        // One that is gone, or never came, is freed by the thread that noted it.
        if !is_that(region, id)? || what(self.claim(id.0)?)?.1 == claim::GONE {
            return Ok(());
        }
        let space_at = get(&self.claim(id.0)?.space);
        let latched = self.latch_keyspace(space_at)?;
        if is_that(region, id)? {
            latched.repair_keyspace(space_at)?;
            latched.drop_claim(space_at, id.0)?;
        }
        Ok(())
    }

    /// The latch of the keyspace that a claim is in; it stays as long as the claim.
    pub(crate) fn latch_keyspace(&self, space_at: KeyspaceAt<M>) -> Result<Latched<'_, M>, Error> {
        self.latch(self.blocks.guarding(get(&self.keyspace(space_at)?.chain)))
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// All keyspaces and claims of the partition, after they were put right.
    pub(crate) fn all_of_ranges(&self) -> Result<Vec<Offset<()>>, Error> {
        let mut found = Vec::new();
        for space in self.each_keyspace()? {
            self.repair_keyspace(space)?;
            found.push(space.cast());
            found.extend(self.each_claim(space)?.into_iter().map(Offset::cast));
        }
        Ok(found)
    }
}
