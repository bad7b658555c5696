//! Closures that return the caller's own error type.
//!
//! [`Store::write`] could accept any error type; but then `?` in a closure without a declared type
//! would not compile, and most closures have none.

use core::future::Future;

use latchwork_machine::ConstMachine;

use crate::api::tasks::TransactionGuard;
use crate::idle::Kept;
use crate::retry::{Runs, why_again};
use crate::typed::{TxnRef, WriteTxn};
use crate::{Attempts, Error, Store, TxnOptions};

impl<M: ConstMachine> Store<M> {
    /// Runs a transaction as [`write`](Self::write) does, with a closure that returns the caller's
    /// own error type. If the closure returns an error, the transaction is rolled back, and the
    /// error is returned unchanged. In [`Mode::Full`](crate::Mode::Full), [`Error::ReadsUnknown`]
    /// is returned instead if the data that the transaction has read cannot be made durable,
    /// because the closure's error may reveal it.
    ///
    /// The caller does not see deadlocks and other [retryable](Error::is_retryable) errors: the
    /// transaction itself records them and is retried, whatever error the closure returns. All
    /// other errors of the store are converted with `From`.
    ///
    /// # Errors
    ///
    /// The closure's error, unless the transaction failed with a retryable error; those of
    /// [`write`](Self::write), converted.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Error, Store, Table};
    ///
    /// #[derive(Debug, PartialEq)]
    /// enum Refused {
    ///     Poor { has: i64 },
    ///     Store(Error),
    /// }
    ///
    /// impl From<Error> for Refused {
    ///     fn from(why: Error) -> Self {
    ///         Self::Store(why)
    ///     }
    /// }
    ///
    /// const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-own-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&ACCOUNTS, 7, 5)?;
    /// let taken = store.write_as(|tx| {
    ///     let has = tx.get_for_update(&ACCOUNTS, 7)?.unwrap_or(0);
    ///     tx.put(&ACCOUNTS, 7, has - 10)?;
    ///     if has < 10 { Err(Refused::Poor { has }) } else { Ok(()) }
    /// });
    /// assert_eq!(taken, Err(Refused::Poor { has: 5 }));
    /// assert_eq!(store.get(&ACCOUNTS, 7)?, Some(5), "it was rolled back");
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), Error>(())
    /// ```
    pub fn write_as<R, E: From<Error>>(
        &self,
        body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_with_as(&TxnOptions::default(), body).map(|done| done.value)
    }

    /// Runs a transaction as [`write_as`](Self::write_as) does, with a deadline, an isolation
    /// level, a label or a durability mode.
    ///
    /// # Errors
    ///
    /// Those of [`write_as`](Self::write_as).
    pub fn write_with_as<R, E: From<Error>>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, E>,
    ) -> Result<Attempts<R>, E> {
        let run = |kept: &Kept<M>, tables| {
            let worker = &kept.worker;
            let mut runs = Runs::new(worker, worker.locks()?, worker.slot(), options);
            Attempts::run_as(&mut runs, |runs| {
                body(&mut WriteTxn { inner: TxnRef::Runs(runs), tables })
            })
        };
        self.attempts(options, run, |_, unsettled| unsettled.into())
    }

    /// Runs a transaction of a task as [`write_async`](Self::write_async) does, with a closure that
    /// returns the caller's own error type; see [`write_as`](Self::write_as).
    ///
    /// # Errors
    ///
    /// The closure's error, unless the transaction failed with a retryable error; those of
    /// [`write_async`](Self::write_async), converted.
    pub async fn write_async_as<R, E: From<Error>, F: Future<Output = Result<R, E>>>(
        &self,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<R, E> {
        self.write_async_with_as(&TxnOptions::default(), body).await.map(|done| done.value)
    }

    /// Runs a transaction of a task as [`write_async_as`](Self::write_async_as) does, with a
    /// deadline, an isolation level, a label or a durability mode.
    ///
    /// # Errors
    ///
    /// Those of [`write_async_as`](Self::write_async_as).
    pub async fn write_async_with_as<R, E: From<Error>, F: Future<Output = Result<R, E>>>(
        &self,
        options: &TxnOptions,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<Attempts<R>, E> {
        self.attempts_async(options, body, why_again, |_, unsettled| unsettled.into()).await
    }
}
