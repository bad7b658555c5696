//! Tables with several values for a key: the calls of transactions on a [`Multi`].
//!
//! A pair of key and value is one record, whose key contains both. So pairs are locked one by one,
//! the values of a key are neighbours, and values are ordered by their bytes.

use core::fmt;

use latchwork_machine::ConstMachine;

use crate::typed::{ReadTxn, Rows, WriteTxn, as_slices, prefixed};
use crate::{Error, Key, Multi};

/// The values of a key, in order; `rev` reverses the direction. After an error the iterator is at
/// its end.
pub struct Values<'r, K: Key, V: Key>(pub(crate) Rows<'r, (K, V), ()>);

/// The pairs of a table, in order; `rev` reverses the direction. After an error the iterator is at
/// its end.
pub struct Pairs<'r, K: Key, V: Key>(pub(crate) Rows<'r, (K, V), ()>);

impl<M: ConstMachine> ReadTxn<'_, M> {
    /// Returns the values of a key, in order.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`]; the iterator returns those of [`get`](Self::get).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Multi, Store};
    ///
    /// const TAGS: Multi<&str, u64> = Multi::new("tags");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-multi-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| {
    ///     for page in [9, 7, 8] {
    ///         tx.insert_value(&TAGS, "red", page)?;
    ///     }
    ///     assert!(!tx.insert_value(&TAGS, "red", 7)?, "it is there");
    ///     tx.insert_value(&TAGS, "blue", 7).map(|_| ())
    /// })?;
    /// let red = store.read(|tx| tx.values(&TAGS, "red")?.collect::<Result<Vec<_>, _>>())?;
    /// assert_eq!(red, [7, 8, 9]);
    /// store.write(|tx| {
    ///     assert!(tx.remove_value(&TAGS, "red", 8)?);
    ///     assert_eq!(tx.remove_values(&TAGS, "red")?, 2);
    ///     Ok(())
    /// })?;
    /// let all = store.read(|tx| tx.pairs(&TAGS)?.collect::<Result<Vec<_>, _>>())?;
    /// assert_eq!(all, [("blue".to_owned(), 7)]);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn values<K: Key, V: Key>(
        &self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<Values<'_, K, V>, Error> {
        Ok(Values(self.prefix::<K, (K, V), ()>(table.table(), key)?))
    }

    /// Returns all pairs of a table, ordered by key and then by value.
    ///
    /// # Errors
    ///
    /// Those of [`values`](Self::values).
    pub fn pairs<K: Key, V: Key>(&self, table: &Multi<K, V>) -> Result<Pairs<'_, K, V>, Error> {
        Ok(Pairs(self.range(table.table(), ..)?))
    }

    /// Returns whether a key has a value. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn has_value<'p, K: Key, V: Key>(
        &self,
        table: &Multi<K, V>,
        key: K::Of<'p>,
        value: V::Of<'p>,
    ) -> Result<bool, Error> {
        Ok(self.get(table.table(), (key, value))?.is_some())
    }
}

impl<M: ConstMachine> WriteTxn<'_, '_, M> {
    /// Returns the values of a key, in order. The call reads all of them. No other transaction can
    /// add values to the key or remove values until this one ends. See [`ReadTxn::values`].
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<Values<'static, K, V>, Error> {
        Ok(Values(self.prefix::<K, (K, V), ()>(table.table(), key)?))
    }

    /// Returns whether a key has a value. That does not change until the transaction ends.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub fn has_value<'p, K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'p>,
        value: V::Of<'p>,
    ) -> Result<bool, Error> {
        Ok(self.get(table.table(), (key, value))?.is_some())
    }

    /// Adds a value to a key. Returns false if the key has it already. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    pub fn insert_value<'p, K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'p>,
        value: V::Of<'p>,
    ) -> Result<bool, Error> {
        match self.insert(table.table(), (key, value), ()) {
            Ok(()) => Ok(true),
            Err(Error::Exists { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a value from a key. Returns whether the key had it. O(log n).
    ///
    /// # Errors
    ///
    /// Those of [`remove`](Self::remove).
    pub fn remove_value<'p, K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'p>,
        value: V::Of<'p>,
    ) -> Result<bool, Error> {
        self.remove(table.table(), (key, value))
    }

    /// Removes all values of a key. Returns their number. On an error, none is removed.
    ///
    /// # Errors
    ///
    /// Those of [`remove`](Self::remove).
    pub fn remove_values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error> {
        let range = prefixed::<K, (K, V)>(table.name(), &key)?;
        let tree = self.tree(table.table())?;
        self.txn()?.remove_range_raw(tree, as_slices(&range))
    }
}

impl<K: Key, V: Key> Values<'_, K, V> {
    /// Reverses the direction: the remaining values, the last one first.
    #[must_use]
    pub fn rev(self) -> Self {
        Self(self.0.rev())
    }
}

impl<K: Key, V: Key> Iterator for Values<'_, K, V> {
    type Item = Result<V::Owned, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|((_, value), ())| value))
    }
}

impl<K: Key, V: Key> Pairs<'_, K, V> {
    /// Reverses the direction: the remaining pairs, the last one first.
    #[must_use]
    pub fn rev(self) -> Self {
        Self(self.0.rev())
    }
}

impl<K: Key, V: Key> Iterator for Pairs<'_, K, V> {
    type Item = Result<(K::Owned, V::Owned), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|(pair, ())| pair))
    }
}

impl<K: Key, V: Key> fmt::Debug for Values<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Values").field(&self.0).finish()
    }
}

impl<K: Key, V: Key> fmt::Debug for Pairs<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pairs").field(&self.0).finish()
    }
}
