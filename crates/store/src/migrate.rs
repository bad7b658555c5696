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
//! tree are the ones that must still be moved. A session that has looked up a table before the
//! number cannot write to the old tree: it compares the number when it has its locks, and a record
//! that it has locked earlier is not moved until its transaction ends. The old tree stays, without
//! a record, for the next migration.

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
    /// stays in migration if it had begun: call this again, with a function that succeeds.
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
        if from.name() != to.name() {
            return Err(Error::Options("a migration is of one table: both have its name"));
        }
        if from.version() >= to.version() {
            return Err(Error::Options("the schema version of a migration: above the old one"));
        }
        let mut bytes = |key: &[u8], value: &[u8]| {
            let (key, value) = convert(from.key_of(key)?, from.value_of(value)?)?;
            Ok((to.key(&L::lend(&key))?, to.value(&W::lend(&value))))
        };
        self.migrate_raw(&from.asked(), &to.asked(), &mut bytes, told)
    }

    fn migrate_raw(
        &self,
        from: &Asked,
        to: &Asked,
        convert: &mut Convert<'_>,
        told: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        if !self.begin_migration(from, to)? {
            return Ok(0);
        }
        self.home().shared.migration_begins()?;
        let (mut moved, mut behind) = (0, Bound::Unbounded);
        let patience = TxnOptions { label: "migrate", ..TxnOptions::default() };
        loop {
            let step = self.write_with(&patience, |tx| move_some(tx, to, &behind, convert))?;
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
        let is_to = |entry: &Entry| entry.is_of(&to.key, &to.value, to.version);
        let refused = |entry: &Entry, asked: &Asked| Error::TableType {
            table: to.name.to_owned(),
            stored: entry.said(),
            requested: said(&asked.key, &asked.value, asked.version),
        };
        {
            let session = self.session()?;
            let found = self.catalog().read(&session.worker, name)?;
            if found.is_none_or(|entry| !entry.moving && is_to(&entry)) {
                return Ok(false);
            }
        }
        self.catalog().change("migrate", Wait::Detect, &mut |catalog| {
            let Some(mut entry) = catalog.get(name)? else { return Ok(false) };
            let next = catalog.get(&hidden)?;
            if entry.moving {
                // Begun by a process that was killed, or that is at work.
                let next = next.as_ref().filter(|next| !is_to(next));
                return next.map_or(Ok(true), |next| Err(refused(next, to)));
            }
            if is_to(&entry) {
                return Ok(false);
            }
            if !entry.is_of(&from.key, &from.value, from.version) {
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
}

/// Moves some records, or ends the migration where none are left.
fn move_some<M: ConstMachine>(
    tx: &mut WriteTxn<'_, '_, M>,
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
        _ => return Ok(Moved::Done),
    };
    let what = "a table in migration, and not the one that it is moved to";
    let lost = || Error::Damaged { table: to.name.to_owned(), key: Vec::new(), what };
    let mut next = read(tx.txn.get_raw_for_update(CATALOG, &hidden)?)?.ok_or_else(lost)?;
    worker.home.name_table(next.tree, to.name);
    let (mut records, mut bytes) = (Vec::new(), 0);
    let range = (behind.as_ref().map(Vec::as_slice), Bound::Unbounded);
    tx.txn.scan_raw(entry.tree, range, false, &mut |key, value| {
        records.push((key.to_vec(), value.to_vec()));
        bytes += key.len() + value.len();
        Ok(records.len() < RECORDS && bytes < BYTES)
    })?;
    let Some((last, _)) = records.last() else {
        if *behind != Bound::Unbounded {
            return Ok(Moved::Over);
        }
        core::mem::swap(&mut entry.tree, &mut next.tree);
        core::mem::swap(&mut entry.types, &mut next.types);
        (entry.version, entry.moving) = (next.version, false);
        next.version = 0;
        put_entry(tx.txn, worker, name, &entry)?;
        put_entry(tx.txn, worker, &hidden, &Entry::new(next.tree, None, 0))?;
        return Ok(Moved::Done);
    };
    let moved = Moved::Some(records.len() as u64, last.clone());
    for (key, value) in &records {
        let (new_key, new_value) = convert(key, value)?;
        tx.txn.insert_raw(next.tree, &new_key, &new_value)?;
        tx.txn.write_raw(entry.tree, key, None)?;
    }
    Ok(moved)
}
