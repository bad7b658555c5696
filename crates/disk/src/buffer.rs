//! Memory whose address suits direct I/O.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// What offsets, lengths and addresses of direct I/O are multiples of: as much as any usual device or
/// file system asks for.
pub const ALIGNMENT: usize = 4096;

/// Zeroed bytes, as many as asked for, that begin at a multiple of [`ALIGNMENT`].
pub struct Buffer {
    /// Longer than need be, and never resized: so its address stays.
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Buffer {
    /// `length` zeroed bytes.
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

/// Whether a direct read or write of these bytes can succeed.
pub(crate) fn is_aligned(at: u64, bytes: &[u8]) -> bool {
    at.is_multiple_of(ALIGNMENT as u64)
        && bytes.len().is_multiple_of(ALIGNMENT)
        && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT)
}
