//! Random numbers.

/// A thread's own random numbers, independent of the simulation's, so that a thread does the same
/// under every lock.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64, me: usize) -> Self {
        let mut dice =
            Self(((seed << 20) | (me as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = dice.next());
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
