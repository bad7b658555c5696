//! Reading in a transaction that may write: under locks, and ranges that are held.

use core::ops::Bound;
use core::sync::atomic::Ordering::SeqCst;

use latchwork_lockmgr::granular::{S, U};
use latchwork_machine::ConstMachine;
use latchwork_tree::Batch;

use super::{Level, Txn};
use crate::engine::{Engine, scanned};
use crate::long::{PIECES, whole};
use crate::snapshot::{AHEAD, EachRecord, Fetch, Slices, cut, walk};
use crate::{Error, Stamp};

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Reads a record's bytes into `value`, in place of what it has; returns whether there are any.
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

    /// Reads a record's bytes that this transaction means to write: others may read them until it
    /// does. As [`get_into`](Self::get_into).
    ///
    /// # Errors
    ///
    /// As there.
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

    /// The newest value of a record whose lock is held, and whether there is one.
    fn newest(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let there = self.engine.newest(tree, key, value)?.there;
        if there {
            self.whole(tree, key, value)?;
        }
        self.engine.same_tables()?;
        self.still_open()?;
        Ok(there)
    }

    /// Makes the bytes of a record that nobody changes its value, if that is a long one.
    #[inline]
    fn whole(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<(), Error> {
        // One by one: a scan would forget from when on what it has read counts as finished.
        let whole = whole(self.engine.record_max(), (tree, key), value, &mut |key, piece| {
            Ok(self.engine.newest(PIECES, key, piece)?.there)
        });
        // Pieces are missing if another thread undoes the transaction.
        whole.or_else(|why| self.still_open().and(Err(why)))
    }

    /// Reads a record's bytes. As [`get_into`](Self::get_into).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn get_raw(&mut self, tree: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(tree, key, &mut value)?.then_some(value))
    }

    /// Reads a record's bytes that this transaction means to write. As
    /// [`get_for_update_into`](Self::get_for_update_into).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn get_raw_for_update(&mut self, tree: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_for_update_into(tree, key, &mut value)?.then_some(value))
    }

    /// Calls `each` for the records of a range in order, or backwards, until it returns `false`.
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

    /// The same for a part of a range, all of which is held: there is nothing in the rest.
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

    /// Some records of a range, none of which another transaction is at work on.
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
                    // Its pieces may go at any time, unless it is locked.
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
                            // What is undone has its record before its pieces: its lock is held
                            // until it has these, too.
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

    /// Holds a range. From then on no writer passes without asking.
    fn claim(&mut self, tree: u32, range: Slices<'_>) -> Result<(), Error> {
        if self.claims.insert(tree) {
            self.engine.claims(tree, true);
        }
        let rest = self.not_held(tree, range).filter(|(from, to)| !is_empty(*from, *to));
        let Some((from, to)) = rest else { return Ok(()) };
        self.lock_range(tree, scanned(from, to), self.to_claim(tree, (from, to)))?;
        self.note_held(tree, range);
        // SeqCst: the claim before the reads; the other one is where an engine looks for claims,
        // with the record in hand: one of the two sees the other.
        M::fence(SeqCst);
        Ok(())
    }
}

/// Whether no key lies between the bounds. The next key after one is that with a zero behind it.
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
