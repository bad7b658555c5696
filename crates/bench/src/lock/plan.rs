//! The plan: workloads, and where the locks are.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Shared locks on objects of each worker's own.
    Weak,
    /// Exclusive locks on 16 objects of each worker's own.
    Strong,
    /// As `Strong`, with a thousand objects per worker: more than an owner has memory for.
    Table,
    /// As `Strong`, with a million objects per worker: an object has left every cache before its
    /// next use.
    Cold,
    /// All workers read-lock one object.
    OneObject,
    /// All workers lock 100,000 objects with a Zipf distribution (0.99), one operation in ten a
    /// write lock.
    Zipf,
    /// One owner releases 1,000 strong locks at once.
    ReleaseAll,
    /// Two owners deadlock: time until one is refused.
    Cycle2,
    /// A cycle of 100 owners.
    Cycle100,
    /// Strong locks of one worker while two others wait for each other without a cycle and without
    /// detection.
    Calm,
    /// The same while the two others deadlock and a detector breaks the cycles.
    Detecting,
    /// Very many strong locks at a time: bytes per lock.
    Held,
    /// A strong lock on a new name among many owners with intent locks; see `steep.rs`.
    StrongBeside,
    /// A strong request with a timeout on a name that many owners hold in an intent mode.
    SharedBehind,
    /// One of these owners releases its lock afterwards.
    ReleaseBehind,
    /// Deadlock detection while many owners wait for one name.
    LookBehind,
    /// A request with a timeout behind these owners.
    WaitBehind,
    /// A new owner in a session with many.
    OwnerBeside,
    /// A new session among many.
    SessionBeside,
    /// A range locked and unlocked among many in its keyspace.
    RangeBeside,
}

impl Workload {
    /// All workloads without the steep ones.
    pub const ALL: [Self; 12] = [
        Self::Weak,
        Self::Strong,
        Self::Table,
        Self::Cold,
        Self::OneObject,
        Self::Zipf,
        Self::ReleaseAll,
        Self::Cycle2,
        Self::Cycle100,
        Self::Calm,
        Self::Detecting,
        Self::Held,
    ];

    /// The workloads that measure the cost of a request among many others.
    pub const STEEP: [Self; 8] = [
        Self::StrongBeside,
        Self::SharedBehind,
        Self::ReleaseBehind,
        Self::LookBehind,
        Self::WaitBehind,
        Self::OwnerBeside,
        Self::SessionBeside,
        Self::RangeBeside,
    ];

    /// The name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weak => "weak",
            Self::Strong => "strong",
            Self::Table => "table",
            Self::Cold => "cold",
            Self::OneObject => "one-object",
            Self::Zipf => "zipf",
            Self::ReleaseAll => "release-all",
            Self::Cycle2 => "cycle-2",
            Self::Cycle100 => "cycle-100",
            Self::Calm => "calm",
            Self::Detecting => "detecting",
            Self::Held => "held",
            Self::StrongBeside => "strong-beside",
            Self::SharedBehind => "shared-behind",
            Self::ReleaseBehind => "release-behind",
            Self::LookBehind => "look-behind",
            Self::WaitBehind => "wait-behind",
            Self::OwnerBeside => "owner-beside",
            Self::SessionBeside => "session-beside",
            Self::RangeBeside => "range-beside",
        }
    }

    /// Whether it is one of `STEEP`, which no rival runs.
    pub fn is_steep(self) -> bool {
        Self::STEEP.contains(&self)
    }

    /// Whether operations within a window are counted.
    pub fn is_rate(self) -> bool {
        matches!(
            self,
            Self::Weak | Self::Strong | Self::Table | Self::Cold | Self::OneObject | Self::Zipf
        )
    }

    /// Whether most of its locks are strong.
    pub fn is_strong(self) -> bool {
        !matches!(self, Self::Weak | Self::OneObject | Self::Zipf)
    }

    /// The number of owners of a cycle, if the workload forms cycles.
    pub fn cycle(self) -> Option<usize> {
        match self {
            Self::Cycle2 | Self::Detecting => Some(2),
            Self::Cycle100 => Some(100),
            _ => None,
        }
    }

    /// Whether other owners wait for locks while it runs.
    pub(crate) fn has_waiters(self) -> bool {
        matches!(self, Self::Cycle2 | Self::Cycle100 | Self::Calm | Self::Detecting)
    }
}

/// Where the locks are, and what the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Memory of one process; the workers are its threads.
    Private,
    /// Memory that could be shared; the workers are threads of one process.
    Region,
    /// Shared memory; each worker is a process.
    Processes,
}

impl Place {
    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Region => "region",
            Self::Processes => "processes",
        }
    }
}

/// A workload, a place and a number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The workload.
    pub workload: Workload,
    /// The place.
    pub place: Place,
    /// Number of workers.
    pub workers: usize,
    /// Number of other requests present; zero if it does not apply.
    pub others: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.workers == 1 { "" } else { "s" };
        write!(f, "{}, {}, {} worker{s}", self.workload.name(), self.place.name(), self.workers)?;
        if self.others == 0 { Ok(()) } else { write!(f, ", beside {}", self.others) }
    }
}

impl Cell {
    /// The numbers of others in the steep workloads.
    pub const OTHERS: [usize; 3] = [1, 100, 10_000];

    /// The cells of these workloads, in order.
    pub fn all(only: &[Workload]) -> Vec<Self> {
        let mut cells = Vec::new();
        for workload in Workload::ALL.into_iter().filter(|workload| only.contains(workload)) {
            let mut cell =
                |place, workers| cells.push(Self { workload, place, workers, others: 0 });
            if !workload.is_rate() {
                cell(Place::Private, 1);
                continue;
            }
            if !matches!(workload, Workload::OneObject | Workload::Zipf) {
                cell(Place::Private, 1);
                cell(Place::Region, 1);
            }
            for place in [Place::Private, Place::Region, Place::Processes] {
                cell(place, 2);
            }
        }
        for workload in Workload::STEEP.into_iter().filter(|workload| only.contains(workload)) {
            for others in Self::OTHERS {
                cells.push(Self { workload, place: Place::Private, workers: 1, others });
            }
        }
        cells
    }

    /// Processes that hold locks.
    pub fn procs(&self) -> usize {
        if self.place == Place::Processes { self.workers } else { 1 }
    }
}

/// A lock manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// Our lock manager.
    #[serde(rename = "lockmgr")]
    Ours,
    /// Berkeley DB's lock manager.
    #[serde(rename = "berkeley-db")]
    BerkeleyDb,
}

impl Subject {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ours, Self::BerkeleyDb];

    /// The name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "lockmgr",
            Self::BerkeleyDb => "berkeley-db",
        }
    }

    /// Whether it is a rival.
    pub fn is_rival(self) -> bool {
        self == Self::BerkeleyDb
    }
}

/// The workloads to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workloads.
    pub only: Vec<Workload>,
    /// The lock managers.
    pub subjects: Vec<Subject>,
    /// Runs of each cell.
    pub runs: usize,
    /// Duration of one measurement of a rate.
    pub window: Duration,
    /// Repetitions within a measurement that times operations one by one.
    pub trials: usize,
    /// Waiting requests during deadlock detection.
    pub waiters: usize,
    /// The same for Berkeley DB, which needs a thread for each.
    pub rival_waiters: usize,
    /// Locks held at the same time when their size is measured.
    pub held: usize,
    /// Directory of shared memory. Default: `/dev/shm` if it exists, otherwise the directory for
    /// temporary files.
    pub dir: Option<PathBuf>,
    /// Time after which a measurement counts as stuck.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            only: [&Workload::ALL[..], &Workload::STEEP].concat(),
            subjects: Subject::ALL.to_vec(),
            runs: 7,
            window: Duration::from_millis(200),
            trials: 10,
            waiters: 10_000,
            rival_waiters: 1000,
            held: 1_000_000,
            dir: None,
            patience: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// A smoke test of some seconds; too short for comparisons.
    pub fn quick() -> Self {
        Self {
            runs: 3,
            window: Duration::from_millis(20),
            trials: 3,
            waiters: 1000,
            rival_waiters: 100,
            held: 50_000,
            ..Self::default()
        }
    }
}
