//! The manager's words in the region's header.

use latchwork_machine::ConstMachine;
use latchwork_region::Region;

use crate::Error;
use crate::memory::cells::{BLOCKS_MAX, get};

/// Zero, the identity of the process that lays the manager out, or `READY`.
pub(crate) const STATE: usize = 0;
/// Whether the process that laid the manager out had an asymmetric barrier. If not, no process
/// relies on one.
pub(crate) const BARRIER: usize = 1;
pub(crate) const DIRECTORY: usize = 3;
pub(crate) const MODES: usize = 4;
/// The last deadlocks: see `deadlock/history.rs`.
pub(crate) const HISTORY: usize = 5;
/// Whether any child owner was ever created.
pub(crate) const FAMILIES: usize = 6;
/// Null until a range is locked.
pub(crate) const KEYSPACES: usize = 7;
/// Null until a task waits without a thread.
pub(crate) const NOTIFIERS: usize = 8;
/// The list of free pages of owners, and how many pages were created: see `memory/pages.rs`.
pub(crate) const FREE_PAGES: usize = 9;
pub(crate) const PAGES: usize = 10;
/// Number of blocks, as a power of two: see `memory/blocks.rs`.
pub(crate) const BLOCKS: usize = 11;
/// Zero until a process has a recovery callback. From then on, one more than how often a sweeper
/// without a callback kept owners for a process that has one: see `recovery/policy.rs`.
pub(crate) const RECOVERY: usize = 12;
/// One root for each possible block; null if the block does not exist.
pub(crate) const PARTITIONS: usize = 16;
/// The blocks of biases, as many roots.
pub(crate) const BIASES: usize = PARTITIONS + BLOCKS_MAX;
/// No process has this identity: its slot would be 65,535.
pub(crate) const READY: u64 = u64::MAX;

/// Returns whether a root names this cell. The sweep needs this.
pub(crate) fn is_root<M: ConstMachine>(region: &Region<M>, offset: u32) -> Result<bool, Error> {
    let blocks = PARTITIONS..BIASES + BLOCKS_MAX;
    for number in blocks.chain([DIRECTORY, HISTORY, KEYSPACES, NOTIFIERS]) {
        if get(region.root(number)?) == u64::from(offset) {
            return Ok(true);
        }
    }
    Ok(false)
}
