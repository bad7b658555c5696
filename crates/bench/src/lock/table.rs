//! What the workloads ask of a lock manager, whoever wrote it.

use std::path::Path;

/// Why a request did not end with a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its owner is to give way.
    Deadlock,
    /// Something is wrong.
    Fault(String),
}

impl Stop {
    pub(crate) fn fault(why: impl core::fmt::Display) -> Self {
        Self::Fault(why.to_string())
    }
}

/// How large it must be, and what it is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Locks and waiting requests at a time.
    pub(crate) locks: usize,
    /// Owners at a time.
    pub(crate) owners: usize,
    /// Whether deadlocks are looked for.
    pub(crate) detect: bool,
}

/// What it counted itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    /// Those that were granted without a shared store.
    pub(crate) fast: u64,
}

/// A lock manager.
pub(crate) trait Table: Sized + Sync {
    /// Who holds locks.
    type Owner<'t>: Owner;

    /// A new one in this process, or the one that is in this directory, or is to be.
    fn open(dir: Option<&Path>, needs: Needs) -> Result<Self, Stop>;

    /// Does something as a new owner, which releases everything afterwards.
    fn with_owner<R>(
        &self,
        deed: impl FnOnce(&Self::Owner<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop>;

    /// Does something while so many requests of others wait, a hundred for each of some objects
    /// that yet another owner holds. From then on deadlocks are looked for, if they are at all.
    fn with_waiters<R>(
        &self,
        waiters: usize,
        deed: impl FnOnce() -> Result<R, Stop>,
    ) -> Result<R, Stop>;

    /// A number that is higher by one for each request that has begun to wait and does so still.
    fn waits(&self) -> Result<u64, Stop>;

    /// What it counted, of owners that are gone.
    fn counted(&self) -> Result<Counted, Stop>;

    /// Bytes of its region.
    fn region_bytes(&self) -> Result<u64, Stop>;
}

/// Who holds locks.
pub(crate) trait Owner {
    /// What a lock is given back by.
    type Held;

    /// Takes a lock, and waits for it.
    fn lock(&self, name: &[u8; 16], strong: bool) -> Result<Self::Held, Stop>;

    /// Gives it back.
    fn unlock(&self, name: &[u8; 16], held: Self::Held) -> Result<(), Stop>;

    /// Gives everything back.
    fn release_all(&self) -> Result<(), Stop>;
}

/// How many waiters share an object.
pub(crate) const WAITERS_PER_OBJECT: usize = 100;

/// The names that a workload may use.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Of one worker alone.
    Own = 1,
    /// Of all.
    Common = 2,
    /// Of those who wait for each other in a ring.
    Ring = 3,
    /// Of those who wait all the time.
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
