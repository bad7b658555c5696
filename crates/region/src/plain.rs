//! What may lie in a cell, and what names it.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// What may lie in a cell.
///
/// # Safety
///
/// Any bytes are a value of the type, for another process may write any: so it is made of atomic
/// words of a machine (or of nothing else than [`Plain`] types), without references, `bool`s or
/// enums. It has no destructor. It is aligned to 8 bytes at most; [`Thread::alloc`] refuses others
/// when compiled. Its words are used with one size each, also across types that share a cell size
/// if references to one are kept while the other is made.
///
/// [`Thread::alloc`]: crate::Thread::alloc
pub unsafe trait Plain: Send + Sync + 'static {}

// SAFETY: any byte is a value.
unsafe impl Plain for AtomicU8 {}
// SAFETY: any two bytes are a value.
unsafe impl Plain for AtomicU16 {}
// SAFETY: any four bytes are a value.
unsafe impl Plain for AtomicU32 {}
// SAFETY: any eight bytes are a value.
unsafe impl Plain for AtomicU64 {}
// SAFETY: nothing lies in it.
unsafe impl Plain for () {}
// SAFETY: its parts are plain, and there is nothing between them.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Names a cell that holds a `T`: the same 4 bytes in every process. Zero is null.
///
/// It counts 16 bytes from the end of the region's fixed part. It proves nothing: each use is
/// checked to lie in the region, and what type the cell has is the caller's to know. A cell may
/// have been freed and lent out again since; [`Region::generation`](crate::Region::generation)
/// tells.
pub struct Offset<T> {
    raw: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Offset<T> {
    /// No cell.
    pub const NULL: Self = Self::from_raw(0);

    /// The offset that was stored as this number.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self { raw, of: PhantomData }
    }

    /// The number to store in a word.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.raw
    }

    /// Whether it names no cell.
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.raw == 0
    }

    /// The same cell, seen as one that holds a `U`.
    pub const fn cast<U>(self) -> Offset<U> {
        Offset::from_raw(self.raw)
    }
}

impl<T> Clone for Offset<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Offset<T> {}

impl<T> PartialEq for Offset<T> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl<T> Eq for Offset<T> {}

impl<T> Hash for Offset<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}

impl<T> fmt::Display for Offset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<T> fmt::Debug for Offset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offset({:#x})", self.raw)
    }
}
