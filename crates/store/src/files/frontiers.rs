//! The words that snapshots and the recycling of the log agree by, alone: for models of them.

use latchwork_log::{Log, Lsn, Mode};
use latchwork_machine::ConstMachine;
use latchwork_region::Region;

use crate::Error;
use crate::files::shared::Shared;

/// What a store's processes share of its frontiers, without a store.
#[doc(hidden)]
#[derive(Debug)]
pub struct Frontiers<M: ConstMachine>(Shared<M>);

impl<M: ConstMachine> Frontiers<M> {
    /// Those of a log, which is empty or finished; `mode` is the store's.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], [`Error::Log`].
    pub fn new(region: &Region<M>, log: &Log<M>, mode: Mode) -> Result<Self, Error> {
        let shared = Shared::open(region, log)?;
        shared.recovered(log.end(), log.end(), mode)?;
        Ok(Self(shared))
    }

    /// A snapshot's position, and before where all is finished.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn remember(&self, slot: u16) -> Result<(u64, u64), Error> {
        self.0.remember(slot)
    }

    /// Ends it.
    pub fn forget(&self, slot: u16) {
        self.0.forget(slot);
    }

    /// From where on snapshots need the log.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], [`Error::Log`].
    pub fn needed(&self) -> Result<u64, Error> {
        self.0.needed()
    }

    /// Moves the second of what [`remember`](Self::remember) says up as far as it may.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], [`Error::Log`].
    pub fn raise_low(&self) -> Result<u64, Error> {
        self.0.raise_low()
    }

    /// Shows a commit that does not wait for the disk, in a store whose commits do.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn show(&self, commit: Lsn) -> Result<(), Error> {
        self.0.show(commit)
    }
}
