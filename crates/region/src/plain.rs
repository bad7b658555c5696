//! Types that may be stored in a cell, and their names.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// A type that may be stored in a cell.
///
/// # Safety
///
/// Any bytes are a valid value of the type, because another process may write any. So it consists
/// of atomic words of a machine, or of other [`Plain`] types, without references, `bool`s or enums.
/// It has no destructor. Its alignment is at most 8 bytes; [`Thread::alloc`] does not compile for
/// others. Its words are used with one size each, also across types that share a cell size if
/// references to one are kept while the other is created.
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
// SAFETY: it has no bytes.
unsafe impl Plain for () {}
// SAFETY: its parts are plain, without padding between them.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The name of a cell that holds a `T`: the same 4 bytes in every process. Zero is null.
///
/// It counts 16-byte units from the end of the region's fixed part. It proves nothing: each use is
/// checked against the region, and the caller must know the cell's type. The cell may have been
/// freed and allocated again; compare [`Region::generation`](crate::Region::generation).
pub struct Offset<T> {
    raw: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Offset<T> {
    /// No cell.
    pub const NULL: Self = Self::from_raw(0);

    /// Creates the offset that was stored as this number.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self { raw, of: PhantomData }
    }

    /// Returns the number to store in a word.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.raw
    }

    /// Returns whether it names no cell.
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.raw == 0
    }

    /// Returns the same cell as one that holds a `U`.
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
