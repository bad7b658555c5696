//! How a manager is: what somebody should look at.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{Clock, ConstMachine, Word};

use crate::Error;
use crate::memory::cells::{cell_at, get};
use crate::memory::inner::Inner;

/// How a manager is, over all its processes: see [`Manager::health`](crate::Manager::health).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Thread slots in use, those of the dead among them.
    pub threads: u32,
    /// Those whose process is dead, and that no sweep has freed: any sweep will.
    pub dead_threads: u32,
    /// Owners that are live.
    pub owners: u64,
    /// Owners whose process died and whose locks are kept: for the program's recovery to end.
    pub orphans: u64,
    /// Owners that wait.
    pub waiting: u64,
    /// How long the one that waits longest has, in nanoseconds; zero if none waits.
    pub longest_wait_ns: u64,
    /// Partitions whose latch is held.
    pub latched: u32,
    /// Those of them whose holder is dead: a thread that asks for one waits for a sweep.
    pub latched_by_dead: u32,
    /// Whether weak modes are taken in the owner's own memory; false if the system had no
    /// asymmetric barrier when the manager was made, or the options say no.
    pub weak: bool,
}

impl Health {
    /// Whether nothing is left to do for the dead: no thread to sweep, no latch of one, no orphan.
    pub fn is_settled(&self) -> bool {
        self.dead_threads == 0 && self.latched_by_dead == 0 && self.orphans == 0
    }
}

impl<M: ConstMachine> Inner<M> {
    /// How the manager is. Takes no latch and stores nothing.
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
