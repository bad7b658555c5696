//! The choice of the owner that a detector aborts.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{WEAK, cell_at, get};
use crate::memory::numbers::OwnerNumber;
use crate::memory::typed::Stored;
use crate::mode::Mode;
use crate::options::Policy;

/// How often an owner may be a victim before others are preferred, regardless of the policy.
pub(crate) const SPARED_AFTER: u16 = 5;

impl<M: ConstMachine> Memory<M> {
    /// Returns how many locks an owner holds, and how many of them in modes that write.
    fn counted(&self, owner: OwnerNumber) -> Result<(u32, u32), Error> {
        let Some(cell) = self.owner_cell(owner)? else { return Ok((0, 0)) };
        let (mut all, mut writes) = (0, 0);
        let mut count = |mode: Mode| {
            all += 1;
            writes += u32::from(self.modes().is_write(mode));
        };
        if !get(&cell.weak).is_null() {
            let page = cell_at(self.region(), get(&cell.weak))?;
            for at in 0..WEAK {
                let entry = get(&page.states[at]);
                if entry.count != 0 {
                    count(entry.mode);
                }
            }
        }
        // The list belongs to an owner that waits. The bound protects against a faulty peer that
        // made it endless.
        let mut at = get(&cell.head);
        for _ in 0..get(&cell.held) {
            if at.is_null() {
                break;
            }
            let request = self.request(at)?;
            let state = get(&request.state);
            if state.holds() {
                count(state.mode);
            }
            at = get(&request.own_next);
        }
        Ok((all, writes))
    }

    /// Returns the index of a cycle's victim. It is the same for every thread: only an owner's
    /// `spared` changes while it waits.
    pub(crate) fn choose(&self, owners: &[OwnerNumber]) -> Result<usize, Error> {
        let policy = self.inner().options.policy;
        let mut best = None;
        for (place, owner) in owners.iter().enumerate() {
            let Some(cell) = self.owner_cell(*owner)? else { continue };
            let age = get(&cell.age);
            let most = |n: u32| u64::from(u32::MAX - n);
            let key = match policy {
                Policy::Youngest | Policy::Default => u64::MAX - age,
                Policy::Oldest => age,
                Policy::Random => scatter(get(&cell.since) ^ u64::from(owner.word())),
                Policy::MaxLocks => most(self.counted(*owner)?.0),
                Policy::MinLocks => u64::from(self.counted(*owner)?.0),
                Policy::MaxWrites => most(self.counted(*owner)?.1),
                Policy::MinWrites => u64::from(self.counted(*owner)?.1),
                Policy::Expire => get(&cell.since),
            };
            // Acquire: synchronizes with the Release in `abort_victim`: a thread that sees a new
            // count and then reads the cycle sees the writes before that count.
            let spared = cell.spared.load(Acquire) >= SPARED_AFTER;
            let key = (spared, get(&cell.priority), key, u64::MAX - age, *owner);
            if best.is_none_or(|(known, _)| key < known) {
                best = Some((key, place));
            }
        }
        Ok(best.map_or(0, |(_, place)| place))
    }
}

/// Mixes the bits of a word.
fn scatter(word: u64) -> u64 {
    let word = (word ^ (word >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 29)
}
