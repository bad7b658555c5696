//! Where partitions and biases lie: a line each, in blocks, and how to find them by number.
//!
//! Two objects of different threads that fall into one partition move its line to and fro although
//! nobody waits. With 16 objects for each of 192 threads that was every second lock when there were
//! 1,022 partitions, and is one in six with 16 times as many.

use latchwork_machine::ConstMachine;
use latchwork_region::{Offset, Region};

use crate::Error;
use crate::layout::{BIASES, Biases, Partition, Partitions, get};
use crate::table::ring;

/// Blocks of partitions, and of biases.
pub(crate) const BLOCKS: usize = 16;

/// The offsets of all blocks.
pub(crate) struct Blocks<M: ConstMachine> {
    partitions: [Offset<Partitions<M>>; BLOCKS],
    biases: [Offset<Biases<M>>; BLOCKS],
}

impl<M: ConstMachine> Clone for Blocks<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for Blocks<M> {}

impl<M: ConstMachine> Blocks<M> {
    /// Their offsets, from the roots that begin at these numbers: each leads to a block.
    pub(crate) fn read(
        region: &Region<M>,
        (partitions, biases): (usize, usize),
    ) -> Result<Self, Error> {
        let at = |number: usize| -> Result<u32, Error> { Ok(get(region.root(number)?) as u32) };
        let mut found = Self {
            partitions: [Offset::from_raw(0); BLOCKS],
            biases: [Offset::from_raw(0); BLOCKS],
        };
        for block in 0..BLOCKS {
            found.partitions[block] = Offset::from_raw(at(partitions + block)?);
            found.biases[block] = Offset::from_raw(at(biases + block)?);
            region.resolve(found.partitions[block])?;
            region.resolve(found.biases[block])?;
        }
        Ok(found)
    }

    /// The partition of this number. One out of a damaged request may be any.
    #[inline(always)]
    pub(crate) fn partition<'r>(
        &self,
        region: &'r Region<M>,
        number: u32,
    ) -> Result<&'r Partition<M>, Error> {
        let (block, line) = (number as usize % BLOCKS, number as usize / BLOCKS);
        region.resolve(self.partitions[block])?.lines.get(line).map_or_else(ring, Ok)
    }

    /// The biases of a partition.
    #[inline(always)]
    pub(crate) fn biases<'r>(
        &self,
        region: &'r Region<M>,
        number: u32,
    ) -> Result<&'r [M::AtomicU32; BIASES as usize], Error> {
        let (block, line) = (number as usize % BLOCKS, number as usize / BLOCKS);
        region.resolve(self.biases[block])?.lines.get(line).map_or_else(ring, Ok)
    }
}
