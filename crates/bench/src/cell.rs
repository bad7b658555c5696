//! The cells of the table. A cell is a workload and a number of threads.

use core::fmt;

use crate::Settings;
use crate::work::{Extent, MAX_LINES, Pace};

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// One thread locks and unlocks; the other threads sleep.
    Uncontended,
    /// All threads write one line.
    Short,
    /// All threads write several lines and compute in between.
    Long,
    /// Threads read one line and sometimes write it.
    Mix,
}

impl Bench {
    /// All workloads, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Uncontended, Self::Short, Self::Long, Self::Mix];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Short => "short",
            Self::Long => "long",
            Self::Mix => "mix",
        }
    }
}

/// The kind of an operation on a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The operation of an exclusive latch.
    Exclusive,
    /// A shared acquisition of a reader-writer latch.
    Read,
    /// An exclusive acquisition of a reader-writer latch.
    Write,
}

impl Role {
    /// The name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The name of one operation.
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::Exclusive => "section",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A workload and a number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The workload.
    pub bench: Bench,
    /// The measured operation. [`Role::Read`] stands for both in a mix.
    pub side: Role,
    /// Threads that use the latch.
    pub threads: usize,
    /// Fraction of writes in a mix, 0 to 1.
    pub writes: f64,
    /// Cache lines touched in a section.
    pub lines: usize,
    /// Nanoseconds of computing in a section, on an otherwise idle core.
    pub section_ns: u32,
    /// Mean nanoseconds of computing between sections; the actual time varies by half at random.
    pub outside_ns: u32,
}

impl Cell {
    /// The cells selected by `settings`.
    pub fn all(settings: &Settings) -> Vec<Self> {
        let empty = Self {
            bench: Bench::Uncontended,
            side: Role::Exclusive,
            threads: 1,
            writes: 0.0,
            lines: 0,
            section_ns: 0,
            outside_ns: 0,
        };
        let threads = |default: &[usize]| match &settings.threads {
            Some(threads) => threads.clone(),
            None => default.to_vec(),
        };
        let mut cells = Vec::new();
        for bench in Bench::ALL.into_iter().filter(|b| settings.only.contains(b)) {
            let short = Self { bench, lines: 1, outside_ns: 100, ..empty.clone() };
            match bench {
                Bench::Uncontended => {
                    let sides = [Role::Exclusive, Role::Read, Role::Write];
                    cells.extend(sides.map(|side| Self { side, ..empty.clone() }));
                }
                Bench::Short => {
                    let cell = |threads| Self { threads, ..short.clone() };
                    cells.extend(threads(&[2, 32]).into_iter().map(cell));
                }
                Bench::Long => {
                    let section_ns = settings.section_ns;
                    let (lines, outside_ns) = (MAX_LINES, section_ns);
                    let long = Self { lines, section_ns, outside_ns, ..short };
                    let cell = |threads| Self { threads, ..long.clone() };
                    cells.extend(threads(&[2, 32]).into_iter().map(cell));
                }
                Bench::Mix => {
                    for threads in threads(&[8]) {
                        let side = Role::Read;
                        let cell = |writes| Self { threads, writes, side, ..short.clone() };
                        cells.extend(settings.writes.iter().map(|percent| cell(percent / 100.0)));
                    }
                }
            }
        }
        let paused = |cell: Self| {
            let pauses: &[u32] = match cell.bench {
                Bench::Uncontended => &[],
                _ => &settings.outside_ns,
            };
            match pauses {
                [] => vec![cell],
                _ => pauses.iter().map(|ns| Self { outside_ns: *ns, ..cell.clone() }).collect(),
            }
        };
        cells.into_iter().flat_map(paused).collect()
    }

    /// The operations that have rows of their own.
    pub fn roles(&self) -> &'static [Role] {
        match (self.bench, self.side) {
            (Bench::Mix, _) if self.writes >= 1.0 => &[Role::Write],
            (Bench::Mix, _) if self.writes > 0.0 => &[Role::Read, Role::Write],
            (_, Role::Exclusive) => &[Role::Exclusive],
            (_, Role::Read) => &[Role::Read],
            (_, Role::Write) => &[Role::Write],
        }
    }

    /// Every how many writes one is timed. All are timed if writes are few; reading the clock costs
    /// time.
    pub(crate) fn writes_per_sample(&self) -> u64 {
        match self.bench {
            Bench::Mix if self.writes <= 0.02 => 1,
            Bench::Mix => 16,
            _ => 64,
        }
    }

    /// Every how many reads one is timed.
    pub(crate) fn reads_per_sample(&self) -> u64 {
        64
    }

    pub(crate) fn extent(&self, pace: Pace) -> Extent {
        Extent { lines: self.lines, rounds: pace.rounds(self.section_ns) }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.threads;
        match self.bench {
            Bench::Uncontended => write!(f, "uncontended, {}", self.side.name()),
            Bench::Short => write!(f, "short section, threads: {threads}"),
            Bench::Long => write!(f, "long section, threads: {threads}"),
            Bench::Mix => write!(f, "mix, {} % writes, threads: {threads}", self.writes * 100.0),
        }
    }
}
