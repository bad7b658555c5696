//! Where partitions and biases lie: a line each, in blocks, and how to find them by number.
//!
//! Two objects of different threads that fall into one partition move its line to and fro although
//! nobody waits. With 16 objects for each of 192 threads that was every second lock when there were
//! 1,022 partitions, and is one in six with 16 times as many.

use latchwork_machine::ConstMachine;
use latchwork_region::{Offset, Pinned, Plain, Region};

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{BIASES, BLOCKS, Biases, Partition, Partitions, get};

/// All blocks.
pub(crate) struct Blocks<M: ConstMachine> {
    partitions: [Pinned<M, Partitions<M>>; BLOCKS],
    biases: [Pinned<M, Biases<M>>; BLOCKS],
}

impl<M: ConstMachine> Clone for Blocks<M> {
    fn clone(&self) -> Self {
        Self { partitions: self.partitions.clone(), biases: self.biases.clone() }
    }
}

impl<M: ConstMachine> Blocks<M> {
    /// Those that the roots from these numbers on lead to.
    pub(crate) fn read(
        region: &Region<M>,
        (partitions, biases): (usize, usize),
    ) -> Result<Self, Error> {
        Ok(Self { partitions: pin_all(region, partitions)?, biases: pin_all(region, biases)? })
    }

    /// The partition of this number. One out of a damaged request may be any.
    #[inline(always)]
    pub(crate) fn partition(
        &self,
        region: &Region<M>,
        number: u32,
    ) -> Result<&Partition<M>, Error> {
        region.check()?;
        let (block, line) = (number as usize % BLOCKS, number as usize / BLOCKS);
        self.partitions[block].lines.get(line).map_or_else(corrupt_list, Ok)
    }

    /// The biases of a partition. The caller knows that this is no child of a fork.
    #[inline(always)]
    pub(crate) fn biases(&self, number: u32) -> Result<&[M::AtomicU32; BIASES as usize], Error> {
        let (block, line) = (number as usize % BLOCKS, number as usize / BLOCKS);
        self.biases[block].lines.get(line).map_or_else(corrupt_list, Ok)
    }
}

fn pin_all<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    root: usize,
) -> Result<[Pinned<M, T>; BLOCKS], Error> {
    let mut found = Vec::with_capacity(BLOCKS);
    for number in root..root + BLOCKS {
        found.push(region.pin(Offset::from_raw(get(region.root(number)?) as u32))?);
    }
    found.try_into().map_err(|_| Error::Foreign)
}
