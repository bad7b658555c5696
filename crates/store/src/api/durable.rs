//! Makes earlier commits durable that did not wait for the disk.

use latchwork_log::{Lsn, Mode};
use latchwork_machine::ConstMachine;

use crate::{Error, Store};

impl<M: ConstMachine> Store<M> {
    /// Blocks until all commits so far, of any thread, process and mode, are durable, so that a
    /// crash of the machine cannot lose them. Costs one sync of the log, or none if everything is
    /// durable. Threads that sync at the same time share a sync.
    ///
    /// A program may commit in a [mode](crate::TxnOptions::mode) that does not wait, and call this
    /// once before it acknowledges those commits.
    ///
    /// # Errors
    ///
    /// [`Error::CommitUnknown`] if the log cannot be made durable: all commits remain in effect,
    /// but a crash of the machine may lose the recent ones. On a full disk a later call may
    /// succeed. [`Error::ReadOnly`]: only a process that may write can sync. Errors of the [store's
    /// parts](Error).
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

    /// Makes all commits so far durable as [`sync`](Self::sync) does, without blocking the thread.
    /// Commits of other tasks share the sync.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync).
    pub async fn sync_async(&self) -> Result<(), Error> {
        let Some(last) = self.unsynced()? else { return Ok(()) };
        match self.background().settle(last, Mode::Full) {
            Ok(Some(batch)) => batch.ended().await,
            Ok(None) => Ok(()),
            // No thread can be started for it, so this one waits.
            Err(_) => self.sync(),
        }
    }

    /// Returns up to where the log must be synced; `None` if it is durable.
    fn unsynced(&self) -> Result<Option<Lsn>, Error> {
        self.writable()?;
        // In the child of a fork, the log has no end.
        self.home().manager.region().check()?;
        let log = &self.home().log;
        // The record of a commit that has returned lies before the end.
        let end = log.end();
        Ok((log.flushed() < end).then(|| Lsn(end.0 - 1)))
    }
}
