//! What is measured: workloads, and where the locks lie.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the workers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Lock and unlock in a mode that readers share; objects of each worker's own.
    Weak,
    /// Lock and unlock in a mode that nobody shares; 16 objects of each worker's own.
    Strong,
    /// As `Strong`, of a thousand objects of each worker's own: more than an owner has memory for.
    Table,
    /// As `Strong`, of a million objects of each worker's own: none is met again before it has left
    /// every cache.
    Cold,
    /// All workers read-lock one object.
    OneObject,
    /// All workers lock 100,000 objects, a few of them nearly always (Zipf, 0.99), one in ten to
    /// write.
    Zipf,
    /// One owner releases 1,000 strong locks at once.
    ReleaseAll,
    /// Two owners wait for each other: how long until one is told.
    Cycle2,
    /// A ring of 100 owners.
    Cycle100,
    /// Strong locks of one worker while two others wait for each other, but never in a ring, and
    /// nobody looks for one.
    Calm,
    /// The same while those two get into rings, and a detector breaks them.
    Detecting,
    /// Very many strong locks at a time: bytes each.
    Held,
    /// A strong lock on a new name beside many owners with intent locks; see `steep.rs`.
    StrongBeside,
    /// A strong request that gives up, on a name that many have by intent.
    SharedBehind,
    /// One of those gives its lock back afterwards.
    ReleaseBehind,
    /// A look for deadlocks where many wait for one name.
    LookBehind,
    /// A request that gives up behind them.
    WaitBehind,
    /// A new owner beside many of its session.
    OwnerBeside,
    /// A new session beside many.
    SessionBeside,
    /// A range locked and unlocked beside many in its keyspace.
    RangeBeside,
}

impl Workload {
    /// All of them.
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

    /// Those that say what a request costs beside very many others.
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

    /// Its name in rows and on the command line.
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

    /// Whether it is one of `STEEP`, which no rival takes part in.
    pub fn is_steep(self) -> bool {
        Self::STEEP.contains(&self)
    }

    /// Whether it is counted how often it is done within a window.
    pub fn is_rate(self) -> bool {
        matches!(
            self,
            Self::Weak | Self::Strong | Self::Table | Self::Cold | Self::OneObject | Self::Zipf
        )
    }

    /// Whether what it takes most often is a strong lock.
    pub fn is_strong(self) -> bool {
        !matches!(self, Self::Weak | Self::OneObject | Self::Zipf)
    }

    /// How many owners make a ring, where there are rings.
    pub fn ring(self) -> Option<usize> {
        match self {
            Self::Cycle2 | Self::Detecting => Some(2),
            Self::Cycle100 => Some(100),
            _ => None,
        }
    }

    /// Whether others wait for locks while it runs.
    pub(crate) fn has_waiters(self) -> bool {
        matches!(self, Self::Cycle2 | Self::Cycle100 | Self::Calm | Self::Detecting)
    }
}

/// Where the locks lie, and who the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In memory of one process; the workers are its threads.
    Private,
    /// In memory that could be shared; the workers are threads of one process.
    Region,
    /// In shared memory; each worker is a process.
    Processes,
}

impl Place {
    /// Its name in rows.
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
    /// What.
    pub workload: Workload,
    /// Where.
    pub place: Place,
    /// By how many.
    pub workers: usize,
    /// Beside how many others; zero where that is not the question.
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
    /// Beside how many others steep places are looked at.
    pub const OTHERS: [usize; 3] = [1, 100, 10_000];

    /// Those of these workloads, in order.
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

/// Whose lock manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// Ours.
    #[serde(rename = "lockmgr")]
    Ours,
    /// Berkeley DB's.
    #[serde(rename = "berkeley-db")]
    BerkeleyDb,
}

impl Subject {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ours, Self::BerkeleyDb];

    /// Its name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "lockmgr",
            Self::BerkeleyDb => "berkeley-db",
        }
    }

    /// Whether it is other people's.
    pub fn is_rival(self) -> bool {
        self == Self::BerkeleyDb
    }
}

/// What to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which workloads.
    pub only: Vec<Workload>,
    /// Whose lock managers.
    pub subjects: Vec<Subject>,
    /// How often each is measured in each cell.
    pub runs: usize,
    /// How long one measurement of a rate takes.
    pub window: Duration,
    /// How often something that is timed one by one is done in a measurement.
    pub trials: usize,
    /// How many requests wait while deadlocks are looked for.
    pub waiters: usize,
    /// The same for Berkeley DB, which needs a thread for each.
    pub rival_waiters: usize,
    /// How many locks are held at a time to see how large they are.
    pub held: usize,
    /// Where shared memory is made: `/dev/shm` if there is one, else the directory for temporary
    /// files.
    pub dir: Option<PathBuf>,
    /// How long a measurement may take before it counts as stuck.
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
    /// Enough to see that everything works, in some seconds; too little to compare.
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
