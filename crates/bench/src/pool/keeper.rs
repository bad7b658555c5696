//! The interface between workloads and pools.

use std::path::Path;

use super::fault::Fault;
use super::outcome::{Counted, Outcome};

/// An operation on a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// Reads its value.
    Read(u32),
    /// Adds one to its value.
    Add(u32),
    /// Searches for the key of this number and reads the value.
    Search(u32, u32),
    /// Reads the next page of the worker's scan.
    Scan,
}

/// The files and settings to open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'p> {
    /// The page file.
    pub(super) file: &'p Path,
    /// Directory of shared memory. `None` for private memory.
    pub(super) shared: Option<&'p Path>,
    /// Whether to create the pages.
    pub(super) make: bool,
    pub(super) frames: u32,
    pub(super) pages: u32,
    /// Whether to use direct I/O.
    pub(super) direct: bool,
}

/// The work of a worker, given its use of the pool.
pub(super) type Work<'w> = &'w mut dyn FnMut(&mut dyn Uses) -> Result<Outcome, Fault>;

/// A pool that many threads use.
pub(super) trait Keeper: Send + Sync {
    /// Opens the page file.
    fn open(scene: &Scene<'_>) -> Result<Self, String>
    where
        Self: Sized;

    /// Runs `work` on this thread. Its scan begins at page `scan`; `told` says whether the pool is
    /// told of it.
    fn with(&self, scan: u32, told: bool, work: Work<'_>) -> Result<Outcome, Fault>;
}

/// A thread's use of a pool. Operations come in batches, so that the cost of the call is
/// negligible.
pub(super) trait Uses {
    /// Runs the operations and checks what they read.
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault>;

    /// The counters since the pool was opened.
    fn counted(&mut self) -> Counted {
        Counted::default()
    }
}
