//! Words of the simulated machine: real size, real address, with a charge for each access.

use core::sync::atomic::Ordering::{self, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use latchwork_machine::{Integer, Word};

use crate::memory::{atomic, load, store};

/// A word of a [`Simulated`](crate::Simulated) machine. Outside a simulation it is a plain atomic.
///
/// Orderings cost what they cost on x86: a plain store is a release, a load an acquire, and every
/// read-modify-write a full fence.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Cell<A>(A);

impl<A> Cell<A> {
    /// Creates a word that holds `value`.
    pub const fn new(value: A) -> Self {
        Self(value)
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).expose_provenance()
    }
}

macro_rules! words {
    ($($word:ty: $value:ty),*) => {$(
        impl Word for Cell<$word> {
            type Value = $value;

            #[inline]
            fn load(&self, _: Ordering) -> $value {
                match load(self.address()) {
                    Some(own) => own as $value,
                    None => self.0.load(Relaxed),
                }
            }

            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                if store(self.address(), u64::from(value), size_of::<$value>() as u8) {
                    self.0.store(value, Relaxed);
                }
                if order == Ordering::SeqCst {
                    crate::memory::drain();
                }
            }

            #[inline]
            fn swap(&self, value: $value, _: Ordering) -> $value {
                atomic(self.address());
                self.0.swap(value, Relaxed)
            }

            #[inline]
            fn compare_exchange(
                &self, old: $value, new: $value, _: Ordering, _: Ordering,
            ) -> Result<$value, $value> {
                atomic(self.address());
                self.0.compare_exchange(old, new, Relaxed, Relaxed)
            }
        }

        impl Integer for Cell<$word> {
            #[inline]
            fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                atomic(self.address());
                self.0.fetch_add(value, Relaxed)
            }

            #[inline]
            fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                atomic(self.address());
                self.0.fetch_sub(value, Relaxed)
            }

            #[inline]
            fn fetch_or(&self, value: $value, _: Ordering) -> $value {
                atomic(self.address());
                self.0.fetch_or(value, Relaxed)
            }

            #[inline]
            fn fetch_and(&self, value: $value, _: Ordering) -> $value {
                atomic(self.address());
                self.0.fetch_and(value, Relaxed)
            }
        }
    )*};
}

impl Cell<AtomicU32> {
    /// Returns the value in memory, at no cost: for the simulated system's own load.
    pub(crate) fn peek(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

words!(AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);
