//! Migrations: a table gets other types, and the records that a function makes of the old ones.
//!
//! ```text
//! begin    the catalog says that a migration moves the table, and has a hidden table of the new
//!          types: one transaction
//! number   a word in shared memory is counted up: all sessions look up their tables again
//! move     a thousand records leave the old tree for the new one, in each transaction
//! end      the old tree is empty, and held: the table gets the new tree, types and version
//! ```
//!
//! From the number to the end other calls get [`Error::Migrating`]. Iterators that began earlier
//! continue with the old records.
//!
//! The next call continues a migration whose process was killed, because the records in the old
//! tree are the ones that must still be moved. A migration that cannot be finished is taken back in
//! the same steps, from the hidden table to the old tree. The hidden table gets the old types
//! first, so that a call that still moves records to it fails.
//!
//! A session that has looked up a table before the number cannot write to the old tree: it compares
//! the number when it has its locks, and a record that it has locked earlier is not moved until its
//! transaction ends. The old tree stays, without a record, for the next migration.

use core::ops::Bound;

use latchwork_lockmgr::Wait;
use latchwork_machine::ConstMachine;

use crate::entry::{Entry, Types, said};
use crate::table::Asked;
use crate::tables::{CATALOG, hidden, put_entry};
use crate::typed::WriteTxn;
use crate::{Error, Key, Store, Table, TxnOptions, Value};

/// How many records one transaction moves, and how many bytes, about.
const RECORDS: usize = 1000;
const BYTES: usize = 256 << 10;

/// Makes the new record from the bytes of an old one.
type Convert<'c> = dyn FnMut(&[u8], &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> + 'c;

/// Where records are moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the hidden table, which takes the place of the table at the end.
    On,
    /// Back to the table.
    Back,
}

/// The result of one transaction.
enum Moved {
    /// So many records, up to this key.
    Some(u64, Vec<u8>),
    /// Nothing was left behind the key; there may be records before it.
    Over,
    /// Another migration, or this one, has ended.
    Done,
}

impl<M: ConstMachine> Store<M> {
    /// Gives a table other types, and a higher schema version: `convert` makes a new record of each
    /// old one. Returns how many records were moved by this call. `told` is called with that number
    /// after each transaction.
    ///
    /// Both tables have one name. If the table is of the new types already, or does not exist,
    /// nothing is done: every process of a program may call this when it starts.
    ///
    /// The records are moved in transactions of a thousand records at most. Meanwhile all other
    /// calls that name the table, in all processes, fail with [`Error::Migrating`], and
    /// transactions that are at work are run again ([`Error::Migrated`]). Iterators and cursors
    /// that began earlier continue with the old records; other calls of a snapshot from before
    /// fail, with [`Error::SnapshotTooOld`] behind the migration. No call sees a part of the new
    /// records.
    ///
    /// Takes as much of the log as it would take to write all records twice, and room in the file
    /// for some of them twice.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the tables have two names, or the new version is not higher;
    /// [`Error::TableType`] if the table is of neither of the types; [`Error::Exists`] if two
    /// records get one key; an error of `convert`; those of [`write`](Self::write). The table
    /// stays in migration if it had begun: call this again, with a function that succeeds, or
    /// [`abandon_migration`](Self::abandon_migration).
    ///
    /// # Panics
    ///
    /// If `convert` does; as with an error.
    ///
    /// # Death
    ///
    /// A process that is killed leaves the table in migration. The next call continues it.
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
        told: &mut dyn FnMut(u64),
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
        self.move_all(Way::On, &to, &mut bytes, told)
    }

    /// Takes back a migration that has begun and not ended: `back` makes an old record of each new
    /// one, and the table has its old types again. Returns how many records were moved by this
    /// call. For a [migration](Self::migrate) whose function fails for some record.
    ///
    /// If no migration of the table is under way, nothing is done. A call of `migrate` that is
    /// under way fails, with [`Error::Migrating`] or, later, [`Error::TableType`].
    ///
    /// # Errors
    ///
    /// [`Error::Options`] as `migrate`; [`Error::TableType`] if the table is not of the old types,
    /// as after a migration that has ended, or its migration leads to other types than `to`;
    /// [`Error::Exists`] if two records get one key; an error of `back`; those of
    /// [`write`](Self::write). Then the table stays in migration: call this again.
    ///
    /// # Panics
    ///
    /// If `back` does; as with an error.
    ///
    /// # Death
    ///
    /// A process that is killed leaves the table in migration. The next call continues to take it
    /// back; `migrate` fails until that has ended.
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
        told: &mut dyn FnMut(u64),
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
        self.move_all(Way::Back, &from, &mut bytes, told)
    }

    /// Moves all records, and ends the migration; `to` is what the table is then.
    fn move_all(
        &self,
        way: Way,
        to: &Asked,
        convert: &mut Convert<'_>,
        told: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        let (mut moved, mut behind) = (0, Bound::Unbounded);
        let patience = TxnOptions { label: "migrate", ..TxnOptions::default() };
        loop {
            let step = self.write_with(&patience, |tx| move_some(tx, way, to, &behind, convert))?;
            match step.value {
                Moved::Some(count, last) => {
                    moved += count;
                    behind = Bound::Excluded(last);
                    told(moved);
                    // A commit unlinks a few leaves, and these are many.
                    self.session()?.worker.tidy_all();
                }
                Moved::Over => behind = Bound::Unbounded,
                Moved::Done => return Ok(moved),
            }
        }
    }

    /// Records in the catalog that a migration moves the table; false if there is nothing to do.
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
                // Begun by a process that was killed, or that is at work.
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

    /// Records in the catalog that a migration is taken back; false if there is nothing to do.
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

/// Whether two tables may be those of a migration.
fn of_one_table<K, V, L, W>(from: &Table<K, V>, to: &Table<L, W>) -> Result<(), Error> {
    if from.name() != to.name() {
        return Err(Error::Options("a migration is of one table: both have its name"));
    }
    if from.version() >= to.version() {
        return Err(Error::Options("the schema version of a migration: above the old one"));
    }
    Ok(())
}

/// Whether a table of the catalog is the one that a program names.
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

/// Moves some records, or ends the migration where none are left.
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
    // The end of a migration changes these, so it waits for this transaction.
    let mut entry = match read(tx.txn.get_raw_for_update(CATALOG, name)?)? {
        Some(entry) if entry.moving => entry,
        // Another call has ended it, this way or the other one.
        Some(entry) if !is(&entry, to) => return Err(refused(&entry, to)),
        _ => return Ok(Moved::Done),
    };
    let next = read(tx.txn.get_raw_for_update(CATALOG, &hidden)?)?;
    let mut next = next.ok_or_else(|| lost(to))?;
    if !is(&next, to) {
        // Another call takes it back.
        return Err(migrating(to));
    }
    let (source, target) = match way {
        Way::On => (entry.tree, next.tree),
        Way::Back => (next.tree, entry.tree),
    };
    worker.home.name_table(next.tree, to.name);
    let (mut records, mut bytes) = (Vec::new(), 0);
    let range = (behind.as_ref().map(Vec::as_slice), Bound::Unbounded);
    tx.txn.scan_raw(source, range, false, &mut |key, value| {
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
        put_entry(tx.txn, worker, name, &entry)?;
        put_entry(tx.txn, worker, &hidden, &Entry::new(next.tree, None, 0))?;
        return Ok(Moved::Done);
    };
    let moved = Moved::Some(records.len() as u64, last.clone());
    for (key, value) in &records {
        let (new_key, new_value) = convert(key, value)?;
        tx.txn.insert_raw(target, &new_key, &new_value)?;
        tx.txn.write_raw(source, key, None)?;
    }
    Ok(moved)
}
