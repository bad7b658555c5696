//! Typed words of the region.
//!
//! The region contains only numbers. A field whose number stands for something is [`Typed`]: `get`
//! and `put` convert it, so that the offset of a request cannot be stored where the offset of an
//! object belongs. In memory it is the word alone.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use latchwork_machine::{Machine, Word};
use latchwork_region::Offset;

/// A type that is stored in a word of the region.
pub(crate) trait Stored: Copy + Eq + 'static {
    /// The integer that it is stored as.
    type In;

    /// Converts from a number. Any number may occur, in a damaged region.
    fn of(word: Self::In) -> Self;

    /// Converts to a number.
    fn word(self) -> Self::In;
}

impl<T: 'static> Stored for Offset<T> {
    type In = u32;

    #[inline(always)]
    fn of(word: u32) -> Self {
        Self::from_raw(word)
    }

    #[inline(always)]
    fn word(self) -> u32 {
        self.raw()
    }
}

/// Implements [`Stored`] for a type that wraps the number it is stored as.
macro_rules! stored_as_it_is {
    ($what:ty) => {
        impl $crate::memory::typed::Stored for $what {
            type In = u32;

            #[inline(always)]
            fn of(word: u32) -> Self {
                Self(word)
            }

            #[inline(always)]
            fn word(self) -> u32 {
                self.0
            }
        }
    };
}
pub(crate) use stored_as_it_is;

/// A word that holds a `V`.
#[repr(transparent)]
pub(crate) struct Typed<W, V> {
    pub(crate) word: W,
    of: PhantomData<fn() -> V>,
}

/// A word that holds the offset of a cell with a `T`, or null.
pub(crate) type Link<M, T> = Typed<<M as Machine>::AtomicU32, Offset<T>>;

impl<W: Default, V> Default for Typed<W, V> {
    fn default() -> Self {
        Self { word: W::default(), of: PhantomData }
    }
}

impl<W: Word, V: Stored<In = W::Value>> Word for Typed<W, V> {
    type Value = V;

    #[inline(always)]
    fn load(&self, order: Ordering) -> V {
        V::of(self.word.load(order))
    }

    #[inline(always)]
    fn store(&self, value: V, order: Ordering) {
        self.word.store(value.word(), order);
    }

    #[inline(always)]
    fn swap(&self, value: V, order: Ordering) -> V {
        V::of(self.word.swap(value.word(), order))
    }

    #[inline(always)]
    fn compare_exchange(
        &self,
        old: V,
        new: V,
        success: Ordering,
        failure: Ordering,
    ) -> Result<V, V> {
        self.word
            .compare_exchange(old.word(), new.word(), success, failure)
            .map(V::of)
            .map_err(V::of)
    }
}
