//! The handle of a database on a server.

use core::fmt;
use core::ops::Range as Numbers;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use latchwork_store::{Attempts, Error, Key, Sequence, Table, TableInfo, TxnOptions, Value};

use crate::address::parse;
use crate::calls::{checked, sequence_over};
use crate::catalog::Catalog;
use crate::pool::Pool;
use crate::read::ReadTxn;
use crate::retry::{End, Runs};
use crate::session::{Driven, Pooled, Target};
use crate::tls::connector;
use crate::write::WriteTxn;

/// How a database on a server is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// How many connections the handle has at most. A call waits for a free one. 16.
    pub connections: usize,
    /// After which a connection that is not made fails. 10 s.
    pub connect: Duration,
    /// Whether a database into which a copy is not finished is opened: for the copy itself.
    pub(crate) copying: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { connections: 16, connect: Duration::from_secs(10), copying: false }
    }
}

/// Tables on a server that speaks the protocol of PostgreSQL. A clone is another handle of the same
/// connections.
///
/// Each transaction is serializable and as durable as the server's settings say. The calls are
/// those of a [`Store`](latchwork_store::Store); each one waits for the server, so it blocks the
/// thread: tasks of tokio use [`AsyncPostgres`](crate::AsyncPostgres).
///
/// # Examples
///
/// ```no_run
/// use latchwork_remote::Postgres;
/// use latchwork_store::{Error, Table, WriteOps};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
///
/// let server = Postgres::open("postgres://ann@db.example.com/shop")?;
/// server.write(|tx| tx.update(&FRUIT, "pear", |old| Some(old.unwrap_or(0) + 1)))?;
/// assert_eq!(server.get(&FRUIT, "pear")?, Some(1));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner<Driven>>,
}

/// The state shared by the clones of a handle.
pub(crate) struct Inner<C: Pooled> {
    pub(crate) pool: Arc<Pool<C>>,
    pub(crate) catalog: Arc<Catalog>,
    /// The numbers that this handle has claimed of sequences and not given.
    claimed: Mutex<HashMap<&'static str, Numbers<u64>>>,
}

impl<C: Pooled> Inner<C> {
    pub(crate) fn new(address: &str, options: &PostgresOptions) -> Result<Self, Error> {
        let (mut config, trusted) = parse(address)?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(options.connect);
        }
        if config.get_application_name().is_none() {
            config.application_name("latchwork");
        }
        let tls = connector(&config, trusted.as_deref())?;
        let target = Target { config, tls, copying: options.copying, trips: Arc::default() };
        let pool = Arc::new(Pool::new(target, options.connections));
        Ok(Self { pool, catalog: Arc::default(), claimed: Mutex::default() })
    }

    /// The numbers that this handle has claimed of sequences.
    pub(crate) fn claimed(&self) -> MutexGuard<'_, HashMap<&'static str, Numbers<u64>>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Postgres {
    /// Opens a database, and creates the two tables that it needs if they are absent.
    ///
    /// The address is `postgres://user:password@host:port/database?option=value`, as libpq has it;
    /// `host=/folder` as an option connects to a Unix socket, `sslmode=require` wants TLS (feature
    /// `tls`), `options=-c search_path=..` names a schema.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] says what the server refuses.
    pub fn open(address: &str) -> Result<Self, Error> {
        Self::open_with(address, &PostgresOptions::default())
    }

    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_with(address: &str, options: &PostgresOptions) -> Result<Self, Error> {
        let inner = Inner::<Driven>::new(address, options)?;
        // Whether the server can be used is known before the first transaction.
        drop(inner.pool.take(Instant::now() + options.connect)?);
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Runs a transaction that only reads until it succeeds: all of it at one moment. The values
    /// that it has read must not be used if it fails.
    ///
    /// # Errors
    ///
    /// The error of the closure, if that is not retryable; [`Error::Deadline`] after ten seconds;
    /// [`Error::Server`].
    pub fn read<R>(&self, body: impl FnMut(&mut &ReadTxn) -> Result<R, Error>) -> Result<R, Error> {
        self.read_with(&TxnOptions::default(), body)
    }

    /// As [`read`](Self::read), with a deadline.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn read_with<R>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(&mut &ReadTxn) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let done = self.attempts(options, |deadline| {
            let taken = self.inner.pool.take(deadline)?;
            let tx = ReadTxn::new(taken, self.inner.catalog.clone(), deadline);
            let result = body(&mut &tx);
            tx.end(result).map_err(End::by_error)
        });
        done.map(|done| done.value)
    }

    /// Runs a transaction until it commits. `Err` from the closure rolls it back.
    ///
    /// The closure may run several times: after a conflict, and after a lost connection if nothing
    /// was committed.
    ///
    /// # Errors
    ///
    /// The error of the closure, if that is not retryable; [`Error::Deadline`] after ten seconds;
    /// [`Error::CommitUnknown`] if the connection was lost at the commit; [`Error::Server`].
    pub fn write<R>(
        &self,
        body: impl FnMut(&mut WriteTxn) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.write_with(&TxnOptions::default(), body).map(|done| done.value)
    }

    /// As [`write`](Self::write), with a deadline. The level is serializable also if less is asked,
    /// and the mode is the server's.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn write_with<R>(
        &self,
        options: &TxnOptions,
        body: impl FnMut(&mut WriteTxn) -> Result<R, Error>,
    ) -> Result<Attempts<R>, Error> {
        self.run(options, body, End::by_error)
    }

    /// As [`write_with`](Self::write_with), with a closure whose errors are the caller's own: see
    /// [`Store::write_as`](latchwork_store::Store::write_as).
    ///
    /// # Errors
    ///
    /// The error of the closure; those of [`write`](Self::write), made the caller's.
    pub fn write_with_as<R, E: From<Error>>(
        &self,
        options: &TxnOptions,
        body: impl FnMut(&mut WriteTxn) -> Result<R, E>,
    ) -> Result<Attempts<R>, E> {
        self.run(options, body, |end| end)
    }

    fn run<R, E: From<Error>>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(&mut WriteTxn) -> Result<R, E>,
        ended: impl Fn(End<E>) -> End<E>,
    ) -> Result<Attempts<R>, E> {
        self.attempts(options, |deadline| {
            let taken = self.inner.pool.take(deadline)?;
            let mut tx = WriteTxn::new(taken, self.inner.catalog.clone(), deadline);
            let result = body(&mut tx);
            tx.end(result).map_err(&ended)
        })
    }

    /// Runs a transaction again while that may help, until the deadline.
    fn attempts<R, E: From<Error>>(
        &self,
        options: &TxnOptions,
        mut run: impl FnMut(Instant) -> Result<R, End<E>>,
    ) -> Result<Attempts<R>, E> {
        let mut runs = Runs::new(options);
        loop {
            match run(runs.deadline) {
                Ok(value) => return Ok(runs.done(value)),
                Err(end) => std::thread::sleep(runs.again(end)?),
            }
        }
    }

    /// Reads a value, in a transaction of its own: one round trip.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        self.read(|tx| tx.get_bytes(table, key.clone()))
    }

    /// Writes a value, in a transaction of its own: two round trips.
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
        let (key, value) = (table.key(&key)?, table.value(&value));
        checked(table.name(), &value)?;
        self.write(|tx| tx.put_bytes(table, key.clone(), value.clone()))
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
        let key = table.key(&key)?;
        self.write(|tx| tx.remove_bytes(table, key.clone()))
    }

    /// Returns a number that no other call gets: see
    /// [`Store::next_number`](latchwork_store::Store::next_number). A handle claims a batch at a
    /// time, in a transaction of its own.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write); [`Error::Engine`] at the end of the numbers.
    pub fn next_number(&self, sequence: &Sequence) -> Result<u64, Error> {
        let mut claimed = self.inner.claimed();
        if let Some(number) = claimed.get_mut(sequence.name()).and_then(Iterator::next) {
            return Ok(number);
        }
        let mut numbers = self.write(|tx| tx.claim(sequence))?;
        let number = numbers.next().ok_or_else(sequence_over)?;
        claimed.insert(sequence.name(), numbers);
        Ok(number)
    }

    /// Returns the catalog's entries of all tables, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn table_infos(&self) -> Result<Vec<TableInfo>, Error> {
        self.read(|tx| tx.tables())
    }

    pub(crate) fn pool(&self) -> &Arc<Pool<Driven>> {
        &self.inner.pool
    }

    /// How many round trips the connections of this handle have made for transactions.
    pub fn round_trips(&self) -> u64 {
        self.inner.pool.target.trips.load(Relaxed)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}
