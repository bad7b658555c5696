//! Reads a range in parts in a transaction that may write, as a cursor does.

use core::ops::{Bound, RangeBounds};

use latchwork_machine::ConstMachine;
use latchwork_tree::Batch;

use crate::engine::Engine;
use crate::snapshot::{EachRecord, Slices, cut};
use crate::typed::{Bounds, WriteTxn, as_slices, bounds};
use crate::{Error, Key, Table, Value};

impl<M: ConstMachine> WriteTxn<'_, '_, M> {
    /// Calls `each` for the first records of a range, or for the last ones backwards, until it
    /// returns `false`: for `most` records, or more if other transactions add some at the same
    /// time. Returns whether that was the whole range.
    ///
    /// A serializable transaction then holds the range as far as it was read, whereas
    /// [`scan`](Self::scan) holds all of it. O(log n) and O(`most`).
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get); errors that `each` returns.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const JOBS: Table<u64, &str> = Table::new("jobs");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-some-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| {
    ///     (0..9).try_for_each(|number| tx.put(&JOBS, number, "a job"))?;
    ///     let mut keys = Vec::new();
    ///     let whole = tx.scan_some(&JOBS, 2.., false, 3, &mut |key, _| {
    ///         keys.push(JOBS.key_of(key)?);
    ///         Ok(true)
    ///     })?;
    ///     assert_eq!((&keys[..], whole), (&[2, 3, 4][..], false));
    ///     Ok(())
    /// })?;
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn scan_some<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
        back: bool,
        most: usize,
        each: &mut EachRecord<'_>,
    ) -> Result<bool, Error> {
        let (mut range, tree) = (bounds(table, &range)?, self.tree(table)?);
        // The transaction's own last write must be in the tree.
        self.txn()?.savepoint()?;
        let last = self.key_of_number(tree, as_slices(&range), back, most.max(1))?;
        let whole = last.is_none();
        if let Some(last) = last {
            let end = if back { &mut range.0 } else { &mut range.1 };
            *end = Bound::Included(last);
        }
        let mut stopped = false;
        self.txn()?.scan_raw(tree, as_slices(&range), back, &mut |key, value| {
            stopped = !each(key, value)?;
            Ok(!stopped)
        })?;
        Ok(whole && !stopped)
    }

    /// Returns the key of the record with this number in a range, as of now and without a lock;
    /// `None` if the range has fewer.
    fn key_of_number(
        &self,
        tree: u32,
        range: Slices<'_>,
        back: bool,
        number: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let (mut batch, mut next, mut left) = (Batch::default(), None::<Vec<u8>>, number);
        let mut rest: Bounds;
        loop {
            rest = (range.0.map(<[u8]>::to_vec), range.1.map(<[u8]>::to_vec));
            match (next.take(), back) {
                (None, _) => {}
                (Some(next), false) => rest.0 = Bound::Included(next),
                (Some(next), true) => rest.1 = Bound::Excluded(next),
            }
            let rest = as_slices(&rest);
            let from = if back { rest.1 } else { rest.0 };
            self.tables.kept.worker.scan(tree, from, back, left, &mut batch)?;
            next = batch.next().map(<[u8]>::to_vec);
            let read = batch.len();
            cut(&mut batch, rest, back);
            for row in batch.iter().filter(|row| !row.ghost) {
                left -= 1;
                if left == 0 {
                    return Ok(Some(row.key.to_vec()));
                }
            }
            if next.is_none() || batch.len() < read {
                return Ok(None);
            }
        }
    }
}
