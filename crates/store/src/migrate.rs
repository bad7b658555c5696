//! Migrations: a table gets other types, and a function converts its records.
//!
//! ```text
//! begin    one transaction marks the table in the catalog as migrating, and creates a hidden table
//!          of the new types
//! number   a word in shared memory is incremented: all sessions look up their tables again
//! move     each transaction moves up to a thousand records from the old tree to the new one
//! end      the old tree is empty and locked: the table gets the new tree, types and version
//! ```
//!
//! From the number to the end other calls get [`Error::Migrating`]. Iterators that began earlier
//! continue with the old records.
//!
//! The next call continues a migration whose process was killed, because the records in the old
//! tree are the ones that must still be moved. A migration that cannot be finished is taken back in
//! the same steps, from the hidden table to the old tree. The hidden table gets the old types
//! first, so that a concurrent call that moves records to it fails.
//!
//! A session that has looked up a table before the number changed cannot write to the old tree: it
//! compares the number when it has its locks, and a record that it has locked earlier is not moved
//! until its transaction ends. The next migration uses the old tree, which remains without records.

use core::ops::Bound;

use latchwork_lockmgr::Wait;
use latchwork_machine::ConstMachine;

use crate::entry::{Entry, Types, said};
use crate::table::Asked;
use crate::tables::{CATALOG, hidden, put_entry};
use crate::typed::WriteTxn;
use crate::{Error, Key, Store, Table, TxnOptions, Value};

/// Approximate limits of a transaction: number and bytes of the records that it moves.
const RECORDS: usize = 1000;
const BYTES: usize = 256 << 10;

/// Converts the bytes of an old record into those of a new one.
type Convert<'c> = dyn FnMut(&[u8], &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> + 'c;

/// The direction in which records are moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the hidden table, which replaces the table at the end.
    On,
    /// Back to the table.
    Back,
}

/// The result of one transaction.
enum Moved {
    /// This number of records was moved, up to this key.
    Some(u64, Vec<u8>),
    /// No records remain after the key; there may be records before it.
    Over,
    /// This migration, or another one, has ended.
    Done,
}

impl<M: ConstMachine> Store<M> {
    /// Changes the types of a table and raises its schema version: `convert` converts each record.
    /// Returns how many records this call moved. `progress` is called with that number after each
    /// transaction.
    ///
    /// Both tables have the same name. If the table has the new types already, or does not exist,
    /// the call does nothing, so every process of a program can call it when it starts.
    ///
    /// The records are moved in transactions of at most a thousand records. During the migration,
    /// all other calls that name the table, in all processes, fail with [`Error::Migrating`], and
    /// running transactions are retried ([`Error::Migrated`]). Iterators and cursors that began
    /// earlier continue with the old records. Other calls of an earlier snapshot fail, and return
    /// [`Error::SnapshotTooOld`] after the migration. No call sees only a part of the new records.
    ///
    /// Needs as much log as writing all records twice, and file space for some of the records
    /// twice.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the tables have different names, or the new version is not higher;
    /// [`Error::TableType`] if the table has neither of the types; [`Error::Exists`] if two records
    /// get the same key; an error of `convert`; those of [`write`](Self::write). If the migration
    /// had begun, the table stays in migration: call this again with a function that succeeds, or
    /// call [`abandon_migration`](Self::abandon_migration).
    ///
    /// # Panics
    ///
    /// Panics if `convert` panics. The table is then as after an error.
    ///
    /// # Death
    ///
    /// If the process is killed, the table stays in migration. The next call continues it.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// /// Prices in euros.
    /// const OLD: Table<&str, f64> = Table::new("prices");
    /// /// Prices in cents.
    /// const PRICES: Table<&str, u64> = Table::new("prices").with_version(1);
    ///
    /// # let path = std::env::temp_dir().join(format!("store-migrate-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&OLD, "tea", 2.5)?;
    /// let cents = |name, euros: f64| Ok((name, (euros * 100.0).round() as u64));
    /// assert_eq!(store.migrate(&OLD, &PRICES, cents, &mut |_| {})?, 1);
    /// assert_eq!(store.get(&PRICES, "tea")?, Some(250));
    /// assert!(store.get(&OLD, "tea").is_err());
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn migrate<K: Key, V: Value, L: Key, W: Value>(
        &self,
        from: &Table<K, V>,
        to: &Table<L, W>,
        mut convert: impl FnMut(K::Owned, V::Owned) -> Result<(L::Owned, W::Owned), Error>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        of_one_table(from, to)?;
        let mut bytes = |key: &[u8], value: &[u8]| {
            let (key, value) = convert(from.key_of(key)?, from.value_of(value)?)?;
            Ok((to.key(&L::lend(&key))?, to.value(&W::lend(&value))))
        };
        let to = to.asked();
        if !self.begin_migration(&from.asked(), &to)? {
            return Ok(0);
        }
        self.home().shared.migration_begins()?;
        self.move_all(Way::On, &to, &mut bytes, progress)
    }

    /// Abandons a migration that has begun and not ended: `back` converts each new record into an
    /// old one, and the table has its old types again. Returns how many records this call moved.
    /// Use it when the function of a [migration](Self::migrate) fails for some record.
    ///
    /// If the table is not in migration, the call does nothing. A concurrent call of `migrate`
    /// fails with [`Error::Migrating`] or, later, [`Error::TableType`].
    ///
    /// # Errors
    ///
    /// [`Error::Options`] as `migrate`; [`Error::TableType`] if the table does not have the old
    /// types, because its migration has ended or leads to other types than `to`; [`Error::Exists`]
    /// if two records get the same key; an error of `back`; those of [`write`](Self::write). The
    /// table then stays in migration: call this again.
    ///
    /// # Panics
    ///
    /// Panics if `back` panics. The table is then as after an error.
    ///
    /// # Death
    ///
    /// If the process is killed, the table stays in migration. The next call continues to abandon
    /// it; `migrate` fails until that has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Error, Store, Table};
    ///
    /// const OLD: Table<u64, &str> = Table::new("ports");
    /// const PORTS: Table<u64, u64> = Table::new("ports").with_version(1);
    ///
    /// # let path = std::env::temp_dir().join(format!("store-abandon-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&OLD, 1, "80")?;
    /// store.put(&OLD, 2, "http")?;
    /// let number = |id, port: String| match port.parse() {
    ///     Ok(port) => Ok((id, port)),
    ///     Err(_) => Err(Error::Rejected(format!("port {id} is {port}"))),
    /// };
    /// assert!(store.migrate(&OLD, &PORTS, number, &mut |_| {}).is_err());
    /// assert!(matches!(store.get(&OLD, 1), Err(Error::Migrating { .. })));
    /// let text = |id, port: u64| Ok((id, port.to_string()));
    /// store.abandon_migration(&OLD, &PORTS, text, &mut |_| {})?;
    /// assert_eq!(store.get(&OLD, 2)?.as_deref(), Some("http"));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn abandon_migration<K: Key, V: Value, L: Key, W: Value>(
        &self,
        from: &Table<K, V>,
        to: &Table<L, W>,
        mut back: impl FnMut(L::Owned, W::Owned) -> Result<(K::Owned, V::Owned), Error>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        of_one_table(from, to)?;
        let mut bytes = |key: &[u8], value: &[u8]| {
            let (key, value) = back(to.key_of(key)?, to.value_of(value)?)?;
            Ok((from.key(&K::lend(&key))?, from.value(&V::lend(&value))))
        };
        let from = from.asked();
        if !self.begin_way_back(&from, &to.asked())? {
            return Ok(0);
        }
        self.move_all(Way::Back, &from, &mut bytes, progress)
    }

    /// Moves all records and ends the migration; `to` describes the table at the end.
    fn move_all(
        &self,
        way: Way,
        to: &Asked,
        convert: &mut Convert<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        let (mut moved, mut behind) = (0, Bound::Unbounded);
        let options = TxnOptions { label: "migrate", ..TxnOptions::default() };
        loop {
            let step = self.write_with(&options, |tx| move_some(tx, way, to, &behind, convert))?;
            match step.value {
                Moved::Some(count, last) => {
                    moved += count;
                    behind = Bound::Excluded(last);
                    progress(moved);
                    // A commit unlinks only a few empty leaves, and a migration leaves many.
                    self.session()?.worker.tidy_all();
                }
                Moved::Over => behind = Bound::Unbounded,
                Moved::Done => return Ok(moved),
            }
        }
    }

    /// Marks the table in the catalog as migrating. Returns false if there is nothing to do.
    fn begin_migration(&self, from: &Asked, to: &Asked) -> Result<bool, Error> {
        let (name, hidden) = (to.name.as_bytes(), hidden(to.name));
        {
            let session = self.session()?;
            let found = self.catalog().read(&session.worker, name)?;
            if found.is_none_or(|entry| !entry.moving && is(&entry, to)) {
                return Ok(false);
            }
        }
        self.catalog().change("migrate", Wait::Detect, &mut |catalog| {
            let Some(mut entry) = catalog.get(name)? else { return Ok(false) };
            let next = catalog.get(&hidden)?;
            if entry.moving {
                // Begun by a process that was killed or is running.
                return match next {
                    Some(next) if is(&next, from) => Err(migrating(to)),
                    Some(next) if !is(&next, to) => Err(refused(&next, to)),
                    _ => Ok(true),
                };
            }
            if is(&entry, to) {
                return Ok(false);
            }
            if !is(&entry, from) {
                return Err(refused(&entry, from));
            }
            let tree = next.map_or_else(|| catalog.make_root(), |next| Ok(next.tree))?;
            let types = Types::of(&to.key, &to.value);
            catalog.put(&hidden, &Entry::new(tree, types, to.version))?;
            entry.moving = true;
            catalog.put(name, &entry)?;
            Ok(true)
        })
    }

    /// Records in the catalog that a migration is being abandoned. Returns false if there is
    /// nothing to do.
    fn begin_way_back(&self, from: &Asked, to: &Asked) -> Result<bool, Error> {
        let (name, hidden) = (from.name.as_bytes(), hidden(from.name));
        self.catalog().change("abandon migration", Wait::Detect, &mut |catalog| {
            let Some(entry) = catalog.get(name)? else { return Ok(false) };
            if !entry.moving {
                return if is(&entry, from) { Ok(false) } else { Err(refused(&entry, from)) };
            }
            let next = catalog.get(&hidden)?.ok_or_else(|| lost(from))?;
            if is(&next, from) {
                return Ok(true);
            }
            if !is(&next, to) || !is(&entry, from) {
                return Err(refused(if is(&next, to) { &entry } else { &next }, from));
            }
            let types = Types::of(&from.key, &from.value);
            catalog.put(&hidden, &Entry::new(next.tree, types, from.version))?;
            Ok(true)
        })
    }
}

/// Checks that two tables can be those of a migration.
fn of_one_table<K, V, L, W>(from: &Table<K, V>, to: &Table<L, W>) -> Result<(), Error> {
    if from.name() != to.name() {
        return Err(Error::Options("a migration is of one table: both have its name"));
    }
    if from.version() >= to.version() {
        return Err(Error::Options("the schema version of a migration: above the old one"));
    }
    Ok(())
}

/// Returns whether a table of the catalog has the types and version in a call.
fn is(entry: &Entry, asked: &Asked) -> bool {
    entry.is_of(&asked.key, &asked.value, asked.version)
}

fn refused(entry: &Entry, asked: &Asked) -> Error {
    Error::TableType {
        table: asked.name.to_owned(),
        stored: entry.said(),
        requested: said(&asked.key, &asked.value, asked.version),
    }
}

fn migrating(asked: &Asked) -> Error {
    Error::Migrating { table: asked.name.to_owned() }
}

fn lost(asked: &Asked) -> Error {
    let what = "a table in migration, and not the one that it is moved to";
    Error::Damaged { table: asked.name.to_owned(), key: Vec::new(), what }
}

/// Moves some records, or ends the migration if none are left.
fn move_some<M: ConstMachine>(
    tx: &mut WriteTxn<'_, '_, M>,
    way: Way,
    to: &Asked,
    behind: &Bound<Vec<u8>>,
    convert: &mut Convert<'_>,
) -> Result<Moved, Error> {
    let (name, hidden, worker) = (to.name.as_bytes(), hidden(to.name), &tx.tables.kept.worker);
    worker.tables_are_found()?;
    let read = |found: Option<Vec<u8>>| found.map(|bytes| Entry::of(&bytes)).transpose();
    // The end of a migration changes these records, so it waits for this transaction.
    let mut entry = match read(tx.txn()?.get_raw_for_update(CATALOG, name)?)? {
        Some(entry) if entry.moving => entry,
        // Another call has ended it, in this direction or the other.
        Some(entry) if !is(&entry, to) => return Err(refused(&entry, to)),
        _ => return Ok(Moved::Done),
    };
    let next = read(tx.txn()?.get_raw_for_update(CATALOG, &hidden)?)?;
    let mut next = next.ok_or_else(|| lost(to))?;
    if !is(&next, to) {
        // Another call is abandoning it.
        return Err(migrating(to));
    }
    let (source, target) = match way {
        Way::On => (entry.tree, next.tree),
        Way::Back => (next.tree, entry.tree),
    };
    worker.home.name_table(next.tree, to.name);
    let (mut records, mut bytes) = (Vec::new(), 0);
    let range = (behind.as_ref().map(Vec::as_slice), Bound::Unbounded);
    tx.txn()?.scan_raw(source, range, false, &mut |key, value| {
        records.push((key.to_vec(), value.to_vec()));
        bytes += key.len() + value.len();
        Ok(records.len() < RECORDS && bytes < BYTES)
    })?;
    let Some((last, _)) = records.last() else {
        if *behind != Bound::Unbounded {
            return Ok(Moved::Over);
        }
        if way == Way::On {
            core::mem::swap(&mut entry.tree, &mut next.tree);
            (entry.types, entry.version) = (next.types, next.version);
        }
        entry.moving = false;
        put_entry(tx.txn()?, worker, name, &entry)?;
        put_entry(tx.txn()?, worker, &hidden, &Entry::new(next.tree, None, 0))?;
        return Ok(Moved::Done);
    };
    let moved = Moved::Some(records.len() as u64, last.clone());
    for (key, value) in &records {
        let (new_key, new_value) = convert(key, value)?;
        tx.txn()?.insert_raw(target, &new_key, &new_value)?;
        tx.txn()?.write_raw(source, key, None)?;
    }
    Ok(moved)
}
