//! Memory aligned for direct I/O.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// The alignment of offsets, lengths and addresses in direct I/O: enough for usual devices and file
/// systems.
pub const ALIGNMENT: usize = 4096;

/// Zeroed bytes at an address that is a multiple of [`ALIGNMENT`].
pub struct Buffer {
    /// Longer than needed, and never resized, so its address does not change.
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Buffer {
    /// Allocates `length` zeroed bytes.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let from = bytes.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        Self { bytes, from, length }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.length]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

/// Returns whether these bytes are aligned for a direct read or write.
pub(crate) fn is_aligned(at: u64, bytes: &[u8]) -> bool {
    at.is_multiple_of(ALIGNMENT as u64)
        && bytes.len().is_multiple_of(ALIGNMENT)
        && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT)
}
