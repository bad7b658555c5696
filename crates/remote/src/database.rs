//! One handle for both engines: a folder of this machine, or a database on a server.

use core::fmt;
use core::ops::RangeBounds;

use latchwork_store::{
    Attempts, Error, Key, Multi, ReadOps, Record, Rows, Sequence, StartsWith, Store, Table,
    TableInfo, TxnOptions, Value, WriteOps,
};

use crate::Postgres;

/// A store in a folder, or tables on a server: which one the address says.
///
/// Closures that use [`ReadOps`] and [`WriteOps`] run on both, with the same retries. A program
/// that needs only one engine names [`Store`] or [`Postgres`] instead, with the same closures.
///
/// # Examples
///
/// ```
/// use latchwork_remote::Database;
/// use latchwork_store::{Error, ReadOps, Table, WriteOps};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
///
/// # let path = std::env::temp_dir().join(format!("remote-database-{}", std::process::id()));
/// # let address = path.to_str().unwrap();
/// // Or "postgres://ann@db.example.com/shop".
/// let shop = Database::open(address)?;
/// let pears = shop.write(|tx| tx.update(&FRUIT, "pear", |old| Some(old.unwrap_or(0) + 1)))?;
/// assert_eq!(pears, Some(1));
/// assert_eq!(shop.read(|tx| tx.count(&FRUIT, ..))?, 1);
/// # drop(shop);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Database {
    /// A folder of this machine.
    Store(Store),
    /// A server.
    Postgres(Postgres),
}

/// Whether an address is that of a server.
pub fn is_server(address: &str) -> bool {
    address.starts_with("postgres://") || address.starts_with("postgresql://")
}

impl From<Store> for Database {
    fn from(store: Store) -> Self {
        Self::Store(store)
    }
}

impl From<Postgres> for Database {
    fn from(postgres: Postgres) -> Self {
        Self::Postgres(postgres)
    }
}

impl Database {
    /// Opens `postgres://..` or `postgresql://..` on a server, and any other address as the folder
    /// of a store, both created if absent.
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`] and [`Postgres::open`].
    pub fn open(address: &str) -> Result<Self, Error> {
        match is_server(address) {
            true => Postgres::open(address).map(Self::Postgres),
            false => Store::open(address).map(Self::Store),
        }
    }

    /// Runs a transaction that only reads. On a server the closure may run several times, and what
    /// it has read must not be used if this fails.
    ///
    /// # Errors
    ///
    /// Those of [`Store::read`] and [`Postgres::read`].
    pub fn read<R>(
        &self,
        mut body: impl FnMut(&mut DatabaseReadTxn<'_, '_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match self {
            Self::Store(store) => store.read(|tx| body(&mut DatabaseReadTxn::Store(tx))),
            Self::Postgres(server) => server.read(|tx| body(&mut DatabaseReadTxn::Postgres(tx))),
        }
    }

    /// Runs a transaction until it commits. `Err` from the closure rolls it back.
    ///
    /// # Errors
    ///
    /// Those of [`Store::write`] and [`Postgres::write`].
    pub fn write<R>(
        &self,
        body: impl FnMut(&mut DatabaseWriteTxn<'_, '_, '_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.write_with(&TxnOptions::default(), body).map(|done| done.value)
    }

    /// As [`write`](Self::write), with options.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn write_with<R>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(&mut DatabaseWriteTxn<'_, '_, '_>) -> Result<R, Error>,
    ) -> Result<Attempts<R>, Error> {
        match self {
            Self::Store(store) => {
                store.write_with(options, |tx| body(&mut DatabaseWriteTxn::Store(tx)))
            }
            Self::Postgres(server) => {
                server.write_with(options, |tx| body(&mut DatabaseWriteTxn::Postgres(tx)))
            }
        }
    }

    /// As [`write_with`](Self::write_with), with a closure whose errors are the caller's own.
    ///
    /// # Errors
    ///
    /// The error of the closure; those of [`write`](Self::write), made the caller's.
    pub fn write_with_as<R, E: From<Error>>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(&mut DatabaseWriteTxn<'_, '_, '_>) -> Result<R, E>,
    ) -> Result<Attempts<R>, E> {
        match self {
            Self::Store(store) => {
                store.write_with_as(options, |tx| body(&mut DatabaseWriteTxn::Store(tx)))
            }
            Self::Postgres(server) => {
                server.write_with_as(options, |tx| body(&mut DatabaseWriteTxn::Postgres(tx)))
            }
        }
    }

    /// Reads a value, in a transaction of its own.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        match self {
            Self::Store(store) => store.get(table, key),
            Self::Postgres(server) => server.get(table, key),
        }
    }

    /// Writes a value, in a transaction of its own.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn put<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        match self {
            Self::Store(store) => store.put(table, key, value),
            Self::Postgres(server) => server.put(table, key, value),
        }
    }

    /// Removes a record, in a transaction of its own; returns whether it existed.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn remove<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        match self {
            Self::Store(store) => store.remove(table, key),
            Self::Postgres(server) => server.remove(table, key),
        }
    }

    /// Returns a number that no other call gets: see [`Store::next_number`].
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn next_number(&self, sequence: &Sequence) -> Result<u64, Error> {
        match self {
            Self::Store(store) => store.next_number(sequence),
            Self::Postgres(server) => server.next_number(sequence),
        }
    }

    /// Returns the catalog's entries of all tables, in the order of their names.
    ///
    /// # Errors
    ///
    /// Those of [`Store::table_infos`] and [`Postgres::table_infos`].
    pub fn table_infos(&self) -> Result<Vec<TableInfo>, Error> {
        match self {
            Self::Store(store) => store.table_infos(),
            Self::Postgres(server) => server.table_infos(),
        }
    }
}

/// The transaction in a closure of [`Database::read`].
#[derive(Clone, Copy)]
pub enum DatabaseReadTxn<'r, 's> {
    /// In a folder.
    Store(&'r latchwork_store::ReadTxn<'s>),
    /// On a server.
    Postgres(&'r crate::ReadTxn),
}

/// The transaction in a closure of [`Database::write`].
pub enum DatabaseWriteTxn<'t, 'x, 's> {
    /// In a folder.
    Store(&'t mut latchwork_store::WriteTxn<'x, 's>),
    /// On a server.
    Postgres(&'t mut crate::WriteTxn),
}

/// Where a transaction of a [`Database`] can be rolled back to.
#[derive(Clone, Copy, Debug)]
pub enum DatabaseSavepoint {
    /// In a folder.
    Store(latchwork_store::Savepoint),
    /// On a server.
    Postgres(crate::Savepoint),
}

/// Calls a method of whichever engine it is.
macro_rules! either {
    ($of:ident, $self:ident, $tx:ident => $call:expr) => {
        match $self {
            $of::Store($tx) => $call,
            $of::Postgres($tx) => $call,
        }
    };
}

macro_rules! reads {
    ($rows:lifetime, $of:ident, $tx:ident => $to:expr) => {
        fn get<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            key: K::Of<'_>,
        ) -> Result<Option<V::Owned>, Error> {
            either!($of, self, $tx => ReadOps::get($to, table, key))
        }

        fn get_many<'k, K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            keys: impl IntoIterator<Item = K::Of<'k>>,
        ) -> Result<Vec<Option<V::Owned>>, Error> {
            either!($of, self, $tx => ReadOps::get_many($to, table, keys))
        }

        fn contains<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            key: K::Of<'_>,
        ) -> Result<bool, Error> {
            either!($of, self, $tx => ReadOps::contains($to, table, key))
        }

        fn range<'k, K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            range: impl RangeBounds<K::Of<'k>>,
        ) -> Result<Rows<$rows, K, V>, Error> {
            either!($of, self, $tx => ReadOps::range($to, table, range))
        }

        fn prefix<P: Key, K: StartsWith<P>, V: Value>(
            &mut self,
            table: &Table<K, V>,
            prefix: P::Of<'_>,
        ) -> Result<Rows<$rows, K, V>, Error> {
            either!($of, self, $tx => ReadOps::prefix::<P, K, V>($to, table, prefix))
        }

        fn first<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
        ) -> Result<Option<Record<K, V>>, Error> {
            either!($of, self, $tx => ReadOps::first($to, table))
        }

        fn last<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
        ) -> Result<Option<Record<K, V>>, Error> {
            either!($of, self, $tx => ReadOps::last($to, table))
        }

        fn count<'k, K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            range: impl RangeBounds<K::Of<'k>>,
        ) -> Result<u64, Error> {
            either!($of, self, $tx => ReadOps::count($to, table, range))
        }
    };
}

impl<'r> ReadOps<'r> for DatabaseReadTxn<'r, '_> {
    reads!('r, DatabaseReadTxn, tx => tx);
}

impl ReadOps<'static> for DatabaseWriteTxn<'_, '_, '_> {
    reads!('static, DatabaseWriteTxn, tx => *tx);
}

impl WriteOps for DatabaseWriteTxn<'_, '_, '_> {
    type Savepoint = DatabaseSavepoint;

    fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::get_for_update(*tx, table, key))
    }

    fn put<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::put(*tx, table, key, value))
    }

    fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::insert(*tx, table, key, value))
    }

    fn update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        change: impl FnOnce(Option<V::Owned>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::update(*tx, table, key, change))
    }

    fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::remove(*tx, table, key))
    }

    fn remove_range<'k, K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K::Of<'k>>,
    ) -> Result<u64, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::remove_range(*tx, table, range))
    }

    fn pop_first<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::pop_first(*tx, table))
    }

    fn pop_last<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
    ) -> Result<Option<Record<K, V>>, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::pop_last(*tx, table))
    }

    fn remove_values<K: Key, V: Key>(
        &mut self,
        table: &Multi<K, V>,
        key: K::Of<'_>,
    ) -> Result<u64, Error> {
        either!(DatabaseWriteTxn, self, tx => WriteOps::remove_values(*tx, table, key))
    }

    fn savepoint(&mut self) -> Result<DatabaseSavepoint, Error> {
        match self {
            Self::Store(tx) => WriteOps::savepoint(*tx).map(DatabaseSavepoint::Store),
            Self::Postgres(tx) => WriteOps::savepoint(*tx).map(DatabaseSavepoint::Postgres),
        }
    }

    fn roll_back_to(&mut self, savepoint: DatabaseSavepoint) -> Result<(), Error> {
        match (self, savepoint) {
            (Self::Store(tx), DatabaseSavepoint::Store(at)) => WriteOps::roll_back_to(*tx, at),
            (Self::Postgres(tx), DatabaseSavepoint::Postgres(at)) => {
                WriteOps::roll_back_to(*tx, at)
            }
            _ => Err(Error::Savepoint),
        }
    }
}

impl fmt::Debug for DatabaseReadTxn<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(DatabaseReadTxn, self, tx => fmt::Debug::fmt(tx, f))
    }
}

impl fmt::Debug for DatabaseWriteTxn<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(DatabaseWriteTxn, self, tx => fmt::Debug::fmt(tx, f))
    }
}
