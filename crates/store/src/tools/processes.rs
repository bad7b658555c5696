//! Lists the processes that have a store open, their work, and the reasons why the log is kept.

use core::fmt;
use std::time::Duration;

use latchwork_log::LogWork;
use latchwork_machine::ConstMachine;
use latchwork_region::{ProcessInfo, ProcessState};

use crate::tools::locks::Blocked;
use crate::tools::view::{Inspection, StoreView, TransactionInfo};
use crate::{Error, Store};

/// A process that has the store open, or has died and was not swept yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreProcess {
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// Whether it is alive.
    pub state: ProcessState,
    /// Its command line. `None` if it cannot be read, as in another pid namespace.
    pub command: Option<String>,
    /// How long ago it started. `None` in the same cases.
    pub age: Option<Duration>,
    /// The number of its thread slots.
    pub threads: u64,
    /// Its transactions that have not ended.
    pub transactions: Vec<TransactionInfo>,
    /// Its snapshots.
    pub snapshots: Vec<SnapshotInfo>,
    /// Short-term claims of its threads, such as latches. A running process may have released them
    /// already; a stopped process keeps them until it continues.
    pub holds: Vec<Holding>,
}

/// A snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its thread slot.
    pub thread: u32,
    /// Bytes of log that are retained for it.
    pub log_kept: u64,
}

/// A short-term claim of a thread. Other threads wait for it without a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holding {
    /// A page.
    Page(u64),
    /// A part of the log.
    Log(LogWork),
    /// The right to make a checkpoint.
    Checkpoint,
    /// A part of the table of locks.
    LockTable(u32),
    /// The right to repair the work of a dead process.
    Repair,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page(page) => write!(f, "page {page}"),
            Self::Log(LogWork::Append) => f.write_str("the append latch of the log"),
            Self::Log(LogWork::Flush) => f.write_str("the sync of the log"),
            Self::Log(_) => f.write_str("a segment of the log"),
            Self::Checkpoint => f.write_str("the checkpoint"),
            Self::LockTable(part) => write!(f, "partition {part} of the lock table"),
            Self::Repair => f.write_str("the repair of a dead process"),
        }
    }
}

/// The processes of a store, and the reasons why the log is retained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Processes {
    /// The processes, in the order of their slots.
    pub processes: Vec<StoreProcess>,
    /// Prepared, undecided transactions, which belong to no process.
    pub prepared: Vec<TransactionInfo>,
    /// Transactions of dead processes, whose locks are kept until they are rolled back.
    pub orphans: Vec<TransactionInfo>,
    /// Waiting transactions, and the transactions that block them.
    pub blocked: Vec<Blocked>,
    /// Bytes of log that are retained.
    pub log_kept: u64,
    /// The bytes that a recovery would read. The next checkpoint releases the others, unless a
    /// transaction, snapshot or pin needs them.
    pub redo: u64,
    /// Pins of the log: the name of each, and the bytes that it retains.
    pub pins: Vec<(String, u64)>,
}

impl<M: ConstMachine> StoreView<M> {
    /// Lists the processes of the store, their transactions, snapshots and claims.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn processes(&self) -> Result<Processes, Error> {
        let inspection = self.inspect()?;
        let holds = self.holds(&inspection)?;
        let mut found =
            Processes { blocked: Self::blocked_in(&inspection), ..Processes::default() };
        for (process, state) in &inspection.processes {
            let row = self.process(&inspection, process, *state, &holds)?;
            // A dead process without threads is swept.
            if process.alive || row.threads != 0 {
                found.processes.push(row);
            }
        }
        for owner in &inspection.snapshot.owners {
            let thread = owner.thread.and_then(|thread| inspection.threads.get(&thread));
            match thread {
                Some((_, _, true)) => found.prepared.extend(inspection.transaction(owner.owner)),
                None => found.orphans.extend(inspection.transaction(owner.owner)),
                Some(_) => {}
            }
        }
        let [end, _, redo, oldest] = self.log.ends()?;
        found.log_kept = end.0.saturating_sub(oldest.0);
        found.redo = end.0.saturating_sub(redo.0);
        let pins = self.log.pins()?.into_iter();
        found.pins = pins.map(|pin| (pin.name, end.0.saturating_sub(pin.lsn.0))).collect();
        Ok(found)
    }

    fn process(
        &self,
        inspection: &Inspection,
        process: &ProcessInfo,
        state: ProcessState,
        holds: &[(u32, Holding)],
    ) -> Result<StoreProcess, Error> {
        let is_its = |thread: u32| {
            inspection.threads.get(&thread) == Some(&(process.slot, process.generation, false))
        };
        let threads: Vec<u32> =
            inspection.threads.keys().copied().filter(|thread| is_its(*thread)).collect();
        let owners = inspection.snapshot.owners.iter();
        let owners = owners.filter(|owner| owner.thread.is_some_and(is_its));
        let mut snapshots = Vec::new();
        for thread in &threads {
            let from = self.lines.snapshot(*thread)?;
            let kept = from.map(|from| inspection.end.saturating_sub(from));
            snapshots.extend(kept.map(|log_kept| SnapshotInfo { thread: *thread, log_kept }));
        }
        snapshots.sort_by_key(|snapshot| core::cmp::Reverse(snapshot.log_kept));
        let holds = holds.iter().filter(|(thread, _)| is_its(*thread)).map(|(_, what)| *what);
        Ok(StoreProcess {
            pid: process.pid,
            state,
            command: process.command(),
            age: process.age(),
            threads: threads.len() as u64,
            transactions: owners.filter_map(|owner| inspection.transaction(owner.owner)).collect(),
            snapshots,
            holds: holds.collect(),
        })
    }

    /// Collects the short-term claims of all threads. Pages are read only if a process is not
    /// running, because there are many.
    fn holds(&self, inspection: &Inspection) -> Result<Vec<(u32, Holding)>, Error> {
        let mut holds: Vec<(u32, Holding)> =
            self.log.work()?.into_iter().map(|(slot, work)| (slot, Holding::Log(work))).collect();
        holds.extend(self.lines.checkpointer()?.map(|slot| (slot, Holding::Checkpoint)));
        let latched = self.locks.latched()?.into_iter();
        holds.extend(latched.map(|(part, thread)| (thread, Holding::LockTable(part))));
        let swept = self.region().threads().filter(|thread| thread.swept);
        holds.extend(swept.map(|thread| (thread.slot, Holding::Repair)));
        let has_threads = |process: &ProcessInfo| {
            inspection.threads.values().any(|(slot, generation, retained)| {
                (*slot, *generation, *retained) == (process.slot, process.generation, false)
            })
        };
        let is_idle = |(process, state): &(ProcessInfo, ProcessState)| {
            *state != ProcessState::Running && has_threads(process)
        };
        if let Some(pool) = self.pool.as_ref().filter(|_| inspection.processes.iter().any(is_idle))
        {
            let held = pool.list()?.filter_map(|frame| Some((frame.holder?, frame.page.1)));
            holds.extend(held.map(|(slot, page)| (slot, Holding::Page(page))));
        }
        Ok(holds)
    }
}

impl<M: ConstMachine> Store<M> {
    /// Lists the processes that have the store open, including this one: see
    /// [`StoreView::processes`].
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn processes(&self) -> Result<Processes, Error> {
        self.view()?.processes()
    }
}
