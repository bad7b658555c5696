//! From the names of tables to their trees: the catalog, which is a tree itself.

use core::time::Duration;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use latchwork_lockmgr::Wait;
use latchwork_machine::ConstMachine;

use crate::engine::Engine;
use crate::entry::{Entry, TableInfo, Types, Wanted, said};
use crate::files::inner::StoreInner;
use crate::files::session::StoreSession;
use crate::idle::{Kept, Scratch, Sessions};
use crate::names::{Found, NAME_MAX};
use crate::seen::View;
use crate::table::Asked;
use crate::{Attempts, Error, Key, Snapshot, Table, Txn, TxnOptions, Value};

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

/// With this begins the name of the table to which a migration moves the records of the one whose
/// name follows. Behind the migration it has the tree from before, without a record.
const HIDDEN: &str = "\0next ";

/// The name of the table to which a migration moves the records of this one.
pub(crate) fn hidden(name: &str) -> Vec<u8> {
    [HIDDEN.as_bytes(), name.as_bytes()].concat()
}

/// What tools call such a table; none if it is another one.
pub(crate) fn as_shown(name: &str) -> Option<String> {
    let of = name.strip_prefix(HIDDEN)?;
    let end = of.floor_char_boundary(NAME_MAX - 20);
    Some(format!("{} (migration)", &of[..end]))
}

/// The tables of which a snapshot sees a record.
pub(crate) fn tables<E: Engine>(snapshot: &Snapshot<'_, E>) -> Result<Vec<(String, Entry)>, Error> {
    let mut tables = entries(snapshot)?;
    let mut failed = Ok(());
    tables.retain(|(name, entry)| {
        if name.starts_with(HIDDEN) {
            return false;
        }
        if entry.moving {
            failed = Err(Error::Migrating { table: name.clone() });
            return false;
        }
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
    let entries = entries.filter(|(name, _)| !name.starts_with(HIDDEN));
    Ok(entries.map(|(name, entry)| TableInfo::of(name, entry)).collect())
}

/// The tables of a store, by their names.
pub(crate) struct Catalog<M: ConstMachine> {
    home: Arc<StoreInner<M>>,
    sessions: Arc<Sessions<M>>,
    /// As far as they were asked for, since so many migrations had begun.
    known: RwLock<(u64, HashMap<String, Entry>)>,
}

impl<M: ConstMachine> Catalog<M> {
    pub(crate) fn new(home: &Arc<StoreInner<M>>, sessions: &Arc<Sessions<M>>) -> Self {
        Self { home: home.clone(), sessions: sessions.clone(), known: RwLock::default() }
    }

    /// Finds a table.
    pub(crate) fn find(
        &self,
        worker: &StoreSession<M>,
        name: &str,
    ) -> Result<Option<Entry>, Error> {
        // Before the record is read.
        let migrations = self.home.shared.migrations()?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.0 == migrations
            && let Some(entry) = known.1.get(name)
        {
            return Ok(Some(entry.clone()));
        }
        drop(known);
        let Some(entry) = self.read(worker, name.as_bytes())? else { return Ok(None) };
        self.insert(name, &entry, migrations);
        Ok(Some(entry))
    }

    /// Reads a table's record.
    pub(crate) fn read(
        &self,
        worker: &StoreSession<M>,
        name: &[u8],
    ) -> Result<Option<Entry>, Error> {
        fits(name)?;
        let mut bytes = Vec::new();
        worker.about_to_read()?;
        let mut found = worker.newest(CATALOG, name, &mut bytes)?;
        // A table that was committed before the thread looked stays. If this said no of one, its
        // readers would take it for empty; a transaction may be changing the record of it.
        let (low, end) = worker.read_at();
        let view = View::new(end.saturating_sub(1), low);
        while found.there && !view.sees(found.stamp, worker)? {
            found = worker.before(CATALOG, name, found.stamp, &mut bytes)?;
        }
        found.there.then(|| Entry::of(&bytes)).transpose()
    }

    /// Makes a table, or records its types if it has none, in a transaction of its own, unless
    /// another thread is faster: for that one it waits as for a lock, and not at all with
    /// [`Wait::Never`]; without a deadline for ten seconds. For the lock manager does not find a
    /// cycle through the transaction that is to use the table, whose locks have another owner.
    pub(crate) fn make(&self, name: &str, wanted: &Wanted, wait: Wait) -> Result<Entry, Error> {
        fits(name.as_bytes())?;
        let migrations = self.home.shared.migrations()?;
        let (types, version) = wanted;
        let entry = self.change("new table", wait, &mut |catalog| {
            let Some(mut entry) = catalog.get(name.as_bytes())? else {
                let entry = Entry::new(catalog.make_root()?, types.clone(), *version);
                return catalog.put(name.as_bytes(), &entry).map(|()| entry);
            };
            if entry.types.is_none() && types.is_some() && entry.version == *version {
                entry.types.clone_from(types);
                catalog.put(name.as_bytes(), &entry)?;
            }
            Ok(entry)
        })?;
        // Its commit is not shown: with it all would be that others have committed before, and that
        // is to be durable first. Those that look for the table see it in any case.
        self.insert(name, &entry, migrations);
        Ok(entry)
    }

    /// Changes records of the catalog, in a transaction of its own. It waits for others as for a
    /// lock, without a deadline for ten seconds.
    pub(crate) fn change<R>(
        &self,
        label: &'static str,
        wait: Wait,
        body: &mut dyn FnMut(&mut Change<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let home = &self.home;
        let worker = self.sessions.worker(home)?;
        let made = Cell::new(None);
        let mut patience = TxnOptions { label, ..TxnOptions::default() };
        match wait {
            Wait::Until(deadline) => patience.time = deadline.left::<M>(),
            Wait::Never => patience.time = Duration::ZERO,
            _ => {}
        }
        let done = Attempts::run(&worker, worker.locks()?, worker.slot(), &patience, |txn| {
            // Of an attempt before.
            made.set(None);
            worker.tables_are_found()?;
            worker.settle_all(worker.slot(), true)?;
            body(&mut Change { txn, worker: &worker, made: &made })
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
        Ok(done.value)
    }

    /// Remembers a table that was read when so many migrations had begun.
    fn insert(&self, name: &str, entry: &Entry, migrations: u64) {
        self.home.name_table(entry.tree, name);
        if entry.types.is_none() || entry.moving {
            // Another process records the types, or ends the migration.
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.0 < migrations {
            *known = (migrations, HashMap::new());
        }
        if known.0 == migrations {
            known.1.insert(name.to_owned(), entry.clone());
        }
    }
}

/// A transaction that changes the catalog.
pub(crate) struct Change<'x, 's, M: ConstMachine> {
    txn: &'x mut Txn<'s, StoreSession<M>, M>,
    worker: &'x StoreSession<M>,
    made: &'x Cell<Option<u64>>,
}

impl<M: ConstMachine> Change<'_, '_, M> {
    /// A table's record, which no other transaction changes until this one ends.
    pub(crate) fn get(&mut self, name: &[u8]) -> Result<Option<Entry>, Error> {
        let bytes = self.txn.get_raw_for_update(CATALOG, name)?;
        bytes.map(|bytes| Entry::of(&bytes)).transpose()
    }

    pub(crate) fn put(&mut self, name: &[u8], entry: &Entry) -> Result<(), Error> {
        put_entry(self.txn, self.worker, name, entry)
    }

    /// The root of a new table: one at most.
    pub(crate) fn make_root(&mut self) -> Result<u32, Error> {
        let root = self.worker.make_root()?;
        self.made.set(Some(u64::from(root)));
        Ok(root)
    }
}

/// Writes a table's record.
pub(crate) fn put_entry<M: ConstMachine>(
    txn: &mut Txn<'_, StoreSession<M>, M>,
    worker: &StoreSession<M>,
    name: &[u8],
    entry: &Entry,
) -> Result<(), Error> {
    // One more byte would make it a long value.
    let room = worker.home.record_max.saturating_sub(1 + name.len());
    txn.write_raw(CATALOG, name, Some(&entry.bytes(room)))
}

pub(crate) fn fits(name: &[u8]) -> Result<(), Error> {
    match name.len() > NAME_MAX {
        true => Err(Error::NameTooLong { table: String::from_utf8_lossy(name).into_owned() }),
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
    pub(crate) fn find<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        snapshot: &Snapshot<'_, StoreSession<M>>,
    ) -> Result<Option<u32>, Error> {
        match self.known(table.name(), table.tag())? {
            Some(found) => Ok(Some(found.tree)),
            None => self.look_in(&table.asked(), snapshot),
        }
    }

    /// Looks for a table that a snapshot reads.
    #[cold]
    fn look_in(
        &self,
        asked: &Asked,
        snapshot: &Snapshot<'_, StoreSession<M>>,
    ) -> Result<Option<u32>, Error> {
        let Some(found) = self.look(asked)? else { return Ok(None) };
        let mut bytes = Vec::new();
        // One from before a migration has its records in another tree, and one from the middle of a
        // migration that was taken back only some of them.
        if snapshot.get_into(CATALOG, asked.name.as_bytes(), &mut bytes)?
            && !Entry::of(&bytes).is_ok_and(|then| then.tree == found.tree && !then.moving)
        {
            self.kept.trees.borrow_mut().renew(u64::MAX);
            return Err(Error::SnapshotTooOld { at: snapshot.at() });
        }
        Ok(Some(found.tree))
    }

    /// What the session found out about a table since the last migration began.
    #[inline]
    fn known(&self, name: &'static str, tag: u64) -> Result<Option<Found>, Error> {
        let migrations = self.catalog.home.shared.migrations()?;
        let mut trees = self.kept.trees.borrow_mut();
        if trees.at != migrations {
            trees.renew(migrations);
        }
        Ok(trees.find(name, tag))
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
        if entry.moving {
            return Err(Error::Migrating { table: name.to_owned() });
        }
        if !entry.is_of(&key, &value, version) {
            let (table, stored) = (name.to_owned(), entry.said());
            return Err(Error::TableType { table, stored, requested: said(&key, &value, version) });
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
        txn: &mut Txn<'_, StoreSession<M>, M>,
    ) -> Result<u32, Error> {
        match self.known(table.name(), table.tag())? {
            Some(Found { tree, settled: true }) => {
                self.found_for(txn)?;
                Ok(tree)
            }
            _ => self.make_asked(&table.asked(), txn),
        }
    }

    /// Notes when the tables were looked up that the transaction uses from here on.
    #[inline]
    fn found_for(&self, txn: &mut Txn<'_, StoreSession<M>, M>) -> Result<(), Error> {
        let (at, of) = (self.kept.trees.borrow().at, &self.kept.worker.tables_at);
        if of.get() != at {
            // A write that was put off is one to a table as it was found before.
            txn.savepoint()?;
            of.set(at);
        }
        Ok(())
    }

    /// The same of any types.
    #[cold]
    pub(crate) fn make_asked(
        &self,
        asked: &Asked,
        txn: &mut Txn<'_, StoreSession<M>, M>,
    ) -> Result<u32, Error> {
        let known = self.known(asked.name, asked.tag)?;
        self.found_for(txn)?;
        let found = match known {
            Some(found) if found.settled => Some(found),
            _ => self.look(asked)?,
        };
        if let Some(found) = found.filter(|found| found.settled) {
            return Ok(found.tree);
        }
        let wanted = (Types::of(&asked.key, &asked.value), asked.version);
        let mut entry = None;
        let tree = txn.make_table((CATALOG, asked.name), |wait| {
            let made = self.catalog.make(asked.name, &wanted, wait)?;
            Ok(entry.insert(made).tree)
        })?;
        entry.map_or(Ok(()), |entry| self.checked(asked, &entry).map(drop))?;
        Ok(tree)
    }
}
