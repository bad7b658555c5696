//! Inspects a store without taking part in it: a view has no slot, takes no latch and writes
//! nothing to shared memory, so it cannot disturb the processes of the store.
//!
//! A view does not read all words at the same instant. It may show a lock or a transaction that
//! ends during the call.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_disk::System;
use latchwork_lockmgr::{LockInfo, OwnerId, OwnerInfo, RangeInfo, Snapshot, View};
use latchwork_log::LogView;
use latchwork_machine::{Clock, ConstMachine, Shared as Machine};
use latchwork_pool::Pool;
use latchwork_region::{Options, ProcessInfo, ProcessState, Region};

use crate::error::refused;
use crate::files::shared::SlotLines;
use crate::open::{OF, recorded_memory};
use crate::tools::catalog::tables;
use crate::tools::names::LockNames;
use crate::{Error, Refusal, Store};

/// An inspection of a store that processes have open.
///
/// It needs the right to read the shared memory. Each call reads the memory of all locks, which
/// takes milliseconds; it blocks no other process, and no other process blocks it.
#[derive(Debug)]
pub struct StoreView<M: ConstMachine = Machine> {
    pub(super) locks: View<M>,
    pub(super) log: LogView<M>,
    pub(super) lines: SlotLines<M>,
    pub(super) pool: Option<Pool<M>>,
    /// The file of pages, for pages that are not in memory.
    pub(super) data: Option<PathBuf>,
}

/// A transaction that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionInfo {
    /// The owner of its locks, as `latchwork locks kill` expects it.
    pub owner: OwnerId,
    /// Its process. `None` if unknown; a prepared transaction has no process.
    pub pid: Option<u32>,
    /// Whether that process is alive.
    pub state: ProcessState,
    /// Its thread slot. `None` if its process died and its locks are kept.
    pub thread: Option<u32>,
    /// Its label: see [`TxnOptions::label`](crate::TxnOptions::label). At most 32 bytes.
    pub label: String,
    /// How long ago it began; for a retried transaction, its first attempt.
    pub age: Duration,
    /// Bytes of log that are retained for it. `None` if it has written nothing.
    pub log_kept: Option<u64>,
    /// The number of locks that it holds.
    pub held: u64,
    /// The lock that it waits for.
    pub waits: Option<LockWait>,
    /// Its id, if it is prepared and undecided.
    pub prepared: Option<Vec<u8>>,
}

/// A lock that a transaction waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockWait {
    /// The table, or the number of its tree if the catalog cannot be read.
    pub table: String,
    /// The key or the range, as text. Of a key of more than 12 bytes, only the first four are
    /// known.
    pub key: String,
    /// The mode: `read`, `read to write`, `write`, `read range` or `read range to write`.
    pub mode: &'static str,
    /// How long it has waited.
    pub since: Duration,
}

/// The result of one inspection, from which all answers are computed.
pub(super) struct Inspection {
    pub(super) snapshot: Snapshot,
    pub(super) names: LockNames,
    pub(super) processes: Vec<(ProcessInfo, ProcessState)>,
    /// By thread slot: the process slot and generation of its owner, and whether it is retained.
    pub(super) threads: HashMap<u32, (u32, u32, bool)>,
    /// The end of the log.
    pub(super) end: u64,
    now: u64,
    /// By owner.
    transactions: HashMap<OwnerId, TransactionInfo>,
}

impl StoreView {
    /// Inspects the store in a folder. Returns `None` if it is closed: no process has it open, and
    /// no killed process left memory.
    ///
    /// # Errors
    ///
    /// [`Error::Open`]: [`Refusal::NoStore`]; [`Refusal::OtherNamespace`] if its memory belongs to
    /// another container's. Errors of the [store's parts](Error).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{TxnOptions, Store, StoreView, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-view-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let options = TxnOptions { label: "import", ..TxnOptions::default() };
    /// let mut transaction = store.begin_with(&options)?;
    /// transaction.put(&FRUIT, "pear", 3)?;
    ///
    /// // In any other process, or in this one.
    /// let view = StoreView::open(&path)?.expect("it is open");
    /// let held = view.locks()?;
    /// assert_eq!((&*held[0].table, &*held[0].key, held[0].mode), ("fruit", "pear", "write"));
    /// assert_eq!(held[0].transaction.label, "import");
    /// assert!(view.blocked()?.is_empty());
    /// # drop(transaction);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Option<Self>, Error> {
        let path = path.as_ref();
        let Some(at) = region_file(path)? else { return Ok(None) };
        let region = match Region::view(&at, &Options { mode: 0o777, ..Options::default() }) {
            // It was closed after the first check, or the memory is in another container.
            Err(latchwork_region::Error::NotFound) if region_file(path)?.is_none() => {
                return Ok(None);
            }
            Err(latchwork_region::Error::NotFound) => {
                return Err(refused(path, Refusal::OtherNamespace));
            }
            region => region?,
        };
        let strange = "another version's memory, or a process is just opening the store: try again";
        let view = Self::of_region(&region, Some(path))?;
        view.map(Some).ok_or_else(|| Error::Engine(format!("{}: {strange}", path.display())))
    }

    /// Inspects the store of a region. Returns `None` if the region does not belong to a store.
    /// `folder` is the store's folder: without it, tables have no names if their catalog pages are
    /// not in memory.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn of_region(
        region: &Region<Machine>,
        folder: Option<&Path>,
    ) -> Result<Option<Self>, Error> {
        let parts = (View::new(region.clone())?, LogView::open(region)?, SlotLines::open(region)?);
        let (Some(locks), Some(log), Some(lines)) = parts else { return Ok(None) };
        let pool = Pool::look(region, Arc::new(System::new()))?;
        let data = folder.map(|folder| folder.join("data"));
        Ok(Some(Self { locks, log, lines, pool, data }))
    }
}

/// Returns the region file of the store in a folder, which `latchwork locks` and `pool` inspect;
/// `None` if the store is closed.
///
/// # Errors
///
/// [`Error::Open`]: [`Refusal::NoStore`]; also if the folder's file `region` cannot be read.
pub fn region_file(path: impl AsRef<Path>) -> Result<Option<PathBuf>, Error> {
    let path = path.as_ref();
    let said = |why: std::io::Error| refused(path, why);
    if !path.join("identity").try_exists().map_err(said)? {
        return Err(refused(path, Refusal::NoStore));
    }
    let here = fs::canonicalize(path).map_err(said)?;
    // A copy of the folder names the memory of the original. A folder that was moved has its own.
    let is_own = |of: &Path| of == here || !of.exists();
    let found = recorded_memory(path)?.filter(|recorded| recorded.now && is_own(&recorded.of));
    Ok(found.map(|recorded| recorded.at.join("region")))
}

/// Returns the folder of the store to which a region file belongs; `None` if the file does not
/// belong to a store.
pub fn store_of_region(region: impl AsRef<Path>) -> Option<PathBuf> {
    let text = fs::read_to_string(region.as_ref().parent()?.join(OF)).ok()?;
    Some(PathBuf::from(text.strip_suffix('\n')?))
}

impl<M: ConstMachine> StoreView<M> {
    /// Reads the names of tables, to translate names of locks.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn lock_names(&self) -> Result<LockNames, Error> {
        let tables = self.pool.as_ref().map(|pool| tables(pool, self.data.as_deref()));
        Ok(LockNames::new(tables.unwrap_or_default()))
    }

    pub(super) fn region(&self) -> &Region<M> {
        self.locks.region()
    }

    pub(super) fn inspect(&self) -> Result<Inspection, Error> {
        let snapshot = self.locks.look()?;
        let region = self.region();
        let processes = region.processes().into_iter().map(|found| (found, found.state()));
        let threads = region.threads().map(|thread| {
            (thread.slot, (thread.process, thread.process_generation, thread.retained))
        });
        let mut inspection = Inspection {
            snapshot,
            names: self.lock_names()?,
            processes: processes.collect(),
            threads: threads.collect(),
            end: self.log.ends()?[0].0,
            now: M::now(Clock::Monotonic),
            transactions: HashMap::new(),
        };
        let mut rows: HashMap<OwnerId, Vec<&LockInfo>> = HashMap::new();
        inspection
            .snapshot
            .rows
            .iter()
            .for_each(|row| rows.entry(row.owner).or_default().push(row));
        let of = |owner: &OwnerInfo| rows.get(&owner.owner).map_or(&[][..], Vec::as_slice);
        let owners = inspection.snapshot.owners.iter();
        let all =
            owners.map(|owner| (owner.owner, self.transaction(&inspection, owner, of(owner))));
        let all = all.collect();
        inspection.transactions = all;
        Ok(inspection)
    }

    /// Describes the transaction of an owner, with these held and requested locks.
    fn transaction(
        &self,
        inspection: &Inspection,
        owner: &OwnerInfo,
        rows: &[&LockInfo],
    ) -> TransactionInfo {
        let rows = || rows.iter().copied();
        let waits = rows().find(|row| row.wanted.is_some()).map(|row| {
            // A waiter for a range has a claim on it, and waits for the claim of another owner.
            let own = rows().filter_map(|row| row.range.as_ref()).find(|range| range.waiting);
            let (table, key) = match own {
                Some(range) => inspection.names.of(&row.object, Some(range)),
                None => inspection.names.of(&row.object, row.range.as_ref()),
            };
            let mode = mode_in_words(own, row.wanted);
            LockWait { table, key, mode, since: Duration::from_nanos(row.waited_ns) }
        });
        let first = owner.thread.and_then(|thread| self.log.open_of(thread).ok().flatten());
        let process = owner.thread.and_then(|thread| inspection.process(thread));
        let (pid, state) = process.map_or((None, ProcessState::Dead), |(process, state)| {
            (Some(process.pid).filter(|pid| *pid != 0), state)
        });
        let retained = owner.thread.and_then(|thread| inspection.threads.get(&thread));
        let retained = retained.is_some_and(|(_, _, retained)| *retained);
        let state = if retained { ProcessState::Unknown } else { state };
        TransactionInfo {
            owner: owner.owner,
            pid,
            state,
            thread: owner.thread,
            label: owner.label.clone(),
            age: Duration::from_nanos(inspection.now.saturating_sub(owner.began)),
            log_kept: first.map(|first| inspection.end.saturating_sub(first.0)),
            held: rows().filter(|row| row.held.is_some()).count() as u64,
            waits,
            prepared: rows().find_map(|row| LockNames::prepared(&row.object)),
        }
    }
}

impl Inspection {
    /// Describes the transaction of an owner; `None` if it has ended during the inspection.
    pub(super) fn transaction(&self, owner: OwnerId) -> Option<TransactionInfo> {
        self.transactions.get(&owner).cloned()
    }

    /// Returns the process of a thread slot, unless the slot is retained or now belongs to another
    /// process.
    pub(super) fn process(&self, thread: u32) -> Option<(ProcessInfo, ProcessState)> {
        let (slot, generation, retained) = *self.threads.get(&thread)?;
        let its = |found: &&(ProcessInfo, ProcessState)| {
            (found.0.slot, found.0.generation) == (slot, generation) && !retained
        };
        self.processes.iter().find(its).copied()
    }
}

/// Returns the mode of a lock as text.
pub(super) fn mode_in_words(
    range: Option<&RangeInfo>,
    mode: Option<latchwork_lockmgr::Mode>,
) -> &'static str {
    use latchwork_lockmgr::RangeKind::{ReadNext, WriteNext};
    use latchwork_lockmgr::granular::{S, U, X};
    match (range.map(|range| range.kind), mode) {
        (Some(ReadNext), _) => "read range",
        (Some(WriteNext), _) => "read range for update",
        (Some(_), _) => "write",
        (None, Some(mode)) if mode == S => "read",
        (None, Some(mode)) if mode == U => "read for update",
        (None, Some(mode)) if mode == X => "write",
        (None, _) => "other",
    }
}

impl<M: ConstMachine> Store<M> {
    /// Inspects this store, as another process can.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn view(&self) -> Result<StoreView<M>, Error> {
        let home = self.home();
        let none = || Error::Engine("the store's lock manager is not ready".to_owned());
        Ok(StoreView {
            locks: View::new(home.manager.region().clone())?.ok_or_else(none)?,
            log: home.log.view(),
            lines: home.shared.lines(),
            pool: Some(home.pool.clone()),
            data: Some(home.folder.join("data")),
        })
    }
}
