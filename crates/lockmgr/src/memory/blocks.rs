//! Partitions and biases: one cache line each, in blocks, found by number.
//!
//! Two objects of different threads in one partition move its line between the threads' caches,
//! although no thread waits. With 16 objects for each of 192 threads, this happened at every second
//! lock with 1,022 partitions, and at one in six with 16 times as many. A few threads on one socket
//! lose by that: the lines of 16,352 partitions with their heads exceed the cache that the user's
//! own data leaves, and each new name costs two misses. So the number of blocks depends on the
//! machine on which a manager is laid out.

use core::ops::Range;

use latchwork_machine::{ConstMachine, Level};
use latchwork_region::{Offset, Pinned, Plain, Region};

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{
    BIASES, BLOCKS_MAX, BiasLine, Biases, LINES, PARTITIONS_MAX, Partition, Partitions, Spot, get,
};
use crate::memory::numbers::PartitionNumber;
use crate::memory::roots;
use crate::memory::typed::Stored;

/// All blocks.
pub(crate) struct Blocks<M: ConstMachine> {
    /// Number of blocks, as a power of two.
    power: u32,
    /// The elements after the last block repeat the first ones.
    partitions: [Pinned<M, Partitions<M>>; BLOCKS_MAX],
    biases: [Pinned<M, Biases<M>>; BLOCKS_MAX],
}

impl<M: ConstMachine> Clone for Blocks<M> {
    fn clone(&self) -> Self {
        let Self { power, partitions, biases } = self;
        Self { power: *power, partitions: partitions.clone(), biases: biases.clone() }
    }
}

impl<M: ConstMachine> Blocks<M> {
    /// Reads the blocks that the roots lead to.
    pub(crate) fn read(region: &Region<M>) -> Result<Self, Error> {
        let power = get(region.root(roots::BLOCKS)?);
        if power > u64::from(BLOCKS_MAX.ilog2()) {
            return Err(Error::Foreign);
        }
        let power = power as u32;
        let partitions = pin_all(region, roots::PARTITIONS, power)?;
        let biases = pin_all(region, roots::BIASES, power)?;
        Ok(Self { power, partitions, biases })
    }

    /// Returns the number of partitions.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        LINES << self.power
    }

    /// Returns whether a partition of this number exists.
    pub(crate) fn has(&self, number: PartitionNumber) -> bool {
        number.word() < self.count()
    }

    /// Returns all partitions.
    pub(crate) fn each(&self) -> impl Iterator<Item = PartitionNumber> + use<M> {
        (0..self.count()).map(PartitionNumber::of)
    }

    /// Returns the partition and bias of a hash: its high half selects the partition, its low bits
    /// the bias.
    #[inline(always)]
    pub(crate) fn spot(&self, hash: u64) -> Spot {
        let partition = ((hash >> 32) * u64::from(self.count())) >> 32;
        Spot { partition: PartitionNumber::of(partition as u32), bias: hash as u32 % BIASES }
    }

    /// Returns the partition of this number. The number may be any if it comes from a damaged
    /// request.
    #[inline(always)]
    pub(crate) fn partition(
        &self,
        region: &Region<M>,
        number: PartitionNumber,
    ) -> Result<&Partition<M>, Error> {
        region.check()?;
        let (block, line) = self.place(number);
        self.partitions[block].lines.get(line).map_or_else(corrupt_list, Ok)
    }

    /// Returns the biases of a partition. The caller has checked that this is no child of a fork.
    #[inline(always)]
    pub(crate) fn biases(&self, number: PartitionNumber) -> Result<&BiasLine<M>, Error> {
        let (block, line) = self.place(number);
        self.biases[block].lines.get(line).map_or_else(corrupt_list, Ok)
    }

    /// Returns the partition whose latch guards a chain of keyspaces: the partition that its names
    /// hash to.
    pub(crate) fn guarding(&self, chain: u32) -> PartitionNumber {
        PartitionNumber::of((chain % PARTITIONS_MAX) >> self.shift())
    }

    /// Returns the chains of keyspaces that a partition's latch guards.
    pub(crate) fn chains(&self, number: PartitionNumber) -> Range<u32> {
        number.word() << self.shift()..(number.word() + 1) << self.shift()
    }

    fn shift(&self) -> u32 {
        BLOCKS_MAX.ilog2() - self.power
    }

    /// Returns the block of a partition, and its line there.
    #[inline(always)]
    fn place(&self, number: PartitionNumber) -> (usize, usize) {
        let number = number.word();
        let block = number & ((1 << self.power) - 1);
        (block as usize % BLOCKS_MAX, (number >> self.power) as usize)
    }
}

/// Returns the chain of keyspaces that a hash selects. There are as many chains as partitions at
/// most, so that keyspaces rarely share one: [`Claims::count`](crate::Claims::count) takes a latch
/// if they do.
pub(crate) fn chain_of(hash: u64) -> u32 {
    (((hash >> 32) * u64::from(PARTITIONS_MAX)) >> 32) as u32
}

/// Returns how many blocks a manager that is laid out on this machine has, as a power of two.
///
/// One block made `cold` 15 % faster still, but `zipf` 10 % slower: a strong request then meets an
/// open bias of another session's name four times as often.
pub(crate) fn wanted<M: ConstMachine>() -> u64 {
    if M::spread(Level::Socket) || M::spread(Level::Node) { 4 } else { 2 }
}

fn pin_all<M: ConstMachine, T: Plain>(
    region: &Region<M>,
    root: usize,
    power: u32,
) -> Result<[Pinned<M, T>; BLOCKS_MAX], Error> {
    let mut found = Vec::with_capacity(BLOCKS_MAX);
    for number in 0..BLOCKS_MAX {
        let at = get(region.root(root + number % (1 << power))?);
        // SAFETY: a root of a manager that is laid out names a block of this kind, which is never
        // freed.
        found.push(unsafe { region.pin(Offset::from_raw(at as u32)) }?);
    }
    found.try_into().map_err(|_| Error::Foreign)
}
