//! Cursors: positions between the records of a table that move in both directions.
//!
//! A cursor consists of values: the key of its position, and records that it has read ahead. It
//! pins no page and holds no latch, so any number of cursors can be kept while their snapshot
//! lives.

use core::fmt;
use core::ops::Bound;

use latchwork_machine::{ConstMachine, Shared as Machine};
use latchwork_tree::Batch;

use crate::snapshot::FEW;
use crate::typed::ReadTxn;
use crate::{Error, Key, Table, Value};

/// The position of a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// Before the first record.
    Start,
    /// On the record with this key.
    Key(Vec<u8>),
    /// Before the place of this key, where no record exists.
    Gap(Vec<u8>),
    /// After the last record.
    End,
}

/// A position in a table, in a snapshot: see [`ReadTxn::cursor`].
pub struct Cursor<'r, K, V, M: ConstMachine = Machine> {
    reads: &'r ReadTxn<'r, M>,
    table: Table<K, V>,
    tree: Option<u32>,
    at: At,
    value: Vec<u8>,
    /// Records that were read ahead in one direction, and the index of the next one.
    batch: Batch,
    index: usize,
    /// Whether the batch continues from the position in that direction.
    ahead: bool,
    back: bool,
}

impl<M: ConstMachine> ReadTxn<'_, M> {
    /// Returns a cursor before the first record of a table.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-cursor-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| {
    ///     tx.put(&FRUIT, "apple", 1)?;
    ///     tx.put(&FRUIT, "melon", 2)?;
    ///     tx.put(&FRUIT, "pear", 3)
    /// })?;
    /// store.read(|tx| {
    ///     let mut cursor = tx.cursor(&FRUIT)?;
    ///     assert_eq!(cursor.seek("banana")?, Some(("melon".to_owned(), 2)));
    ///     assert_eq!(cursor.prev()?, Some(("apple".to_owned(), 1)));
    ///     assert_eq!(cursor.prev()?, None); // before the first
    ///     assert_eq!(cursor.next()?, Some(("apple".to_owned(), 1)));
    ///     assert_eq!(cursor.last()?, Some(("pear".to_owned(), 3)));
    ///     assert_eq!(cursor.current()?, Some(("pear".to_owned(), 3)));
    ///     Ok(())
    /// })?;
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn cursor<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Cursor<'_, K, V, M>, Error> {
        let tree = self.tables.find(table, &self.snapshot)?;
        Ok(Cursor {
            reads: self,
            table: *table,
            tree,
            at: At::Start,
            value: Vec::new(),
            batch: Batch::default(),
            index: 0,
            ahead: false,
            back: false,
        })
    }
}

/// A record, as a cursor returns it.
type Record<K, V> = (<K as Key>::Owned, <V as Value>::Owned);

impl<K: Key, V: Value, M: ConstMachine> Cursor<'_, K, V, M> {
    /// Returns the record at the position. `None` before the first record, after the last, and
    /// where [`seek_exact`](Self::seek_exact) found no record.
    ///
    /// # Errors
    ///
    /// [`Error::Key`], [`Error::Value`].
    pub fn current(&self) -> Result<Option<Record<K, V>>, Error> {
        match &self.at {
            At::Key(key) => Ok(Some((self.table.key_of(key)?, self.table.value_of(&self.value)?))),
            _ => Ok(None),
        }
    }

    /// Moves to the next record and returns it. Returns `None` after the last record and stays
    /// there. O(1) for most steps, O(log n) for some.
    ///
    /// # Errors
    ///
    /// Those of [`ReadTxn::get`]. The cursor does not move.
    #[allow(clippy::should_implement_trait, reason = "it fails, and it has a way back")]
    pub fn next(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.step(false)
    }

    /// Moves to the previous record and returns it. Returns `None` before the first record and
    /// stays there. O(1) for most steps, O(log n) for some.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next).
    pub fn prev(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.step(true)
    }

    /// Moves to the first record. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next).
    pub fn first(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.move_to(At::Start, false)
    }

    /// Moves to the last record. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next).
    pub fn last(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.move_to(At::End, true)
    }

    /// Moves to the first record with this key or a greater one. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next); [`Error::KeyTooLong`].
    pub fn seek(&mut self, key: K::Of<'_>) -> Result<Option<Record<K, V>>, Error> {
        self.move_to(At::Gap(self.table.key(&key)?), false)
    }

    /// Moves to the last record with this key or a lesser one. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`seek`](Self::seek).
    pub fn seek_back(&mut self, key: K::Of<'_>) -> Result<Option<Record<K, V>>, Error> {
        let mut key = self.table.key(&key)?;
        // The least key that is greater.
        key.push(0);
        self.move_to(At::Gap(key), true)
    }

    /// Moves to the record with this key, or to the place where it would be. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`seek`](Self::seek).
    pub fn seek_exact(&mut self, key: K::Of<'_>) -> Result<Option<Record<K, V>>, Error> {
        let (key, mut value) = (self.table.key(&key)?, Vec::new());
        let there = match self.tree {
            Some(tree) => self.reads.snapshot.get_into(tree, &key, &mut value)?,
            None => false,
        };
        if !there {
            self.go(At::Gap(key));
            return Ok(None);
        }
        let record = (self.table.key_of(&key)?, self.table.value_of(&value)?);
        self.go(At::Key(key));
        self.value = value;
        Ok(Some(record))
    }

    /// Moves from a place to the next record. On an error, the cursor does not move.
    fn move_to(&mut self, at: At, back: bool) -> Result<Option<Record<K, V>>, Error> {
        let was = core::mem::replace(&mut self.at, at);
        self.forget();
        self.step(back).inspect_err(|_| self.go(was))
    }

    /// Sets the position, and discards the records that were read ahead.
    fn go(&mut self, at: At) {
        self.at = at;
        self.forget();
    }

    fn forget(&mut self) {
        self.batch.clear();
        (self.index, self.ahead) = (0, false);
    }

    fn step(&mut self, back: bool) -> Result<Option<Record<K, V>>, Error> {
        if back != self.back {
            self.forget();
            self.back = back;
        }
        loop {
            while let Some(row) = self.batch.get(self.index) {
                if !row.ghost {
                    let record = (self.table.key_of(row.key)?, self.table.value_of(row.value)?);
                    self.at = At::Key(row.key.to_vec());
                    self.value.clear();
                    self.value.extend_from_slice(row.value);
                    self.index += 1;
                    return Ok(Some(record));
                }
                self.index += 1;
            }
            let from = match (self.ahead, self.batch.next()) {
                (false, _) => None,
                (true, Some(next)) => Some(next.to_vec()),
                (true, None) => return Ok(self.leave(back)),
            };
            if !self.fetch(from.as_deref(), back)? {
                return Ok(self.leave(back));
            }
        }
    }

    /// Moves after the last record, or before the first.
    fn leave<T>(&mut self, back: bool) -> Option<T> {
        self.go(if back { At::Start } else { At::End });
        None
    }

    /// Reads ahead, from the position or from `from` on. Returns false if there can be no records.
    fn fetch(&mut self, from: Option<&[u8]>, back: bool) -> Result<bool, Error> {
        let Some(tree) = self.tree else { return Ok(false) };
        let at = match (from, back, &self.at) {
            (Some(from), false, _) => Bound::Included(from),
            (Some(from), true, _) => Bound::Excluded(from),
            (None, false, At::End) | (None, true, At::Start) => return Ok(false),
            (None, false, At::Start) | (None, true, At::End) => Bound::Unbounded,
            (None, _, At::Key(key)) | (None, true, At::Gap(key)) => Bound::Excluded(&key[..]),
            (None, false, At::Gap(key)) => Bound::Included(&key[..]),
        };
        let range = if back { (Bound::Unbounded, at) } else { (at, Bound::Unbounded) };
        let limit = if from.is_some() { usize::MAX } else { FEW };
        let read = self.reads.snapshot.some(tree, range, back, limit, &mut self.batch);
        (self.index, self.ahead) = (0, true);
        if read.is_err() {
            self.forget();
        }
        read.map(|()| true)
    }
}

impl<K: Key, V: Value, M: ConstMachine> fmt::Debug for Cursor<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("table", &self.table.name()).field("at", &self.at).finish()
    }
}
