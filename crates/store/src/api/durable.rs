//! Waiting until what was committed without waiting for the disk is durable.

use latchwork_log::{Lsn, Mode};
use latchwork_machine::ConstMachine;

use crate::{Error, Store};

impl<M: ConstMachine> Store<M> {
    /// Returns when all that was committed so far, by any thread of any process and in any mode, is
    /// durable: when no crash of the machine takes it back. It costs one sync of the log, and none
    /// if there is nothing to sync. Threads that sync at the same time share it.
    ///
    /// A program may commit in a [mode](crate::TxnOptions::mode) that does not wait, and call this
    /// once before it acknowledges those commits.
    ///
    /// # Errors
    ///
    /// [`Error::CommitUnknown`] if the log cannot be made durable: all that was committed stays so,
    /// and a crash of the machine may take back what is not durable yet. On a full disk a later
    /// call may succeed. [`Error::ReadOnly`]: only a process that may write can sync. Those of the
    /// parts.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Mode, TxnOptions, Store, Table};
    ///
    /// const SEEN: Table<u64, ()> = Table::new("seen");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-sync-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let quick = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    /// for number in 0..100 {
    ///     store.write_with(&quick, |tx| tx.put(&SEEN, number, ()))?;
    /// }
    /// store.sync()?; // one sync, not a hundred
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn sync(&self) -> Result<(), Error> {
        let Some(last) = self.unsynced()? else { return Ok(()) };
        self.session()?.worker.log.commit(last, Mode::Full).map_err(Error::commit_unknown)
    }

    /// As [`sync`](Self::sync), for a task: the thread is free while the disk syncs, and commits of
    /// other tasks share the sync.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn sync_async(&self) -> Result<(), Error> {
        let Some(last) = self.unsynced()? else { return Ok(()) };
        match self.background().settle(last, Mode::Full) {
            Ok(Some(batch)) => batch.ended().await,
            Ok(None) => Ok(()),
            // There is no thread for it: this one waits.
            Err(_) => self.sync(),
        }
    }

    /// Up to where the log is to be durable; none if it is.
    fn unsynced(&self) -> Result<Option<Lsn>, Error> {
        self.writable()?;
        // The child of a fork sees a log without an end.
        self.home().manager.region().check()?;
        let log = &self.home().log;
        // The record of a commit that has returned lies before the end.
        let end = log.end();
        Ok((log.flushed() < end).then(|| Lsn(end.0 - 1)))
    }
}
