//! The selection of workloads, how long and how often they are measured.

use std::time::Duration;

use crate::Bench;

/// The workloads to measure, how long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workloads.
    pub only: Vec<Bench>,
    /// Numbers of threads. `None`: 2 and 32, and 8 in a mix.
    pub threads: Option<Vec<usize>>,
    /// Percentages of writes in mixes.
    pub writes: Vec<f64>,
    /// Runs of each latch in each cell.
    pub runs: usize,
    /// Duration of one measurement.
    pub window: Duration,
    /// The length of a long section, and of the pause after it.
    pub section_ns: u32,
    /// Lengths of the pause between sections, each a cell; the default one if there are none.
    pub outside_ns: Vec<u32>,
    /// Whether threads are bound to processors.
    pub pin: bool,
    /// How long to wait for threads that do not return.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            only: Bench::ALL.to_vec(),
            threads: None,
            writes: vec![0.0, 1.0, 50.0],
            runs: 7,
            window: Duration::from_millis(200),
            section_ns: 1500,
            outside_ns: Vec::new(),
            pin: false,
            patience: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// A smoke test of a few seconds; too short for comparisons.
    pub fn quick() -> Self {
        Self { runs: 3, window: Duration::from_millis(20), ..Self::default() }
    }
}
