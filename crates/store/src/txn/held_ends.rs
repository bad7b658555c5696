//! The ends of trees that a transaction holds: from the first key up to some key, or from the last
//! key down to some key.
//!
//! A queue is emptied from one end, so one transaction may request ever longer ranges from there.
//! Each would add a claim next to the earlier ones, with the same beginning, and each scan would
//! pass over the records that the transaction itself has removed. So each range is claimed from
//! where the last one ended, and read from the first place that may have a record.

use core::ops::Bound;
use std::collections::BTreeMap;

use latchwork_machine::ConstMachine;

use super::Txn;
use crate::Error;
use crate::engine::Engine;
use crate::snapshot::{EachRecord, Slices};

/// The held ends, by tree and by whether it is the end with the last key.
pub(super) type HeldEnds = BTreeMap<(u32, bool), HeldEnd>;

/// A place between keys: a key, and whether the place is after it (otherwise before). Ordered.
type Cut<K> = (K, bool);

/// Returns the place where a range begins or ends, given its bound there.
fn cut(bound: Bound<&[u8]>, begins: bool) -> Option<Cut<&[u8]>> {
    match bound {
        Bound::Included(key) => Some((key, !begins)),
        Bound::Excluded(key) => Some((key, begins)),
        Bound::Unbounded => None,
    }
}

/// Returns the bound of a range that begins or ends at a place.
fn bound((key, behind): Cut<&[u8]>, begins: bool) -> Bound<&[u8]> {
    if behind == begins { Bound::Excluded(key) } else { Bound::Included(key) }
}

/// The held part of one end of a tree.
pub(super) struct HeldEnd {
    /// The place up to which it is held.
    upto: Cut<Vec<u8>>,
    /// Between the end and this bound, all records are removed.
    empty: Bound<Vec<u8>>,
}

impl HeldEnd {
    fn upto(&self) -> Cut<&[u8]> {
        (&self.upto.0, self.upto.1)
    }

    /// Returns whether everything between the end and a place is held.
    fn holds(&self, back: bool, place: Cut<&[u8]>) -> bool {
        if back { place >= self.upto() } else { place <= self.upto() }
    }
}

/// Returns the place of a range that is nearer to an end of the tree, and the farther one; `None`
/// where the range is unbounded.
fn places(range: Slices<'_>, back: bool) -> [Option<Cut<&[u8]>>; 2] {
    let (from, to) = (cut(range.0, true), cut(range.1, false));
    if back { [to, from] } else { [from, to] }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Returns the part of a range that is not yet held as part of an end; `None` if all of it is.
    pub(super) fn not_held<'k>(&'k self, tree: u32, range: Slices<'k>) -> Option<Slices<'k>> {
        let (mut from, mut to) = range;
        for back in [false, true] {
            let Some(end) = self.ends.get(&(tree, back)) else { continue };
            let [near, far] = places((from, to), back);
            if far.is_some_and(|far| end.holds(back, far)) {
                return None;
            }
            if near.is_none_or(|near| end.holds(back, near)) {
                *(if back { &mut to } else { &mut from }) = bound(end.upto(), !back);
            }
        }
        Some((from, to))
    }

    /// Records that a range is held, if it touches an end or the held part of one.
    pub(super) fn note_held(&mut self, tree: u32, range: Slices<'_>) {
        for back in [false, true] {
            let [near, Some((key, behind))] = places(range, back) else { continue };
            match self.ends.get_mut(&(tree, back)) {
                Some(end) if end.holds(back, (key, behind)) => {}
                Some(end) if near.is_none_or(|near| end.holds(back, near)) => {
                    key.clone_into(&mut end.upto.0);
                    end.upto.1 = behind;
                }
                None if near.is_none() => {
                    let end = HeldEnd { upto: (key.to_vec(), behind), empty: Bound::Unbounded };
                    self.ends.insert((tree, back), end);
                }
                _ => {}
            }
        }
    }

    /// Records that an end, which is held up to this key, has no record up to it.
    pub(crate) fn note_empty(&mut self, tree: u32, back: bool, key: &[u8]) {
        let end = self.ends.get_mut(&(tree, back));
        if let Some(end) = end.filter(|end| end.holds(back, (key, !back))) {
            end.empty = Bound::Excluded(key.to_vec());
        }
    }

    /// Returns the bound from which an end may have a record.
    pub(crate) fn behind_empty(&self, tree: u32, back: bool) -> Bound<&[u8]> {
        let end = self.ends.get(&(tree, back));
        end.map_or(Bound::Unbounded, |end| end.empty.as_ref().map(Vec::as_slice))
    }

    /// Records that the transaction will write a record: an end may have records again from there
    /// on.
    #[inline]
    pub(super) fn fills(&mut self, tree: u32, key: &[u8]) {
        for (&(_, back), end) in self.ends.range_mut((tree, false)..=(tree, true)) {
            if let Bound::Included(empty) | Bound::Excluded(empty) = &end.empty
                && if back { key >= empty } else { key <= empty }
            {
                end.empty = Bound::Included(key.to_vec());
            }
        }
    }

    /// Records that a rollback begins: records that the transaction has removed may exist again.
    pub(super) fn none_is_empty(&mut self) {
        self.ends.values_mut().for_each(|end| end.empty = Bound::Unbounded);
    }

    /// Scans from an end of the tree to a key, or the whole tree; see [`scan_raw`](Self::scan_raw).
    ///
    /// # Errors
    ///
    /// Those of [`scan_raw`](Self::scan_raw).
    pub(crate) fn scan_end(
        &mut self,
        tree: u32,
        upto: Bound<&[u8]>,
        back: bool,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let empty = self.behind_empty(tree, back).map(<[u8]>::to_vec);
        let from = empty.as_ref().map(Vec::as_slice);
        let order = |end, upto| if back { (upto, end) } else { (end, upto) };
        self.scan_within(tree, order(Bound::Unbounded, upto), order(from, upto), back, each)
    }
}
