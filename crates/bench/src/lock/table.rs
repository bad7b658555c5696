//! The interface between workloads and lock managers.

use std::path::Path;

/// Why a request ended without a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its owner is the victim of a deadlock.
    Deadlock,
    /// An error.
    Fault(String),
}

impl Stop {
    pub(crate) fn fault(why: impl core::fmt::Display) -> Self {
        Self::Fault(why.to_string())
    }
}

/// Sizes and features that a workload needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Locks and waiting requests at the same time.
    pub(crate) locks: usize,
    /// Owners at the same time.
    pub(crate) owners: usize,
    /// Whether deadlocks are detected.
    pub(crate) detect: bool,
}

/// The lock manager's own counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    /// Requests granted without a store to shared memory.
    pub(crate) fast: u64,
}

/// A lock manager.
pub(crate) trait Table: Sized + Sync {
    /// An owner of locks.
    type Owner<'t>: Owner;

    /// Creates a lock table in private memory, or opens or creates the one in `dir`.
    fn open(dir: Option<&Path>, needs: Needs) -> Result<Self, Stop>;

    /// Runs a function as a new owner, which then releases all locks.
    fn with_owner<R>(
        &self,
        action: impl FnOnce(&Self::Owner<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop>;

    /// Runs a function while `count` requests of other owners wait, a hundred for each of some
    /// objects that another owner holds. Deadlock detection, if used, starts here.
    fn with_waiters<R>(
        &self,
        waiters: usize,
        action: impl FnOnce() -> Result<R, Stop>,
    ) -> Result<R, Stop>;

    /// A counter of the requests that have begun to wait and still wait.
    fn waits(&self) -> Result<u64, Stop>;

    /// The counters of closed owners.
    fn counted(&self) -> Result<Counted, Stop>;

    /// Size of the region in bytes.
    fn region_bytes(&self) -> Result<u64, Stop>;
}

/// An owner of locks.
pub(crate) trait Owner {
    /// A handle of a lock.
    type Held;

    /// Acquires a lock; blocks until it is granted.
    fn lock(&self, name: &[u8; 16], strong: bool) -> Result<Self::Held, Stop>;

    /// Releases a lock.
    fn unlock(&self, name: &[u8; 16], held: Self::Held) -> Result<(), Stop>;

    /// Releases all locks.
    fn release_all(&self) -> Result<(), Stop>;
}

/// Waiters per object.
pub(crate) const WAITERS_PER_OBJECT: usize = 100;

/// The name spaces of the workloads.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Names of one worker.
    Own = 1,
    /// Names of all workers.
    Common = 2,
    /// Names of owners that form a cycle.
    Cycle = 3,
    /// Names of owners that wait all the time.
    Parked = 4,
}

/// A name of 16 bytes.
pub(crate) fn name(kind: Kind, of: usize, number: usize) -> [u8; 16] {
    let mut name = [0; 16];
    name[..4].copy_from_slice(&(kind as u32).to_be_bytes());
    name[4..8].copy_from_slice(&(of as u32).to_be_bytes());
    name[8..].copy_from_slice(&(number as u64).to_be_bytes());
    name
}
