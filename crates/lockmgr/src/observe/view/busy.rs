//! Which partitions have how much.

use latchwork_machine::ConstMachine;

use super::{View, seen};
use crate::Error;
use crate::memory::typed::Stored;

/// A partition that has objects, as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Its number: from 0.
    pub number: u32,
    /// Objects with requests.
    pub objects: u64,
    /// Objects kept for the next name.
    pub idle: u64,
    /// Requests.
    pub requests: u64,
    /// Those of them that wait.
    pub waiting: u64,
    /// The thread slot that holds its latch.
    pub latched: Option<u32>,
}

impl<M: ConstMachine> View<M> {
    /// What lies in each partition that has objects.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if a list leads nowhere, and goes on to.
    pub fn partitions(&self) -> Result<Vec<PartitionInfo>, Error> {
        let mut all = Vec::new();
        self.each_partition(|number, (found, objects, idle), _| {
            if objects + idle != 0 {
                let latch = seen(&self.blocks.partition(&self.region, number)?.latch);
                let waiting = found.iter().filter(|found| found.state.waits());
                all.push(PartitionInfo {
                    number: number.word(),
                    objects,
                    idle,
                    requests: found.len() as u64,
                    waiting: waiting.count() as u64,
                    latched: latch.checked_sub(1),
                });
            }
            Ok(())
        })?;
        Ok(all)
    }
}
