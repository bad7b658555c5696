//! What is asked of a pool that is measured.

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
    /// Searches for the key of this number, and reads the value.
    Search(u32, u32),
    /// Reads the page that is next in the worker's scan.
    Scan,
}

/// What is to be opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'p> {
    /// The file of pages.
    pub(super) file: &'p Path,
    /// Where memory that processes share is; none if one process has it alone.
    pub(super) shared: Option<&'p Path>,
    /// Whether the pages are made; else they are there.
    pub(super) make: bool,
    pub(super) frames: u32,
    pub(super) pages: u32,
    /// Whether the file is read around the system's cache.
    pub(super) direct: bool,
}

/// What a worker does with the pool that it is given.
pub(super) type Work<'w> = &'w mut dyn FnMut(&mut dyn Uses) -> Result<Outcome, Fault>;

/// A pool of somebody's, to be used by many threads.
pub(super) trait Keeper: Send + Sync {
    /// Opens the file of pages.
    fn open(scene: &Scene<'_>) -> Result<Self, String>
    where
        Self: Sized;

    /// Runs `work` on this thread. Its scan begins at page `scan`, and is told to be one or not.
    fn with(&self, scan: u32, told: bool, work: Work<'_>) -> Result<Outcome, Fault>;
}

/// A thread's use of a pool: a batch at a time, so that the call costs nothing.
pub(super) trait Uses {
    /// Does the operations, and checks what is read. Says why it could not.
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault>;

    /// What was done since it was opened.
    fn counted(&mut self) -> Counted {
        Counted::default()
    }
}
