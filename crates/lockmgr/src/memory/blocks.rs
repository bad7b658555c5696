//! Where partitions and biases lie: a line each, in blocks, and how to find them by number.
//!
//! Two objects of different threads that fall into one partition move its line to and fro although
//! nobody waits. With 16 objects for each of 192 threads that was every second lock when there were
//! 1,022 partitions, and is one in six with 16 times as many. Few threads on one socket
//! lose by that: the lines of 16,352 partitions with their heads are more than their cache has room
//! for beside a user's own, and each new name is two misses. So the machine on which a manager is
//! laid out decides how many blocks it has.

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
    /// How many there are, as a power of two.
    power: u32,
    /// Those behind the last are the first ones again.
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
    /// Those that the roots lead to.
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

    /// How many partitions there are.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        LINES << self.power
    }

    /// Whether there is a partition of this number.
    pub(crate) fn has(&self, number: PartitionNumber) -> bool {
        number.word() < self.count()
    }

    /// All partitions.
    pub(crate) fn each(&self) -> impl Iterator<Item = PartitionNumber> + use<M> {
        (0..self.count()).map(PartitionNumber::of)
    }

    /// Where a hash leads: its high half chooses the partition, the low bits its bias.
    #[inline(always)]
    pub(crate) fn spot(&self, hash: u64) -> Spot {
        let partition = ((hash >> 32) * u64::from(self.count())) >> 32;
        Spot { partition: PartitionNumber::of(partition as u32), bias: hash as u32 % BIASES }
    }

    /// The partition of this number. One out of a damaged request may be any.
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

    /// The biases of a partition. The caller knows that this is no child of a fork.
    #[inline(always)]
    pub(crate) fn biases(&self, number: PartitionNumber) -> Result<&BiasLine<M>, Error> {
        let (block, line) = self.place(number);
        self.biases[block].lines.get(line).map_or_else(corrupt_list, Ok)
    }

    /// The partition whose latch guards a chain of keyspaces: the one that its names lead to.
    pub(crate) fn guarding(&self, chain: u32) -> PartitionNumber {
        PartitionNumber::of((chain % PARTITIONS_MAX) >> self.shift())
    }

    /// The chains of keyspaces that a partition's latch guards.
    pub(crate) fn chains(&self, number: PartitionNumber) -> Range<u32> {
        number.word() << self.shift()..(number.word() + 1) << self.shift()
    }

    fn shift(&self) -> u32 {
        BLOCKS_MAX.ilog2() - self.power
    }

    /// The block of a partition, and its line there.
    #[inline(always)]
    fn place(&self, number: PartitionNumber) -> (usize, usize) {
        let number = number.word();
        let block = number & ((1 << self.power) - 1);
        (block as usize % BLOCKS_MAX, (number >> self.power) as usize)
    }
}

/// The chain of keyspaces that a hash leads to. There are as many as partitions at most, so that
/// keyspaces seldom share one: [`Claims::count`](crate::Claims::count) takes a latch then.
pub(crate) fn chain_of(hash: u64) -> u32 {
    (((hash >> 32) * u64::from(PARTITIONS_MAX)) >> 32) as u32
}

/// How many blocks a manager has that is laid out on this machine, as a power of two.
///
/// One block made `cold` 15 % faster still, but `zipf` 10 % slower: a
/// strong request then meets four times as often the open bias of somebody else's name.
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
        // SAFETY: a root of a laid out manager names a block of this kind, which is never freed.
        found.push(unsafe { region.pin(Offset::from_raw(at as u32)) }?);
    }
    found.try_into().map_err(|_| Error::Foreign)
}
