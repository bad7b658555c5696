//! What is measured: workloads, by how many, on which data.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

use latchwork_rivals::StoreKind;
use serde::{Deserialize, Serialize};

use super::data::Data;

/// What the workers do; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the module describes each by its name in rows")]
pub enum Workload {
    Get,
    GetLong,
    GetRw,
    Put,
    Batch,
    Durable,
    Range10,
    Scan100,
    ScanAll,
    ReadWhileWriting,
    Rrand,
    Rhot,
    Wrand,
    Sepdb,
    Snap,
    TprocB1,
    TprocB10,
    YcsbA,
    YcsbB,
    YcsbC,
    YcsbD,
    YcsbE,
    YcsbF,
}

impl Workload {
    /// All of them, those of one data set together.
    pub const ALL: [Self; 23] = [
        Self::Get,
        Self::GetLong,
        Self::GetRw,
        Self::Put,
        Self::Batch,
        Self::Range10,
        Self::Scan100,
        Self::ScanAll,
        Self::ReadWhileWriting,
        Self::Durable,
        Self::Rrand,
        Self::Rhot,
        Self::Sepdb,
        Self::Snap,
        Self::Wrand,
        Self::TprocB1,
        Self::TprocB10,
        Self::YcsbA,
        Self::YcsbB,
        Self::YcsbC,
        Self::YcsbD,
        Self::YcsbE,
        Self::YcsbF,
    ];

    /// Its name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetLong => "get-long",
            Self::GetRw => "get-rw",
            Self::Put => "put",
            Self::Batch => "batch",
            Self::Durable => "durable",
            Self::Range10 => "range-10",
            Self::Scan100 => "scan-100",
            Self::ScanAll => "scan-all",
            Self::ReadWhileWriting => "read-while-writing",
            Self::Rrand => "rrand",
            Self::Rhot => "rhot",
            Self::Wrand => "wrand",
            Self::Sepdb => "sepdb",
            Self::Snap => "snap",
            Self::TprocB1 => "tproc-b-1",
            Self::TprocB10 => "tproc-b-10",
            Self::YcsbA => "ycsb-a",
            Self::YcsbB => "ycsb-b",
            Self::YcsbC => "ycsb-c",
            Self::YcsbD => "ycsb-d",
            Self::YcsbE => "ycsb-e",
            Self::YcsbF => "ycsb-f",
        }
    }

    /// Whether a commit waits for the disk.
    pub fn is_durable(self) -> bool {
        matches!(self, Self::Durable | Self::Wrand)
    }

    /// Whether its transfers are added up in the end.
    pub(super) fn is_transfer(self) -> bool {
        matches!(self, Self::TprocB1 | Self::TprocB10)
    }

    /// The data that it works on.
    pub(super) fn data(self, settings: &Settings) -> Data {
        let rows = settings.rows;
        match self {
            Self::Get
            | Self::GetLong
            | Self::GetRw
            | Self::Put
            | Self::Batch
            | Self::Range10
            | Self::Scan100
            | Self::ScanAll
            | Self::ReadWhileWriting => Data::Records { rows },
            Self::Durable => Data::DurableRecords { rows },
            Self::Rrand | Self::Rhot => Data::Seed { rows, tables: 1, snapshots: false },
            Self::Sepdb => Data::Seed { rows: rows / 4, tables: 2, snapshots: false },
            Self::Snap => Data::Seed { rows, tables: 1, snapshots: true },
            Self::Wrand => Data::DurableSeed { rows },
            Self::TprocB1 => Data::Bank { scale: 1 },
            Self::TprocB10 => Data::Bank { scale: settings.scale },
            _ => Data::Ycsb { rows: rows / 4 },
        }
    }

    /// Threads and processes that it is measured with, with few cells or with all.
    fn crews(self, few: bool) -> &'static [(usize, usize)] {
        match self {
            Self::Sepdb | Self::ReadWhileWriting => &[(2, 1)],
            Self::ScanAll | Self::Batch => &[(1, 1)],
            Self::Durable if few => &[(1, 1), (8, 1)],
            Self::Durable => &[(1, 1), (32, 1), (32, 4)],
            _ if few => &[(1, 1), (2, 1)],
            Self::Get | Self::Rrand => &[(1, 1), (2, 1), (2, 2)],
            Self::Put => &[(1, 1), (2, 1), (2, 2), (8, 1)],
            Self::TprocB1 | Self::TprocB10 => &[(1, 1), (2, 1), (8, 1), (8, 4)],
            Self::YcsbA | Self::YcsbB | Self::YcsbC | Self::YcsbF => &[(1, 1), (2, 1), (8, 1)],
            _ => &[(1, 1), (2, 1)],
        }
    }
}

/// A workload and how many do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What.
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
    /// Those of these settings, in order.
    pub fn all(settings: &Settings) -> Vec<Self> {
        let mut cells = Vec::new();
        for workload in Workload::ALL {
            if settings.only.contains(&workload) {
                let crews = workload.crews(settings.few).iter();
                cells.extend(crews.map(|&(threads, procs)| Self { workload, threads, procs }));
            }
        }
        cells
    }
}

/// Whose store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// Ours.
    Ours,
    /// Other people's.
    Rival(StoreKind),
}

impl Subject {
    /// All of them.
    pub fn all() -> Vec<Self> {
        [Self::Ours].into_iter().chain(StoreKind::ALL.map(Self::Rival)).collect()
    }

    /// Its name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Rival(kind) => kind.name(),
        }
    }

    /// Whether it is other people's.
    pub fn is_rival(self) -> bool {
        matches!(self, Self::Rival(_))
    }

    /// Whether several processes can write to it at a time.
    pub(super) fn is_shared(self) -> bool {
        match self {
            Self::Ours => true,
            Self::Rival(kind) => kind.is_shared(),
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|subject| subject.name() == name)
    }
}

/// What to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which workloads.
    pub only: Vec<Workload>,
    /// Whose stores.
    pub subjects: Vec<Subject>,
    /// How often each is measured in each cell.
    pub runs: usize,
    /// How long one measurement takes.
    pub window: Duration,
    /// Records of 116 bytes; a quarter as many rows of YCSB.
    pub rows: usize,
    /// Branches of the larger transfer workload.
    pub scale: usize,
    /// Only few numbers of threads and processes.
    pub few: bool,
    /// Bytes of each store's cache.
    pub cache: usize,
    /// Where stores lie that do not wait for the disk: `/dev/shm` if there is one, else the
    /// directory for temporary files.
    pub memory: Option<PathBuf>,
    /// Where stores lie that wait for the disk: the directory for temporary files.
    pub disk: Option<PathBuf>,
    /// How long a measurement may take before it counts as stuck.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            only: Workload::ALL.to_vec(),
            subjects: Subject::all(),
            runs: 5,
            window: Duration::from_millis(500),
            rows: 400_000,
            scale: 10,
            few: false,
            cache: 512 << 20,
            memory: None,
            disk: None,
            patience: Duration::from_secs(180),
        }
    }
}

impl Settings {
    /// Enough to see that everything works, in less than two minutes; too little to compare.
    pub fn quick() -> Self {
        Self {
            runs: 1,
            window: Duration::from_millis(40),
            rows: 8000,
            scale: 2,
            few: true,
            cache: 64 << 20,
            ..Self::default()
        }
    }
}
