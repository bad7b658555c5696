//! Names of the parts of a region in this process, for reports on cache lines.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::PoisonError;

use latchwork_machine::{ConstMachine, Word};

use crate::Region;
use crate::header::{BLOCK, CLASSES, DEPOTS_AT, LIVE_AT, WAITERS_AT};
use crate::memory::Named;
use crate::slab::{UNIT, UNITS};
use crate::slots::{PROCESS_BYTES, THREAD_BYTES, unpack};

impl<M: ConstMachine> Region<M> {
    /// Returns address, length and name of the header, the slots, the blocks by cell size, and the
    /// areas of a region without a file. Empty in the child of a fork.
    pub fn places(&self) -> Vec<(usize, usize, String)> {
        if self.check().is_err() {
            return Vec::new();
        }
        let (header, base) = (self.header(), self.inner.memory.base().addr());
        let mut found = vec![
            (self.mapped.addr(), 8, "mapped".to_owned()),
            (base + LIVE_AT, DEPOTS_AT - LIVE_AT, "header".to_owned()),
            (base + DEPOTS_AT, WAITERS_AT - DEPOTS_AT, "depots".to_owned()),
        ];
        for number in 0..header.processes as usize {
            let at = base + header.processes_at() as usize + number * PROCESS_BYTES;
            found.push((at, PROCESS_BYTES, format!("process {number}")));
        }
        for number in 0..self.threads_high() as usize {
            let at = base + header.threads_at() as usize + number * THREAD_BYTES;
            found.push((at, THREAD_BYTES, format!("thread {number}")));
        }
        let blocks = self.live().blocks.load(Relaxed);
        for number in 0..blocks {
            let Ok(state) = self.block(number) else { break };
            let (_, size) = unpack(state.load(Relaxed));
            let at = core::ptr::from_ref(state).addr();
            let name = match size as usize {
                size @ 1..=CLASSES => format!("cells-of-{}", u64::from(UNITS[size - 1]) * UNIT),
                _ => "block".to_owned(),
            };
            found.push((at, BLOCK as usize, format!("{name} {number}")));
        }
        let areas = self.inner.memory.areas.lock().unwrap_or_else(PoisonError::into_inner);
        let area = |(name, memory): &Named<M>| {
            (memory.base().addr(), memory.mapped() as usize, (*name).to_owned())
        };
        found.extend(areas.iter().map(area));
        found
    }
}
