//! The plan: workloads, numbers of threads and processes, data sets.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

use latchwork_rivals::StoreKind;

use super::Workload;
use super::data::{Amounts, Data};

/// A workload with numbers of threads and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The workload.
    pub workload: Workload,
    /// Threads, in all processes.
    pub threads: usize,
    /// Processes.
    pub procs: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, threads, procs } = self;
        let s = |n: &usize| if *n == 1 { "" } else { "s" };
        write!(f, "{}, {threads} thread{}", workload.name(), s(threads))?;
        if *procs > 1 { write!(f, " in {procs} processes") } else { Ok(()) }
    }
}

impl Cell {
    /// The cells of these settings, in order.
    pub fn all(settings: &Settings) -> Vec<Self> {
        let mut cells = Vec::new();
        for workload in Workload::ALL {
            let asked = settings.only.contains(&workload);
            let beside = settings.only.iter().any(|only| only.beside().contains(&workload));
            if asked {
                let crews = workload.crews(settings.few);
                cells.extend(crews.map(|(threads, procs)| Self { workload, threads, procs }));
            } else if beside {
                cells.push(Self { workload, threads: 1, procs: 1 });
            }
        }
        cells
    }
}

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// Our store.
    Ours,
    /// The disk without a store.
    Device,
    /// A rival.
    Rival(StoreKind),
}

impl Subject {
    /// All stores.
    pub fn all() -> Vec<Self> {
        [Self::Ours].into_iter().chain(StoreKind::ALL.map(Self::Rival)).collect()
    }

    /// The name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Device => "device",
            Self::Rival(kind) => kind.name(),
        }
    }

    /// Whether it is a rival.
    pub fn is_rival(self) -> bool {
        matches!(self, Self::Rival(_))
    }

    /// Whether several processes can write to it at the same time.
    pub(super) fn is_shared(self) -> bool {
        match self {
            Self::Ours => true,
            Self::Device => false,
            Self::Rival(kind) => kind.is_shared(),
        }
    }

    /// Whether it is measured in this cell.
    pub(super) fn fits(self, cell: &Cell) -> bool {
        match self {
            Self::Device => cell.workload.is_durable() && cell.threads == 1,
            _ => cell.procs == 1 || self.is_shared(),
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().chain([Self::Device]).find(|subject| subject.name() == name)
    }
}

/// The workloads to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workloads.
    pub only: Vec<Workload>,
    /// The stores.
    pub subjects: Vec<Subject>,
    /// Runs of each cell.
    pub runs: usize,
    /// Duration of one measurement.
    pub window: Duration,
    /// Records of 116 bytes. A quarter as many YCSB rows.
    pub rows: usize,
    /// Branches of the larger transfer workload.
    pub scale: usize,
    /// Bytes of records written while a snapshot is held, and bytes of log at a crash.
    pub bytes: u64,
    /// Processes killed in one measurement of `kill-one`.
    pub kills: usize,
    /// Whether to use few numbers of threads and processes.
    pub few: bool,
    /// Cache size of each store, in bytes.
    pub cache: usize,
    /// Bytes of log between two checkpoints of our store, where the workload does not set it.
    /// `None` for its default.
    pub budget: Option<u64>,
    /// Directory of stores without durability. Default: `/dev/shm` if it exists, otherwise the
    /// directory for temporary files.
    pub memory: Option<PathBuf>,
    /// Directory of stores with durability. Default: the directory for temporary files.
    pub disk: Option<PathBuf>,
    /// Time after which a measurement counts as stuck.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            only: Workload::ALL.into_iter().filter(|workload| !workload.is_long()).collect(),
            subjects: Subject::all(),
            runs: 5,
            window: Duration::from_millis(500),
            rows: 400_000,
            scale: 10,
            few: false,
            bytes: 64 << 20,
            kills: 20,
            cache: 512 << 20,
            budget: None,
            memory: None,
            disk: None,
            patience: Duration::from_secs(180),
        }
    }
}

impl Settings {
    /// The data set of a workload.
    pub(super) fn data(&self, workload: Workload) -> Data {
        let Self { rows, scale, bytes, .. } = *self;
        workload.data(&Amounts { rows, scale, bytes })
    }

    /// A smoke test of less than two minutes; too short for comparisons.
    pub fn quick() -> Self {
        Self {
            runs: 1,
            window: Duration::from_millis(40),
            rows: 8000,
            scale: 2,
            few: true,
            bytes: 1 << 20,
            kills: 2,
            cache: 64 << 20,
            ..Self::default()
        }
    }
}
