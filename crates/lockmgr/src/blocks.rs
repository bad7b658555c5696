//! Where partitions and biases lie: a line each, in blocks, and how to find them by number. And
//! which owners have weak pages.
//!
//! Two objects of different threads that fall into one partition move its line to and fro although
//! nobody waits. With 16 objects for each of 192 threads that was every second lock when there were
//! 1,022 partitions, and is one in six with 16 times as many.

use latchwork_machine::ConstMachine;
use latchwork_region::{Offset, Region};

use crate::Error;
use crate::layout::{BIASES, Biases, OWNERS, OwnerCell, PAGES, Partition, Partitions, get, put};
use crate::session::Session;
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

impl<M: ConstMachine> Session<M> {
    /// Before an owner's first weak lock: from here on those who collect look at it.
    ///
    /// Stored before the owner's page is, so that a death in between leaves an owner that is looked
    /// at for nothing, and not one that is passed over. A closer that misses it is seen by the owner,
    /// as one that misses an entry is; see `weak.rs`.
    pub(crate) fn note_weak(&self, owner: u32) -> Result<(), Error> {
        if let Some(page) = self.page(owner / OWNERS)?
            && get(&page.weak_end) <= owner % OWNERS
        {
            put(&page.weak_end, owner % OWNERS + 1);
        }
        Ok(())
    }

    /// All owner cells that may have a weak page, with their numbers.
    pub(crate) fn each_weak(&self) -> impl Iterator<Item = (u32, &OwnerCell<M>)> {
        (0..PAGES as u32)
            .map_while(|place| self.page(place).ok().flatten().map(|page| (place, page)))
            .flat_map(|(place, page)| {
                let end = get(&page.weak_end) as usize;
                let cells = page.owners.iter().take(end).enumerate();
                cells.map(move |(at, cell)| (place * OWNERS + at as u32, cell))
            })
    }
}
