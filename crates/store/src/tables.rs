//! From the names of tables to their trees: the catalog, which is a tree itself.

use core::time::Duration;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use latchwork_lockmgr::Wait;
use latchwork_machine::ConstMachine;

use crate::engine::Engine;
use crate::entry::{Entry, TableInfo, Types, Wanted, said};
use crate::files::home::Home;
use crate::files::worker::Worker;
use crate::idle::{Kept, Scratch, Sessions};
use crate::names::{Found, NAME_MAX};
use crate::seen::View;
use crate::table::Asked;
use crate::{Attempts, Error, Key, Patience, Snapshot, Table, Txn, Value};

pub(crate) use crate::entry::{CATALOG_NAME, root_of};

/// The tree that has the names of all others.
pub(crate) const CATALOG: u32 = 0;

/// With this begin the records of the catalog that are no table's. No name begins so, for names are
/// UTF-8.
pub(crate) const INNER: &[u8] = b"\xff";
/// And with this those of them that say which pages are free.
pub(crate) const MAP: &[u8] = b"\xfffree";
/// This one says to which log the pages belong.
pub(crate) const SIGNATURE: &[u8] = b"\xfflog";

/// How much memory a session keeps of what values took: one that is longer gives it back.
pub(crate) const KEPT_BYTES: usize = 1 << 20;

/// The tables of which a snapshot sees a record.
pub(crate) fn tables<E: Engine>(snapshot: &Snapshot<'_, E>) -> Result<Vec<(String, Entry)>, Error> {
    let mut tables = entries(snapshot)?;
    let mut failed = Ok(());
    tables.retain(|(_, entry)| {
        let mut any = false;
        let scanned = snapshot.scan_raw(entry.tree, .., false, &mut |_, _| {
            any = true;
            Ok(false)
        });
        if scanned.is_err() {
            failed = scanned;
        }
        any
    });
    failed.map(|()| tables)
}

/// All tables that a snapshot sees, also those without a record.
pub(crate) fn entries<E: Engine>(
    snapshot: &Snapshot<'_, E>,
) -> Result<Vec<(String, Entry)>, Error> {
    let mut tables = Vec::new();
    snapshot.scan_raw(CATALOG, ..INNER, false, &mut |name, entry| {
        tables.push((String::from_utf8_lossy(name).into_owned(), Entry::of(entry)?));
        Ok(true)
    })?;
    Ok(tables)
}

/// The same, as tools are told of them.
pub(crate) fn infos<E: Engine>(snapshot: &Snapshot<'_, E>) -> Result<Vec<TableInfo>, Error> {
    let entries = entries(snapshot)?.into_iter();
    Ok(entries.map(|(name, entry)| TableInfo::of(name, entry)).collect())
}

/// The tables of a store, by their names.
pub(crate) struct Catalog<M: ConstMachine> {
    home: Arc<Home<M>>,
    sessions: Arc<Sessions<M>>,
    /// As far as they were asked for.
    known: RwLock<HashMap<String, Entry>>,
}

impl<M: ConstMachine> Catalog<M> {
    pub(crate) fn new(home: &Arc<Home<M>>, sessions: &Arc<Sessions<M>>) -> Self {
        Self { home: home.clone(), sessions: sessions.clone(), known: RwLock::default() }
    }

    /// Finds a table.
    pub(crate) fn find(&self, worker: &Worker<M>, name: &str) -> Result<Option<Entry>, Error> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        // Another process may have recorded the types since.
        if let Some(entry) = known.get(name).filter(|entry| entry.types.is_some()) {
            return Ok(Some(entry.clone()));
        }
        drop(known);
        fits(name)?;
        let (key, mut bytes) = (name.as_bytes(), Vec::new());
        worker.about_to_read()?;
        let mut found = worker.newest(CATALOG, key, &mut bytes)?;
        // A table that was committed before the thread looked stays. If this said no of one, its
        // readers would take it for empty; a transaction may be recording the types of it.
        let (low, end) = worker.read_at();
        let view = View::new(end.saturating_sub(1), low);
        while found.there && !view.sees(found.stamp, worker)? {
            found = worker.before(CATALOG, key, found.stamp, &mut bytes)?;
        }
        if !found.there {
            return Ok(None);
        }
        let entry = Entry::of(&bytes)?;
        self.insert(name, &entry);
        Ok(Some(entry))
    }

    /// Makes a table, or records its types if it has none, in a transaction of its own, unless
    /// another thread is faster: for that one it waits as for a lock, and not at all with
    /// [`Wait::Never`]; without a deadline for ten seconds. For the lock manager does not find a
    /// cycle through the transaction that is to use the table, whose locks have another owner.
    pub(crate) fn make(&self, name: &str, wanted: &Wanted, wait: Wait) -> Result<Entry, Error> {
        fits(name)?;
        let home = &self.home;
        let worker = self.sessions.worker(home)?;
        let made = Cell::new(None);
        let mut patience = Patience { label: "new table", ..Patience::default() };
        match wait {
            Wait::Until(deadline) => patience.time = deadline.left::<M>(),
            Wait::Never => patience.time = Duration::ZERO,
            _ => {}
        }
        let room = home.record_max.saturating_sub(1 + name.len());
        let done = Attempts::run(&worker, worker.locks()?, worker.slot(), &patience, |txn| {
            // Of an attempt before.
            made.set(None);
            worker.settle_all(worker.slot(), true)?;
            let (types, version) = wanted;
            if let Some(bytes) = txn.get_raw_for_update(CATALOG, name.as_bytes())? {
                let mut entry = Entry::of(&bytes)?;
                if entry.types.is_none() && types.is_some() && entry.version == *version {
                    entry.types.clone_from(types);
                    txn.write_raw(CATALOG, name.as_bytes(), Some(&entry.bytes(room)))?;
                }
                return Ok(entry);
            }
            let tree = worker.make_root()?;
            let entry = Entry::new(tree, types.clone(), *version);
            txn.write_raw(CATALOG, name.as_bytes(), Some(&entry.bytes(room)))?;
            made.set(Some(u64::from(tree)));
            Ok(entry)
        });
        // To ask the catalog whether it has a root means to read it all.
        if let (Ok(_), Some(root)) = (&done, made.get()) {
            home.shared.let_go(worker.slot(), root)?;
        }
        // Of one that could not be rolled back the root is a sweep's, with the record of it.
        if !worker.is_given_up() {
            worker.settle_all(worker.slot(), true)?;
        }
        let done = done.map_err(|why| match why {
            // The transaction that is to use the table has a deadline of its own to tell of.
            Error::Deadline { last, .. } => *last,
            why => why,
        })?;
        // Its commit is not shown: with it all would be that others have committed before, and that
        // is to be durable first. Those that look for the table see it in any case.
        self.insert(name, &done.value);
        Ok(done.value)
    }

    fn insert(&self, name: &str, entry: &Entry) {
        self.home.name_table(entry.tree, name);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.to_owned(), entry.clone());
    }
}

pub(crate) fn fits(name: &str) -> Result<(), Error> {
    match name.len() > NAME_MAX {
        true => Err(Error::NameTooLong { table: name.to_owned() }),
        false => Ok(()),
    }
}

/// From tables to trees, for one session.
pub(crate) struct Tables<'s, M: ConstMachine> {
    pub(crate) catalog: &'s Catalog<M>,
    pub(crate) kept: &'s Kept<M>,
}

impl<M: ConstMachine> Clone for Tables<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for Tables<'_, M> {}

impl<M: ConstMachine> Tables<'_, M> {
    /// The table's tree; none if nothing was ever written to it.
    ///
    /// # Errors
    ///
    /// [`Error::TableType`].
    #[inline]
    pub(crate) fn find<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Option<u32>, Error> {
        let known = self.kept.trees.borrow_mut().find(table.name(), table.tag());
        match known {
            Some(found) => Ok(Some(found.tree)),
            None => Ok(self.look(&table.asked())?.map(|found| found.tree)),
        }
    }

    /// Looks for a table that the session has not used with these types.
    #[cold]
    fn look(&self, asked: &Asked) -> Result<Option<Found>, Error> {
        let entry = self.catalog.find(&self.kept.worker, asked.name)?;
        entry.map(|entry| self.checked(asked, &entry)).transpose()
    }

    /// Compares the types that a call names with those of the catalog, and remembers the table.
    fn checked(&self, asked: &Asked, entry: &Entry) -> Result<Found, Error> {
        let Asked { name, key, value, version, .. } = *asked;
        if !entry.is_of(key, value, version) {
            let (table, stored) = (name.to_owned(), entry.said());
            return Err(Error::TableType { table, stored, requested: said(key, value, version) });
        }
        let settled = entry.types.is_some() || key.is_any() || value.is_any();
        let found = Found { tree: entry.tree, settled };
        self.kept.trees.borrow_mut().insert(name, asked.tag, found);
        Ok(found)
    }

    /// Does something with the session's scratch memory: with some of its own, if that is in use.
    #[inline]
    pub(crate) fn with_scratch<R>(&self, work: impl FnOnce(&mut Scratch) -> R) -> R {
        let mut scratch = self.kept.scratch.take();
        let done = work(&mut scratch);
        if scratch.value.capacity() > KEPT_BYTES {
            scratch.value = Vec::new();
        }
        self.kept.scratch.set(scratch);
        done
    }

    /// The table's tree, for a transaction that may write: the table is made if there is none, and
    /// its types are recorded if it has none. What another transaction makes is waited for as for a
    /// lock.
    ///
    /// # Errors
    ///
    /// [`Error::TableType`]; those of making it.
    #[inline]
    pub(crate) fn make<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        txn: &mut Txn<'_, Worker<M>, M>,
    ) -> Result<u32, Error> {
        let known = self.kept.trees.borrow_mut().find(table.name(), table.tag());
        match known {
            Some(Found { tree, settled: true }) => Ok(tree),
            _ => self.make_asked(&table.asked(), txn),
        }
    }

    /// The same of any types.
    #[cold]
    pub(crate) fn make_asked(
        &self,
        asked: &Asked,
        txn: &mut Txn<'_, Worker<M>, M>,
    ) -> Result<u32, Error> {
        let known = self.kept.trees.borrow_mut().find(asked.name, asked.tag);
        let found = match known {
            Some(found) if found.settled => Some(found),
            _ => self.look(asked)?,
        };
        if let Some(found) = found.filter(|found| found.settled) {
            return Ok(found.tree);
        }
        let wanted = (Types::of(asked.key, asked.value), asked.version);
        let mut entry = None;
        let tree = txn.make_table((CATALOG, asked.name), |wait| {
            let made = self.catalog.make(asked.name, &wanted, wait)?;
            Ok(entry.insert(made).tree)
        })?;
        entry.map_or(Ok(()), |entry| self.checked(asked, &entry).map(drop))?;
        Ok(tree)
    }
}
