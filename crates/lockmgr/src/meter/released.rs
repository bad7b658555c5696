//! The names that a session released recently.
//!
//! An object without requests may stay in the table for the next request of its name. That pays off
//! if the name is requested again soon. If not, the next name to take the object over finds it in
//! no cache, whereas an object from the thread's own free list is in its cache.

use core::cell::Cell;

/// Sets of names that a session remembers, with four names of 16 bits each.
const SETS: usize = 2048;

/// A 1 in each of four parts of a word.
const ONES: u64 = 0x0001_0001_0001_0001;

/// By the low bits of a name's hash, its high bits and those of the three names before it. All bits
/// are zero at first, so a name whose high bits are zero, one in 65,536, counts as known.
pub(crate) struct ReleasedNames([Cell<u64>; SETS]);

impl Default for ReleasedNames {
    fn default() -> Self {
        Self([const { Cell::new(0) }; SETS])
    }
}

impl ReleasedNames {
    /// Records that a name was released. Returns whether it was released before, with fewer than
    /// four other names of its set since.
    #[inline(always)]
    pub(crate) fn again(&self, hash: u32) -> bool {
        let (set, high) = (&self.0[hash as usize % SETS], u64::from(hash >> 16));
        // A part that is equal becomes zero, and its highest bit is set when 1 is subtracted. A
        // part above an equal one may seem equal because of the borrow, which does not change the
        // result (Mycroft, 1987).
        let differ = set.get() ^ (high * ONES);
        let again = differ.wrapping_sub(ONES) & !differ & (ONES << 15) != 0;
        if !again {
            set.set(set.get() << 16 | high);
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_until_four_others_take_its_place() {
        let released = ReleasedNames::default();
        let names: Vec<u32> = (0..5).map(|high| (0xabcd + high) << 16 | 7).collect();
        for name in &names[..4] {
            assert!(!released.again(*name));
        }
        assert!(names[..4].iter().all(|name| released.again(*name)));
        assert!(!released.again(names[0] + 1), "another set");
        assert!(!released.again(names[4]));
        assert!(names[1..].iter().all(|name| released.again(*name)));
        assert!(!released.again(names[0]));
    }

    #[test]
    fn a_set_behaves_like_a_list_of_four() {
        let released = ReleasedNames::default();
        let mut list = vec![0; 4];
        let mut hash = 1u32;
        for _ in 0..10_000 {
            hash = hash.wrapping_mul(0x9e37_79b1).wrapping_add(1);
            let high = hash >> 29;
            assert_eq!(released.again(high << 16), list.contains(&high));
            if !list.contains(&high) {
                list.remove(0);
                list.push(high);
            }
        }
    }
}
