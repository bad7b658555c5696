//! Counts every cell and checks that each is in exactly one place.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{ConstMachine, Word};

use crate::header::{BLOCK, CLASSES};
use crate::slab::{BLOCK_UNITS, FIRST, UNIT, UNITS, USED, end_of, is_cell};
use crate::slots::unpack;
use crate::{Error, Region};

/// The cells of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// Cells for which the blocks of this size have room.
    pub cells: u64,
    /// Cells in use.
    pub used: u64,
    /// Free cells on a thread's lists or in a depot.
    pub listed: u64,
    /// Cells that were never allocated.
    pub uncarved: u64,
}

/// The result of counting all cells. Exact while no other thread changes the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// By size class.
    pub classes: [Count; CLASSES],
    /// Free cells in no list.
    pub lost: u64,
    /// Cells in two places: in two lists, or in a list and in use.
    pub doubled: u64,
    /// Links that lead nowhere, and blocks of unknown size.
    pub wrong: u64,
}

impl Audit {
    /// Returns the number of cells in use, of all sizes.
    pub fn used(&self) -> u64 {
        self.classes.iter().map(|count| count.used).sum()
    }

    /// Returns the cells of `bytes` bytes: 48, 64, 128 .. 4,096, or 65,472. Zero for other sizes.
    pub fn of(&self, bytes: u32) -> Count {
        let class = UNITS.iter().position(|units| units * UNIT as u32 == bytes);
        class.map_or_else(Count::default, |class| self.classes[class])
    }

    /// Returns whether every cell is in exactly one place.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.wrong == 0
    }
}

/// What is known so far of the cell at a unit.
const UNKNOWN: u8 = 0;
const FREE: u8 = 1;
const IN_USE: u8 = 2;
const LISTED: u8 = 3;
const UNCARVED: u8 = 4;

impl<M: ConstMachine> Region<M> {
    /// Counts all cells and follows all lists. Takes time and memory in proportion to the region.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::Truncated`], [`Error::Corrupt`] where the count cannot continue.
    pub fn audit(&self) -> Result<Audit, Error> {
        self.check()?;
        let mut audit = Audit::default();
        let room = self.len().saturating_sub(self.header().heap_at()) / BLOCK;
        let blocks = self.live().blocks.load(Relaxed).min(room);
        let mut units = Vec::new();
        let mut sizes = Vec::new();
        for number in 0..blocks {
            let (_, size) = unpack(self.block(number)?.load(Relaxed));
            units.resize(units.len() + BLOCK_UNITS as usize, UNKNOWN);
            let class = (size as usize).wrapping_sub(1);
            sizes.push(class);
            if class >= CLASSES {
                audit.wrong += 1;
                continue;
            }
            let first = number as u32 * BLOCK_UNITS;
            for unit in (first + FIRST..first + end_of(class)).step_by(UNITS[class] as usize) {
                let (_, next) = unpack(self.link(unit)?.load(Relaxed));
                let used = next == USED;
                audit.classes[class].cells += 1;
                audit.classes[class].used += u64::from(used);
                units[unit as usize] = if used { IN_USE } else { FREE };
            }
        }
        for number in self.used_slots() {
            let slot = self.thread_slot(number);
            for (class, list) in slot.lists.iter().enumerate() {
                self.follow(list.head.load(Relaxed), class, &mut units, &sizes, &mut audit);
                self.follow(list.spare.load(Relaxed), class, &mut units, &sizes, &mut audit);
                let (end, at) = unpack(slot.carve[class].load(Relaxed));
                for unit in (at..end.min(units.len() as u32)).step_by(UNITS[class] as usize) {
                    audit.doubled += u64::from(units[unit as usize] != FREE);
                    units[unit as usize] = UNCARVED;
                    audit.classes[class].uncarved += 1;
                }
            }
        }
        for class in 0..CLASSES {
            for depot in self.depots(class) {
                let (_, mut top) = unpack(depot.word.load(Relaxed));
                // A batch has at least one cell, so there are no more batches than units.
                for _ in 0..units.len() {
                    if top == 0 || !self.follow(top, class, &mut units, &sizes, &mut audit) {
                        break;
                    }
                    top = self.below_of(top)?;
                }
            }
        }
        audit.lost = units.iter().filter(|state| **state == FREE).count() as u64;
        Ok(audit)
    }

    /// Follows a list to its end. False if it is not a valid list.
    fn follow(
        &self,
        head: u32,
        class: usize,
        units: &mut [u8],
        sizes: &[usize],
        audit: &mut Audit,
    ) -> bool {
        let mut unit = head;
        while unit != 0 {
            let known = sizes.get((unit / BLOCK_UNITS) as usize) == Some(&class);
            let (true, true, Ok(link)) = (known, is_cell(unit, class), self.link(unit)) else {
                audit.wrong += 1;
                return false;
            };
            let state = &mut units[unit as usize];
            if *state != FREE {
                audit.doubled += 1;
                return false;
            }
            *state = LISTED;
            audit.classes[class].listed += 1;
            unit = unpack(link.load(Relaxed)).1;
        }
        true
    }
}
