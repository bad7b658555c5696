//! A store, and a thread's session in it.

use core::any::Any;
use core::cell::{Cell, RefCell};
use core::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use latchwork_disk::Disk;
use latchwork_log::{Lsn, Mode};
use latchwork_machine::{ConstMachine, Shared as Machine};
use latchwork_region::Region;

use crate::files::home::{Home, Sizes};
use crate::files::scribe::Part;
use crate::files::worker::Worker;
use crate::open::{Folder, Options, open};
use crate::tables::{CATALOG, Catalog, Kept, Tables, root_of};
use crate::typed::{ReadTxn, WriteTxn};
use crate::{Attempts, Error, Patience, Snapshot};

/// A store: tables that any number of threads and processes read and write at the same time.
///
/// Clones are the same. When the last one of the last process is dropped, the store is closed; a
/// process that is killed leaves it to the others, or to the next that opens it.
///
/// Each thread that uses it has a slot of the shared memory, until the thread ends.
pub struct Store<M: ConstMachine = Machine> {
    inner: Arc<Inner<M>>,
}

/// What is going on in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Locks that are held or waited for.
    pub locks: u64,
    /// Transactions that hold them.
    pub transactions: u64,
    /// Transactions of dead threads that were undone since the store was recovered.
    pub undone: u64,
}

struct Inner<M: ConstMachine> {
    home: Arc<Home<M>>,
    folder: Option<Folder>,
    catalog: Catalog<M>,
}

impl<M: ConstMachine> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

thread_local! {
    /// This thread's sessions, each with the address of its store's `Home`.
    static SESSIONS: RefCell<Vec<(usize, Rc<dyn Any>)>> = const { RefCell::new(Vec::new()) };
}

impl Store<Machine> {
    /// Opens the store in a folder: makes it if there is none, joins the processes that have it
    /// open, or recovers it after a crash. The same call in every process.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] says what to do; those of the parts.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-open-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| tx.put(&FRUIT, "pear", 3))?;
    /// assert_eq!(store.read(|tx| tx.get(&FRUIT, "pear"))?, Some(3));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &Options::default())
    }

    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    ///
    /// As there; [`Error::Options`].
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let (home, folder) = open(path.as_ref(), options)?;
        Ok(Self::of(home, Some(folder)))
    }
}

impl<M: ConstMachine> Store<M> {
    pub(crate) fn of(home: Arc<Home<M>>, folder: Option<Folder>) -> Self {
        let catalog = Catalog::new(&home);
        Self { inner: Arc::new(Inner { home, folder, catalog }) }
    }

    /// Opens a store whose shared memory and whose disk the caller has: of a process alone, or for
    /// tests. Of all that use the region one at a time is in this call.
    ///
    /// # Errors
    ///
    /// Those of the parts; [`Error::Options`].
    pub fn in_region(
        region: &Region<M>,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        sizes: &Sizes,
    ) -> Result<Self, Error> {
        Ok(Self::of(Home::open(region, disk, folder, sizes)?, None))
    }

    /// A session of this thread that is free for `flag`.
    fn kept(&self, flag: impl Fn(&Kept<M>) -> &Cell<bool>) -> Result<Rc<Kept<M>>, Error> {
        let key = Arc::as_ptr(&self.inner.home).addr();
        let free = SESSIONS.with_borrow(|all| {
            all.iter()
                .filter(|(of, _)| *of == key)
                .filter_map(|(_, one)| one.clone().downcast::<Kept<M>>().ok())
                .find(|kept| !flag(kept).get())
        });
        if let Some(kept) = free {
            return Ok(kept);
        }
        let kept = Rc::new(Kept::new(self.inner.home.worker()?));
        SESSIONS.with_borrow_mut(|all| all.push((key, kept.clone())));
        Ok(kept)
    }

    /// Reads in a snapshot: the state between two transactions. It waits for nobody, and nobody
    /// waits for it.
    ///
    /// # Errors
    ///
    /// What the closure returns; those of the parts.
    pub fn read<R>(
        &self,
        body: impl FnOnce(&ReadTxn<'_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let kept = self.kept(|kept| &kept.reads)?;
        let _busy = Busy::new(&kept.reads);
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        body(&ReadTxn { snapshot, tables: Tables { catalog: &self.inner.catalog, kept: &kept } })
    }

    /// Runs a transaction until it commits: serializable, and as durable as the store's mode says
    /// when this returns. `Err` from the closure rolls it back.
    ///
    /// The closure must bear being run more than once: it is, whenever the transaction was chosen
    /// to break a deadlock.
    ///
    /// # Errors
    ///
    /// What the closure returns, if that is not retryable; [`Error::Deadline`] after ten seconds;
    /// [`Error::CommitUnknown`]; those of the parts.
    pub fn write<R>(
        &self,
        body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.write_with(&Patience::default(), body).map(|done| done.value)
    }

    /// As [`write`](Self::write), with a deadline, a level, a label, a mode.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_with<R>(
        &self,
        patience: &Patience,
        mut body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<Attempts<R>, Error> {
        let kept = self.kept(|kept| &kept.writes)?;
        let _busy = Busy::new(&kept.writes);
        let worker = &kept.worker;
        let tables = Tables { catalog: &self.inner.catalog, kept: &kept };
        let done = Attempts::run(worker, worker.locks()?, worker.slot(), patience, |txn| {
            body(&mut WriteTxn { txn, tables })
        })?;
        self.settle(worker, done.at, patience.mode)?;
        Ok(done)
    }

    /// Waits until a commit is as durable as it is to be, and makes a checkpoint if one is due.
    fn settle(&self, worker: &Worker<M>, at: Option<u64>, mode: Option<Mode>) -> Result<(), Error> {
        let home = &self.inner.home;
        let mode = mode.unwrap_or(home.sizes.mode);
        let unknown = |why: latchwork_log::Error| Error::CommitUnknown { why: why.to_string() };
        match at {
            Some(at) => {
                if mode != Mode::Full {
                    home.shared.show(Lsn(at))?;
                }
                worker.log.commit(Lsn(at), mode).map_err(unknown)?;
            }
            // It may have read what is committed and not yet durable.
            None if mode == Mode::Full => {
                let end = home.log.end();
                if home.log.flushed() < end {
                    worker.log.flush(Lsn(end.0 - 1)).map_err(unknown)?;
                }
            }
            None => {}
        }
        home.checkpoint_if_due(worker)
    }

    /// Makes a checkpoint: all pages that are changed go to the disk, and the log before them goes.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn checkpoint(&self) -> Result<(), Error> {
        let kept = self.kept(|kept| &kept.writes)?;
        self.inner.home.checkpoint(&kept.worker)
    }

    /// Looks for dead threads, and puts right what they left: others that wait do it, too. Returns
    /// how many there were.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn sweep(&self) -> Result<usize, Error> {
        Ok(self.inner.home.manager.region().sweep()?)
    }

    /// The names of all tables, in order.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.read(|tx| {
            tx.snapshot.scan_raw(CATALOG, .., false, &mut |name, _| {
                names.push(String::from_utf8_lossy(name).into_owned());
                Ok(true)
            })
        })?;
        Ok(names)
    }

    /// Looks at every page of every table; returns how many there are. While nobody writes.
    ///
    /// # Errors
    ///
    /// [`Error::Tree`] with what is wrong; those of the parts.
    pub fn verify(&self) -> Result<u64, Error> {
        let kept = self.kept(|kept| &kept.writes)?;
        let mut pages = kept.worker.with(CATALOG, Part::System, |tree| tree.verify())?;
        let mut trees = Vec::new();
        self.read(|tx| {
            tx.snapshot.scan_raw(CATALOG, .., false, &mut |_, root| {
                trees.push(root_of(root)?);
                Ok(true)
            })
        })?;
        for tree in trees {
            pages += kept.worker.with(tree, Part::System, |tree| tree.verify())?;
        }
        Ok(pages)
    }

    /// What is going on in the store, in all processes.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn counts(&self) -> Result<Counts, Error> {
        let kept = self.kept(|kept| &kept.writes)?;
        let totals = kept.worker.locks()?.totals()?;
        Ok(Counts {
            locks: totals.requests + totals.weak + totals.ranges,
            transactions: totals.owners + totals.orphans,
            undone: self.inner.home.shared.undone()?,
        })
    }

    /// The log's end, in bytes since the store was made.
    pub fn log_end(&self) -> u64 {
        self.inner.home.log.end().0
    }
}

/// A flag that is up while a session is in use.
struct Busy<'f>(&'f Cell<bool>);

impl<'f> Busy<'f> {
    fn new(flag: &'f Cell<bool>) -> Self {
        flag.set(true);
        Self(flag)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<M: ConstMachine> Drop for Inner<M> {
    fn drop(&mut self) {
        let key = Arc::as_ptr(&self.home).addr();
        // Sessions of other threads go with their threads.
        let _ = SESSIONS.try_with(|all| all.borrow_mut().retain(|(of, _)| *of != key));
        let Some(folder) = &self.folder else { return };
        if self.home.manager.region().check().is_err() {
            // The child of a fork.
            return;
        }
        folder.close(|| {
            let worker = self.home.worker()?;
            self.home.checkpoint(&worker)
        });
    }
}

impl<M: ConstMachine> fmt::Debug for Store<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.inner.folder.as_ref().map(|folder| &folder.path))
            .field("log", &self.inner.home.log)
            .finish()
    }
}
