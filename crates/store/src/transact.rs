//! Traits for code that runs in transactions of any engine.
//!
//! A closure of [`Store::write`](crate::Store::write) has a [`WriteTxn`] of the embedded store. A
//! function that takes `&mut impl WriteOps` runs in that, and in transactions of other engines as
//! well. Calls are dispatched statically: for the embedded store they are the same instructions.
//!
//! [`ReadOps`] has a lifetime, that of the rows of a range: a snapshot reads them as the iterator
//! advances, and so they borrow it. A transaction that may write has read all of them when the call
//! returns, so its rows borrow nothing, and the loop over them may write.

use core::ops::RangeBounds;

use latchwork_machine::ConstMachine;

use crate::api::multi::{Pairs, Values};
use crate::typed::{ReadTxn, Rows, WriteTxn};
use crate::{Error, Key, Multi, Savepoint, StartsWith, Table, Value};

/// A key and a value, as a transaction returns them.
pub type Record<K, V> = (<K as Key>::Owned, <V as Value>::Owned);

/// The reading calls of a transaction. See [`ReadTxn`] for the cost of each call in the embedded
/// store.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Error, ReadOps, Store, Table, WriteOps};
///
/// const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
///
/// /// Runs in a snapshot and in a transaction, of this store or of another engine.
/// fn total<'r>(tx: &mut impl ReadOps<'r>) -> Result<i64, Error> {
///     tx.range(&ACCOUNTS, ..)?.map(|row| row.map(|(_, balance)| balance)).sum()
/// }
///
/// fn transfer(tx: &mut impl WriteOps, from: u64, to: u64, amount: i64) -> Result<(), Error> {
///     tx.update(&ACCOUNTS, from, |old| Some(old.unwrap_or(0) - amount))?;
///     tx.update(&ACCOUNTS, to, |old| Some(old.unwrap_or(0) + amount))?;
///     Ok(())
/// }
///
/// # let path = std::env::temp_dir().join(format!("store-ops-{}", std::process::id()));
/// let store = Store::open(&path)?;
/// store.write(|tx| transfer(tx, 7, 8, 10))?;
/// assert_eq!(store.read(|mut tx| total(&mut tx))?, 0);
/// assert_eq!(store.write(|tx| total(tx))?, 0);
/// # drop(store);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), Error>(())
/// ```
pub trait ReadOps<'r> {
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::Value`], [`Error::TableType`]; errors of the engine.
    fn get<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error>;

    /// Reads the values of several keys, in the order of the keys. An engine on another machine
    /// asks for all of them in one round trip.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    fn get_many<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = K::Of<'k>>,
    ) -> Result<Vec<Option<V::Owned>>, Error> {
        keys.into_iter().map(|key| self.get(table, key)).collect()
    }

    /// Returns whether a record with this key exists.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    fn contains<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error>;

    /// Returns the records of a range, in order; `rev` of the iterator reverses the direction.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get), from the call or from the iterator.
    fn range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<Rows<'r, K, V>, Error>;

    /// Returns the records whose keys begin with these parts, in order.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    fn prefix<P: Key, K: StartsWith<P>, V: Value>(
        &mut self,
        table: &Table<K, V>,
        prefix: P::Of<'_>,
    ) -> Result<Rows<'r, K, V>, Error>;

    /// Returns the first record of a table.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    fn first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error>;

    /// Returns the last record of a table.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    fn last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error>;

    /// Counts the records of a range. O(records).
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    fn count<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error>;

    /// Returns the values of a key, in order.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    fn values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<Values<'r, K, V>, Error> {
        Ok(Values(self.prefix::<K, (K, V), ()>(table.table(), key)?))
    }

    /// Returns all pairs of a table, in the order of keys and then of values.
    ///
    /// # Errors
    ///
    /// Those of [`range`](Self::range).
    fn pairs<K: Key, V: Key>(&mut self, table: &Multi<K, V>) -> Result<Pairs<'r, K, V>, Error> {
        Ok(Pairs(self.range(table.table(), ..)?))
    }

    /// Returns whether a key has a value.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    fn has_value<'p, K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'p>,
        value: V::Of<'p>,
    ) -> Result<bool, Error> {
        self.contains(table.table(), (key, value))
    }
}

/// The calls of a transaction that may write, in addition to [`ReadOps`]. Records that it has read
/// do not change until it ends, from its first write on; if one has changed before, the transaction
/// fails and is run again. See [`WriteTxn`] for the cost of each call in the embedded store.
pub trait WriteOps: ReadOps<'static> {
    /// A point to which the transaction can be rolled back.
    type Savepoint: Copy;

    /// Reads a value that the transaction will write.
    ///
    /// # Errors
    ///
    /// Those of [`get`](ReadOps::get).
    fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error>;

    /// Writes a value, whether the record exists or not.
    ///
    /// # Errors
    ///
    /// Those of [`get`](ReadOps::get); [`Error::ValueTooLong`]. An engine that sends the write
    /// with a later call reports its failure from that call, or from the commit.
    fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error>;

    /// Writes a value where none exists.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; those of [`put`](Self::put).
    fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error>;

    /// Reads a value and writes the closure's result; `None` removes the record. Returns the new
    /// value.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error>;

    /// Removes a record; returns whether it existed.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error>;

    /// Removes all records of a range; returns how many existed.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn remove_range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error>;

    /// Removes the first record of a table, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn pop_first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error>;

    /// Removes the last record of a table, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn pop_last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error>;

    /// Adds a value to a key. Returns false if the key has it already.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn insert_value<'p, K: Key, V: Key>(
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

    /// Removes a value from a key. Returns whether the key had it.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn remove_value<'p, K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'p>,
        value: V::Of<'p>,
    ) -> Result<bool, Error> {
        self.remove(table.table(), (key, value))
    }

    /// Removes all values of a key. Returns their number.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn remove_values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error>;

    /// Creates a savepoint.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    fn savepoint(&mut self) -> Result<Self::Savepoint, Error>;

    /// Rolls back to a savepoint, which remains valid.
    ///
    /// # Errors
    ///
    /// [`Error::Savepoint`]; those of [`put`](Self::put).
    fn roll_back_to(&mut self, savepoint: Self::Savepoint) -> Result<(), Error>;
}

/// Forwards the calls of [`ReadOps`] to the methods of the same names.
macro_rules! reads {
    ($rows:lifetime, $self:ident => $of:expr) => {
        #[inline]
        fn get<K: Key, V: Value>(
            &mut $self,
            table: &Table<K, V>,
            key: K::Of<'_>,
        ) -> Result<Option<V::Owned>, Error> {
            $of.get(table, key)
        }

        #[inline]
        fn contains<K: Key, V: Value>(
            &mut $self,
            table: &Table<K, V>,
            key: K::Of<'_>,
        ) -> Result<bool, Error> {
            $of.contains(table, key)
        }

        #[inline]
        fn range<'k, K: Key, V: Value>(
            &mut $self,
            table: &Table<K, V>,
            range: impl RangeBounds<K::Of<'k>>,
        ) -> Result<Rows<$rows, K, V>, Error> {
            $of.range(table, range)
        }

        #[inline]
        fn prefix<P: Key, K: StartsWith<P>, V: Value>(
            &mut $self,
            table: &Table<K, V>,
            prefix: P::Of<'_>,
        ) -> Result<Rows<$rows, K, V>, Error> {
            $of.prefix(table, prefix)
        }

        #[inline]
        fn first<K: Key, V: Value>(
            &mut $self,
            table: &Table<K, V>,
        ) -> Result<Option<Record<K, V>>, Error> {
            $of.first(table)
        }

        #[inline]
        fn last<K: Key, V: Value>(
            &mut $self,
            table: &Table<K, V>,
        ) -> Result<Option<Record<K, V>>, Error> {
            $of.last(table)
        }

        #[inline]
        fn count<'k, K: Key, V: Value>(
            &mut $self,
            table: &Table<K, V>,
            range: impl RangeBounds<K::Of<'k>>,
        ) -> Result<u64, Error> {
            $of.count(table, range)
        }
    };
}

impl<'r, M: ConstMachine> ReadOps<'r> for &'r ReadTxn<'_, M> {
    reads!('r, self => (**self));
}

impl<M: ConstMachine> ReadOps<'static> for WriteTxn<'_, '_, M> {
    reads!('static, self => (*self));
}

impl<M: ConstMachine> WriteOps for WriteTxn<'_, '_, M> {
    type Savepoint = Savepoint;

    #[inline]
    fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        WriteTxn::get_for_update(self, table, key)
    }

    #[inline]
    fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        WriteTxn::put(self, table, key, value)
    }

    #[inline]
    fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        WriteTxn::insert(self, table, key, value)
    }

    #[inline]
    fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        WriteTxn::update(self, table, key, change)
    }

    #[inline]
    fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        WriteTxn::remove(self, table, key)
    }

    #[inline]
    fn remove_range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        WriteTxn::remove_range(self, table, range)
    }

    #[inline]
    fn pop_first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        WriteTxn::pop_first(self, table)
    }

    #[inline]
    fn pop_last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        WriteTxn::pop_last(self, table)
    }

    #[inline]
    fn remove_values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error> {
        WriteTxn::remove_values(self, table, key)
    }

    #[inline]
    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        WriteTxn::savepoint(self)
    }

    #[inline]
    fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        WriteTxn::roll_back_to(self, savepoint)
    }
}
