//! Reads in a transaction that may write: under locks, and with locked ranges.

use core::ops::Bound;
use core::sync::atomic::Ordering::SeqCst;

use latchwork_lockmgr::granular::{S, U};
use latchwork_machine::ConstMachine;
use latchwork_tree::Batch;

use super::{Level, Txn};
use crate::Error;
use crate::engine::{Engine, scanned};
use crate::long::{PIECES, whole};
use crate::snapshot::{AHEAD, EachRecord, Fetch, Slices, cut, walk};
use crate::stamp::Stamp;

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Reads a record into `value`, replacing its contents. Returns whether the record exists.
    /// O(log n).
    ///
    /// # Errors
    ///
    /// [`Error::Lock`], [`Error::Engine`]; [`Error::Aborted`] after a failure that ended the
    /// transaction.
    pub fn get_into(&mut self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, txn.to_read(tree, key))?;
            let found = txn.newest(tree, key, value);
            if txn.level == Level::ReadCommitted {
                txn.unlock(tree, key)?;
            }
            found
        })
    }

    /// Reads a record that this transaction will write. Other transactions may read it until the
    /// write. Replaces the contents of `value`; returns whether the record exists.
    ///
    /// # Errors
    ///
    /// Those of [`get_into`](Self::get_into).
    pub fn get_for_update_into(
        &mut self,
        tree: u32,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        self.guard(|txn| {
            txn.catch_up()?;
            txn.lock(tree, key, U)?;
            txn.newest(tree, key, value)
        })
    }

    /// Reads the newest value of a record whose lock is held. Returns whether the record exists.
    fn newest(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let there = self.engine.newest(tree, key, value)?.there;
        if there {
            self.whole(tree, key, value)?;
        }
        self.engine.same_tables()?;
        self.still_open()?;
        Ok(there)
    }

    /// Completes a record's value if it is a long one. No other transaction may change the record.
    #[inline]
    fn whole(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<(), Error> {
        // One by one, because a scan would reset the position that decides which stamps are
        // finished.
        let whole = whole(self.engine.record_max(), (tree, key), value, &mut |key, piece| {
            Ok(self.engine.newest(PIECES, key, piece)?.there)
        });
        // Pieces are missing if another thread rolls the transaction back.
        whole.or_else(|why| self.still_open().and(Err(why)))
    }

    /// Reads a record; see [`get_into`](Self::get_into).
    ///
    /// # Errors
    ///
    /// Those of [`get_into`](Self::get_into).
    pub fn get_raw(&mut self, tree: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(tree, key, &mut value)?.then_some(value))
    }

    /// Reads a record that this transaction will write; see
    /// [`get_for_update_into`](Self::get_for_update_into).
    ///
    /// # Errors
    ///
    /// Those of [`get_into`](Self::get_into).
    pub fn get_raw_for_update(&mut self, tree: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_for_update_into(tree, key, &mut value)?.then_some(value))
    }

    /// Calls `each` for the records of a range, in order or backwards, until it returns `false`.
    /// O(log n) for each record.
    ///
    /// # Errors
    ///
    /// [`Error::Lock`], [`Error::Engine`]; [`Error::Aborted`] after a failure that ended the
    /// transaction; what `each` returns.
    pub fn scan_raw(
        &mut self,
        tree: u32,
        range: Slices<'_>,
        back: bool,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        self.scan_within(tree, range, range, back, each)
    }

    /// Scans a part of a locked range. The rest of the range has no records.
    pub(super) fn scan_within(
        &mut self,
        tree: u32,
        held: Slices<'_>,
        (from, to): Slices<'_>,
        back: bool,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        if is_empty(held.0, held.1) {
            return Ok(());
        }
        self.guard(|txn| {
            txn.catch_up()?;
            if txn.level == Level::Serializable {
                txn.claim(tree, held)?;
            }
            if is_empty(from, to) {
                return Ok(());
            }
            let mut batch = txn.engine.spare();
            let fetch: &mut Fetch<'_> =
                &mut |range, limit, batch| txn.some(tree, range, back, limit, batch);
            let walked = walk((from, to), back, &mut batch, None, fetch, each);
            txn.engine.keep(batch);
            walked
        })
    }

    /// Reads some records of a range. Locks records of unfinished transactions.
    fn some(
        &self,
        tree: u32,
        range: Slices<'_>,
        back: bool,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        self.engine.scan(tree, if back { range.1 } else { range.0 }, back, limit, batch)?;
        cut(batch, range, back);
        let mut value = Vec::new();
        for index in 0..batch.len() {
            let Some(row) = batch.get(index) else { break };
            let stamp = Stamp::from_word(row.header.to_bits());
            if stamp.slot() == self.chain.slot || self.engine.is_finished(stamp) {
                match self.level {
                    _ if !batch.is_as_long(index, self.engine.record_max()) => continue,
                    // Its pieces may be removed at any time unless it is locked.
                    Level::ReadCommitted => {}
                    Level::Serializable => {
                        row.value.clone_into(&mut value);
                        match self.whole(tree, row.key, &mut value) {
                            Ok(()) => {
                                batch.replace(index, Some(&value));
                                if value.len() > AHEAD {
                                    batch.stop_behind(index, back);
                                }
                                continue;
                            }
                            // A rollback restores the record before its pieces, and holds the lock
                            // until the pieces are restored.
                            Err(Error::Damaged { .. }) => {}
                            Err(why) => return Err(why),
                        }
                    }
                }
            }
            self.lock(tree, row.key, S)?;
            let found = self.newest(tree, row.key, &mut value);
            if self.level == Level::ReadCommitted {
                self.unlock(tree, row.key)?;
            }
            batch.replace(index, found?.then_some(&value[..]));
            if value.len() > AHEAD {
                batch.stop_behind(index, back);
            }
        }
        self.engine.same_tables()?;
        self.still_open()
    }

    /// Locks a range. From then on every writer checks for the lock.
    fn claim(&mut self, tree: u32, range: Slices<'_>) -> Result<(), Error> {
        if let Err(place) = self.claims.binary_search(&tree) {
            self.claims.insert(place, tree);
            self.engine.claims(tree, true);
        }
        let rest = self.not_held(tree, range).filter(|(from, to)| !is_empty(*from, *to));
        let Some((from, to)) = rest else { return Ok(()) };
        self.lock_range(tree, scanned(from, to), self.to_claim(tree, (from, to)))?;
        self.note_held(tree, range);
        // SeqCst: the claim before the reads; the partner is the fence where an engine looks for
        // claims, with the record in hand: one of the two sees the other.
        M::fence(SeqCst);
        Ok(())
    }
}

/// Returns whether no key lies between the bounds. The successor of a key is the key with a zero
/// byte appended.
fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    let (from, after_from) = match from {
        Bound::Included(key) => (key, false),
        Bound::Excluded(key) => (key, true),
        Bound::Unbounded => (&[][..], false),
    };
    let (to, after_to) = match to {
        Bound::Included(key) => (key, true),
        Bound::Excluded(key) => (key, false),
        Bound::Unbounded => return false,
    };
    let to = to.iter().copied().chain(after_to.then_some(0));
    to.le(from.iter().copied().chain(after_from.then_some(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ranges_are_known() {
        use Bound::{Excluded, Included, Unbounded};
        let (a, b) = (&b"a"[..], &b"b"[..]);
        assert!(is_empty(Included(b), Included(a)) && is_empty(Included(a), Excluded(a)));
        assert!(!is_empty(Included(a), Included(a)) && !is_empty(Unbounded, Excluded(a)));
        assert!(!is_empty(Excluded(a), Excluded(b)) && !is_empty(Included(a), Unbounded));
        let next = &b"a\0"[..];
        assert!(is_empty(Excluded(a), Excluded(next)) && !is_empty(Excluded(a), Included(next)));
        assert!(is_empty(Unbounded, Excluded(b"")) && !is_empty(Unbounded, Included(b"")));
    }
}
