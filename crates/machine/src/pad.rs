//! A value alone on its cache line.

use core::ops::{Deref, DerefMut};

/// Keeps `T` off the cache lines of its neighbours: 128 bytes, because the adjacent-line prefetcher
/// of x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
