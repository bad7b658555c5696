//! The state of a manager that all its sessions in this process share.

use std::sync::{Arc, Mutex, Weak};

use latchwork_machine::ConstMachine;
use latchwork_region::{Offset, Region};

use crate::memory::blocks::Blocks;
use crate::memory::cells::{Directory, get};
use crate::memory::roots;
use crate::memory::wakers::Watch;
use crate::options::{Options, Recovery};
use crate::{Error, Mode, Modes};

/// A process's part of a lock manager. The alignment makes the distribution of its words over cache
/// lines independent of its address, so that a simulated run does not depend on the host's
/// allocator.
#[repr(align(64))]
pub(crate) struct Inner<M: ConstMachine> {
    pub(crate) region: Region<M>,
    pub(crate) modes: Modes,
    pub(crate) options: Options,
    pub(crate) seed: u64,
    pub(crate) blocks: Blocks<M>,
    pub(crate) directory: Offset<Directory<M>>,
    /// Whether owners rely on closers executing a heavy barrier.
    pub(crate) relied_on: bool,
    pub(crate) weak: bool,
    pub(crate) recovery: Option<Recovery>,
    /// The modes in which tickets of ranges are held and waited for.
    pub(crate) tickets: Option<(Mode, Mode)>,
    /// When this process last searched for dead threads.
    pub(crate) swept: M::AtomicU64,
    /// When it last searched for latches of dead threads.
    pub(crate) opened: M::AtomicU64,
    /// When this process last began a search over all waiters and succeeded; and when it may begin
    /// the next.
    pub(crate) looked: M::AtomicU64,
    pub(crate) rests: M::AtomicU64,
    /// The value of `roots::RECOVERY` up to which this process has asked its recovery callback
    /// about orphans.
    pub(crate) decided: M::AtomicU64,
    /// Owners that sweeps of this process kept and no session has counted yet.
    pub(crate) orphaned: M::AtomicU64,
    /// The repair that the region's sweeps call.
    pub(crate) repair: Arc<LocksRepair<M>>,
    /// The tasks of this process that wait without a thread.
    pub(crate) watch: Mutex<Watch>,
}

/// The lock manager's part of the region's sweep: see `recovery/sweep.rs`.
pub(crate) struct LocksRepair<M: ConstMachine> {
    pub(crate) manager: Weak<Inner<M>>,
    /// The full error of the last sweep, if it failed.
    pub(crate) failed: Mutex<Option<Error>>,
}

impl<M: ConstMachine> Inner<M> {
    /// Returns whether any process ever created a child owner. If so, a waiter may be granted
    /// before an earlier one.
    pub(crate) fn has_families(&self) -> Result<bool, Error> {
        Ok(get(self.region.root(roots::FAMILIES)?) != 0)
    }
}
