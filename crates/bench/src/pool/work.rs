//! What is read, how long, how often.

use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// What threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One page.
    Hot,
    /// Pages that fit, each as often.
    Uniform,
    /// Pages that fit, a few nearly always.
    Zipf,
    /// As uniform, one in ten changed.
    Write,
    /// A hot set, and a scan beside it.
    Scan,
    /// More pages than frames.
    BeyondMemory,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Hot, Self::Uniform, Self::Zipf, Self::Write, Self::Scan, Self::BeyondMemory];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Write => "write",
            Self::Scan => "scan",
            Self::BeyondMemory => "beyond-memory",
        }
    }

    /// How many pages the file has, for so many frames.
    pub(super) fn pages(self, frames: u32) -> u32 {
        match self {
            Self::Hot => 16,
            Self::Uniform | Self::Zipf | Self::Write => frames / 2,
            Self::Scan | Self::BeyondMemory => frames * 4,
        }
    }
}

/// What to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which workloads.
    pub only: Vec<Workload>,
    /// Numbers of threads.
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
}

/// An operation on a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Read(u32),
    Add(u32),
}

/// The operations of one thread, made before they are timed: a power of two of them.
pub(super) fn operations(workload: Workload, frames: u32, seed: u64) -> Vec<Operation> {
    const COUNT: usize = 1 << 16;
    let pages = workload.pages(frames);
    let mut random = SmallRng::seed_from_u64(seed);
    let skew = Zipf::new(f64::from(pages), 0.99).ok();
    let mut scanned = 0;
    let next = |_| match workload {
        Workload::Hot => Operation::Read(7),
        Workload::Uniform | Workload::BeyondMemory => {
            Operation::Read(random.random_range(0..pages))
        }
        Workload::Zipf => {
            let rank = skew.as_ref().map_or(0.0, |skew| skew.sample(&mut random));
            // Neighbours in rank are not neighbours in the file.
            Operation::Read((rank as u32).wrapping_mul(2_654_435_761) % pages)
        }
        Workload::Write => {
            let page = random.random_range(0..pages);
            if random.random_range(0..10) == 0 {
                Operation::Add(page)
            } else {
                Operation::Read(page)
            }
        }
        Workload::Scan => {
            if random.random_range(0..10) == 0 {
                scanned = (scanned + 1) % pages;
                Operation::Read(scanned)
            } else {
                Operation::Read(random.random_range(0..frames / 4))
            }
        }
    };
    (0..COUNT).map(next).collect()
}
