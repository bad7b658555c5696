//! Contents of a page: a value and sorted keys.

/// The initial value of page `page`. Each change adds one.
pub(super) const fn value(page: u32) -> u64 {
    (page as u64) << 32
}

/// Keys of a page, of 16 bytes each.
pub(super) const KEYS: u32 = 80;

/// The word at which the keys begin.
pub(super) const KEYS_AT: usize = 4;

/// A key of a page: two words, the more significant one first.
pub(super) fn key(page: u32, number: u32) -> [u64; 2] {
    [u64::from(page), u64::from(number) << 8]
}

/// Binary search for a key. `word` reads a word of the page.
#[inline(always)]
pub(super) fn find(wanted: [u64; 2], word: impl Fn(usize) -> Option<u64>) -> Option<u32> {
    let (mut low, mut high) = (0, KEYS);
    while low < high {
        let middle = low.midpoint(high);
        let at = KEYS_AT + 2 * middle as usize;
        let found = [word(at)?, word(at + 1)?];
        if found < wanted {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Some(low)
}
