//! Words of the region's header that are the manager's.

use latchwork_machine::ConstMachine;
use latchwork_region::Region;

use crate::Error;
use crate::memory::cells::{BLOCKS_MAX, get};

/// Zero, the name of the process that lays the manager out, or `READY`.
pub(crate) const STATE: usize = 0;
/// Whether the process that laid the manager out had an asymmetric barrier: else no process relies
/// on one.
pub(crate) const BARRIER: usize = 1;
pub(crate) const DIRECTORY: usize = 3;
pub(crate) const MODES: usize = 4;
/// The last deadlocks: see `deadlock/history.rs`.
pub(crate) const HISTORY: usize = 5;
/// Whether there ever was a child.
pub(crate) const FAMILIES: usize = 6;
/// Null until somebody locks a range.
pub(crate) const KEYSPACES: usize = 7;
/// Null until somebody waits without a thread.
pub(crate) const NOTIFIERS: usize = 8;
/// Pages of owners that are nobody's, and how many were made: see `memory/pages.rs`.
pub(crate) const FREE_PAGES: usize = 9;
pub(crate) const PAGES: usize = 10;
/// How many blocks there are, as a power of two: see `memory/blocks.rs`.
pub(crate) const BLOCKS: usize = 11;
/// Zero until a process has a recovery callback; from then on one more than how often a sweeper
/// without one kept owners for those that have: see `recovery/policy.rs`.
pub(crate) const RECOVERY: usize = 12;
/// One for each block there may be; null where there is none.
pub(crate) const PARTITIONS: usize = 16;
/// As many.
pub(crate) const BIASES: usize = PARTITIONS + BLOCKS_MAX;
/// No process is called so: its slot would be 65,535.
pub(crate) const READY: u64 = u64::MAX;

/// Which cells are the roots', for the sweep.
pub(crate) fn is_root<M: ConstMachine>(region: &Region<M>, offset: u32) -> Result<bool, Error> {
    let blocks = PARTITIONS..BIASES + BLOCKS_MAX;
    for number in blocks.chain([DIRECTORY, HISTORY, KEYSPACES, NOTIFIERS]) {
        if get(region.root(number)?) == u64::from(offset) {
            return Ok(true);
        }
    }
    Ok(false)
}
