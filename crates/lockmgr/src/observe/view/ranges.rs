//! Checks of the claims on ranges: lists, trees, owners, tickets.

use core::cmp::Ordering;
use std::collections::HashMap;

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use super::{Verified, View, seen, seen_object};
use crate::Error;
use crate::error::corrupt_list;
use crate::memory::blocks::chain_of;
use crate::memory::cells::cell_at;
use crate::memory::names::Name;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::roots;
use crate::range::cells::{
    ClaimAt, KEYSPACE_MAX, Keyspace, KeyspaceAt, Keyspaces, Short, claim, is_of_size, keys_of,
    resolve, space_name, ticket,
};
use crate::range::kinds::RangeKind;
use crate::range::tree::{DEPTH_MAX, order, rank};
use crate::table::objects::place_of;

/// The number of claims with a common key that are compared with each other.
const COMPARED: usize = 64;

/// The claims of a keyspace, by offset: kind, state, and whether the tree contains them.
type Known<M> = HashMap<ClaimAt<M>, (RangeKind, u32, bool)>;

impl<M: ConstMachine> View<M> {
    /// Checks each chain of keyspaces, except for those of latched partitions.
    pub(super) fn verify_ranges(
        &self,
        said: &mut Verified,
        skipped: impl Fn(PartitionNumber) -> bool,
    ) -> Result<(), Error> {
        let at = Offset::from_raw(seen(self.region.root(roots::KEYSPACES)?) as u32);
        if at.is_null() {
            return Ok(());
        }
        let chains: &Keyspaces<M> = cell_at(&self.region, at)?;
        let mut owned = HashMap::new();
        for (chain, head) in chains.heads.iter().enumerate() {
            if skipped(self.blocks.guarding(chain as u32)) {
                continue;
            }
            let (mut at, mut steps) = (seen(head), 0);
            while !at.is_null() {
                if let Err(error) = self.verify_keyspace(at, chain as u32, said, &mut owned) {
                    said.flaws.push(format!("keyspace {at}: {error}"));
                }
                let Ok(space) = self.space(at) else { break };
                at = seen(&space.next);
                steps += 1;
                if steps > self.cells() {
                    said.flaws.push(format!("chain {chain} of keyspaces is corrupt"));
                    break;
                }
            }
        }
        for (owner, count) in owned {
            // The count may be too high, but never too low.
            if self.owner(owner)?.is_some_and(|(_, cell)| seen(&cell.ranges) < count) {
                said.flaws.push(format!("owner {owner}: has {count} ranges, counts fewer"));
            }
        }
        Ok(())
    }

    fn space(&self, at: KeyspaceAt<M>) -> Result<&Keyspace<M>, Error> {
        Ok(cell_at(&self.region, at)?)
    }

    fn verify_keyspace(
        &self,
        at: KeyspaceAt<M>,
        chain: u32,
        said: &mut Verified,
        owned: &mut HashMap<OwnerNumber, u32>,
    ) -> Result<(), Error> {
        let space = self.space(at)?;
        let mut wrong = |what: &str| said.flaws.push(format!("keyspace {at}: {what}"));
        if self.region.lent(at)?.is_none() {
            wrong("its cell is free");
        }
        let length = seen(&space.length) as usize;
        if length == 0 || length > KEYSPACE_MAX {
            wrong("has no name");
        } else {
            let bytes = space_name(&self.region, at)?;
            let name = Name::new(&bytes, self.region.creation() as u64)?;
            if chain_of(name.hash) != chain || seen(&space.chain) != chain {
                wrong("in the wrong chain");
            }
        }
        if seen(&space.dirty) != 0 {
            // A process died during a change; the next thread that uses the keyspace rebuilds
            // everything but `next`.
            return Ok(());
        }
        let (mut known, mut order) = (Known::<M>::new(), Vec::new());
        let (mut claim_at, mut last) = (seen(&space.head), Offset::NULL);
        while !claim_at.is_null() {
            let it = resolve(&self.region, claim_at)?;
            if known.contains_key(&claim_at) {
                said.flaws.push(format!("keyspace {at}: its list is corrupt"));
                break;
            }
            if seen(&it.prev) != last {
                said.flaws.push(format!("claim {claim_at}: its link back leads elsewhere"));
            }
            let said_of = self.verify_claim(at, space, claim_at, it, &mut said.flaws)?;
            if let Some((kind, state)) = said_of {
                known.insert(claim_at, (kind, state, false));
                order.push(claim_at);
                *owned.entry(seen(&it.owner)).or_default() += 1;
            } else {
                known.insert(claim_at, (RangeKind::Gap, claim::GONE, false));
            }
            last = claim_at;
            claim_at = seen(&it.next);
            said.ranges += 1;
            if said.ranges > self.cells() {
                return corrupt_list();
            }
        }
        let mut before = Offset::NULL;
        let tree = self.verify_tree(seen(&space.root), 0, &mut known, &mut before);
        if let Err(what) = tree.and_then(|_| {
            let lost = known.values().filter(|(_, _, found)| !found).count();
            if lost == 0 { Ok(0) } else { Err(format!("{lost} of its claims are not in its tree")) }
        }) {
            said.flaws.push(format!("keyspace {at}: {what}"));
        } else {
            self.verify_holds(order, &known, &mut said.flaws)?;
        }
        Ok(())
    }

    /// Checks a claim by itself. Returns `None` if its kind, state or keys are invalid.
    fn verify_claim(
        &self,
        space_at: KeyspaceAt<M>,
        space: &Keyspace<M>,
        at: ClaimAt<M>,
        it: &Short<M>,
        flaws: &mut Vec<String>,
    ) -> Result<Option<(RangeKind, u32)>, Error> {
        let mut wrong = |what: &str| flaws.push(format!("claim {at}: {what}"));
        let what = seen(&it.what);
        let (kind, state) = (RangeKind::of(what.kind), what.state);
        let generation = self.region.lent(at)?;
        if generation.is_none() {
            wrong("its cell is free");
        }
        if seen(&it.space) != space_at {
            wrong("names another keyspace");
        }
        if !matches!(state, claim::HELD | claim::WAITING) {
            wrong("in a list, and neither held nor waited for");
        }
        if !is_of_size(it) {
            wrong("its cell is not of the size that its keys need");
        }
        if seen(&it.count) == 0 {
            wrong("counts nothing");
        }
        if seen(&it.turn) > seen(&space.turns) {
            wrong("its turn is yet to come");
        }
        let owner = seen(&it.owner);
        match self.owner(owner)? {
            Some((_, cell)) if seen(&cell.state).is_free() => wrong("its owner has ended"),
            Some(_) => {}
            None => wrong("its owner never was"),
        }
        if let Some(generation) = generation {
            match self.holder_of(&ticket(&self.region, at, generation))? {
                // A parent that inherits a range gets the claim first, and the ticket shortly
                // after.
                Some(holders) if !holders.iter().any(|holder| self.are_kin(*holder, owner)) => {
                    wrong("its owner has no ticket for it");
                }
                _ => {}
            }
        }
        let keys = keys_of(&self.region, at);
        match (kind, keys) {
            (Ok(kind), Ok((from, to))) if from.order(to) == Ordering::Less => {
                Ok(Some((kind, state)))
            }
            (Ok(_), Ok(_)) => {
                wrong("no key lies in it");
                Ok(None)
            }
            (Err(_), _) => {
                wrong("of no kind");
                Ok(None)
            }
            (_, Err(error)) => {
                wrong(&format!("its keys: {error}"));
                Ok(None)
            }
        }
    }

    /// Returns the holders of an object, or `None` if its partition is latched.
    fn holder_of(&self, bytes: &[u8]) -> Result<Option<Vec<OwnerNumber>>, Error> {
        let name = Name::new(bytes, self.region.creation() as u64)?;
        let line = self.blocks.partition(&self.region, self.blocks.spot(name.hash).partition)?;
        if seen(&line.latch) != 0 {
            return Ok(None);
        }
        let (table, mut steps) = (seen(&line.heads), 0);
        if table.is_none() {
            return Ok(Some(Vec::new()));
        }
        let chains = self.chains(table)?;
        let mut at = seen_object(&chains[place_of(name.hash as u32, chains.len())]);
        while !at.is_null() {
            let object = cell_at(&self.region, at)?;
            if seen(&object.hash) == name.hash as u32 && self.name_of(at, object)? == bytes {
                let mut found = Vec::new();
                self.read_queue(at, object, &mut found)?;
                let holds = found.iter().filter(|one| one.state.holds());
                return Ok(Some(holds.map(|one| one.owner).collect()));
            }
            at = seen(&object.next);
            steps += 1;
            if steps > self.cells() {
                return corrupt_list();
            }
        }
        Ok(Some(Vec::new()))
    }

    /// Checks a tree from its root, in order: `before` is the previous claim. Returns the mask of
    /// the kinds in the tree, or a description of the error.
    fn verify_tree(
        &self,
        at: ClaimAt<M>,
        depth: u32,
        known: &mut Known<M>,
        before: &mut ClaimAt<M>,
    ) -> Result<u32, String> {
        if at.is_null() {
            return Ok(0);
        }
        if depth == DEPTH_MAX {
            return Err("its tree is too deep".to_owned());
        }
        let Some((kind, _, found)) = known.get_mut(&at) else {
            return Err(format!("claim {at} is in its tree, and not in its list"));
        };
        if core::mem::replace(found, true) {
            return Err(format!("claim {at} is twice in its tree"));
        }
        let mut within = kind.bit();
        let told = |error: Error| format!("claim {at}: {error}");
        let node = resolve(&self.region, at).map_err(told)?;
        let (left, right) = (seen(&node.left), seen(&node.right));
        for child in [left, right].into_iter().filter(|child| !child.is_null()) {
            if rank(child) > rank(at) {
                return Err(format!("claim {child} is below {at}, and should be above"));
            }
        }
        within |= self.verify_tree(left, depth + 1, known, before)?;
        let (from, to) = keys_of(&self.region, at).map_err(told)?;
        if !before.is_null() {
            let earlier = keys_of(&self.region, *before).map_err(told)?;
            if order(earlier, (from, to)).then(before.raw().cmp(&at.raw())) != Ordering::Less {
                return Err(format!("claim {at} comes after {before} in its tree, and should not"));
            }
        }
        *before = at;
        within |= self.verify_tree(right, depth + 1, known, before)?;
        if seen(&node.within) != within {
            return Err(format!("claim {at}: has other kinds below it than it says"));
        }
        // The claim that ends last must be one of these three.
        let top = keys_of(&self.region, seen(&node.top)).map_err(told)?.1;
        let mut last = to;
        for child in [left, right].into_iter().filter(|child| !child.is_null()) {
            let below = seen(&resolve(&self.region, child).map_err(told)?.top);
            let end = keys_of(&self.region, below).map_err(told)?.1;
            if end.order(last) == Ordering::Greater {
                last = end;
            }
        }
        if top.order(last) != Ordering::Equal || !known.contains_key(&seen(&node.top)) {
            return Err(format!("claim {at}: the one below it that ends last is another"));
        }
        Ok(within)
    }

    /// Checks that no two unrelated owners hold conflicting claims.
    fn verify_holds(
        &self,
        mut order: Vec<ClaimAt<M>>,
        known: &Known<M>,
        flaws: &mut Vec<String>,
    ) -> Result<(), Error> {
        order.retain(|at| known.get(at).is_some_and(|(_, state, _)| *state == claim::HELD));
        let mut keyed = Vec::new();
        for at in order {
            keyed.push((keys_of(&self.region, at)?, at));
        }
        keyed.sort_by(|(a, x), (b, y)| a.0.order(b.0).then(x.raw().cmp(&y.raw())));
        for (place, ((_, to), at)) in keyed.iter().enumerate() {
            let rest = keyed[place + 1..].iter().take(COMPARED);
            for (_, other) in rest.take_while(|((from, _), _)| from.order(*to) == Ordering::Less) {
                let (a, b) = (known[at].0, known[other].0);
                let owners =
                    [*at, *other].map(|at| resolve(&self.region, at).map(|it| seen(&it.owner)));
                let [Ok(one), Ok(two)] = owners else { continue };
                // Either may have been granted first: it suffices if one order is allowed.
                if a.stops(b) && b.stops(a) && !self.are_kin(one, two) {
                    flaws.push(format!("claims {at}, {other}: both are held, by strangers"));
                }
            }
        }
        Ok(())
    }
}
