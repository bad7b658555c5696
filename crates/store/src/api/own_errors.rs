//! Closures whose errors are the caller's own.
//!
//! [`Store::write`] could have been one that takes any error type; but then the `?` in a closure
//! whose type nobody names would not compile, and most closures are such.

use core::future::Future;

use latchwork_machine::ConstMachine;

use crate::api::tasks::TransactionGuard;
use crate::idle::Kept;
use crate::retry::why_again;
use crate::typed::WriteTxn;
use crate::{Attempts, Error, Store, TxnOptions};

impl<M: ConstMachine> Store<M> {
    /// As [`write`](Self::write), with a closure whose errors are the caller's own. One that it
    /// returns rolls the transaction back, and comes back as it is; but in
    /// [`Mode::Full`](crate::Mode::Full) [`Error::ReadsUnknown`] comes back in its place if what
    /// the transaction has read cannot be made durable, because that error may reveal it.
    ///
    /// Of deadlocks and of what else [is retryable](Error::is_retryable) the caller sees nothing:
    /// the transaction knows that it failed so, and is run again, whatever the closure has made of
    /// it. All other errors of the store are made the caller's by `From`.
    ///
    /// # Errors
    ///
    /// What the closure returns, of a transaction that did not fail so; those of
    /// [`write`](Self::write), made the caller's.
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

    /// As [`write_as`](Self::write_as), with a deadline, a level, a label, a mode.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_with_as<R, E: From<Error>>(
        &self,
        patience: &TxnOptions,
        mut body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, E>,
    ) -> Result<Attempts<R>, E> {
        let run = |kept: &Kept<M>, tables| {
            let worker = &kept.worker;
            Attempts::run_as(worker, worker.locks()?, worker.slot(), patience, |txn| {
                body(&mut WriteTxn { txn, tables })
            })
        };
        self.attempts(patience, run, |_, unsettled| unsettled.into())
    }

    /// As [`write_async`](Self::write_async), with a closure whose errors are the caller's own: see
    /// [`write_as`](Self::write_as).
    ///
    /// # Errors
    ///
    /// As there, and as [`write_async`](Self::write_async).
    pub async fn write_async_as<R, E: From<Error>, F: Future<Output = Result<R, E>>>(
        &self,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<R, E> {
        self.write_async_with_as(&TxnOptions::default(), body).await.map(|done| done.value)
    }

    /// As [`write_async_as`](Self::write_async_as), with a deadline, a level, a label, a mode.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write_async_with_as<R, E: From<Error>, F: Future<Output = Result<R, E>>>(
        &self,
        patience: &TxnOptions,
        body: impl FnMut(TransactionGuard<M>) -> F,
    ) -> Result<Attempts<R>, E> {
        self.attempts_async(patience, body, why_again, |_, unsettled| unsettled.into()).await
    }
}
