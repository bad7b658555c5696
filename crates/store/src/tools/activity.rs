//! The activity in a store.

use latchwork_disk::Calls;
use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;

use crate::tools::view::StoreView;
use crate::{Error, Store};

/// The activity in a store at one moment: counters since its shared memory was created, and current
/// values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Transactions that have committed changes.
    pub commits: u64,
    /// The end of the log, in bytes since the store was created.
    pub end: u64,
    /// Up to where the log is written to its files.
    pub written: u64,
    /// Up to where the log is durable.
    pub flushed: u64,
    /// Where redo would begin after a crash.
    pub redo: u64,
    /// The beginning of the log.
    pub oldest: u64,
    /// Thread slots with an open transaction that has written something.
    pub writing: u64,
    /// The position of the oldest log record of these transactions.
    pub oldest_write: Option<u64>,
    /// How many of these transactions are prepared and undecided.
    pub prepared: u64,
    /// The position of the oldest log record of the prepared ones.
    pub oldest_prepared: Option<u64>,
    /// The number of snapshots.
    pub snapshots: u64,
    /// The position from which the oldest snapshot needs the log.
    pub oldest_snapshot: Option<u64>,
    /// Locks that are held or requested.
    pub locks: u64,
    /// Transactions that hold or request locks.
    pub transactions: u64,
    /// Transactions of dead threads that were rolled back.
    pub undone: u64,
    /// Other reasons for which the log is retained: names, and from which positions.
    pub pins: Vec<(String, u64)>,
}

impl<M: ConstMachine> StoreView<M> {
    /// Counts as [`Store::activity`] does, without a latch: no thread of the store, running or
    /// stopped, can block this call.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn activity(&self) -> Result<Activity, Error> {
        let least = |one: Option<u64>, other: u64| Some(one.map_or(other, |one| one.min(other)));
        let (log, region, locks) = (&self.log, self.region(), self.locks.look()?);
        let [end, flushed, redo, oldest] = log.ends()?.map(|at| at.0);
        let mut found = Activity {
            end,
            written: log.written()?.0,
            flushed,
            redo,
            oldest,
            locks: locks.rows.len() as u64,
            transactions: locks.owners.len() as u64,
            undone: self.lines.undone()?,
            ..Activity::default()
        };
        let retained: Vec<u32> =
            region.threads().filter(|thread| thread.retained).map(|thread| thread.slot).collect();
        for slot in 0..region.threads_high() {
            found.commits += log.commits_of(slot)?;
            if let Some(first) = log.open_of(slot)? {
                found.writing += 1;
                found.oldest_write = least(found.oldest_write, first.0);
                if retained.contains(&slot) {
                    found.prepared += 1;
                    found.oldest_prepared = least(found.oldest_prepared, first.0);
                }
            }
            if let Some(from) = self.lines.snapshot(slot)? {
                found.snapshots += 1;
                found.oldest_snapshot = least(found.oldest_snapshot, from);
            }
        }
        found.pins = log.pins()?.into_iter().map(|pin| (pin.name, pin.lsn.0)).collect();
        Ok(found)
    }
}

impl<M: ConstMachine> Store<M> {
    /// Returns the activity in the store, in all processes.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn activity(&self) -> Result<Activity, Error> {
        let (home, counts) = (self.home(), self.counts()?);
        let mut found = Activity {
            commits: home.log.commits()?,
            end: home.log.end().0,
            written: home.log.written().0,
            flushed: home.log.flushed().0,
            redo: home.log.redo().0,
            oldest: home.log.oldest().0,
            locks: counts.locks,
            transactions: counts.transactions,
            undone: counts.undone,
            ..Activity::default()
        };
        for slot in 0..home.log.slots_high() {
            let (first, _) = home.log.open_of(slot)?;
            if first != Lsn::NEVER {
                found.writing += 1;
                found.oldest_write =
                    Some(found.oldest_write.map_or(first.0, |least| least.min(first.0)));
            }
        }
        let prepared = home.all_prepared()?;
        found.prepared = prepared.len() as u64;
        found.oldest_prepared = prepared.iter().map(|found| found.first).min();
        (found.snapshots, found.oldest_snapshot) = home.shared.snapshots()?;
        found.pins = home.log.pins().into_iter().map(|pin| (pin.name, pin.lsn.0)).collect();
        Ok(found)
    }

    /// Returns the disk calls of this process since it opened the store: syncs, and written bytes.
    /// Writes to shared memory are not counted.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Operation, Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-calls-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&FRUIT, "pear", 3)?; // makes the table, too
    /// let before = store.disk_calls();
    /// store.put(&FRUIT, "pear", 4)?;
    /// assert_eq!((store.disk_calls() - before)[Operation::Sync], 1);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn disk_calls(&self) -> Calls {
        self.home().disk.calls()
    }
}
