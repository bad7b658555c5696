//! Snapshot objects, kept for as long as the caller needs them.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use latchwork_machine::{ConstMachine, Shared as Machine};

use crate::idle::Lone;
use crate::snapshot::Snapshot;
use crate::tables::Tables;
use crate::typed::ReadTxn;
use crate::{Error, Store};

/// A snapshot object: see [`Store::snapshot`]. It has the calls of [`ReadTxn`].
///
/// It holds no lock, and blocks no transaction. The log is retained from its position on, up to a
/// limit; beyond the limit its reads return [`Error::SnapshotTooOld`]. It may be sent to another
/// thread.
pub struct KeptSnapshot<M: ConstMachine = Machine> {
    /// Borrows the session and the store, and is dropped before them.
    reads: ManuallyDrop<ReadTxn<'static, M>>,
    /// `None` only during the drop.
    session: Option<Lone<M>>,
    store: Store<M>,
}

// SAFETY: the reader refers to the session, which may be sent and is moved together with it, and to
// data that all threads share. The object is not `Sync`.
unsafe impl<M: ConstMachine> Send for KeptSnapshot<M> {}

impl<M: ConstMachine> Store<M> {
    /// Takes a snapshot that lives until the caller drops it. O(thread slots that were ever used):
    /// it looks up the last commit of each slot, so that it need not read the log for that later.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`]; errors of the [store's parts](Error).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-kept-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| tx.put(&ACCOUNTS, 7, 100))?;
    /// let before = store.snapshot()?;
    /// store.write(|tx| tx.put(&ACCOUNTS, 7, 0))?;
    /// let now = store.snapshot()?;
    /// assert_eq!(before.get(&ACCOUNTS, 7)?, Some(100));
    /// assert_eq!(now.get(&ACCOUNTS, 7)?, Some(0));
    /// assert!(before.at() < now.at() && before.behind() > 0);
    /// # drop((before, now, store));
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn snapshot(&self) -> Result<KeptSnapshot<M>, Error> {
        let (session, store) = (self.lone()?, self.clone());
        // SAFETY: `KeptSnapshot` drops what borrows it before it gives the session away.
        let kept = unsafe { session.forever() };
        // SAFETY: the catalog is in what the clone holds by count, which does not move.
        let catalog = unsafe { &*core::ptr::from_ref(store.catalog()) };
        // Transactions that have ended by now need not be looked up later.
        kept.worker.home.shared.raise_low()?;
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        snapshot.learn(kept.worker.log.log().slots_high())?;
        let reads = ReadTxn { snapshot, tables: Tables { catalog, kept } };
        Ok(KeptSnapshot { reads: ManuallyDrop::new(reads), session: Some(session), store })
    }
}

impl<M: ConstMachine> KeptSnapshot<M> {
    /// Returns how many bytes of log were written since the snapshot: the log that it retains.
    pub fn behind(&self) -> u64 {
        self.store.log_end().saturating_sub(self.at())
    }
}

impl<M: ConstMachine> Deref for KeptSnapshot<M> {
    type Target = ReadTxn<'static, M>;

    fn deref(&self) -> &ReadTxn<'static, M> {
        &self.reads
    }
}

impl<M: ConstMachine> Drop for KeptSnapshot<M> {
    fn drop(&mut self) {
        // SAFETY: it is dropped here and nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.reads) };
        if let Some(session) = self.session.take() {
            self.store.give_back(session);
        }
    }
}

impl<M: ConstMachine> fmt::Debug for KeptSnapshot<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptSnapshot({})", self.at())
    }
}
