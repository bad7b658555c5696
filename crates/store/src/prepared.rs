//! Transactions in two phases: prepared by one thread, decided by any, of any process, at any time.
//!
//! For a transaction that is done in several stores, or in a store and elsewhere: all take part in
//! the first phase, and what the coordinator has decided is done in the second. (Gray, "Notes on
//! Data Base Operating Systems", 1978; X/Open XA; PostgreSQL's `PREPARE TRANSACTION`.)

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;

use crate::{Error, Store};

/// A transaction that is prepared and not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Its id.
    pub gid: Vec<u8>,
    /// When it was prepared, by the clock of the machine.
    pub when: SystemTime,
    /// The position of its first record: the log is kept from here on.
    pub since: u64,
    /// The position at which it was prepared.
    pub at: u64,
}

impl<M: ConstMachine> Store<M> {
    /// The transactions that are prepared and not decided, of all processes, those that are dead
    /// counted in; in the order in which they were prepared. One that a living thread is just
    /// preparing or deciding is not among them.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] if what a dead thread logged last cannot be read: then nobody knows whether
    /// that is prepared. Others can be decided nevertheless. Those of the parts.
    pub fn prepared(&self) -> Result<Vec<Prepared>, Error> {
        // Some may be those of threads that died after they had prepared them.
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

    /// Commits a prepared transaction: as durable as the store's mode says when this returns. Its
    /// locks are gone then. Returns the position of the commit in the log.
    ///
    /// Any thread of any process may call it; of several that decide one succeeds. It needs no room
    /// in the log that was not set aside.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`]; [`Error::CommitUnknown`]; those of the parts: then it is prepared
    /// still.
    ///
    /// # Death
    ///
    /// A thread that is killed in the call has committed it, or it is prepared still.
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

    /// Undoes a prepared transaction: as durable as the store's mode says when this returns, so
    /// that it is not found again. As [`commit_prepared`](Self::commit_prepared).
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`]; [`Error::NotUndone`]: then it is prepared still, or undone in part,
    /// and each [`sweep`](Self::sweep) goes on with it; those of the parts. [`Error::Log`] may say
    /// that it is rolled back, and that this could not be made durable: after a crash of the
    /// machine it may be prepared again.
    ///
    /// # Death
    ///
    /// A thread that is killed in the call leaves it prepared, or the next sweep undoes the rest.
    pub fn roll_back_prepared(&self, gid: &[u8]) -> Result<(), Error> {
        self.writable()?;
        let worker = self.home().take_prepared(gid)?;
        let end = worker.roll_back_prepared()?;
        Ok(worker.log.commit(Lsn(end), self.home().sizes.mode)?)
    }
}
