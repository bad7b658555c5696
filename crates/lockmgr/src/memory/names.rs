//! Names of objects: byte strings, and their 64-bit hashes.

use latchwork_machine::{Machine, Word};

use crate::Error;
use crate::memory::cells::{LENGTH_BITS, get, put};

/// The longest name, in bytes.
pub const NAME_MAX: usize = 4000;

const _: () = assert!(NAME_MAX < 1 << LENGTH_BITS);

/// A name and its hash.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) hash: u64,
}

const K0: u64 = 0xa076_1d64_78bd_642f;
const K1: u64 = 0xe703_7ed1_a0b4_28db;

/// Returns the two halves of a product, combined.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl<'a> Name<'a> {
    /// Hashes by multiplying and folding words, two at a time, as wyhash (Wang Yi, 2019) does. The
    /// seed is random for each region and enters both factors, so that an attacker cannot prepare
    /// names that collide.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], seed: u64) -> Result<Self, Error> {
        let key = seed.rotate_left(32) ^ K1;
        let hash = match ends(bytes) {
            Some([low, high]) => fold(low ^ key, high ^ seed ^ K0),
            None if bytes.is_empty() || bytes.len() > NAME_MAX => {
                return Err(Error::Name(bytes.len()));
            }
            None => hash_of(bytes, key, seed ^ K0),
        };
        Ok(Self { bytes, hash: fold(hash ^ bytes.len() as u64, K1) })
    }

    /// Returns how many words of 8 bytes it fills.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        self.bytes.len().div_ceil(8)
    }

    /// Copies the name into words, padded with zeros.
    #[inline(always)]
    pub(crate) fn write<W: Word<Value = u64>>(&self, to: &[W]) {
        if let (Some([low, high]), Some(first)) = (ends(self.bytes), to.first()) {
            put(first, low);
            if let (Some(second), true) = (to.get(1), self.bytes.len() > 8) {
                put(second, high >> ((16 - self.bytes.len()) * 8));
            }
            return;
        }
        let (mut rest, mut words) = (self.bytes, to.iter());
        // Most other names are short: a loop over chunks keeps the compiler from unrolling for long
        // ones.
        while let Some((chunk, more)) = rest.split_first_chunk::<8>()
            && let Some(word) = words.next()
        {
            put(word, u64::from_le_bytes(*chunk));
            rest = more;
        }
        if !rest.is_empty()
            && let Some(word) = words.next()
        {
            put(word, tail(rest));
        }
    }

    /// Returns whether the words hold the name. The caller compares the length.
    #[inline(always)]
    pub(crate) fn is_in<W: Word<Value = u64>>(&self, words: &[W]) -> bool {
        is_in(self.bytes, words)
    }
}

/// Returns whether the words begin with these bytes, padded with zeros.
#[inline(always)]
pub(crate) fn is_in<W: Word<Value = u64>>(bytes: &[u8], words: &[W]) -> bool {
    if let (Some([low, high]), Some(first)) = (ends(bytes), words.first()) {
        let rest = || high >> ((16 - bytes.len()) * 8);
        return get(first) == low
            && (bytes.len() == 8 || words.get(1).is_some_and(|second| get(second) == rest()));
    }
    let (mut rest, mut words) = (bytes, words.iter());
    while let Some((chunk, more)) = rest.split_first_chunk::<8>() {
        if words.next().is_none_or(|word| get(word) != u64::from_le_bytes(*chunk)) {
            return false;
        }
        rest = more;
    }
    rest.is_empty() || words.next().is_some_and(|word| get(word) == tail(rest))
}

/// Returns the first and the last word of a name of 8 to 16 bytes, the usual length. They overlap,
/// but together contain the whole name, so two reads suffice for any of these lengths.
#[inline(always)]
fn ends(bytes: &[u8]) -> Option<[u64; 2]> {
    let (low, high) = (bytes.first_chunk()?, bytes.last_chunk()?);
    (bytes.len() <= 16).then(|| [u64::from_le_bytes(*low), u64::from_le_bytes(*high)])
}

/// Returns the hash of a name of another length.
fn hash_of(bytes: &[u8], key: u64, mut hash: u64) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<16>();
    for pair in pairs {
        let (low, high) = halves(pair);
        hash = fold(low ^ key, high ^ hash);
    }
    if let Some((low, high)) = rest.split_first_chunk::<8>() {
        fold(u64::from_le_bytes(*low) ^ key, tail(high) ^ hash)
    } else if rest.is_empty() {
        hash
    } else {
        fold(tail(rest) ^ key, hash)
    }
}

#[inline(always)]
fn halves(pair: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*pair);
    (both as u64, (both >> 64) as u64)
}

/// Returns the last 1 to 7 bytes as a word, padded with zeros. Two overlapping reads replace a copy
/// of variable length, which would be a call.
#[inline(always)]
fn tail(rest: &[u8]) -> u64 {
    let length = rest.len();
    if let (Some(low), Some(high)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        let (low, high) = (u32::from_le_bytes(*low), u32::from_le_bytes(*high));
        return u64::from(low) | u64::from(high) << ((length - 4) * 8);
    }
    let byte = |at: usize| u64::from(rest[at]) << (at * 8);
    if length == 0 { 0 } else { byte(0) | byte(length / 2) | byte(length - 1) }
}

/// Reads a name of `length` bytes from words.
pub(crate) fn read<M: Machine>(words: &[M::AtomicU64], length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| get(word).to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use latchwork_machine::{Machine, Native};

    use super::{Name, is_in, read, tail};

    #[test]
    fn names_of_all_lengths_are_found_again() {
        let bytes: Vec<u8> = (1..=70).collect();
        let mut hashes = HashSet::new();
        for length in 1..=bytes.len() {
            let name = Name::new(&bytes[..length], 7).unwrap();
            let words: Vec<<Native as Machine>::AtomicU64> =
                (0..name.words()).map(|_| u64::MAX.into()).collect();
            name.write(&words);
            assert_eq!(read::<Native>(&words, length), name.bytes, "{length} bytes");
            assert!(name.is_in(&words));
            assert!(hashes.insert(name.hash));
            for at in 0..length {
                let mut other = name.bytes.to_vec();
                other[at] ^= 0x80;
                assert!(!is_in(&other, &words), "byte {at} of {length}");
                assert!(hashes.insert(Name::new(&other, 7).unwrap().hash));
            }
        }
    }

    #[test]
    fn a_tail_is_its_bytes_and_zeros() {
        let bytes = [0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7];
        for length in 0..=bytes.len() {
            let mut word = [0; 8];
            word[..length].copy_from_slice(&bytes[..length]);
            assert_eq!(tail(&bytes[..length]), u64::from_le_bytes(word), "{length} bytes");
        }
    }
}
