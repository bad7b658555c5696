//! The words through which snapshots and the recycling of the log are coordinated, separately, for
//! models of them.

use latchwork_log::{Log, Lsn, Mode};
use latchwork_machine::ConstMachine;
use latchwork_region::Region;

use crate::Error;
use crate::files::shared::Shared;

/// The shared frontiers of a store, without a store.
#[derive(Debug)]
pub struct Frontiers<M: ConstMachine>(Shared<M>);

impl<M: ConstMachine> Frontiers<M> {
    /// Creates them for a log that is empty or whose transactions have all ended; `mode` is the
    /// store's.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], [`Error::Log`].
    pub fn new(region: &Region<M>, log: &Log<M>, mode: Mode) -> Result<Self, Error> {
        let shared = Shared::open(region, log)?;
        shared.recovered(log.end(), log.end(), mode)?;
        Ok(Self(shared))
    }

    /// Returns the position of a new snapshot, and the position before which all transactions have
    /// ended.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn remember(&self, slot: u16) -> Result<(u64, u64), Error> {
        self.0.remember(slot)
    }

    /// Ends the snapshot of a slot.
    pub fn forget(&self, slot: u16) {
        self.0.forget(slot);
    }

    /// Returns the position from which snapshots need the log.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], [`Error::Log`].
    pub fn needed(&self) -> Result<u64, Error> {
        self.0.needed()
    }

    /// Raises the second position that [`remember`](Self::remember) returns as far as possible.
    ///
    /// # Errors
    ///
    /// [`Error::Region`], [`Error::Log`].
    pub fn raise_low(&self) -> Result<u64, Error> {
        self.0.raise_low()
    }

    /// Makes a commit visible that does not wait for the disk, in a store whose commits do.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn show(&self, commit: Lsn) -> Result<(), Error> {
        self.0.show(commit)
    }
}
