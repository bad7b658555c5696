//! Keys, values and their distributions.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Bytes of a record's value.
pub(super) const VALUE: usize = 100;

/// The key of a record: 8 zero bytes and the number in big-endian order.
pub(super) fn record(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The key of the first benchmarks of this project: 4 bytes in native order.
pub(super) fn seed(number: u64) -> [u8; 4] {
    (number as u32).to_ne_bytes()
}

/// The key of a YCSB row. The number is hashed (FNV-1a, 64 bits), so neighbours are far apart.
pub(super) fn user(number: u64) -> [u8; 24] {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    let mut key = *b"user00000000000000000000";
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (hash % 10) as u8;
        hash /= 10;
    }
    key
}

/// All numbers below a limit, in a fixed random order.
pub(super) fn shuffled(limit: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..limit).collect();
    numbers.shuffle(&mut SmallRng::seed_from_u64(limit));
    numbers
}

/// Samples of a Zipf distribution, which a window repeats.
const SAMPLES: usize = 1 << 16;

/// Zipf-distributed ranks, exponent 0.99, drawn before timing starts.
pub(super) struct Skewed {
    ranks: Vec<u32>,
    next: usize,
}

impl Skewed {
    pub(super) fn new(limit: u64, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let zipf = Zipf::new(limit as f64, 0.99).expect("a number of rows, and a slope");
        let rank = |_| {
            let rank: f64 = zipf.sample(&mut rng);
            (rank as u64 - 1).min(limit - 1) as u32
        };
        Self { ranks: (0..SAMPLES).map(rank).collect(), next: 0 }
    }

    /// A rank; 0 is the most frequent.
    pub(super) fn rank(&mut self) -> u64 {
        self.next = (self.next + 1) % SAMPLES;
        u64::from(self.ranks[self.next])
    }
}

/// Fills a value that a reader can identify: its first eight bytes are a number.
pub(super) fn fill(value: &mut [u8], number: u64, rng: &mut SmallRng) {
    for chunk in value.chunks_mut(8) {
        let bytes = rng.random::<u64>().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    let length = value.len().min(8);
    value[..length].copy_from_slice(&number.to_le_bytes()[..length]);
}

/// Reads one byte of each cache line of a scanned value. A get copies its value in all stores; a
/// scan of a store that maps its file only returns an address.
pub(super) fn read(value: &[u8]) -> u64 {
    value.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_ranks_are_skewed() {
        let mut users: Vec<_> = (0..10_000).map(user).collect();
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.len(), 10_000);
        assert!(record(255) < record(256));
        let mut skewed = Skewed::new(10_000, 1);
        let ranks: Vec<u64> = (0..SAMPLES).map(|_| skewed.rank()).collect();
        assert!(ranks.iter().all(|rank| *rank < 10_000));
        let first = ranks.iter().filter(|rank| **rank == 0).count() as f64 / SAMPLES as f64;
        assert!((0.05..0.2).contains(&first), "{first}");
    }
}
