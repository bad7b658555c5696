//! What is measured: whose pools, workloads, places, how long and how often.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whose pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Ours.
    Pool,
    /// Berkeley DB's.
    BerkeleyDb,
    /// A mapping of the file.
    Mmap,
    /// A system call for each read.
    Pread,
    /// Words in memory, without a file.
    Slice,
}

impl Subject {
    /// All of them, ours first.
    pub const ALL: [Self; 5] = [Self::Pool, Self::BerkeleyDb, Self::Mmap, Self::Pread, Self::Slice];

    /// Its name.
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

/// What workers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// One page.
    Hot,
    /// Pages that fit, each as often.
    Uniform,
    /// Pages that fit, a few nearly always.
    Zipf,
    /// Keys are searched for in pages that fit.
    Search,
    /// As uniform, one in ten changed.
    Write,
    /// As uniform, every second one changed.
    WriteHalf,
    /// As uniform, nine in ten changed.
    WriteHeavy,
    /// A hot set, and a scan beside it.
    Scan,
    /// The same, by readers that say that they scan.
    ScanTold,
    /// More pages than frames.
    BeyondMemory,
    /// The same, around the system's cache.
    BeyondDirect,
    /// A hot set, while the last worker reads it, too.
    Calm,
    /// The same hot set, while the last worker changes more pages than there are frames.
    WriteBack,
}

impl Workload {
    /// All of them.
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

    /// Its name.
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

    /// How many pages the file has, for so many frames.
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

    /// Of ten operations, how many change a page.
    pub(super) fn changes(self) -> u32 {
        match self {
            Self::Write => 1,
            Self::WriteHalf => 5,
            Self::WriteHeavy => 9,
            _ => 0,
        }
    }

    /// Operations between two looks at the clock. The last one of each batch is timed alone.
    pub(super) fn batch(self) -> usize {
        match self {
            Self::Scan | Self::ScanTold => 64,
            Self::BeyondMemory | Self::BeyondDirect => 16,
            _ => 512,
        }
    }

    /// Whether the last worker does something else, and is not measured.
    pub(super) fn has_a_last(self) -> bool {
        matches!(self, Self::Calm | Self::WriteBack)
    }

    /// Who runs it. A mapping and `pread` have no changes that others see whole and no frames that
    /// a scan could take; only `pread` and ours read around the system's cache; a search is beside
    /// that of a plain slice.
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

/// Where workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Threads of one process, whose memory is its own.
    Threads,
    /// A process each, which share memory.
    Processes,
}

/// What subjects are compared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What workers do.
    pub workload: Workload,
    /// Where they are.
    pub place: Place,
    /// How many.
    pub workers: usize,
}

impl Cell {
    /// Whether this subject runs it.
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

/// What to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which workloads.
    pub only: Vec<Workload>,
    /// Numbers of threads; of processes, where it is more than one.
    pub threads: Vec<usize>,
    /// How often each is measured.
    pub runs: usize,
    /// How long one measurement takes.
    pub window: Duration,
    /// Frames of the pools, of 8 KiB.
    pub frames: u32,
    /// Where the file of pages is made.
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
    /// Enough to see that everything works, in some seconds; too little to compare.
    pub fn quick() -> Self {
        Self { runs: 3, window: Duration::from_millis(20), frames: 1024, ..Self::default() }
    }

    /// The cells of a workload: of one place after the other, so that a subject is opened once for
    /// each.
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
