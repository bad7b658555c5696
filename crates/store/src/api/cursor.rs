//! Cursors: a place between the records of a table, that moves in both directions.
//!
//! A cursor is made of values: the key where it is, and records that it has read ahead. It pins no
//! page and holds no latch, so any number of them may be kept for as long as their snapshot is.

use core::fmt;
use core::ops::Bound;

use latchwork_machine::{ConstMachine, Shared as Machine};
use latchwork_tree::Batch;

use crate::snapshot::FEW;
use crate::typed::ReadTxn;
use crate::{Error, Key, Table, Value};

/// Where a cursor is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// Before the first record.
    Start,
    /// On the record with this key.
    Key(Vec<u8>),
    /// Just before where a record with this key would be: no record is there.
    Gap(Vec<u8>),
    /// Behind the last record.
    End,
}

/// A place in a table, as a snapshot sees it: see [`ReadTxn::cursor`].
pub struct Cursor<'r, K, V, M: ConstMachine = Machine> {
    reads: &'r ReadTxn<'r, M>,
    table: Table<K, V>,
    tree: Option<u32>,
    at: At,
    value: Vec<u8>,
    /// Records that were read ahead in one direction, and which of them is next.
    batch: Batch,
    index: usize,
    /// Whether the batch is what comes next in that direction.
    ahead: bool,
    back: bool,
}

impl<M: ConstMachine> ReadTxn<'_, M> {
    /// A cursor before the first record of a table.
    ///
    /// # Errors
    ///
    /// Those of the parts.
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

/// A record, as a cursor gives it.
type Record<K, V> = (<K as Key>::Owned, <V as Value>::Owned);

impl<K: Key, V: Value, M: ConstMachine> Cursor<'_, K, V, M> {
    /// The record where the cursor is; none before the first, behind the last, and where
    /// [`seek_exact`](Self::seek_exact) found none.
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

    /// Moves to the next record. Behind the last one it is none, and stays there. O(1) for most
    /// steps, O(log n) for some.
    ///
    /// # Errors
    ///
    /// Those of [`ReadTxn::get`]. The cursor is where it was.
    #[allow(clippy::should_implement_trait, reason = "it fails, and it has a way back")]
    pub fn next(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.step(false)
    }

    /// Moves to the record before. Before the first one it is none, and stays there. As
    /// [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prev(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.step(true)
    }

    /// Moves to the first record. O(log n).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn first(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.move_to(At::Start, false)
    }

    /// Moves to the last record. O(log n).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn last(&mut self) -> Result<Option<Record<K, V>>, Error> {
        self.move_to(At::End, true)
    }

    /// Moves to the first record with this key or a greater one. O(log n).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next); [`Error::KeyTooLong`].
    pub fn seek(&mut self, key: K::Of<'_>) -> Result<Option<Record<K, V>>, Error> {
        self.move_to(At::Gap(self.table.key(&key)?), false)
    }

    /// Moves to the last record with this key or a lesser one. O(log n).
    ///
    /// # Errors
    ///
    /// As [`seek`](Self::seek).
    pub fn seek_back(&mut self, key: K::Of<'_>) -> Result<Option<Record<K, V>>, Error> {
        let mut key = self.table.key(&key)?;
        // The least key that is greater.
        key.push(0);
        self.move_to(At::Gap(key), true)
    }

    /// Moves to the record with this key, or to where it would be. O(log n).
    ///
    /// # Errors
    ///
    /// As [`seek`](Self::seek).
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

    /// Moves to the record that comes next at a place. If that fails, the cursor is where it was.
    fn move_to(&mut self, at: At, back: bool) -> Result<Option<Record<K, V>>, Error> {
        let was = core::mem::replace(&mut self.at, at);
        self.forget();
        self.step(back).inspect_err(|_| self.go(was))
    }

    /// Takes a place, and forgets what was read ahead.
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

    /// Past the last record, or before the first.
    fn leave<T>(&mut self, back: bool) -> Option<T> {
        self.go(if back { At::Start } else { At::End });
        None
    }

    /// Reads ahead, from where the cursor is or from `from` on; not if nothing can be there.
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
