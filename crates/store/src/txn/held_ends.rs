//! The ends of trees that a transaction holds: from the first key up to one, or from the last key
//! down to one.
//!
//! A queue is emptied from an end, so one transaction may ask for ever longer ranges from there.
//! Each would be a claim beside those before it, all with the same beginning, and each scan would
//! pass over what the transaction has removed itself. So a range is claimed from where the last one
//! ended, and read from where something may be.

use core::ops::Bound;
use std::collections::BTreeMap;

use latchwork_machine::ConstMachine;

use super::Txn;
use crate::Error;
use crate::engine::Engine;
use crate::snapshot::{EachRecord, Slices};

/// The ends that a transaction holds: by their trees, and whether they are those with the last key.
pub(super) type HeldEnds = BTreeMap<(u32, bool), HeldEnd>;

/// A place between keys: a key, and whether the place is behind it and not before. In their order.
type Cut<K> = (K, bool);

/// The place where a range begins, or ends, by the bound that it has there.
fn cut(bound: Bound<&[u8]>, begins: bool) -> Option<Cut<&[u8]>> {
    match bound {
        Bound::Included(key) => Some((key, !begins)),
        Bound::Excluded(key) => Some((key, begins)),
        Bound::Unbounded => None,
    }
}

/// The bound of a range that begins, or ends, at a place.
fn bound((key, behind): Cut<&[u8]>, begins: bool) -> Bound<&[u8]> {
    if behind == begins { Bound::Excluded(key) } else { Bound::Included(key) }
}

/// One end of a tree, as far as a transaction holds it.
pub(super) struct HeldEnd {
    /// The place that it is held to.
    upto: Cut<Vec<u8>>,
    /// Between the end and this there is no record, but those that are removed.
    empty: Bound<Vec<u8>>,
}

impl HeldEnd {
    fn upto(&self) -> Cut<&[u8]> {
        (&self.upto.0, self.upto.1)
    }

    /// Whether all from the end to a place is held.
    fn holds(&self, back: bool, place: Cut<&[u8]>) -> bool {
        if back { place >= self.upto() } else { place <= self.upto() }
    }
}

/// The place of a range that is nearer to an end of the tree, and the farther one; none where the
/// range has all up to an end.
fn places(range: Slices<'_>, back: bool) -> [Option<Cut<&[u8]>>; 2] {
    let (from, to) = (cut(range.0, true), cut(range.1, false));
    if back { [to, from] } else { [from, to] }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// What of a range is not held yet by its being at an end; none if all of it is.
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

    /// Notes that a range is held, if it lies at an end or at what is held of one.
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

    /// Notes that an end, which is held as far as this key, has no record up to there any more.
    pub(crate) fn note_empty(&mut self, tree: u32, back: bool, key: &[u8]) {
        let end = self.ends.get_mut(&(tree, back));
        if let Some(end) = end.filter(|end| end.holds(back, (key, !back))) {
            end.empty = Bound::Excluded(key.to_vec());
        }
    }

    /// From where on an end may have a record.
    pub(crate) fn behind_empty(&self, tree: u32, back: bool) -> Bound<&[u8]> {
        let end = self.ends.get(&(tree, back));
        end.map_or(Bound::Unbounded, |end| end.empty.as_ref().map(Vec::as_slice))
    }

    /// The transaction is about to write a record: an end may have one again, from there on.
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

    /// What the transaction has removed may be there again.
    pub(super) fn none_is_empty(&mut self) {
        self.ends.values_mut().for_each(|end| end.empty = Bound::Unbounded);
    }

    /// As [`scan_raw`](Self::scan_raw), from an end of the tree to a key, or through all of it.
    ///
    /// # Errors
    ///
    /// As there.
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
