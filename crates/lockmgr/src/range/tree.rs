//! The claims of a keyspace, as a tree that finds the claims with a key in a range.
//!
//! A treap (Aragon and Seidel, 1989): ordered by begin and then end of the claims, and a heap by a
//! number derived from each claim's offset, so that it is balanced for any input. Each claim also
//! has a claim of its subtree that ends last, as in the interval trees of Cormen et al. (1990), and
//! a mask of the subtree's kinds. So a search skips subtrees that end too early or have no claim of
//! the wanted kinds.
//!
//! With n claims, expected: O(log n) for linking and unlinking; O(log n) for each claim that a
//! search visits; a search of an exact range O(log n), and one step for each claim visited.

use core::cmp::Ordering;

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{get, put};
use crate::memory::latch::Latched;
use crate::range::cells::{ClaimAt, Keys, Short, keys_of};

/// A deeper tree is corrupt. With 2^32 claims the expected depth is below 200.
pub(crate) const DEPTH_MAX: u32 = 1000;

/// Compares two ranges by their order in the tree.
pub(crate) fn order<M: ConstMachine>(a: Keys<'_, M>, b: Keys<'_, M>) -> Ordering {
    a.0.order(b.0).then_with(|| a.1.order(b.1))
}

/// Returns a claim's priority in the heap.
pub(crate) fn rank<M: ConstMachine>(at: ClaimAt<M>) -> u64 {
    let word = (u64::from(at.raw()) ^ 0x9e37_79b9).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The callback of a search. Returns true to end the search.
pub(crate) type Visit<'f, M> = dyn FnMut(ClaimAt<M>, &Short<M>) -> Result<bool, Error> + 'f;

impl<M: ConstMachine> Latched<'_, M> {
    fn deeper(depth: u32) -> Result<u32, Error> {
        if depth == DEPTH_MAX { corrupt_list() } else { Ok(depth + 1) }
    }

    /// Returns whether one claim precedes another in the tree.
    fn before(&self, a: ClaimAt<M>, b: ClaimAt<M>) -> Result<bool, Error> {
        let region = self.memory.region();
        let order = order(keys_of(region, a)?, keys_of(region, b)?);
        Ok(order.then(a.raw().cmp(&b.raw())) == Ordering::Less)
    }

    /// Updates the fields that summarize a claim's subtree.
    fn sum_up(&self, at: ClaimAt<M>) -> Result<(), Error> {
        let claim = self.memory.claim(at)?;
        let region = self.memory.region();
        let mut within = get(&claim.what).bit();
        let mut top = at;
        for child in [get(&claim.left), get(&claim.right)] {
            if child.is_null() {
                continue;
            }
            let child = self.memory.claim(child)?;
            within |= get(&child.within);
            let other = get(&child.top);
            if keys_of(region, other)?.1.order(keys_of(region, top)?.1) == Ordering::Greater {
                top = other;
            }
        }
        put(&claim.within, within);
        put(&claim.top, top);
        Ok(())
    }

    /// Inserts a claim into a tree, and returns the new root.
    pub(crate) fn insert(
        &self,
        root: ClaimAt<M>,
        at: ClaimAt<M>,
        depth: u32,
    ) -> Result<ClaimAt<M>, Error> {
        let depth = Self::deeper(depth)?;
        let claim = self.memory.claim(at)?;
        if root.is_null() || rank(at) > rank(root) {
            let (left, right) = self.split(root, at, depth)?;
            put(&claim.left, left);
            put(&claim.right, right);
            self.sum_up(at)?;
            return Ok(at);
        }
        let node = self.memory.claim(root)?;
        let side = if self.before(at, root)? { &node.left } else { &node.right };
        put(side, self.insert(get(side), at, depth)?);
        self.sum_up(root)?;
        Ok(root)
    }

    /// Splits a tree into the claims before a claim and the others.
    fn split(
        &self,
        root: ClaimAt<M>,
        at: ClaimAt<M>,
        depth: u32,
    ) -> Result<(ClaimAt<M>, ClaimAt<M>), Error> {
        if root.is_null() {
            return Ok((Offset::NULL, Offset::NULL));
        }
        let depth = Self::deeper(depth)?;
        let node = self.memory.claim(root)?;
        let parts = if self.before(root, at)? {
            let (left, right) = self.split(get(&node.right), at, depth)?;
            put(&node.right, left);
            (root, right)
        } else {
            let (left, right) = self.split(get(&node.left), at, depth)?;
            put(&node.left, right);
            (left, root)
        };
        self.sum_up(root)?;
        Ok(parts)
    }

    /// Merges two trees; all claims of the first precede those of the second.
    fn merge(&self, left: ClaimAt<M>, right: ClaimAt<M>, depth: u32) -> Result<ClaimAt<M>, Error> {
        if left.is_null() || right.is_null() {
            return Ok(if left.is_null() { right } else { left });
        }
        let depth = Self::deeper(depth)?;
        if rank(left) > rank(right) {
            let node = self.memory.claim(left)?;
            put(&node.right, self.merge(get(&node.right), right, depth)?);
            self.sum_up(left)?;
            Ok(left)
        } else {
            let node = self.memory.claim(right)?;
            put(&node.left, self.merge(left, get(&node.left), depth)?);
            self.sum_up(right)?;
            Ok(right)
        }
    }

    /// Removes a claim from a tree, and returns the new root.
    pub(crate) fn remove(
        &self,
        root: ClaimAt<M>,
        at: ClaimAt<M>,
        depth: u32,
    ) -> Result<ClaimAt<M>, Error> {
        if root.is_null() {
            return Ok(root);
        }
        let depth = Self::deeper(depth)?;
        let node = self.memory.claim(root)?;
        if root == at {
            return self.merge(get(&node.left), get(&node.right), depth);
        }
        let side = if self.before(at, root)? { &node.left } else { &node.right };
        put(side, self.remove(get(side), at, depth)?);
        self.sum_up(root)?;
        Ok(root)
    }

    /// Visits all claims of these kinds that have a key in a range, in the order of their first
    /// keys, until the callback ends the search. Returns whether it did.
    pub(crate) fn search(
        &self,
        root: ClaimAt<M>,
        with: Keys<'_, M>,
        kinds: u32,
        depth: u32,
        visit: &mut Visit<'_, M>,
    ) -> Result<bool, Error> {
        if root.is_null() {
            return Ok(false);
        }
        let depth = Self::deeper(depth)?;
        let region = self.memory.region();
        let node = self.memory.claim(root)?;
        let (from, to) = with;
        let last = keys_of(region, get(&node.top))?.1;
        if get(&node.within) & kinds == 0 || last.order(from) != Ordering::Greater {
            return Ok(false);
        }
        if self.search(get(&node.left), with, kinds, depth, visit)? {
            return Ok(true);
        }
        let (begins, ends) = keys_of(region, root)?;
        if begins.order(to) != Ordering::Less {
            return Ok(false);
        }
        let shown = get(&node.what).bit() & kinds != 0;
        if shown && ends.order(from) == Ordering::Greater && visit(root, node)? {
            return Ok(true);
        }
        self.search(get(&node.right), with, kinds, depth, visit)
    }

    /// Visits all claims of exactly a range, until the callback ends the search. Returns whether it
    /// did.
    pub(crate) fn search_same(
        &self,
        root: ClaimAt<M>,
        keys: Keys<'_, M>,
        depth: u32,
        visit: &mut Visit<'_, M>,
    ) -> Result<bool, Error> {
        if root.is_null() {
            return Ok(false);
        }
        let depth = Self::deeper(depth)?;
        let node = self.memory.claim(root)?;
        let side = order(keys, keys_of(self.memory.region(), root)?);
        if side != Ordering::Greater && self.search_same(get(&node.left), keys, depth, visit)? {
            return Ok(true);
        }
        if side == Ordering::Equal && visit(root, node)? {
            return Ok(true);
        }
        if side == Ordering::Less {
            return Ok(false);
        }
        self.search_same(get(&node.right), keys, depth, visit)
    }
}
