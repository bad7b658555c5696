//! A store, and a thread's session in it.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use std::path::Path;
use std::sync::Arc;

use latchwork_disk::Disk;
use latchwork_log::{Lsn, Mode};
use latchwork_machine::{ConstMachine, Shared as Machine};
use latchwork_region::Region;

use crate::admission::Turns;
use crate::background::Background;
use crate::files::inner::{Sizes, StoreInner};
use crate::files::session::StoreSession;
use crate::idle::{AnyHeld, Held, Kept, Lone, Sessions};
use crate::open::{Folder, Options, Reading, open, open_to_read};
use crate::opened::Opened;
use crate::tables::{Catalog, Tables, as_shown, entries, infos, tables};
use crate::typed::{ReadTxn, WriteTxn};
use crate::{Attempts, Error, Key, Snapshot, Table, TableInfo, TxnOptions, Value};

/// A store: tables that any number of threads and processes read and write at the same time.
///
/// Clones are the same. When the last one of the last process is dropped, the store is closed; a
/// process that is killed leaves it to the others, or to the next that opens it.
///
/// A drop reports no error: [`close`](Self::close) does. Rust drops no `static`, and
/// [`std::process::exit`] drops nothing. A process that ends with a store in a `static` counts as
/// killed: no commit is lost, and the shared memory stays in `/dev/shm` until the store is opened
/// again. So call [`close`](Self::close) on such a store before `main` returns. The store registers
/// no handler for the exit of the process, because other threads may still use it then. If its
/// folder was removed, the next store that this user opens removes that memory; `latchwork store
/// forget-memory --list` shows what there is.
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
    home: Arc<StoreInner<M>>,
    folder: Option<Folder>,
    catalog: Catalog<M>,
    sessions: Arc<Sessions<M>>,
    turns: Arc<Turns>,
    background: Background<M>,
    opened: Opened,
    /// Of a process that only reads.
    reading: Option<Reading>,
    /// Whether it was closed: then its drop does nothing more.
    closed: bool,
}

impl<M: ConstMachine> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

thread_local! {
    /// This thread's sessions, each with the address of its store's `Sessions`.
    static SESSIONS: RefCell<Vec<(usize, Box<dyn AnyHeld>)>> = const { RefCell::new(Vec::new()) };
}

/// How many sessions of a store a thread keeps: calls in calls need one each.
const KEPT: usize = 2;

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
        if options.read_only {
            let (home, reading) = open_to_read(path.as_ref(), options)?;
            let opened = Opened::new(&options.sizes, &home.sizes_now()?);
            return Ok(Self::with(home, None, opened, Some(reading)));
        }
        let (home, folder) = open(path.as_ref(), options)?;
        let opened = Opened::new(&options.sizes, &home.sizes_now()?);
        let store = Self::of(home, Some(folder), opened);
        store.background().sweep_if_needed();
        Ok(store)
    }
}

impl<M: ConstMachine> Store<M> {
    fn of(home: Arc<StoreInner<M>>, folder: Option<Folder>, opened: Opened) -> Self {
        Self::with(home, folder, opened, None)
    }

    fn with(
        home: Arc<StoreInner<M>>,
        folder: Option<Folder>,
        opened: Opened,
        reading: Option<Reading>,
    ) -> Self {
        let sessions = Arc::new(Sessions::new(home.sizes.threads));
        let catalog = Catalog::new(&home, &sessions);
        let turns = Arc::new(Turns::new((home.sizes.threads as usize / 4).max(1)));
        let background = Background::new(&home, &sessions);
        let closed = false;
        let inner =
            Inner { home, folder, catalog, sessions, turns, background, opened, reading, closed };
        Self { inner: Arc::new(inner) }
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
        Self::in_region_with(region, disk, folder, sizes, 1)
    }

    /// The same, and so many threads redo the log, if it is to be redone: in no certain order.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(hidden)]
    pub fn in_region_with(
        region: &Region<M>,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        sizes: &Sizes,
        lanes: usize,
    ) -> Result<Self, Error> {
        Ok(Self::of(StoreInner::open(region, disk, folder, sizes, lanes)?, None, Opened::default()))
    }

    /// Address, length and name of what the store shares: for reports on cache lines. What lies
    /// within something else comes after it. `pages` are those of a store that never had more
    /// than its cache holds.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    #[doc(hidden)]
    pub fn places(&self) -> Result<Vec<(usize, usize, String)>, Error> {
        let home = &self.inner.home;
        let mut found = home.manager.region().places();
        if let Some((start, _, _)) = found.iter().find(|(.., name)| name == "pool-frames") {
            let bytes = home.pool.pages(home.file)? * u64::from(home.file.page_bytes());
            found.push((*start, bytes as usize, "pages".to_owned()));
        }
        found.extend(home.log.places()?);
        found.extend(home.shared.places()?);
        Ok(found)
    }

    /// The sizes in force: those of the files and of the memory that all processes share, and this
    /// process's own `mode`, `log_budget` and `history`. The cache is what it may grow to now.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Options, Store};
    ///
    /// # let path = std::env::temp_dir().join(format!("store-sizes-{}", std::process::id()));
    /// let small = Store::open_with(&path, &Options::small())?;
    /// // Another open of the same store, here or in another process, asks for a larger cache.
    /// let large = Store::open(&path)?;
    /// assert_eq!(large.sizes()?.cache, 64 << 20);
    /// assert_eq!(small.sizes()?.cache, 64 << 20);
    /// // The log's buffer cannot change while the store is open.
    /// assert_eq!(large.opened().differs[0].name, "log_buffer");
    /// # drop((small, large));
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn sizes(&self) -> Result<Sizes, Error> {
        self.home().sizes_now()
    }

    /// What this process found when it opened the store.
    pub fn opened(&self) -> &Opened {
        &self.inner.opened
    }

    /// Refuses what would write to a store that is only read.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        if self.inner.reading.is_some() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The parts, for tools.
    pub(crate) fn home(&self) -> &Arc<StoreInner<M>> {
        &self.inner.home
    }

    /// From names to trees, for tools.
    pub(crate) fn catalog(&self) -> &Catalog<M> {
        &self.inner.catalog
    }

    /// The turns of tasks.
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.inner.turns
    }

    /// The threads that work for tasks.
    pub(crate) fn background(&self) -> &Background<M> {
        &self.inner.background
    }

    /// A session of no thread, for an object.
    pub(crate) fn lone(&self) -> Result<Lone<M>, Error> {
        self.inner.sessions.take(&self.inner.home)
    }

    /// Takes it back from the object.
    pub(crate) fn give_back(&self, lone: Lone<M>) {
        self.inner.sessions.give(lone);
    }

    /// A session of this thread, for tools: nobody else's as long as what is returned is held.
    pub(crate) fn session(&self) -> Result<InUse<'_, M>, Error> {
        let kept = self.kept(Kept::writing)?;
        Ok(InUse { busy: Busy::new(kept, Kept::writing), of: PhantomData })
    }

    /// All tables that are committed, also those that are not yet durable, and their trees: for
    /// tools that ask whose a page is.
    pub(crate) fn trees(&self) -> Result<Vec<(String, u32)>, Error> {
        let kept = self.kept(Kept::reading)?;
        let _busy = Busy::new(kept, Kept::reading);
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        let entries = entries(&snapshot.moved_up(self.log_end().saturating_sub(1)))?;
        let shown = |name: String| as_shown(&name).unwrap_or(name);
        Ok(entries.into_iter().map(|(name, entry)| (shown(name), entry.tree)).collect())
    }

    /// A session of this thread that is free for `flag`: a function, for a closure would be another
    /// one, and all of this compiled again, for each type of the caller's.
    #[inline]
    fn kept(&self, flag: impl Fn(&Kept<M>) -> &Cell<bool>) -> Result<&Kept<M>, Error> {
        let sessions = &self.inner.sessions;
        let key = Arc::as_ptr(sessions).addr();
        let (mut count, mut free) = (0, None);
        let looked = SESSIONS.try_with(|all| {
            let all = all.borrow();
            let mine = all.iter().filter(|(of, _)| *of == key);
            for held in mine.filter_map(|(_, held)| held.any().downcast_ref::<Held<M>>()) {
                // SAFETY: the store is there, and this thread has not dropped its hold.
                let kept = unsafe { held.kept.as_ref() };
                count += 1;
                if !flag(kept).get() && !kept.worker.is_given_up() {
                    free = Some(held.kept);
                    break;
                }
            }
        });
        looked.map_err(|_| Error::ThreadEnds)?;
        let kept = match free {
            Some(kept) => kept,
            None => self.another(key, count >= KEPT)?,
        };
        // SAFETY: it is the store's, which is borrowed, and stays until this thread drops its hold:
        // at its end, or when a `Busy` ends that has said so.
        Ok(unsafe { kept.as_ref() })
    }

    /// One more session of this thread.
    #[cold]
    fn another(&self, key: usize, spare: bool) -> Result<NonNull<Kept<M>>, Error> {
        let held = self.inner.sessions.hold(&self.inner.home)?;
        let kept = held.kept;
        // SAFETY: as in `kept`.
        unsafe { kept.as_ref() }.spare.set(spare);
        SESSIONS.with_borrow_mut(|all| {
            all.retain(|(_, held)| !held.is_over());
            all.push((key, Box::new(held)));
        });
        Ok(kept)
    }

    /// Reads in a snapshot: the state between two transactions. It waits for nobody, and nobody
    /// waits for it. In the closure of a [`write`](Self::write) it sees nothing of what that has
    /// written.
    ///
    /// # Errors
    ///
    /// What the closure returns; [`Error::SnapshotTooOld`]; those of the parts.
    ///
    /// # Panics
    ///
    /// If the closure does.
    pub fn read<R>(
        &self,
        body: impl FnOnce(&ReadTxn<'_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.read_as(body)
    }

    /// As [`read`](Self::read), with a closure whose errors are the caller's own: see
    /// [`write_as`](Self::write_as).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read_as<R, E: From<Error>>(
        &self,
        body: impl FnOnce(&ReadTxn<'_, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        let kept = self.kept(Kept::reading)?;
        let _busy = Busy::new(kept, Kept::reading);
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        body(&ReadTxn { snapshot, tables: Tables { catalog: &self.inner.catalog, kept } })
    }

    /// Runs a transaction until it commits: serializable, and as durable as the store's mode says
    /// when this returns. `Err` from the closure rolls it back.
    ///
    /// The closure must bear being run more than once: it is, whenever the transaction was chosen
    /// to break a deadlock, or was open for so long that it was rolled back
    /// ([`Error::is_retryable`]). Calls of the store in the closure are transactions of their own:
    /// a call that wants what this transaction has locked fails at once with
    /// [`Error::OwnTransaction`].
    ///
    /// A checkpoint that is due is made first, by this thread, however long it takes: the deadline
    /// is the transaction's alone.
    ///
    /// # Errors
    ///
    /// What the closure returns, if that is not retryable; [`Error::Deadline`] after ten seconds;
    /// [`Error::CommitUnknown`]; those of the parts, also of the checkpoint. But for
    /// `CommitUnknown` nothing was written then. [`Error::ReadsUnknown`] in [`Mode::Full`] if the
    /// transaction wrote nothing or failed, and what it has read cannot be made durable: the error
    /// that the closure returned is within.
    ///
    /// # Panics
    ///
    /// If the closure does; the transaction was rolled back then.
    ///
    /// # Death
    ///
    /// A thread that is killed in the call has committed all of it, or nothing: then a sweep of
    /// another thread undoes it.
    pub fn write<R>(
        &self,
        body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.write_with(&TxnOptions::default(), body).map(|done| done.value)
    }

    /// Reads a value, in a snapshot of its own.
    ///
    /// # Errors
    ///
    /// As [`ReadTxn::get`].
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.read(|tx| tx.get(table, key))
    }

    /// Writes a value, in a transaction of its own: in the closure of another one see
    /// [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write) and [`WriteTxn::put`].
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-put-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&FRUIT, "pear", 3)?;
    /// assert_eq!(store.get(&FRUIT, "pear")?, Some(3));
    /// assert!(store.remove(&FRUIT, "pear")?);
    /// assert!(!store.remove(&FRUIT, "pear")?);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn put<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
        value: V::Of<'_>,
    ) -> Result<(), Error> {
        self.write(|tx| {
            let tree = tx.tree(table)?;
            tx.tables.with_scratch(|scratch| {
                table.key_into(&key, &mut scratch.key)?;
                table.value_into(&value, &mut scratch.value);
                tx.txn.write_and_commit(tree, &scratch.key, Some(&scratch.value))
            })
        })
    }

    /// Removes a record, in a transaction of its own; says whether there was one.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub fn remove<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        self.write(|tx| {
            let tree = tx.tree(table)?;
            tx.tables.with_scratch(|scratch| {
                table.key_into(&key, &mut scratch.key)?;
                let there = tx.txn.get_for_update_into(tree, &scratch.key, &mut scratch.value)?;
                if there {
                    tx.txn.write_and_commit(tree, &scratch.key, None)?;
                }
                Ok(there)
            })
        })
    }

    /// As [`write`](Self::write), with a deadline, a level, a label, a mode.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_with<R>(
        &self,
        patience: &TxnOptions,
        mut body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<Attempts<R>, Error> {
        let run = |kept: &Kept<M>, tables| {
            let worker = &kept.worker;
            Attempts::run(worker, worker.locks()?, worker.slot(), patience, |txn| {
                body(&mut WriteTxn { txn, tables })
            })
        };
        self.attempts(patience, run, Error::with_end)
    }

    /// Runs a transaction by these attempts, which log its commit, and settles that. `both` makes
    /// one error of the attempts' own and of an error about the durability of what they have read.
    pub(crate) fn attempts<'s, R, E: From<Error>>(
        &'s self,
        patience: &TxnOptions,
        run: impl FnOnce(&'s Kept<M>, Tables<'s, M>) -> Result<Attempts<R>, E>,
        both: impl FnOnce(E, Error) -> E,
    ) -> Result<Attempts<R>, E> {
        let (kept, _busy) = self.to_write()?;
        let tables = Tables { catalog: &self.inner.catalog, kept };
        let in_closure = kept.worker.user.enter(false);
        let done = run(kept, tables);
        drop(in_closure);
        let at = done.as_ref().ok().and_then(|done| done.at);
        match (done, self.settle(&kept.worker, at, patience.mode)) {
            (Ok(done), settled) => settled.map(|()| done).map_err(E::from),
            // The error may reveal what the transaction has read.
            (Err(own), settled) => {
                self.inner.background.after_failure();
                Err(match settled {
                    Ok(()) => own,
                    Err(unsettled) => both(own, unsettled),
                })
            }
        }
    }

    /// A session of this thread for a transaction that may write. Before anything is done it makes
    /// the checkpoint that is due: one that fails must not look like a write that failed.
    fn to_write(&self) -> Result<(&Kept<M>, Busy<M>), Error> {
        self.writable()?;
        let kept = self.kept(Kept::writing)?;
        let busy = Busy::new(kept, Kept::writing);
        self.keep_up(&kept.worker)?;
        Ok((kept, busy))
    }

    /// Makes the checkpoint that is due, and has the dead swept, for what they have keeps the log.
    #[inline]
    pub(crate) fn keep_up(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        if self.inner.home.is_checkpoint_due()? {
            self.inner.background.sweep_before_checkpoint();
            self.inner.home.checkpoint_if_due(worker)?;
        }
        Ok(())
    }

    /// Waits until a commit is as durable as it is to be; without one, until what was read is.
    ///
    /// # Errors
    ///
    /// [`Error::CommitUnknown`]; without a commit [`Error::ReadsUnknown`].
    pub(crate) fn settle(
        &self,
        worker: &StoreSession<M>,
        at: Option<u64>,
        mode: Option<Mode>,
    ) -> Result<(), Error> {
        let mode = mode.unwrap_or(self.inner.home.sizes.mode);
        // A commit in mode `None` waits for nothing.
        if let Some(newest) = self.settles(at, mode)?
            && mode != Mode::None
        {
            worker.wait_for_commit(at, newest, mode).map_err(|why| Error::unsettled(at, why))?;
        }
        // A transaction that could not be rolled back keeps its pages in hand for a sweep.
        if !worker.is_given_up() {
            worker.tidy();
        }
        Ok(())
    }

    /// Shows a commit, unless it is to be durable first. Returns as far as what the log has is to
    /// be as durable as the mode says.
    ///
    /// # Errors
    ///
    /// As [`settle`](Self::settle).
    pub(crate) fn settles(&self, at: Option<u64>, mode: Mode) -> Result<Option<Lsn>, Error> {
        self.unsettled(at, mode).map_err(|why| Error::unsettled(at, why))
    }

    fn unsettled(&self, at: Option<u64>, mode: Mode) -> Result<Option<Lsn>, Error> {
        let home = &self.inner.home;
        match at {
            Some(at) => {
                if mode != Mode::Full {
                    home.shared.show(Lsn(at))?;
                }
                Ok(Some(Lsn(at)))
            }
            // It may have read what is committed and not yet durable. It waits for no change that
            // another had not committed, which it cannot have read, nor for its own, if it failed.
            None if mode == Mode::Full && home.log.flushed() < home.log.end() => {
                let newest = home.log.newest_commit()?;
                Ok(newest.filter(|commit| home.log.flushed() <= *commit))
            }
            None => Ok(None),
        }
    }

    /// Makes a checkpoint: all pages that are changed go to the disk, and the log before them goes.
    /// What the dead left is swept first, and their transactions undone. Waits for another thread
    /// that just makes one, for that may have begun before the last change: as long as it takes,
    /// so for ever if its process is stopped.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.writable()?;
        let kept = self.kept(Kept::writing)?;
        self.inner.home.checkpoint_anew(&kept.worker)
    }

    /// Looks for dead threads, and puts right what they left: others that wait do it, too. Returns
    /// how many there were. Waits for the thread of this process that undoes what a crash found
    /// open; what a thread of another process is just at is left to that.
    ///
    /// # Errors
    ///
    /// [`Error::NotUndone`] if a transaction of the dead could not be undone: the others were.
    /// Those of the parts.
    pub fn sweep(&self) -> Result<usize, Error> {
        self.writable()?;
        // The child of a fork would wait for a thread that it does not have.
        self.inner.home.manager.region().check()?;
        self.inner.background.wait_for_sweep();
        self.inner.home.sweep()
    }

    /// The transactions that could not be undone when this process swept last, each as an
    /// [`Error::NotUndone`]: those of the dead, and of living threads those that are too old, where
    /// the thread died that was just undoing them. Of the child of a fork: none.
    pub fn not_undone(&self) -> Vec<Error> {
        self.inner.home.not_undone()
    }

    /// The names of all tables that have a record, in order. O(tables), those without a record
    /// among them.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        let tables = self.read(|tx| tables(&tx.snapshot))?;
        Ok(tables.into_iter().map(|table| table.0).collect())
    }

    /// What the catalog has of all tables, also of those without a record, in order of their names.
    /// O(tables).
    ///
    /// # Errors
    ///
    /// Those of the parts.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-infos-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&FRUIT, "pear", 3)?;
    /// let fruit = &store.table_infos()?[0];
    /// assert_eq!((fruit.key.as_deref(), fruit.value.as_deref()), (Some("str"), Some("u64")));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn table_infos(&self) -> Result<Vec<TableInfo>, Error> {
        self.read(|tx| infos(&tx.snapshot))
    }

    /// Returns what the catalog has of one table; none if the table does not exist. O(log tables),
    /// and a lookup in memory once the process has used the table.
    ///
    /// # Errors
    ///
    /// [`Error::NameTooLong`]; those of the parts.
    pub fn table_info(&self, name: &str) -> Result<Option<TableInfo>, Error> {
        let kept = self.kept(Kept::reading)?;
        let _busy = Busy::new(kept, Kept::reading);
        let entry = self.inner.catalog.find(&kept.worker, name)?;
        Ok(entry.map(|entry| TableInfo::of(name.to_owned(), entry)))
    }

    /// What is going on in the store, in all processes.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn counts(&self) -> Result<Counts, Error> {
        let kept = self.kept(Kept::writing)?;
        let totals = kept.worker.locks()?.totals()?;
        Ok(Counts {
            locks: totals.requests + totals.weak + totals.ranges,
            transactions: totals.owners + totals.orphans,
            undone: self.inner.home.shared.undone()?,
        })
    }

    /// Closes the store as a drop of this handle does, and tells what went wrong. Says whether this
    /// was the last handle of this `open`: clones are others, and each transaction, kept snapshot
    /// and future has one. The last one of the last process undoes what the dead left, makes a
    /// checkpoint, and takes the shared memory away; it does not if the folder was removed.
    ///
    /// # Errors
    ///
    /// Those of [`sweep`](Self::sweep) and [`checkpoint`](Self::checkpoint); [`Error::Open`] if the
    /// folder or the memory is not what it was; [`Error::Region`] in the child of a fork. This
    /// process has left the store then, as if it had been killed: nothing that was committed is
    /// lost, and the next that opens it goes on.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-close-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let other = store.clone();
    /// store.put(&FRUIT, "pear", 3)?;
    /// assert!(!store.close()?);
    /// assert!(other.close()?);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn close(self) -> Result<bool, Error> {
        // Of handles that are closed at the same time one is the last.
        let Some(mut inner) = Arc::into_inner(self.inner) else { return Ok(false) };
        inner.close().map(|()| true)
    }

    /// The log's end, in bytes since the store was made; 0 in the child of a fork.
    pub fn log_end(&self) -> u64 {
        self.inner.home.log.end().0
    }
}

/// A flag that is up while a session is in use.
struct Busy<M: ConstMachine> {
    kept: NonNull<Kept<M>>,
    flag: fn(&Kept<M>) -> &Cell<bool>,
}

impl<M: ConstMachine> Busy<M> {
    #[inline]
    fn new(kept: &Kept<M>, flag: fn(&Kept<M>) -> &Cell<bool>) -> Self {
        flag(kept).set(true);
        Self { kept: NonNull::from(kept), flag }
    }
}

impl<M: ConstMachine> Drop for Busy<M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: only the last `Busy` of a session drops the hold on it, and this is one.
        let kept = unsafe { self.kept.as_ref() };
        (self.flag)(kept).set(false);
        let over = kept.spare.get() || kept.worker.is_given_up();
        if over && !kept.reads.get() && !kept.writes.get() {
            let is_it = |held: &dyn AnyHeld| {
                held.any().downcast_ref::<Held<M>>().is_some_and(|held| held.kept == self.kept)
            };
            let _ = SESSIONS.try_with(|all| all.borrow_mut().retain(|(_, held)| !is_it(&**held)));
        }
    }
}

/// A session that is in use, for longer than a transaction: calls of the same thread meanwhile, by
/// a closure of the caller's too, leave it where it is.
pub(crate) struct InUse<'s, M: ConstMachine> {
    busy: Busy<M>,
    of: PhantomData<&'s Store<M>>,
}

impl<M: ConstMachine> Deref for InUse<'_, M> {
    type Target = Kept<M>;

    fn deref(&self) -> &Kept<M> {
        // SAFETY: the store is borrowed, and no `Busy` drops the hold on a session that is in use.
        unsafe { self.busy.kept.as_ref() }
    }
}

impl<M: ConstMachine> Inner<M> {
    fn close(&mut self) -> Result<(), Error> {
        self.closed = true;
        // In the child of a fork they are the parent's.
        self.home.manager.region().check()?;
        self.background.end();
        self.sessions.clear();
        let Some(folder) = &self.folder else { return Ok(()) };
        folder.close(|| {
            // The memory has what is not undone yet: it stays then.
            self.home.sweep()?;
            let worker = self.home.worker()?;
            // A process that is dying may have the right to still.
            let made = self.home.checkpoint(&worker)?;
            let why = "a process that is dying has a checkpoint to make still";
            made.then_some(()).ok_or_else(|| Error::Engine(why.to_owned()))
        })
    }
}

impl<M: ConstMachine> Drop for Inner<M> {
    fn drop(&mut self) {
        if !self.closed {
            // Nobody is there to be told.
            let _ = self.close();
        }
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
