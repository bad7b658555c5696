//! A store that processes have open, looked at by one that takes no part: it has no slot, takes no
//! latch and stores nothing, so the store works as if it were not there.
//!
//! What is read is of no one instant. A lock or a transaction that ends meanwhile may be shown, and
//! what it leads to may be missing.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchwork_disk::System;
use latchwork_lockmgr::{OwnerId, OwnerInfo, RangeInfo, Snapshot, View};
use latchwork_log::LogView;
use latchwork_machine::{Clock, ConstMachine, Shared as Machine};
use latchwork_pool::Pool;
use latchwork_region::{Options, ProcessInfo, ProcessState, Region};

use crate::error::refused;
use crate::files::shared::SlotLines;
use crate::open::{OF, told};
use crate::tools::names::LockNames;
use crate::{Error, Refusal, Store};

/// A store that other processes have open, looked at.
///
/// It needs the right to read the shared memory. Making one and asking it cost the time to read the
/// memory of locks, a millisecond or so, and the store's processes nothing.
#[derive(Debug)]
pub struct StoreView<M: ConstMachine = Machine> {
    pub(super) locks: View<M>,
    pub(super) log: LogView<M>,
    pub(super) lines: SlotLines<M>,
    pub(super) pool: Option<Pool<M>>,
    /// The file of pages: for those that are not in memory.
    pub(super) data: Option<PathBuf>,
}

/// A transaction that has no end yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionInfo {
    /// The owner of its locks: what `latchwork locks kill` ends.
    pub owner: OwnerId,
    /// Its process; none if that is not known, as of a prepared transaction.
    pub pid: Option<u32>,
    /// Whether that process runs.
    pub state: ProcessState,
    /// Its thread slot; none if its process died and its locks are kept.
    pub thread: Option<u32>,
    /// Its label: see [`Patience::label`](crate::Patience::label). At most 32 bytes.
    pub label: String,
    /// How long ago it began, the first attempt if it was run again.
    pub age: Duration,
    /// Bytes of log that are kept for it; none if it has written nothing.
    pub log_kept: Option<u64>,
    /// How many locks it holds.
    pub held: u64,
    /// The lock that it waits for.
    pub waits: Option<LockWait>,
    /// Its id, if it is prepared and not decided.
    pub prepared: Option<Vec<u8>>,
}

/// A lock that a transaction waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockWait {
    /// The table, or its tree if the catalog cannot be read.
    pub table: String,
    /// The key, or the range, in words. Of a key of more than 12 bytes the first four are known.
    pub key: String,
    /// What the transaction wants: `read`, `read to write`, `write`, ..
    pub mode: &'static str,
    /// How long it has waited.
    pub since: Duration,
}

/// What was found at one look, from which all answers are made.
pub(super) struct Look {
    pub(super) snapshot: Snapshot,
    pub(super) names: LockNames,
    pub(super) processes: Vec<(ProcessInfo, ProcessState)>,
    /// By thread slot: the process slot and generation of its owner, and whether it is retained.
    pub(super) threads: HashMap<u32, (u32, u32, bool)>,
    /// Where the log ends.
    pub(super) end: u64,
    now: u64,
}

impl StoreView {
    /// Looks at the store in a folder; none if no process has it open, and none left memory.
    ///
    /// # Errors
    ///
    /// [`Error::Open`]: [`Refusal::NoStore`]; [`Refusal::OtherNamespace`] if its memory is another
    /// container's. Those of the parts.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Patience, Store, StoreView, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-view-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let options = Patience { label: "import", ..Patience::default() };
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
            // It is closed meanwhile, or its memory is another container's.
            Err(latchwork_region::Error::NotFound) if region_file(path)?.is_none() => {
                return Ok(None);
            }
            Err(latchwork_region::Error::NotFound) => {
                return Err(refused(path, Refusal::OtherNamespace));
            }
            region => region?,
        };
        Self::of_region(&region, Some(path))
    }

    /// The same, of its region; none if the region is no store's. `folder` is the store's: without
    /// it the memory says which it is.
    ///
    /// # Errors
    ///
    /// Those of the parts.
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

/// The region file of the store in a folder: what `latchwork locks` and `pool` look at. None if no
/// process has the store open, and none left memory.
///
/// # Errors
///
/// [`Error::Open`]: [`Refusal::NoStore`]; what the folder's file `region` says cannot be read.
pub fn region_file(path: impl AsRef<Path>) -> Result<Option<PathBuf>, Error> {
    let path = path.as_ref();
    let said = |why: std::io::Error| refused(path, why);
    if !path.join("identity").try_exists().map_err(said)? {
        return Err(refused(path, Refusal::NoStore));
    }
    Ok(told(path)?.filter(|told| told.now).map(|told| told.at.join("region")))
}

/// The folder of the store whose memory a region file is of; none if the region is no store's.
pub fn store_of_region(region: impl AsRef<Path>) -> Option<PathBuf> {
    let text = fs::read_to_string(region.as_ref().parent()?.join(OF)).ok()?;
    Some(PathBuf::from(text.strip_suffix('\n')?))
}

impl<M: ConstMachine> StoreView<M> {
    /// What locks of the store are called: tables and keys in words.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn lock_names(&self) -> Result<LockNames, Error> {
        Ok(LockNames::new(self.tables()))
    }

    pub(super) fn region(&self) -> &Region<M> {
        self.locks.region()
    }

    pub(super) fn look(&self) -> Result<Look, Error> {
        let snapshot = self.locks.look()?;
        let region = self.region();
        let processes = region.processes().into_iter().map(|found| (found, found.state()));
        let threads = region.threads().map(|thread| {
            (thread.slot, (thread.process, thread.process_generation, thread.retained))
        });
        Ok(Look {
            snapshot,
            names: self.lock_names()?,
            processes: processes.collect(),
            threads: threads.collect(),
            end: self.log.ends()?[0].0,
            now: M::now(Clock::Monotonic),
        })
    }

    /// The transaction of an owner.
    pub(super) fn transaction(&self, look: &Look, owner: &OwnerInfo) -> TransactionInfo {
        let rows = || look.snapshot.rows.iter().filter(|row| row.owner == owner.owner);
        let waits = rows().find(|row| row.wanted.is_some()).map(|row| {
            // A waiter for a range has the range that it wants itself, and waits for another's.
            let own = rows().filter_map(|row| row.range.as_ref()).find(|range| range.waiting);
            let (table, key) = match own {
                Some(range) => look.names.of(&row.object, Some(range)),
                None => look.names.of(&row.object, row.range.as_ref()),
            };
            let mode = mode_in_words(own, row.wanted);
            LockWait { table, key, mode, since: Duration::from_nanos(row.waited_ns) }
        });
        let first = owner.thread.and_then(|thread| self.log.open_of(thread).ok().flatten());
        let process = owner.thread.and_then(|thread| look.process(thread));
        let (pid, state) = process.map_or((None, ProcessState::Dead), |(process, state)| {
            (Some(process.pid).filter(|pid| *pid != 0), state)
        });
        let retained = owner.thread.and_then(|thread| look.threads.get(&thread));
        let retained = retained.is_some_and(|(_, _, retained)| *retained);
        let state = if retained { ProcessState::Unknown } else { state };
        TransactionInfo {
            owner: owner.owner,
            pid,
            state,
            thread: owner.thread,
            label: owner.label.clone(),
            age: Duration::from_nanos(look.now.saturating_sub(owner.began)),
            log_kept: first.map(|first| look.end.saturating_sub(first.0)),
            held: rows().filter(|row| row.held.is_some()).count() as u64,
            waits,
            prepared: rows().find_map(|row| LockNames::prepared(&row.object)),
        }
    }
}

impl Look {
    /// The process of a thread slot, unless that is retained or has another by now.
    pub(super) fn process(&self, thread: u32) -> Option<(ProcessInfo, ProcessState)> {
        let (slot, generation, retained) = *self.threads.get(&thread)?;
        let its = |found: &&(ProcessInfo, ProcessState)| {
            (found.0.slot, found.0.generation) == (slot, generation) && !retained
        };
        self.processes.iter().find(its).copied()
    }
}

/// What a lock is for, as people say it.
pub(super) fn mode_in_words(
    range: Option<&RangeInfo>,
    mode: Option<latchwork_lockmgr::Mode>,
) -> &'static str {
    use latchwork_lockmgr::RangeKind::{ReadNext, WriteNext};
    use latchwork_lockmgr::granular::{S, U, X};
    match (range.map(|range| range.kind), mode) {
        (Some(ReadNext), _) => "read range",
        (Some(WriteNext), _) => "read range to write",
        (Some(_), _) => "write",
        (None, Some(mode)) if mode == S => "read",
        (None, Some(mode)) if mode == U => "read to write",
        (None, Some(mode)) if mode == X => "write",
        (None, _) => "other",
    }
}

impl<M: ConstMachine> Store<M> {
    /// Looks at this store as another process can.
    ///
    /// # Errors
    ///
    /// Those of the parts.
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
