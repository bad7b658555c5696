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

/// One end of a tree, as far as a transaction holds it.
pub(super) struct HeldEnd {
    /// The key that it is held to, and that one.
    upto: Vec<u8>,
    /// Between the end and this there is no record, but those that are removed.
    empty: Bound<Vec<u8>>,
}

impl HeldEnd {
    /// Whether a key lies between the end and another key, or is that one.
    fn has(back: bool, upto: &[u8], key: &[u8]) -> bool {
        if back { key >= upto } else { key <= upto }
    }
}

/// The bound that is no end of the tree, if one is.
fn inner<'k>(range: Slices<'k>, back: bool) -> Option<Bound<&'k [u8]>> {
    match (range, back) {
        ((Bound::Unbounded, to), false) => Some(to),
        ((from, Bound::Unbounded), true) => Some(from),
        _ => None,
    }
}

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// What of a range is not held yet by its being at an end; none if all of it is.
    pub(super) fn not_held<'k>(&'k self, tree: u32, range: Slices<'k>) -> Option<Slices<'k>> {
        let (mut from, mut to) = range;
        for back in [false, true] {
            let end = self.ends.get(&(tree, back));
            let (Some(bound), Some(end)) = (inner((from, to), back), end) else {
                continue;
            };
            if let Bound::Included(key) | Bound::Excluded(key) = bound
                && HeldEnd::has(back, &end.upto, key)
            {
                return None;
            }
            *(if back { &mut to } else { &mut from }) = Bound::Excluded(&end.upto);
        }
        Some((from, to))
    }

    /// Notes that a range is held, if it lies at an end.
    pub(super) fn note_held(&mut self, tree: u32, range: Slices<'_>) {
        for back in [false, true] {
            let Some(Bound::Included(key)) = inner(range, back) else { continue };
            match self.ends.get_mut(&(tree, back)) {
                Some(end) if HeldEnd::has(back, &end.upto, key) => {}
                Some(end) => key.clone_into(&mut end.upto),
                None => {
                    let end = HeldEnd { upto: key.to_vec(), empty: Bound::Unbounded };
                    self.ends.insert((tree, back), end);
                }
            }
        }
    }

    /// Notes that an end, which is held as far as this key, has no record up to there any more.
    pub(crate) fn note_empty(&mut self, tree: u32, back: bool, key: &[u8]) {
        let end = self.ends.get_mut(&(tree, back));
        if let Some(end) = end.filter(|end| HeldEnd::has(back, &end.upto, key)) {
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
                && HeldEnd::has(back, empty, key)
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
