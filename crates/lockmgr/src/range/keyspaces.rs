//! Keyspaces, and the claims in them.
//!
//! The list of a keyspace's claims is authoritative. The tree and the backward links are derived
//! from it. If a process died while `dirty` was set, the next thread that uses the keyspace
//! rebuilds them. A claim counts only if its state says so, which is the last store of its linking
//! and the first of its unlinking.

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

/// Returns a claim's kind and state.
pub(crate) fn what<M: ConstMachine>(it: &Short<M>) -> Result<(RangeKind, u32), Error> {
    let what = get(&it.what);
    Ok((RangeKind::of(what.kind)?, what.state))
}

fn set_state<M: ConstMachine>(it: &Short<M>, state: u32) {
    put(&it.what, What { state, ..get(&it.what) });
}

impl<M: ConstMachine> Memory<M> {
    /// Returns the chains of keyspaces, or `None` before the first range lock.
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
    /// Returns all keyspaces of the partition.
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

    /// Returns all claims of a keyspace.
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

    /// Returns the keyspace of this name, repaired if needed; null if it does not exist.
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

    /// Returns the keyspace of this name. Creates it if it does not exist.
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

    /// Removes a keyspace without claims from its chain, if another one without claims is left. The
    /// last one stays for an owner that uses it repeatedly.
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

    /// Rebuilds the tree, if a process died while it changed it.
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
                // It was being removed or created; the thread that recorded it frees it.
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

    /// Removes a claim and frees it. Has no effect if it was removed already.
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

    /// Returns a claim that blocks another one, which may be in no list yet: a claim that another
    /// family holds or, if `waiting` is set, an earlier waiting one of another family.
    ///
    /// A waiting claim does not count if a claim of the owner or its ancestors blocks it: it would
    /// wait forever.
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

    /// Returns whether a claim of an owner or its ancestors blocks a waiting claim.
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

/// The size class that marks the cell as a keyspace.
const KEYSPACE_TIER: u32 = 6;

impl<M: ConstMachine> Memory<M> {
    /// Records that a claim is about to be removed. Other intents that name it become void only at
    /// its removal, because its ticket names it by its generation.
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

    /// Records that a keyspace or a removed claim is about to be freed. All other intents that name
    /// it become void.
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

    /// Frees a claim or keyspace that a dead thread had unlinked.
    pub(crate) fn free_noted_range(&self, notes: &[M::AtomicU64]) -> Result<(), Error> {
        let Some(at) = self.noted::<()>(get(&notes[intents::RANGE]))? else { return Ok(()) };
        let of = &notes[intents::RANGE_IN];
        let (tier, partition) = ((get(of) >> 32) as u32, PartitionNumber::of(get(of) as u32));
        let latched = self.latch(partition.within(self.partitions()))?;
        // Checked again under the latch: the cell may have been reused.
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

    /// Repairs a claim's keyspace, and removes the claim from it. Called by its owner, or by the
    /// sweeper that releases that owner.
    pub(crate) fn remove_claim(&self, id: ClaimId<M>) -> Result<(), Error> {
        let region = self.region();
        // A removed or unlinked claim is freed by the thread that recorded it.
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

    /// Takes the latch of a claim's keyspace, which exists as long as the claim.
    pub(crate) fn latch_keyspace(&self, space_at: KeyspaceAt<M>) -> Result<Latched<'_, M>, Error> {
        self.latch(self.blocks.guarding(get(&self.keyspace(space_at)?.chain)))
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// Returns all keyspaces and claims of the partition, after repairing them.
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
