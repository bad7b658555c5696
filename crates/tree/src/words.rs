//! The words of a page, and bytes on them.
//!
//! Byte `j` of a word is its bits `8 j ..`, as on a little-endian machine, wherever the page is
//! read.

use core::cmp::Ordering;

/// Words that may change while they are read.
pub trait Page {
    /// Returns how many words it has.
    fn len(&self) -> usize;

    /// Returns the word at `index`, none beyond the end.
    fn word(&self, index: usize) -> Option<u64>;

    /// Returns `count` words from `at` on, none beyond the end.
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>>;

    /// Appends `count` words from `at` on to `to` as bytes, none beyond the end.
    #[inline(always)]
    fn append(&self, at: usize, count: usize, to: &mut Vec<u8>) -> Option<()> {
        to.extend(self.run(at, count)?.flat_map(u64::to_le_bytes));
        Some(())
    }

    /// Returns whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Words that only the caller changes.
pub trait PageMut: Page {
    /// Stores the word at `index`; no effect beyond the end.
    fn set(&mut self, index: usize, word: u64);

    /// Stores words from `at` on, as bytes; no effect beyond the end.
    #[inline]
    fn set_run(&mut self, at: usize, words: &[[u8; 8]]) {
        for (index, word) in words.iter().enumerate() {
            self.set(at + index, u64::from_le_bytes(*word));
        }
    }
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
    #[inline(always)]
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        Some(self.get(at..at.checked_add(count)?)?.iter().copied())
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
    #[inline(always)]
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        self.as_slice().run(at, count)
    }
}

impl PageMut for Vec<u64> {
    #[inline(always)]
    fn set(&mut self, index: usize, word: u64) {
        self.as_mut_slice().set(index, word);
    }
}

/// Returns the number of words that `bytes` bytes fill.
pub(crate) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Returns the first eight bytes, padded with zeros, as a number that orders like them.
#[inline(always)]
pub(crate) fn ordered(bytes: &[u8]) -> u64 {
    if let Some(eight) = bytes.first_chunk() {
        return u64::from_be_bytes(*eight);
    }
    // Fewer: combines the first and the last ones, which may overlap.
    let behind = 64 - 8 * bytes.len() as u32;
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
            u64::from(first) << 32 | u64::from(last) << behind
        }
        _ => match (bytes.first_chunk(), bytes.last_chunk()) {
            (Some(first), Some(last)) => {
                let (first, last) = (u16::from_be_bytes(*first), u16::from_be_bytes(*last));
                u64::from(first) << 48 | u64::from(last) << behind
            }
            _ => bytes.first().map_or(0, |byte| u64::from(*byte) << 56),
        },
    }
}

/// Compares `length` bytes that begin with the word at `at` to `key`.
#[inline]
pub(crate) fn compare<P: Page + ?Sized>(
    page: &P,
    at: usize,
    length: usize,
    key: &[u8],
) -> Option<Ordering> {
    let both = length.min(key.len());
    let mut words = page.run(at, words_of(both))?;
    let mut chunks = key[..both].chunks_exact(8);
    for chunk in &mut chunks {
        let (here, there) = (words.next()?.swap_bytes(), ordered(chunk));
        if here != there {
            return Some(here.cmp(&there));
        }
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let kept = u64::MAX << (64 - 8 * rest.len() as u32);
        let (here, there) = (words.next()?.swap_bytes() & kept, ordered(rest));
        if here != there {
            return Some(here.cmp(&there));
        }
    }
    Some(length.cmp(&key.len()))
}

/// Appends to `to` the `length` bytes that begin `skip` bytes after the word at `at`.
#[inline]
pub(crate) fn copy_out<P: Page + ?Sized>(
    page: &P,
    at: usize,
    skip: usize,
    length: usize,
    to: &mut Vec<u8>,
) -> Option<()> {
    // Appends whole words, including the bytes behind the end in the last one, and truncates. That
    // costs less than splitting words.
    let (first, before) = (at + skip / 8, skip % 8);
    let (begun, words) = (to.len(), words_of(before + length));
    if first.checked_add(words)? > page.len() {
        return None;
    }
    if before == 0 {
        page.append(first, words, to)?;
    } else if words > 0 {
        to.reserve(8 * words);
        to.extend_from_slice(&(page.word(first)? >> (8 * before)).to_le_bytes());
        to.truncate(begun + 8 - before);
        page.append(first + 1, words - 1, to)?;
    }
    to.truncate(begun + length);
    Some(())
}

/// Returns whether the bytes that begin `skip` bytes after the word at `at` are `bytes`.
pub(crate) fn has<P: Page + ?Sized>(
    page: &P,
    at: usize,
    skip: usize,
    bytes: &[u8],
) -> Option<bool> {
    let (mut index, mut begin, mut rest) = (at + skip / 8, skip % 8, bytes);
    while !rest.is_empty() {
        let (part, next) = rest.split_at((8 - begin).min(rest.len()));
        let kept = u64::MAX >> (64 - 8 * part.len() as u32);
        if page.word(index)? >> (8 * begin) & kept != ordered(part).swap_bytes() & kept {
            return Some(false);
        }
        (index, begin, rest) = (index + 1, 0, next);
    }
    Some(true)
}

/// Stores `bytes` from `skip` bytes after the word at `at`, and preserves the bytes around them.
#[inline]
pub(crate) fn copy_in<P: PageMut + ?Sized>(
    page: &mut P,
    at: usize,
    skip: usize,
    bytes: &[u8],
) -> Option<()> {
    let (mut index, begin) = (at + skip / 8, skip % 8);
    if at + words_of(skip + bytes.len()) > page.len() {
        return None;
    }
    let (front, rest) = bytes.split_at(((8 - begin) % 8).min(bytes.len()));
    if !front.is_empty() {
        patch(page, index, begin, front)?;
        index += 1;
    }
    let (words, end) = rest.as_chunks();
    page.set_run(index, words);
    match end {
        [] => Some(()),
        end => patch(page, index + words.len(), 0, end),
    }
}

/// Stores a few bytes of a word, from its byte `begin` on.
fn patch<P: PageMut + ?Sized>(
    page: &mut P,
    index: usize,
    begin: usize,
    bytes: &[u8],
) -> Option<()> {
    let (shift, kept) = (8 * begin as u32, u64::MAX >> (64 - 8 * bytes.len() as u32));
    let word = page.word(index)? & !(kept << shift);
    page.set(index, word | (ordered(bytes).swap_bytes() & kept) << shift);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_from_wherever_they_begin() {
        let page: Vec<u64> =
            (0..6).map(|word| 0x0706_0504_0302_0100 + word * 0x0808_0808_0808_0808).collect();
        let bytes: Vec<u8> = (0..48).collect();
        for at in 0..7 {
            for (skip, length) in (0..20).flat_map(|skip| (0..50).map(move |length| (skip, length)))
            {
                let mut to = vec![0xee; 3];
                let there = copy_out(&page, at, skip, length, &mut to);
                let wanted = bytes.get(8 * at + skip..).and_then(|rest| rest.get(..length));
                match there {
                    Some(()) => {
                        assert_eq!(&to[3..], wanted.unwrap_or_default(), "{at} {skip} {length}")
                    }
                    None => assert!(wanted.is_none(), "{at} {skip} {length}"),
                }
                assert!(to.starts_with(&[0xee; 3]), "{at} {skip} {length}");
            }
        }
    }
}
