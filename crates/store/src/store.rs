//! A store, and the sessions that a thread has in it.

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
use crate::retry::Runs;
use crate::snapshot::Snapshot;
use crate::tables::{Catalog, Tables, as_shown, entries, infos, tables};
use crate::typed::{ReadTxn, TxnRef, WriteTxn};
use crate::{Attempts, Error, Key, Table, TableInfo, TxnOptions, Value};

/// A store: tables that any number of threads and processes read and write at the same time.
///
/// A clone is another handle to the same store. When the last handle in the last process is
/// dropped, the store is closed. If a process is killed, the other processes continue, or the next
/// process that opens the store recovers it.
///
/// A drop reports no error; [`close`](Self::close) does. Rust does not drop a `static`, and
/// [`std::process::exit`] drops nothing. A process that ends with a store in a `static` counts as
/// killed: no commit is lost, and the shared memory stays in `/dev/shm` until the store is opened
/// again. Call [`close`](Self::close) on such a store before `main` returns. The store registers no
/// handler for the exit of the process, because other threads may still use it then. If the folder
/// of the store was removed, the next store that the same user opens removes the memory; `latchwork
/// store forget-memory --list` lists such memory.
///
/// Each thread that uses the store occupies a slot in the shared memory until the thread ends. In
/// the child of a fork, calls fail with [`Error::Region`]: open the store again there. Two `open`
/// calls for one folder in a process are two handles with slots of their own.
pub struct Store<M: ConstMachine = Machine> {
    inner: Arc<Inner<M>>,
}

/// Counters of the activity in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Locks that are held or requested.
    pub locks: u64,
    /// Transactions that hold or request locks.
    pub transactions: u64,
    /// Transactions of dead threads that were rolled back since the last recovery.
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
    /// Set if this process only reads.
    reading: Option<Reading>,
    /// Set by `close`, so that the drop does nothing more.
    closed: bool,
}

impl<M: ConstMachine> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

thread_local! {
    /// This thread's sessions, each with the address of the `Sessions` of its store.
    static SESSIONS: RefCell<Vec<(usize, Box<dyn AnyHeld>)>> = const { RefCell::new(Vec::new()) };
}

/// How many sessions of a store a thread keeps. A call within the closure of another call needs a
/// session of its own.
const KEPT: usize = 2;

impl Store<Machine> {
    /// Opens the store in a folder. Creates it if it does not exist, joins it if other processes
    /// have it open, and recovers it after a crash. Every process makes the same call.
    ///
    /// Blocks while another process opens the store, recovers it or closes it, without a limit
    /// unless `Options::wait` sets one. Recovery reads the log since the last checkpoint. Creates
    /// missing parent folders.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] names the reason and what to do. Otherwise errors of the [store's
    /// parts](Error).
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

    /// Opens the store in a folder with the given options; see [`open`](Self::open). Blocks for at
    /// most `Options::wait`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the sizes are invalid; [`Error::Open`] with the reason and what to do;
    /// errors of the [store's parts](Error).
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

    /// Opens a store in shared memory and on a disk that the caller provides: for a single process,
    /// or for tests. Only one of the users of the region may be in this call at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the sizes are invalid; errors of the [store's parts](Error).
    pub fn in_region(
        region: &Region<M>,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        sizes: &Sizes,
    ) -> Result<Self, Error> {
        Ok(Self::of(StoreInner::open(region, disk, folder, sizes, 1)?, None, Opened::default()))
    }

    /// Opens a store as [`in_region`](Self::in_region) does, with a number of threads that redo the
    /// log in no particular order.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the sizes are invalid; errors of the [store's parts](Error).
    #[cfg(feature = "internals")]
    pub fn in_region_with(
        region: &Region<M>,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        sizes: &Sizes,
        lanes: usize,
    ) -> Result<Self, Error> {
        Ok(Self::of(StoreInner::open(region, disk, folder, sizes, lanes)?, None, Opened::default()))
    }

    /// Returns address, length and name of the shared structures, for reports on cache lines. A
    /// structure within another one comes after it. `pages` is correct only for a store that always
    /// fitted into its cache.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork; errors of the [store's parts](Error).
    #[cfg(feature = "internals")]
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

    /// Returns the sizes in force: those of the files and of the shared memory, and this process's
    /// own `mode`, `log_budget` and `history`. `cache` is the size to which the cache may currently
    /// grow.
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

    /// Returns what this process found when it opened the store.
    pub fn opened(&self) -> &Opened {
        &self.inner.opened
    }

    /// Returns [`Error::ReadOnly`] if the store was opened for reading only.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        if self.inner.reading.is_some() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The internals, for tools.
    pub(crate) fn home(&self) -> &Arc<StoreInner<M>> {
        &self.inner.home
    }

    /// The catalog, for tools.
    pub(crate) fn catalog(&self) -> &Catalog<M> {
        &self.inner.catalog
    }

    /// The admission queue of tasks.
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.inner.turns
    }

    /// The background threads, which work for tasks.
    pub(crate) fn background(&self) -> &Background<M> {
        &self.inner.background
    }

    /// Takes a session that belongs to no thread. A transaction object uses it.
    pub(crate) fn lone(&self) -> Result<Lone<M>, Error> {
        self.inner.sessions.take(&self.inner.home)
    }

    /// Returns a session that an object no longer uses.
    pub(crate) fn give_back(&self, lone: Lone<M>) {
        self.inner.sessions.give(lone);
    }

    /// Returns a session of this thread, for tools. It has no other user while the returned value
    /// lives.
    pub(crate) fn session(&self) -> Result<InUse<'_, M>, Error> {
        let kept = self.kept(Kept::writing)?;
        Ok(InUse { busy: Busy::new(kept, Kept::writing), of: PhantomData })
    }

    /// Returns all committed tables and their trees, including tables that are not yet durable.
    /// Tools use it to find the table of a page.
    pub(crate) fn trees(&self) -> Result<Vec<(String, u32)>, Error> {
        let kept = self.kept(Kept::reading)?;
        let _busy = Busy::new(kept, Kept::reading);
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        let entries = entries(&snapshot.moved_up(self.log_end().saturating_sub(1)))?;
        let shown = |name: String| as_shown(&name).unwrap_or(name);
        Ok(entries.into_iter().map(|(name, entry)| (shown(name), entry.tree)).collect())
    }

    /// Returns a session of this thread that is free for `flag`. Pass a function as `flag`: a
    /// closure has another type in each generic caller, and this would be compiled again for each.
    #[inline]
    fn kept(&self, flag: impl Fn(&Kept<M>) -> &Cell<bool>) -> Result<&Kept<M>, Error> {
        let sessions = &self.inner.sessions;
        let key = Arc::as_ptr(sessions).addr();
        let (mut count, mut free) = (0, None);
        let looked = SESSIONS.try_with(|all| {
            let all = all.borrow();
            let mine = all.iter().filter(|(of, _)| *of == key);
            for held in mine.filter_map(|(_, held)| held.any().downcast_ref::<Held<M>>()) {
                // SAFETY: the store exists, and this thread has not dropped its hold.
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
        // SAFETY: the session belongs to the borrowed store, and stays until this thread drops its
        // hold: when the thread ends, or when the last `Busy` of a spare or given-up session is
        // dropped.
        Ok(unsafe { kept.as_ref() })
    }

    /// Adds a session for this thread.
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

    /// Runs a closure that reads a snapshot: the state of the store between two transactions. It
    /// waits for no transaction, and no transaction waits for it. It may wait for a page that is
    /// read from the disk, or that another thread is changing. The log from the snapshot on is kept
    /// while the closure runs. Within the closure of a
    /// [`write`](Self::write), the snapshot does not contain the changes of that transaction.
    ///
    /// # Errors
    ///
    /// Returns the closure's error; [`Error::SnapshotTooOld`] if the history of the snapshot was
    /// discarded; errors of the [store's parts](Error).
    ///
    /// # Panics
    ///
    /// Panics if the closure panics.
    pub fn read<R>(
        &self,
        body: impl FnOnce(&ReadTxn<'_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.read_as(body)
    }

    /// Runs a closure that reads a snapshot and returns the caller's own error type; see
    /// [`read`](Self::read) and [`write_as`](Self::write_as).
    ///
    /// # Errors
    ///
    /// Returns the closure's error, or one of [`read`](Self::read) converted to it.
    pub fn read_as<R, E: From<Error>>(
        &self,
        body: impl FnOnce(&ReadTxn<'_, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        let kept = self.kept(Kept::reading)?;
        let _busy = Busy::new(kept, Kept::reading);
        let snapshot = Snapshot::new(&kept.worker, kept.worker.slot())?;
        body(&ReadTxn { snapshot, tables: Tables { catalog: &self.inner.catalog, kept } })
    }

    /// Runs a transaction until it commits. The transaction is serializable; when this returns, it
    /// is as durable as the store's mode says. If the closure returns `Err`, the transaction is
    /// rolled back.
    ///
    /// The closure may run several times: the transaction is retried when it was aborted to break a
    /// deadlock, when another transaction changed a record that the closure had read before its
    /// first write (see [`WriteTxn::get`]), or when it was rolled back because it had been open for
    /// too long ([`Error::is_retryable`]). Other calls of the store within the closure are
    /// transactions of their own. If such a call needs a lock that this transaction holds, it fails
    /// at once with [`Error::OwnTransaction`].
    ///
    /// If a checkpoint is due, this thread makes it first. The deadline does not include the
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// - The closure's error, if it is not retryable.
    /// - [`Error::Deadline`] after ten seconds.
    /// - [`Error::CommitUnknown`]: the transaction is committed, but it is unknown whether the
    ///   commit is durable.
    /// - [`Error::ReadsUnknown`] in [`Mode::Full`], if the transaction wrote nothing or failed and
    ///   the data it has read cannot be made durable. It contains the closure's error, if any.
    /// - Errors of the [store's parts](Error), including those of the checkpoint.
    ///
    /// After any error except `CommitUnknown`, nothing was written.
    ///
    /// # Panics
    ///
    /// Panics if the closure panics; the transaction is rolled back first.
    ///
    /// # Death
    ///
    /// If the thread is killed in this call, the transaction has either committed completely or is
    /// rolled back by the sweep of another thread.
    pub fn write<R>(
        &self,
        body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.write_with(&TxnOptions::default(), body).map(|done| done.value)
    }

    /// Reads a value in a snapshot of its own. O(log n). In a store of mode [`Mode::Full`] a
    /// snapshot contains durable commits: it may lack one for which a call of another thread still
    /// waits.
    ///
    /// # Errors
    ///
    /// See [`read`](Self::read) and [`ReadTxn::get`].
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<Option<V::Owned>, Error> {
        self.read(|tx| tx.get(table, key))
    }

    /// Writes a value in a transaction of its own. O(log n), one log record. Waits for the record's
    /// lock, for up to ten seconds, and then for the disk as the mode says. Within the closure of
    /// another transaction, see [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// See [`write`](Self::write) and [`WriteTxn::put`].
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
            let (txn, tables) = (tx.inner.txn(None)?, tx.tables);
            tables.with_scratch(|scratch| {
                table.key_into(&key, &mut scratch.key)?;
                table.value_into(&value, &mut scratch.value);
                txn.write_and_commit(tree, &scratch.key, Some(&scratch.value))
            })
        })
    }

    /// Removes a record in a transaction of its own. Returns whether the record existed.
    ///
    /// # Errors
    ///
    /// See [`write`](Self::write) and [`WriteTxn::remove`].
    pub fn remove<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: K::Of<'_>,
    ) -> Result<bool, Error> {
        self.write(|tx| {
            let tree = tx.tree(table)?;
            let (txn, tables) = (tx.inner.txn(None)?, tx.tables);
            tables.with_scratch(|scratch| {
                table.key_into(&key, &mut scratch.key)?;
                let there = txn.get_for_update_into(tree, &scratch.key, &mut scratch.value)?;
                if there {
                    txn.write_and_commit(tree, &scratch.key, None)?;
                }
                Ok(there)
            })
        })
    }

    /// Runs a transaction as [`write`](Self::write) does, with a deadline, an isolation level, a
    /// label or a durability mode.
    ///
    /// # Errors
    ///
    /// See [`write`](Self::write); [`Error::Deadline`] after the given deadline.
    pub fn write_with<R>(
        &self,
        options: &TxnOptions,
        mut body: impl FnMut(&mut WriteTxn<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<Attempts<R>, Error> {
        let run = |kept: &Kept<M>, tables| {
            let worker = &kept.worker;
            let mut runs = Runs::new(worker, worker.locks()?, worker.slot(), options);
            Attempts::run(&mut runs, |runs| {
                body(&mut WriteTxn { inner: TxnRef::Runs(runs), tables })
            })
        };
        self.attempts(options, run, Error::with_end)
    }

    /// Runs a transaction with `run`, which logs the commit, and waits for its durability. `both`
    /// combines the error of `run` with an error about the durability of the data that the
    /// transaction has read.
    pub(crate) fn attempts<'s, R, E: From<Error>>(
        &'s self,
        options: &TxnOptions,
        run: impl FnOnce(&'s Kept<M>, Tables<'s, M>) -> Result<Attempts<R>, E>,
        both: impl FnOnce(E, Error) -> E,
    ) -> Result<Attempts<R>, E> {
        let (kept, _busy) = self.to_write()?;
        let tables = Tables { catalog: &self.inner.catalog, kept };
        let in_closure = kept.worker.user.enter(false);
        let done = run(kept, tables);
        drop(in_closure);
        let at = done.as_ref().ok().and_then(|done| done.at);
        match (done, self.settle(&kept.worker, at, options.mode)) {
            (Ok(done), settled) => settled.map(|()| done).map_err(E::from),
            // The error may reveal data that the transaction has read.
            (Err(own), settled) => {
                self.inner.background.after_failure();
                Err(match settled {
                    Ok(()) => own,
                    Err(unsettled) => both(own, unsettled),
                })
            }
        }
    }

    /// Returns a session of this thread for a transaction that may write. Makes a due checkpoint
    /// first, so that a failed checkpoint is not reported as a failed write.
    fn to_write(&self) -> Result<(&Kept<M>, Busy<M>), Error> {
        self.writable()?;
        let kept = self.kept(Kept::writing)?;
        let busy = Busy::new(kept, Kept::writing);
        self.keep_up(&kept.worker)?;
        Ok((kept, busy))
    }

    /// Makes a due checkpoint. Starts a sweep before it, because the transactions of dead threads
    /// retain the log.
    #[inline]
    pub(crate) fn keep_up(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        if self.inner.home.is_checkpoint_due()? {
            self.inner.background.sweep_before_checkpoint();
            self.inner.home.checkpoint_if_due(worker)?;
        }
        Ok(())
    }

    /// Waits until a commit is as durable as the mode says; without a commit, until the data that
    /// was read is.
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
        // A commit in mode `None` is not waited for.
        if let Some(newest) = self.settles(at, mode)?
            && mode != Mode::None
        {
            worker.wait_for_commit(at, newest, mode).map_err(|why| Error::unsettled(at, why))?;
        }
        // A transaction that could not be rolled back keeps its page intents for a sweep.
        if !worker.is_given_up() {
            worker.tidy();
        }
        Ok(())
    }

    /// Makes a commit visible, unless it must be durable first. Returns up to where the log must
    /// become durable according to the mode.
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
            // The transaction may have read a commit that is not yet durable. It need not wait for
            // uncommitted changes: it cannot have read those of others, and its own were rolled
            // back.
            None if mode == Mode::Full && home.log.flushed() < home.log.end() => {
                let newest = home.log.newest_commit()?;
                Ok(newest.filter(|commit| home.log.flushed() <= *commit))
            }
            None => Ok(None),
        }
    }

    /// Makes a checkpoint: writes all modified pages to the disk and releases the log before them.
    /// O(modified pages), and two syncs; transactions continue. If the thread dies, a later one
    /// makes the checkpoint. Dead threads are swept and their transactions rolled back first.
    ///
    /// Blocks while another thread makes a checkpoint, because it may have begun before the last
    /// change. If that thread's process is stopped, this call does not return until the process
    /// continues.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`]; errors of the [store's parts](Error).
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.writable()?;
        let kept = self.kept(Kept::writing)?;
        self.inner.home.checkpoint_now(&kept.worker)
    }

    /// Sweeps: looks for dead threads and rolls back what they left. A thread that waits for a lock
    /// does the same. Returns how many dead threads there were.
    ///
    /// Blocks until the background thread of this process has rolled back the transactions that
    /// recovery found open. Does not wait for a rollback that a thread of another process is doing.
    ///
    /// # Errors
    ///
    /// [`Error::NotUndone`] if a transaction of a dead thread could not be rolled back; the others
    /// were. [`Error::ReadOnly`]; errors of the [store's parts](Error).
    pub fn sweep(&self) -> Result<usize, Error> {
        self.writable()?;
        // In the child of a fork the background thread does not exist, so the wait would not end.
        self.inner.home.manager.region().check()?;
        self.inner.background.wait_for_sweep();
        self.inner.home.sweep()
    }

    /// Returns the transactions that the last sweep of this process could not roll back, each as an
    /// [`Error::NotUndone`]. These are transactions of dead threads, and transactions of living
    /// threads that are too old and whose rollback ended because the thread that did it died. Empty
    /// in the child of a fork.
    pub fn not_undone(&self) -> Vec<Error> {
        self.inner.home.not_undone()
    }

    /// Returns the names of all tables that have a record, in order; for the others see
    /// [`table_infos`](Self::table_infos). O(all tables).
    ///
    /// # Errors
    ///
    /// [`Error::Migrating`] if a table is in a migration; see [`read`](Self::read).
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        let tables = self.read(|tx| tables(&tx.snapshot))?;
        Ok(tables.into_iter().map(|table| table.0).collect())
    }

    /// Returns the catalog entries of all tables, in order of their names, including tables without
    /// a record. O(tables).
    ///
    /// # Errors
    ///
    /// See [`read`](Self::read).
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

    /// Returns the catalog entry of a table, or `None` if the table does not exist. O(log tables);
    /// a lookup in memory once the process has used the table.
    ///
    /// # Errors
    ///
    /// [`Error::NameTooLong`]; errors of the [store's parts](Error).
    pub fn table_info(&self, name: &str) -> Result<Option<TableInfo>, Error> {
        let kept = self.kept(Kept::reading)?;
        let _busy = Busy::new(kept, Kept::reading);
        let entry = self.inner.catalog.find(&kept.worker, name)?;
        Ok(entry.map(|entry| TableInfo::of(name.to_owned(), entry)))
    }

    /// Returns counters of the activity in the store, in all processes. Reads the whole lock table
    /// and all owners, which is meant for metrics. The counts are not of one instant.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn counts(&self) -> Result<Counts, Error> {
        let kept = self.kept(Kept::writing)?;
        let totals = kept.worker.locks()?.totals()?;
        Ok(Counts {
            locks: totals.requests + totals.weak + totals.ranges,
            transactions: totals.owners + totals.orphans,
            undone: self.inner.home.shared.undone()?,
        })
    }

    /// Closes this handle as a drop does, and reports errors. Returns whether it was the last
    /// handle of this `open`. Each clone, transaction, kept snapshot and future is a handle.
    ///
    /// The last handle of the last process rolls back what dead threads left, makes a checkpoint,
    /// and removes the shared memory. If the folder was removed, only the memory is removed. This
    /// may take as long as writing the whole cache, and blocks while another process opens the
    /// store.
    ///
    /// # Errors
    ///
    /// Those of [`sweep`](Self::sweep) and [`checkpoint`](Self::checkpoint); [`Error::Open`] if the
    /// folder or the memory was replaced; [`Error::Region`] in the child of a fork. After an error,
    /// this process has left the store as if it had been killed: no commit is lost, and the next
    /// process that opens the store recovers it.
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
        // Of handles that are closed at the same time, exactly one is the last.
        let Some(mut inner) = Arc::into_inner(self.inner) else { return Ok(false) };
        inner.close().map(|()| true)
    }

    /// Returns the end of the log, in bytes since the store was created; 0 in the child of a fork.
    pub fn log_end(&self) -> u64 {
        self.inner.home.log.end().0
    }
}

/// Marks a session as in use until it is dropped.
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
        if over && !kept.worker.reads.get() && !kept.writes.get() {
            let is_it = |held: &dyn AnyHeld| {
                held.any().downcast_ref::<Held<M>>().is_some_and(|held| held.kept == self.kept)
            };
            let _ = SESSIONS.try_with(|all| all.borrow_mut().retain(|(_, held)| !is_it(&**held)));
        }
    }
}

/// A session that is in use for longer than a transaction. Other calls of the same thread, also in
/// a closure of the caller's, do not drop it.
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
        // In the child of a fork they belong to the parent.
        self.home.manager.region().check()?;
        self.background.end();
        self.sessions.clear();
        let Some(folder) = &self.folder else { return Ok(()) };
        folder.close(|| {
            // The memory contains what is not rolled back yet, so it must stay if this fails.
            self.home.sweep()?;
            let worker = self.home.worker()?;
            // A dying process may still hold the right to make the checkpoint.
            let made = self.home.checkpoint(&worker)?;
            let why = "a process that is dying has a checkpoint to make still";
            made.then_some(()).ok_or_else(|| Error::Engine(why.to_owned()))
        })
    }
}

impl<M: ConstMachine> Drop for Inner<M> {
    fn drop(&mut self) {
        if !self.closed {
            // A drop cannot report an error.
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
