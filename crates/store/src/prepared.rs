//! Two-phase commit: one thread prepares a transaction, and any thread of any process decides it
//! later.
//!
//! For transactions that span several stores, or a store and another system: all participants
//! prepare in the first phase and carry out the coordinator's decision in the second. (Gray, "Notes
//! on Data Base Operating Systems", 1978; X/Open XA; PostgreSQL's `PREPARE TRANSACTION`.)

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;

use crate::{Error, Store};

/// A prepared transaction that is not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Its id.
    pub gid: Vec<u8>,
    /// When it was prepared, by the clock of the machine.
    pub when: SystemTime,
    /// The position of its first log record. The log is retained from there.
    pub since: u64,
    /// The position at which it was prepared.
    pub at: u64,
}

impl<M: ConstMachine> Store<M> {
    /// Returns the prepared, undecided transactions of all processes, dead ones included, in the
    /// order in which they were prepared. A transaction that a living thread is preparing or
    /// deciding at the moment is not included.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] if the last log records of a dead thread cannot be read, so that it is
    /// unknown whether its transaction is prepared; other transactions can still be decided. Errors
    /// of the [store's parts](Error).
    pub fn prepared(&self) -> Result<Vec<Prepared>, Error> {
        // A thread may have died after it had prepared a transaction.
        let _ = self.home().sweep();
        let all = self.home().all_prepared()?.into_iter();
        Ok(all
            .map(|found| Prepared {
                gid: found.gid,
                when: UNIX_EPOCH + Duration::from_millis(found.when),
                since: found.first,
                at: found.at,
            })
            .collect())
    }

    /// Commits a prepared transaction and releases its locks. When this returns, the commit is as
    /// durable as the store's mode says. Returns the position of the commit in the log.
    ///
    /// Any thread of any process may call it; if several decide the same transaction, one succeeds.
    /// It needs no log space beyond what was reserved.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`]; [`Error::CommitUnknown`]; errors of the [store's parts](Error),
    /// after which the transaction is still prepared.
    ///
    /// # Death
    ///
    /// If the thread is killed in this call, the transaction is committed or still prepared.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Error, Store, Table};
    ///
    /// const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-prepared-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let mut transaction = store.begin()?;
    /// transaction.put(&ACCOUNTS, 7, 100)?;
    /// transaction.prepare(b"transfer 1")?;
    /// assert_eq!(store.get(&ACCOUNTS, 7)?, None);
    /// drop(store);
    ///
    /// // It waits for its decision, even if the machine was started again.
    /// let store = Store::open(&path)?;
    /// assert_eq!(store.prepared()?[0].gid, b"transfer 1");
    /// store.commit_prepared(b"transfer 1")?;
    /// assert_eq!(store.get(&ACCOUNTS, 7)?, Some(100));
    /// let again = store.roll_back_prepared(b"transfer 1");
    /// assert!(matches!(again, Err(Error::NotPrepared { .. })));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), Error>(())
    /// ```
    pub fn commit_prepared(&self, gid: &[u8]) -> Result<u64, Error> {
        self.writable()?;
        let worker = self.home().take_prepared(gid)?;
        let at = worker.commit_prepared()?;
        self.settle(&worker, Some(at), None)?;
        Ok(at)
    }

    /// Rolls a prepared transaction back and releases its locks. When this returns, the rollback is
    /// as durable as the store's mode says. Any thread of any process may call it.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`]. [`Error::NotUndone`]: the transaction is still prepared or partly
    /// rolled back, and each [`sweep`](Self::sweep) continues the rollback. [`Error::Log`] may mean
    /// that it is rolled back, but that the rollback could not be made durable; after a crash of
    /// the machine it may be prepared again. Errors of the [store's parts](Error).
    ///
    /// # Death
    ///
    /// If the thread is killed in this call, the transaction is still prepared, or the next sweep
    /// completes the rollback.
    pub fn roll_back_prepared(&self, gid: &[u8]) -> Result<(), Error> {
        self.writable()?;
        let worker = self.home().take_prepared(gid)?;
        let end = worker.roll_back_prepared()?;
        Ok(worker.log.commit(Lsn(end), self.home().sizes.mode)?)
    }
}
