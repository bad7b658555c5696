//! What all sessions of a manager in this process share.

use std::sync::{Arc, Mutex, Weak};

use latchwork_machine::ConstMachine;
use latchwork_region::{Offset, Region};

use crate::memory::blocks::Blocks;
use crate::memory::cells::{Directory, get};
use crate::memory::roots;
use crate::memory::wakers::Watch;
use crate::options::{Options, Recovery};
use crate::{Error, Mode, Modes};

/// What a process has of a lock manager. Its words lie in the same lines wherever it lies, so that
/// a simulated run does not depend on the host's allocator.
#[repr(align(64))]
pub(crate) struct Inner<M: ConstMachine> {
    pub(crate) region: Region<M>,
    pub(crate) modes: Modes,
    pub(crate) options: Options,
    pub(crate) seed: u64,
    pub(crate) blocks: Blocks<M>,
    pub(crate) directory: Offset<Directory<M>>,
    /// Whether owners rely on closers passing a heavy barrier.
    pub(crate) relied_on: bool,
    pub(crate) weak: bool,
    pub(crate) recovery: Option<Recovery>,
    /// The modes in which tickets of ranges are held and waited for.
    pub(crate) tickets: Option<(Mode, Mode)>,
    /// When this process last looked for the dead.
    pub(crate) swept: M::AtomicU64,
    /// When it last looked for latches of theirs.
    pub(crate) opened: M::AtomicU64,
    /// When this process last began to look at all who wait, with success; and when it may next.
    pub(crate) looked: M::AtomicU64,
    pub(crate) rests: M::AtomicU64,
    /// Up to where this process has asked its recovery callback about orphans: what
    /// `roots::RECOVERY` said.
    pub(crate) decided: M::AtomicU64,
    /// Owners that sweeps of this process kept, and no session has counted yet.
    pub(crate) orphaned: M::AtomicU64,
    /// What the region's sweeps call.
    pub(crate) repair: Arc<LocksRepair<M>>,
    /// Those of this process who wait without a thread.
    pub(crate) watch: Mutex<Watch>,
}

/// What the lock manager does for the dead, registered with the region: see `recovery/sweep.rs`.
pub(crate) struct LocksRepair<M: ConstMachine> {
    pub(crate) manager: Weak<Inner<M>>,
    /// Why the last one failed, in full.
    pub(crate) failed: Mutex<Option<Error>>,
}

impl<M: ConstMachine> Inner<M> {
    /// Whether there ever was a child, in any process: then a waiter may go before an earlier one.
    pub(crate) fn has_families(&self) -> Result<bool, Error> {
        Ok(get(self.region.root(roots::FAMILIES)?) != 0)
    }
}
