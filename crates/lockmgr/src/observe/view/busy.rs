//! The load of each partition.

use latchwork_machine::ConstMachine;

use super::{View, seen};
use crate::Error;
use crate::memory::typed::Stored;

/// A partition that has objects, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Its number, counted from 0.
    pub number: u32,
    /// Objects with requests.
    pub objects: u64,
    /// Idle objects, kept for the next name.
    pub idle: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// The thread slot that holds its latch.
    pub latched: Option<u32>,
}

impl<M: ConstMachine> View<M> {
    /// Returns the contents of each partition that has objects.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if a list is still corrupt after repeated readings.
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
