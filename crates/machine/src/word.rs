//! Atomic words and their operations.

use core::sync::atomic::Ordering;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// An atomic word of some machine. All zero is its default.
pub trait Word: Default + Send + Sync + 'static {
    /// The type of its value.
    type Value: Copy + Eq;

    /// Loads the value.
    fn load(&self, order: Ordering) -> Self::Value;
    /// Stores a value.
    fn store(&self, value: Self::Value, order: Ordering);
    /// Stores a value and returns the previous one.
    fn swap(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Stores `new` if the word holds `old`. Returns the previous value in either case.
    fn compare_exchange(
        &self,
        old: Self::Value,
        new: Self::Value,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self::Value, Self::Value>;
}

/// A word with arithmetic and bit operations.
pub trait Integer: Word {
    /// Adds, wrapping, and returns the previous value.
    fn fetch_add(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Subtracts, wrapping, and returns the previous value.
    fn fetch_sub(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Sets bits and returns the previous value.
    fn fetch_or(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Clears all other bits and returns the previous value.
    fn fetch_and(&self, value: Self::Value, order: Ordering) -> Self::Value;
}

/// Forwards both traits to inherent methods of the same names.
macro_rules! words {
    ($($word:ty: $value:ty),*) => {$(
        impl Word for $word {
            type Value = $value;
            #[inline(always)]
            fn load(&self, order: Ordering) -> $value { self.load(order) }
            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) { self.store(value, order) }
            #[inline(always)]
            fn swap(&self, value: $value, order: Ordering) -> $value { self.swap(value, order) }
            #[inline(always)]
            fn compare_exchange(
                &self, old: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }
        }
        impl Integer for $word {
            #[inline(always)]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.fetch_add(value, order)
            }
            #[inline(always)]
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.fetch_sub(value, order)
            }
            #[inline(always)]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.fetch_or(value, order)
            }
            #[inline(always)]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.fetch_and(value, order)
            }
        }
    )*};
}

words!(AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);
