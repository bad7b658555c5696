//! The health of a manager: the numbers that an operator should watch.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{Clock, ConstMachine, Word};

use crate::Error;
use crate::memory::cells::{cell_at, get};
use crate::memory::inner::Inner;

/// The health of a manager, over all its processes: see
/// [`Manager::health`](crate::Manager::health).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Thread slots in use, including those of dead processes.
    pub threads: u32,
    /// Thread slots of dead processes that no sweep has freed yet. Any sweep frees them.
    pub dead_threads: u32,
    /// Owners that are live.
    pub owners: u64,
    /// Owners whose process died and whose locks are kept: the program's recovery must end them.
    pub orphans: u64,
    /// Owners that wait.
    pub waiting: u64,
    /// The longest current wait, in nanoseconds; zero if no owner waits.
    pub longest_wait_ns: u64,
    /// Partitions whose latch is held.
    pub latched: u32,
    /// Held latches whose holder is dead. A thread that needs one waits for a sweep.
    pub latched_by_dead: u32,
    /// Whether weak modes are locked in the owner's own memory. False if the system had no
    /// asymmetric barrier when the manager was created, or the options disable it.
    pub weak: bool,
}

impl Health {
    /// Returns whether no recovery is pending: no dead thread, no latch of a dead thread, no
    /// orphan.
    pub fn is_settled(&self) -> bool {
        self.dead_threads == 0 && self.latched_by_dead == 0 && self.orphans == 0
    }
}

impl<M: ConstMachine> Inner<M> {
    /// Returns the health of the manager. Takes no latch and stores nothing.
    pub(crate) fn health(&self) -> Result<Health, Error> {
        let region = &self.region;
        region.check()?;
        let mut health = Health { weak: self.weak, ..Health::default() };
        let mut dead = Vec::new();
        for thread in region.threads() {
            health.threads += 1;
            if !thread.retained && !region.alive(thread.process, thread.process_generation) {
                dead.push(thread.slot);
            }
        }
        health.dead_threads = dead.len() as u32;
        for number in self.blocks.each() {
            let holder = get(&self.blocks.partition(region, number)?.latch);
            if let Some(thread) = holder.checked_sub(1) {
                health.latched += 1;
                health.latched_by_dead += u32::from(dead.contains(&thread));
            }
        }
        let now = M::now(Clock::Monotonic);
        let directory = cell_at(region, self.directory)?;
        // Acquire: as in `Memory::page`.
        let pages = directory.pages.iter().map(|page| page.load(Acquire));
        for page in pages.take_while(|page| !page.is_null()) {
            let page = cell_at(region, page)?;
            for cell in &page.owners {
                let state = get(&cell.state);
                health.owners += u64::from(state.is_live());
                health.orphans += u64::from(state.is_kept());
                if state.is_live() && !get(&cell.waiting).is_null() {
                    health.waiting += 1;
                    let waited = now.saturating_sub(get(&cell.since));
                    health.longest_wait_ns = health.longest_wait_ns.max(waited);
                }
            }
        }
        Ok(health)
    }
}
