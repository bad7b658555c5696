//! The plan: pools, workloads, places, duration and number of runs.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Our pool.
    Pool,
    /// Berkeley DB's pool.
    BerkeleyDb,
    /// A mapping of the file.
    Mmap,
    /// One system call per read.
    Pread,
    /// Words in memory, without a file.
    Slice,
}

impl Subject {
    /// All pools, ours first.
    pub const ALL: [Self; 5] = [Self::Pool, Self::BerkeleyDb, Self::Mmap, Self::Pread, Self::Slice];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::BerkeleyDb => "berkeley-db",
            Self::Mmap => "mmap",
            Self::Pread => "pread",
            Self::Slice => "slice",
        }
    }
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Reads of one page.
    Hot,
    /// Uniform reads of pages that fit into memory.
    Uniform,
    /// Zipf-distributed reads of pages that fit into memory.
    Zipf,
    /// Key searches in pages that fit into memory.
    Search,
    /// Uniform, one operation in ten a change.
    Write,
    /// Uniform, one operation in two a change.
    WriteHalf,
    /// Uniform, nine operations in ten a change.
    WriteHeavy,
    /// A hot set during a scan.
    Scan,
    /// A hot set during a scan whose reads are marked as such.
    ScanTold,
    /// More pages than frames.
    BeyondMemory,
    /// More pages than frames, with direct I/O.
    BeyondDirect,
    /// A hot set; the last worker reads it too.
    Calm,
    /// A hot set; the last worker changes more pages than there are frames.
    WriteBack,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 13] = [
        Self::Hot,
        Self::Uniform,
        Self::Zipf,
        Self::Search,
        Self::Write,
        Self::WriteHalf,
        Self::WriteHeavy,
        Self::Scan,
        Self::ScanTold,
        Self::BeyondMemory,
        Self::BeyondDirect,
        Self::Calm,
        Self::WriteBack,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Search => "search",
            Self::Write => "write",
            Self::WriteHalf => "write-half",
            Self::WriteHeavy => "write-heavy",
            Self::Scan => "scan",
            Self::ScanTold => "scan-told",
            Self::BeyondMemory => "beyond-memory",
            Self::BeyondDirect => "beyond-direct",
            Self::Calm => "calm",
            Self::WriteBack => "write-back",
        }
    }

    /// Pages of the file for a number of frames.
    pub(super) fn pages(self, frames: u32) -> u32 {
        match self {
            Self::Hot | Self::Search => 16,
            Self::Uniform | Self::Zipf | Self::Write | Self::WriteHalf | Self::WriteHeavy => {
                frames / 2
            }
            Self::Scan
            | Self::ScanTold
            | Self::BeyondMemory
            | Self::BeyondDirect
            | Self::Calm
            | Self::WriteBack => frames * 4,
        }
    }

    /// Changes among ten operations.
    pub(super) fn changes(self) -> u32 {
        match self {
            Self::Write => 1,
            Self::WriteHalf => 5,
            Self::WriteHeavy => 9,
            _ => 0,
        }
    }

    /// Operations between two readings of the clock. The last one of each batch is timed alone.
    pub(super) fn batch(self) -> usize {
        match self {
            Self::Scan | Self::ScanTold => 64,
            Self::BeyondMemory | Self::BeyondDirect => 16,
            _ => 512,
        }
    }

    /// Whether the last worker does other work and is not measured.
    pub(super) fn has_a_last(self) -> bool {
        matches!(self, Self::Calm | Self::WriteBack)
    }

    /// The pools that run it. A mapping and `pread` have no atomic page changes and no frames that
    /// a scan could take. Only `pread` and our pool support direct I/O. A search is compared with a
    /// plain slice.
    pub(super) fn subjects(self) -> &'static [Subject] {
        use Subject::{BerkeleyDb, Mmap, Pool, Pread, Slice};
        match self {
            Self::Hot | Self::Uniform | Self::Zipf | Self::BeyondMemory => {
                &[Pool, BerkeleyDb, Mmap, Pread]
            }
            Self::Search => &[Pool, Slice],
            Self::BeyondDirect => &[Pool, Pread],
            Self::Write
            | Self::WriteHalf
            | Self::WriteHeavy
            | Self::Scan
            | Self::ScanTold
            | Self::Calm
            | Self::WriteBack => &[Pool, BerkeleyDb],
        }
    }

    fn places(self) -> &'static [Place] {
        match self {
            Self::Hot | Self::Uniform | Self::Zipf | Self::Write => {
                &[Place::Threads, Place::Processes]
            }
            _ => &[Place::Threads],
        }
    }
}

/// Where workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Threads of one process, in private memory.
    Threads,
    /// One process per worker, in shared memory.
    Processes,
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
}

impl Cell {
    /// Whether this pool runs the cell.
    pub(super) fn has(self, subject: Subject) -> bool {
        let plain = matches!(subject, Subject::Mmap | Subject::Pread | Subject::Slice);
        self.workload.subjects().contains(&subject) && !(plain && self.place == Place::Processes)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, place, workers } = self;
        let place = match place {
            Place::Threads => "threads",
            Place::Processes => "processes",
        };
        write!(f, "{}, {workers} {place}", workload.name())
    }
}

/// The workloads to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workloads.
    pub only: Vec<Workload>,
    /// Numbers of threads; also numbers of processes, if above one.
    pub threads: Vec<usize>,
    /// Runs of each cell.
    pub runs: usize,
    /// Duration of one measurement.
    pub window: Duration,
    /// Frames of the pools, 8 KiB each.
    pub frames: u32,
    /// Directory of the page file.
    pub dir: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            only: Workload::ALL.to_vec(),
            threads: vec![1, 2],
            runs: 7,
            window: Duration::from_millis(200),
            frames: 8192,
            dir: std::env::temp_dir(),
        }
    }
}

impl Settings {
    /// A smoke test of some seconds; too short for comparisons.
    pub fn quick() -> Self {
        Self { runs: 3, window: Duration::from_millis(20), frames: 1024, ..Self::default() }
    }

    /// The cells of a workload, ordered by place so that a pool is opened once per place.
    pub(super) fn cells(&self, workload: Workload) -> Vec<Cell> {
        let mut cells = Vec::new();
        for place in workload.places() {
            for workers in self.threads.iter().copied() {
                let alone = workers == 1 && (*place == Place::Processes || workload.has_a_last());
                if !alone {
                    cells.push(Cell { workload, place: *place, workers });
                }
            }
        }
        cells
    }
}
