//! The asynchronous form: a handle for tasks of tokio.

use core::fmt;
use core::future::Future;
use std::sync::Arc;
use std::time::Instant;

use latchwork_store::{Attempts, Error, Key, Sequence, Table, TableInfo, TxnOptions, Value};

use crate::calls::{Transaction, sequence_over};
use crate::postgres::{Inner, PostgresOptions};
use crate::retry::{End, Runs};
use crate::session::Session;
use crate::state::Steps;
use crate::task_txn::{AsyncReadTxn, AsyncTxn, AsyncWriteTxn, Open, call, ended};

/// Tables on a server, for tasks: [`Postgres`](crate::Postgres) whose calls are asynchronous. A
/// clone is another handle of the same connections.
///
/// All calls run in one runtime of tokio, with I/O and time, which also drives the connections. A
/// task that is dropped in the middle of a transaction closes its connection, and the server rolls
/// the transaction back; if the commit was sent, it may be committed.
///
/// # Examples
///
/// ```no_run
/// use latchwork_remote::AsyncPostgres;
/// use latchwork_store::{Error, Table};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
///
/// # async fn shop() -> Result<(), Error> {
/// let server = AsyncPostgres::open("postgres://ann@db.example.com/shop").await?;
/// server
///     .write(|tx| async move {
///         tx.update(&FRUIT, "pear", |old| Some(old.unwrap_or(0) + 1)).await?;
///         tx.put(&FRUIT, "plum", 7).await
///     })
///     .await?;
/// let total = server.read(|tx| async move {
///     let (mut fruit, mut total) = (tx.range(&FRUIT, ..)?, 0);
///     while let Some((_, count)) = fruit.next().await? {
///         total += count;
///     }
///     Ok(total)
/// });
/// assert!(total.await? >= 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncPostgres {
    inner: Arc<Inner<Session>>,
}

impl AsyncPostgres {
    /// Opens a database: see [`Postgres::open`](crate::Postgres::open).
    ///
    /// # Errors
    ///
    /// [`Error::Server`] says what the server refuses.
    pub async fn open(address: &str) -> Result<Self, Error> {
        Self::open_with(address, &PostgresOptions::default()).await
    }

    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub async fn open_with(address: &str, options: &PostgresOptions) -> Result<Self, Error> {
        let inner = Inner::<Session>::new(address, options)?;
        drop(inner.pool.take(Instant::now() + options.connect).await?);
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Runs a transaction that only reads until it succeeds: all of it at one moment. The values
    /// that it has read must not be used if it fails.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::read`](crate::Postgres::read).
    pub async fn read<R, F: Future<Output = Result<R, Error>>>(
        &self,
        body: impl FnMut(AsyncReadTxn) -> F,
    ) -> Result<R, Error> {
        let done = self.attempts(&TxnOptions::default(), body).await;
        done.map(|done| done.value)
    }

    /// Runs a transaction until it commits. `Err` from the closure rolls it back. The closure may
    /// run several times.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::write`](crate::Postgres::write).
    pub async fn write<R, F: Future<Output = Result<R, Error>>>(
        &self,
        body: impl FnMut(AsyncWriteTxn) -> F,
    ) -> Result<R, Error> {
        self.write_with(&TxnOptions::default(), body).await.map(|done| done.value)
    }

    /// As [`write`](Self::write), with a deadline.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub async fn write_with<R, F: Future<Output = Result<R, Error>>>(
        &self,
        options: &TxnOptions,
        body: impl FnMut(AsyncWriteTxn) -> F,
    ) -> Result<Attempts<R>, Error> {
        self.attempts(options, body).await
    }

    async fn attempts<R, S: Steps, F: Future<Output = Result<R, Error>>>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(AsyncTxn<S>) -> F,
    ) -> Result<Attempts<R>, Error> {
        let mut runs = Runs::new(options);
        loop {
            let end = match self.attempt(runs.deadline, &mut body).await {
                Ok(value) => return Ok(runs.done(value)),
                Err(end) => end.by_error(),
            };
            tokio::time::sleep(runs.again(end)?).await;
        }
    }

    async fn attempt<R, S: Steps, F: Future<Output = Result<R, Error>>>(
        &self,
        deadline: Instant,
        body: &mut impl FnMut(AsyncTxn<S>) -> F,
    ) -> Result<R, End<Error>> {
        let taken = self.inner.pool.take(deadline).await?;
        let transaction = Transaction::new(self.inner.catalog.clone(), deadline);
        let tx = AsyncTxn::new(Open { taken, transaction });
        let result = body(tx.clone()).await;
        let Open { mut taken, mut transaction } = tx.close().await.ok_or_else(ended)?;
        transaction.end(taken.connection()?, result).await
    }

    /// Reads a value, in a transaction of its own: one round trip.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub async fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = table.key(&key)?;
        self.read(|tx| {
            let key = key.clone();
            async move { call!(tx, get(table, key)) }
        })
        .await
    }

    /// Writes a value, in a transaction of its own: two round trips.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub async fn put<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        let (key, value) = (table.key(&key)?, table.value(&value));
        self.write(|tx| {
            let (key, value) = (key.clone(), value.clone());
            async move { call!(tx, put(table, key, value)) }
        })
        .await
    }

    /// Removes a record, in a transaction of its own; returns whether it existed.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub async fn remove<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        let key = table.key(&key)?;
        self.write(|tx| {
            let key = key.clone();
            async move { call!(tx, remove(table, key)) }
        })
        .await
    }

    /// Returns a number that no other call gets: see
    /// [`Postgres::next_number`](crate::Postgres::next_number). Tasks that claim a batch at the
    /// same time leave numbers unused.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write); [`Error::Engine`] at the end of the numbers.
    pub async fn next_number(&self, sequence: &Sequence) -> Result<u64, Error> {
        let next = self.inner.claimed().get_mut(sequence.name()).and_then(Iterator::next);
        if let Some(number) = next {
            return Ok(number);
        }
        let mut numbers = self.write(|tx| async move { call!(tx, claim(sequence)) }).await?;
        let number = numbers.next().ok_or_else(sequence_over)?;
        self.inner.claimed().insert(sequence.name(), numbers);
        Ok(number)
    }

    /// Returns the catalog's entries of all tables, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub async fn table_infos(&self) -> Result<Vec<TableInfo>, Error> {
        self.read(|tx| async move { call!(tx, tables()) }).await
    }
}

impl fmt::Debug for AsyncPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncPostgres").finish_non_exhaustive()
    }
}
