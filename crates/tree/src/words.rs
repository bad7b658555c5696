//! The words of a page, and bytes on them.
//!
//! Byte `j` of a word is its bits `8 j ..`, as on a little-endian machine, wherever the page is
//! read.

use core::cmp::Ordering;

/// Words that may change while they are read.
pub trait Page {
    /// How many there are.
    fn len(&self) -> usize;

    /// The word at `index`, none beyond the end.
    fn word(&self, index: usize) -> Option<u64>;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Words that the caller alone changes.
pub trait PageMut: Page {
    /// Writes the word at `index`; nothing beyond the end.
    fn set(&mut self, index: usize, word: u64);
}

impl Page for [u64] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u64]>::len(self)
    }
    #[inline(always)]
    fn word(&self, index: usize) -> Option<u64> {
        self.get(index).copied()
    }
}

impl PageMut for [u64] {
    #[inline(always)]
    fn set(&mut self, index: usize, word: u64) {
        if let Some(place) = self.get_mut(index) {
            *place = word;
        }
    }
}

impl Page for Vec<u64> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.as_slice().len()
    }
    #[inline(always)]
    fn word(&self, index: usize) -> Option<u64> {
        self.get(index).copied()
    }
}

impl PageMut for Vec<u64> {
    #[inline(always)]
    fn set(&mut self, index: usize, word: u64) {
        self.as_mut_slice().set(index, word);
    }
}

/// The words that `bytes` fill.
pub(crate) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Up to eight bytes as a number that orders as they do.
#[inline(always)]
pub(crate) fn ordered(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    match bytes.first_chunk::<8>() {
        Some(eight) => word = *eight,
        None => word[..bytes.len()].copy_from_slice(bytes),
    }
    u64::from_be_bytes(word)
}

/// How `length` bytes that begin with the word at `at` compare to `key`.
#[inline]
pub(crate) fn compare<P: Page + ?Sized>(
    page: &P,
    at: usize,
    length: usize,
    key: &[u8],
) -> Option<Ordering> {
    let both = length.min(key.len());
    let mut done = 0;
    while done < both {
        let here = page.word(at + done / 8)?.swap_bytes();
        let there = ordered(&key[done..]);
        let used = (both - done).min(8);
        let kept = u64::MAX << (64 - 8 * used as u32);
        match (here & kept).cmp(&(there & kept)) {
            Ordering::Equal => done += used,
            unequal => return Some(unequal),
        }
    }
    Some(length.cmp(&key.len()))
}

/// Adds to `to` the `length` bytes that begin `skip` bytes after the word at `at`.
pub(crate) fn copy_out<P: Page + ?Sized>(
    page: &P,
    at: usize,
    skip: usize,
    length: usize,
    to: &mut Vec<u8>,
) -> Option<()> {
    if at + words_of(skip + length) > page.len() {
        return None;
    }
    let (mut from, end) = (skip, skip + length);
    to.reserve(length);
    while from < end {
        let bytes = page.word(at + from / 8)?.to_le_bytes();
        let used = (8 - from % 8).min(end - from);
        to.extend_from_slice(&bytes[from % 8..from % 8 + used]);
        from += used;
    }
    Some(())
}

/// Writes `bytes` from `skip` bytes after the word at `at`, and leaves the bytes around them.
pub(crate) fn copy_in<P: PageMut + ?Sized>(
    page: &mut P,
    at: usize,
    skip: usize,
    bytes: &[u8],
) -> Option<()> {
    let (mut done, mut to) = (0, skip);
    while done < bytes.len() {
        let index = at + to / 8;
        let mut word = page.word(index)?.to_le_bytes();
        let used = (8 - to % 8).min(bytes.len() - done);
        word[to % 8..to % 8 + used].copy_from_slice(&bytes[done..done + used]);
        page.set(index, u64::from_le_bytes(word));
        done += used;
        to += used;
    }
    Some(())
}
