//! Entries of a store buffer.

/// A store that is not yet visible to other threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store {
    pub(crate) address: usize,
    pub(crate) value: u64,
    pub(crate) bytes: u8,
}

impl Store {
    /// Writes the value to memory.
    pub(crate) fn write(self) {
        use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
        macro_rules! put {
            ($word:ty, $value:expr) => {{
                let word = core::ptr::with_exposed_provenance_mut::<$word>(self.address);
                // SAFETY: a simulated thread stored to this word, which is aligned, and memory
                // that simulated threads share outlives their run.
                unsafe { (*word).store($value, Relaxed) }
            }};
        }
        match self.bytes {
            1 => put!(AtomicU8, self.value as u8),
            2 => put!(AtomicU16, self.value as u16),
            4 => put!(AtomicU32, self.value as u32),
            _ => put!(AtomicU64, self.value),
        }
    }
}
