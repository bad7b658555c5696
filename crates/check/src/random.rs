//! Reproducible random numbers.

/// Xorshift (Marsaglia, 2003), seeded with anything but zero.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    fn step(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.step() % n
    }

    /// An index below `n`, from the better bits: the lowest bits of successive steps are
    /// correlated.
    pub fn roll(&mut self, n: usize) -> usize {
        (self.step() >> 16) as usize % n
    }
}
