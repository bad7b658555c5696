//! Snapshots that are objects: kept for as long as their holder likes.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use latchwork_machine::{ConstMachine, Shared as Machine};

use crate::idle::Lone;
use crate::tables::Tables;
use crate::typed::ReadTxn;
use crate::{Error, Snapshot, Store};

/// A snapshot that is an object: see [`Store::snapshot`]. It can do what a closure of
/// [`Store::read`] can.
///
/// It holds no lock, and nobody waits for it; but the log is kept from its position on, or it is
/// [too old](Error::SnapshotTooOld) some day. It may be sent to another thread.
pub struct KeptSnapshot<M: ConstMachine = Machine> {
    /// It borrows the session and the store, and is dropped before them.
    reads: ManuallyDrop<ReadTxn<'static, M>>,
    /// None at the end alone.
    session: Option<Lone<M>>,
    store: Store<M>,
}

// SAFETY: what it reads with refers to the session, which may be sent and goes with it, and to what
// all threads share. The object is not `Sync`.
unsafe impl<M: ConstMachine> Send for KeptSnapshot<M> {}

impl<M: ConstMachine> Store<M> {
    /// The state between two transactions, now, for as long as the caller keeps it. O(thread slots
    /// that were ever used): it learns what each has committed last, so that it need not read the
    /// log for that later.
    ///
    /// # Errors
    ///
    /// [`Error::Threads`]; those of the parts.
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
        // What is finished by now need not be asked about later.
        kept.worker.home.shared.raise_low()?;
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        snapshot.learn(kept.worker.log.log().slots_high())?;
        let reads = ReadTxn { snapshot, tables: Tables { catalog, kept } };
        Ok(KeptSnapshot { reads: ManuallyDrop::new(reads), session: Some(session), store })
    }
}

impl<M: ConstMachine> KeptSnapshot<M> {
    /// How many bytes of log were written since: what it keeps from being given up.
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
