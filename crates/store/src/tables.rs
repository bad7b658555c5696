//! The catalog: the tree that maps names of tables to their trees.

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
use crate::snapshot::Snapshot;
use crate::table::Asked;
use crate::txn::Txn;
use crate::{Error, Key, Table, TxnOptions, Value, retry};

pub(crate) use crate::entry::{CATALOG_NAME, root_of};

/// The catalog's own tree.
pub(crate) const CATALOG: u32 = 0;

/// Prefix of the catalog's records that are not tables. No name begins with it, because names are
/// UTF-8.
pub(crate) const INNER: &[u8] = b"\xff";
/// Prefix of those records that list free pages.
pub(crate) const MAP: &[u8] = b"\xfffree";
/// The record that names the log of the pages.
pub(crate) const SIGNATURE: &[u8] = b"\xfflog";

/// Maximum size of the buffer for values that a session keeps; a larger one is freed.
pub(crate) const KEPT_BYTES: usize = 1 << 20;

/// Prefix of the name of a hidden table, followed by a table's name. A migration moves the records
/// of the table to it. After the migration it has the old tree, without records.
const HIDDEN: &str = "\0next ";

/// Returns the name of the hidden table to which a migration moves the records of this one.
pub(crate) fn hidden(name: &str) -> Vec<u8> {
    [HIDDEN.as_bytes(), name.as_bytes()].concat()
}

/// Returns the name of a hidden table for tools; `None` if the table is not hidden.
pub(crate) fn as_shown(name: &str) -> Option<String> {
    let of = name.strip_prefix(HIDDEN)?;
    let end = of.floor_char_boundary(NAME_MAX - 20);
    Some(format!("{} (migration)", &of[..end]))
}

/// Returns the tables in which a snapshot sees a record.
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

/// Returns all tables in a snapshot, including those without a record.
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

/// Returns all tables in a snapshot, as tools report them.
pub(crate) fn infos<E: Engine>(snapshot: &Snapshot<'_, E>) -> Result<Vec<TableInfo>, Error> {
    let entries = entries(snapshot)?.into_iter();
    let entries = entries.filter(|(name, _)| !name.starts_with(HIDDEN));
    Ok(entries.map(|(name, entry)| TableInfo::of(name, entry)).collect())
}

/// The tables of a store, by name.
pub(crate) struct Catalog<M: ConstMachine> {
    home: Arc<StoreInner<M>>,
    sessions: Arc<Sessions<M>>,
    /// Cached entries, and the number of migrations that had begun when they were read.
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
        // Read the number before the record.
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

    /// Reads the record of a table.
    pub(crate) fn read(
        &self,
        worker: &StoreSession<M>,
        name: &[u8],
    ) -> Result<Option<Entry>, Error> {
        fits(name)?;
        let mut bytes = Vec::new();
        worker.about_to_read()?;
        let mut found = worker.newest(CATALOG, name, &mut bytes)?;
        // A table that was committed before the thread looked must be found, or its readers would
        // take it for empty. A transaction may be changing its record, so go back to the committed
        // version.
        let (low, end) = worker.read_at();
        let view = View::new(end.saturating_sub(1), low);
        while found.there && !view.sees(found.stamp, worker)? {
            found = worker.before(CATALOG, name, found.stamp, &mut bytes)?;
        }
        found.there.then(|| Entry::of(&bytes)).transpose()
    }

    /// Creates a table, or records its types if it has none, in a transaction of its own, unless
    /// another thread does so first. Waits for such a thread as for a lock: not at all with
    /// [`Wait::Never`], and for ten seconds without a deadline. The limit is needed because the
    /// lock manager cannot detect a deadlock through the transaction that will use the table: its
    /// locks have another owner.
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
        // The commit is not shown: that would also show earlier commits of others that must become
        // durable first. Lookups of the table find it in any case.
        self.insert(name, &entry, migrations);
        Ok(entry)
    }

    /// Changes records of the catalog in a transaction of its own. Waits as for a lock; without a
    /// deadline, for ten seconds.
    pub(crate) fn change<R>(
        &self,
        label: &'static str,
        wait: Wait,
        body: &mut dyn FnMut(&mut Change<'_, '_, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let home = &self.home;
        let worker = self.sessions.worker(home)?;
        let made = Cell::new(None);
        let mut options = TxnOptions { label, ..TxnOptions::default() };
        match wait {
            Wait::Until(deadline) => options.time = deadline.left::<M>(),
            Wait::Never => options.time = Duration::ZERO,
            _ => {}
        }
        let done = retry::run(&worker, worker.locks()?, worker.slot(), &options, |txn| {
            // It may be set by an earlier attempt.
            made.set(None);
            worker.tables_are_found()?;
            worker.settle_all(worker.slot(), true)?;
            body(&mut Change { txn, worker: &worker, made: &made })
        });
        // Searching the catalog for a root would read all of it.
        if let (Ok(_), Some(root)) = (&done, made.get()) {
            home.shared.let_go(worker.slot(), root)?;
        }
        // If the transaction could not be rolled back, a sweep releases the root together with its
        // record.
        if !worker.is_given_up() {
            worker.settle_all(worker.slot(), true)?;
        }
        let done = done.map_err(|why| match why {
            // The transaction that will use the table reports its own deadline.
            Error::Deadline { last, .. } => *last,
            why => why,
        })?;
        Ok(done.value)
    }

    /// Caches a table that was read at this number of migrations.
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
    /// Returns the record of a table, which no other transaction changes until this one ends.
    pub(crate) fn get(&mut self, name: &[u8]) -> Result<Option<Entry>, Error> {
        let bytes = self.txn.get_raw_for_update(CATALOG, name)?;
        bytes.map(|bytes| Entry::of(&bytes)).transpose()
    }

    pub(crate) fn put(&mut self, name: &[u8], entry: &Entry) -> Result<(), Error> {
        put_entry(self.txn, self.worker, name, entry)
    }

    /// Creates the root of a new table; at most one per transaction.
    pub(crate) fn make_root(&mut self) -> Result<u32, Error> {
        let root = self.worker.make_root()?;
        self.made.set(Some(u64::from(root)));
        Ok(root)
    }
}

/// Writes the record of a table.
pub(crate) fn put_entry<M: ConstMachine>(
    txn: &mut Txn<'_, StoreSession<M>, M>,
    worker: &StoreSession<M>,
    name: &[u8],
    entry: &Entry,
) -> Result<(), Error> {
    // A record of the maximum length would count as a long value.
    let room = worker.home.record_max.saturating_sub(1 + name.len());
    txn.write_raw(CATALOG, name, Some(&entry.bytes(room)))
}

pub(crate) fn fits(name: &[u8]) -> Result<(), Error> {
    match name.len() > NAME_MAX {
        true => Err(Error::NameTooLong { table: String::from_utf8_lossy(name).into_owned() }),
        false => Ok(()),
    }
}

/// Maps tables to trees in one session.
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
    /// Returns the tree of a table; `None` if the table does not exist.
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
        // A snapshot from before a migration has its records in another tree; a snapshot from the
        // middle of a migration that was abandoned has only some of them.
        if snapshot.get_into(CATALOG, asked.name.as_bytes(), &mut bytes)?
            && !Entry::of(&bytes).is_ok_and(|then| then.tree == found.tree && !then.moving)
        {
            self.kept.trees.borrow_mut().renew(u64::MAX);
            return Err(Error::SnapshotTooOld { at: snapshot.at() });
        }
        Ok(Some(found.tree))
    }

    /// Returns what the session has cached about a table since the last migration began.
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

    /// Compares the types in a call with those of the catalog, and caches the table.
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

    /// Runs `work` with the session's scratch buffers, or with new ones if those are in use.
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

    /// Returns the tree of a table that the session has used with these types; called by
    /// transactions that may write. `None` if they must call [`make_asked`](Self::make_asked)
    /// first: the session has not, or a migration has begun since the transaction's last call.
    #[inline]
    pub(crate) fn ready<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Result<Option<u32>, Error> {
        let known = self.known(table.name(), table.tag())?;
        let is_same = self.kept.worker.tables_at.get() == self.kept.trees.borrow().at;
        Ok(known.filter(|found| found.settled && is_same).map(|found| found.tree))
    }

    /// Records when the tables that the transaction uses from here on were looked up.
    #[inline]
    fn found_for(&self, txn: &mut Txn<'_, StoreSession<M>, M>) -> Result<(), Error> {
        let (at, of) = (self.kept.trees.borrow().at, &self.kept.worker.tables_at);
        if of.get() != at {
            // A deferred write uses the table as it was looked up before, so carry it out first.
            txn.savepoint()?;
            of.set(at);
        }
        Ok(())
    }

    /// Returns the tree of a table, for a transaction that may write. Creates the table if it does
    /// not exist, and records its types if it has none. Waits as for a lock if another transaction
    /// is creating it.
    ///
    /// # Errors
    ///
    /// [`Error::TableType`]; those of creating the table.
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
