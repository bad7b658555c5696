//! Reserved locks: strong locks that an owner slot takes and releases in its own memory.
//!
//! If one thread takes the same strong locks repeatedly and no other thread requests them, it needs
//! no latch for them, as biased locking found for Java's locks (Kawachiya, Koseki and Onodera,
//! 2002). The biases of weak locks implement this. The third state of a bias is *reserved*: one
//! entry of one owner's page records that value, and while the bias has it, **that entry's owner
//! alone** may hold the entry's name, in any mode, by counting the entry.
//!
//! ```text
//!               a session requests a free name often
//!  closed ─────────────────────────────────────────────────────────────▶ reserved
//!         ◀─────────────────────────────────────────────────────────────
//!               any other request under the bias finds it reserved
//! ```
//!
//! A request for any name under a bias that is reserved for another slot first closes it, as it
//! closes an open one: a store, a heavy barrier, and an inspection of the pages. Held locks are
//! moved to the table (`fastpath/weak.rs` explains why none is missed). Other names under the same
//! bias may be in the table at the same time, because the entry reserves one name.
//!
//! A reservation belongs to the slot, not to the owner in it: the next owner of a session has the
//! slot of the last one, with the reservations of that slot. A slot of a dead process leaves an
//! entry that counts nothing; the next request under that bias closes it.
//!
//! Closing costs microseconds, so a name is reserved only after a session requested it 32 times.
//! Each closing doubles the number of requests needed for the next reservation.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};

use crate::Error;
use crate::fastpath::entry::{Taken, group_of};
use crate::memory::cells::{BiasWord, GROUP, Spot, WEAK, WeakPage, get, put};
use crate::memory::entry::{Entry, LENGTH_MAX};
use crate::memory::handle::Owner;
use crate::memory::names::Name;
use crate::mode::Mode;

/// A 1 in each byte of a word, and the top bit of each byte.
const EACH: u64 = u64::MAX / 0xff;
const TOPS: u64 = EACH << 7;

/// Returns the byte of a hash that selects neither group nor bias.
#[inline(always)]
fn tag_of(hash: u64) -> u8 {
    (hash >> 8) as u8
}

/// Returns, by bit, which of eight bytes differ from this one.
#[inline(always)]
fn differing(bytes: u64, byte: u8) -> u32 {
    let others = bytes ^ (u64::from(byte) * EACH);
    // The top bit of each byte that is not zero: no byte's sum carries into the next one.
    let tops = (((others & !TOPS) + !TOPS) | others) & TOPS;
    // The product collects them in the top byte, each at its own position.
    ((tops >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Returns whether the slot has a reservation in the group of a hash.
    #[inline(always)]
    pub(crate) fn may_have_reserved(&self, hash: u64) -> bool {
        self.reserved.get() & group_of(hash) != 0
    }

    /// Returns the entries of a hash's group without those reserved for names with another tag.
    ///
    /// A slot soon has all its entries reserved. A few operations on one word reduce eight
    /// candidates to one or none; comparing each hash would cost more than the rest of the search.
    #[inline(always)]
    pub(crate) fn likely(&self, page: &WeakPage<M>, hash: u64) -> u32 {
        let group = hash as usize % (WEAK / GROUP);
        let differ = differing(get(&page.tags[group]), tag_of(hash));
        group_of(hash) & !(self.reserved.get() & differ << (group * GROUP))
    }

    fn tag(&self, page: &WeakPage<M>, at: usize, hash: u64) {
        let (group, shift) = (&page.tags[at / GROUP], at % GROUP * 8);
        put(group, get(group) & !(0xff << shift) | u64::from(tag_of(hash)) << shift);
    }

    fn mark_reserved(&self, at: usize, reserved: bool) {
        let (old, bit) = (self.reserved.get(), 1 << (at % WEAK));
        self.reserved.set(if reserved { old | bit } else { old & !bit });
        // For the next owner of the slot. The entry itself is authoritative.
        put(&self.cell.reserved, self.reserved.get());
    }

    /// Takes a lock that is reserved for this slot.
    #[inline]
    pub(crate) fn reserved_take(&self, name: &Name<'_>, spot: Spot, mode: Mode) -> Taken {
        let (Some(page), Ok(biases)) = (self.known_page(), self.memory.biases(spot.partition))
        else {
            return Taken::No;
        };
        let mut rest = self.reserved.get() & self.likely(page, name.hash);
        while rest != 0 {
            let at = rest.trailing_zeros() as usize % WEAK;
            if get(&page.hashes[at]) == name.hash {
                return self.count_reserved(page, at, &biases[spot.bias as usize], name, mode);
            }
            rest &= rest - 1;
        }
        Taken::No
    }

    #[inline(always)]
    fn count_reserved(
        &self,
        page: &WeakPage<M>,
        at: usize,
        bias: &'s BiasWord<M>,
        name: &Name<'_>,
        mode: Mode,
    ) -> Taken {
        let (seen, old) = (get(bias), get(&page.states[at]));
        if old.bias != seen || !seen.is_reserved() {
            self.mark_reserved(at, false);
            self.memory.asked.closed(name.hash);
            return Taken::No;
        }
        if old.length != name.bytes.len() || !name.is_in(&page.names[at]) || old.count == 0xffff {
            return Taken::No;
        }
        let new = if old.count == 0 {
            put(&page.marks[at], self.next_mark());
            Entry { count: 1, mode, ..old }
        } else {
            let made = self.memory.modes().convert(old.mode, mode);
            Entry { count: old.count + 1, mode: made, ..old }
        };
        self.note_filter(self.memory.spot(name.hash));
        put(&page.states[at], new);
        self.entry_taken(at, bias);
        // The closer's half is in `close`.
        M::reached_barrier();
        // Acquire: as in `weak_take`.
        if bias.load(Acquire) == seen { Taken::Yes } else { Taken::Closed(at, old) }
    }

    /// Counts a strong request. Returns whether its name should be reserved now.
    #[inline(always)]
    pub(crate) fn asks_often(&self, name: &Name<'_>, mode: Mode) -> bool {
        let memory = self.memory;
        memory.weak & mode.bit() == 0
            && memory.reserves
            && memory.asked.asked(name.hash, memory.inner().options.keep_after)
    }

    /// Reserves a name for this slot and takes it, if no owner has a request or an entry for it.
    /// Returns false if that is not possible now.
    #[cold]
    #[inline(never)]
    pub(crate) fn reserve(&self, name: &Name<'_>, spot: Spot, mode: Mode) -> Result<bool, Error> {
        self.memory.asked.begin(name.hash);
        if name.bytes.len() > LENGTH_MAX || !self.has_page()? {
            return Ok(false);
        }
        let Some(page) = self.known_page() else { return Ok(false) };
        let latched = self.memory.latch(spot.partition)?;
        latched.close(spot.bias)?;
        if let Some(at) = self.entry_of(page, name) {
            self.settle(&latched, page, at)?;
        }
        let object_at = latched.find(name)?;
        if !object_at.is_null() && !get(&self.memory.object(object_at)?.head).is_null() {
            return Ok(false);
        }
        let bias = &self.memory.biases(spot.partition)?[spot.bias as usize];
        let (Some(reserved), Some(at)) =
            (get(bias).reserved(), self.room_to_reserve(page, name.hash))
        else {
            return Ok(false);
        };
        self.note_filter(spot);
        put(&page.hashes[at], name.hash);
        self.tag(page, at, name.hash);
        name.write(&page.names[at]);
        put(&page.marks[at], self.next_mark());
        // The entry gets its count and name only once the bias has the value. Otherwise, if this
        // thread died in between and the owner were kept for recovery, the entry would count under
        // the next bias of this value, which is another slot's.
        let entry = Entry { bias: reserved, count: 0, length: 0, mode };
        put(&page.states[at], entry);
        self.memory.point("entry made to be reserved");
        put(bias, reserved);
        self.memory.point("bias reserved");
        put(&page.states[at], Entry { count: 1, length: name.bytes.len(), ..entry });
        self.mark_reserved(at, true);
        self.entry_taken(at, bias);
        drop(latched);
        self.memory.wake_all()?;
        Ok(true)
    }

    /// Returns an entry of a group that counts nothing and is not reserved; otherwise gives up a
    /// reservation.
    fn room_to_reserve(&self, page: &WeakPage<M>, hash: u64) -> Option<usize> {
        match group_of(hash) & !self.entries.get() & !self.reserved.get() {
            0 => self.give_up_reserved(page, hash),
            free => Some(free.trailing_zeros() as usize),
        }
    }

    /// Gives up a reservation in a group whose free entries are all reserved, and returns its
    /// entry.
    pub(crate) fn give_up_reserved(&self, page: &WeakPage<M>, hash: u64) -> Option<usize> {
        let reserved = group_of(hash) & !self.entries.get() & self.reserved.get();
        let at = (reserved != 0).then(|| reserved.trailing_zeros() as usize)?;
        self.mark_reserved(at, false);
        // If a session requests more names than there is room for, each is reserved less and less
        // often.
        self.memory.asked.closed(get(&page.hashes[at]));
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use latchwork_region::Region;

    use super::differing;
    use crate::granular::{IS, S, X, modes};
    use crate::memory::cells::get;
    use crate::{Error, Manager, Options};

    #[test]
    fn differing_bytes_are_found() {
        let values = [0, 1, 0x7f, 0x80, 0x81, 0xff];
        for turn in 0..6usize.pow(4) {
            let bytes: [u8; 8] =
                core::array::from_fn(|at| values[turn / 6usize.pow(at as u32 % 4) % 6]);
            for byte in values {
                let slowly = (0..8).filter(|at| bytes[*at] != byte).map(|at| 1 << at).sum::<u32>();
                assert_eq!(
                    differing(u64::from_le_bytes(bytes), byte),
                    slowly,
                    "{bytes:x?}, {byte:x}"
                );
            }
        }
    }

    /// Two names under one bias. Downgrading a lock that is in the table does not change the bias,
    /// so the reservation of the other name stays.
    #[test]
    fn a_downgrade_keeps_the_reservation_of_another_name() {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { keep_after: 2, ..Options::default() };
        let manager = Manager::new(region, modes(), options).unwrap();
        let sessions = [(); 2].map(|()| manager.session().unwrap());
        let [first, second] = [0, 1].map(|at| sessions[at].owner().unwrap());
        let memory = first.memory;
        let spot = memory.spot(memory.named(b"a").unwrap().hash);
        let mut names = (0u32..).map(u32::to_le_bytes);
        let kept = names.find(|name| memory.spot(memory.named(name).unwrap().hash) == spot);
        let kept = kept.unwrap();
        first.lock(b"a", X).unwrap();
        let bias = || get(&memory.biases(spot.partition).unwrap()[spot.bias as usize]);
        while !bias().is_reserved() {
            second.lock(&kept, X).unwrap();
            second.unlock(&kept).unwrap();
        }
        let reserved = bias();
        second.lock(&kept, X).unwrap();
        for mode in [S, IS] {
            first.downgrade(b"a", mode).unwrap();
            assert_eq!(first.holds(b"a"), Ok(Some((mode, 1))));
            assert_eq!(bias(), reserved);
        }
        assert_eq!(first.try_lock(&kept, IS), Err(Error::NotGranted));
        second.try_lock(b"a", S).unwrap();
    }
}
