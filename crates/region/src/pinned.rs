//! A cell that is used constantly.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use latchwork_machine::ConstMachine;

use crate::memory::Memory;
use crate::{Error, Offset, Plain, Region};

/// A cell that was resolved once and keeps the region's memory, so that each access costs one
/// pointer. 16 bytes.
///
/// In the child of a fork the memory is gone, and an access kills the child. Call [`Region::check`]
/// first where that is possible.
pub struct Pinned<M: ConstMachine, T> {
    at: *const T,
    memory: Arc<Memory<M>>,
}

// SAFETY: it is a shared reference to a `T` in memory that any thread may use and drop.
unsafe impl<M: ConstMachine, T: Plain> Send for Pinned<M, T> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine, T: Plain> Sync for Pinned<M, T> {}

impl<M: ConstMachine> Region<M> {
    /// Resolves the cell at `offset` once, for as long as the result is kept.
    ///
    /// # Safety
    ///
    /// The contract of [`resolve`](Self::resolve), for as long as the `Pinned` is used.
    ///
    /// # Errors
    ///
    /// The errors of [`resolve`](Self::resolve).
    pub unsafe fn pin<T: Plain>(&self, offset: Offset<T>) -> Result<Pinned<M, T>, Error> {
        // SAFETY: the caller's promise for the `Pinned` covers this reference.
        let at = unsafe { self.resolve(offset) }?;
        Ok(Pinned { at, memory: self.inner.memory.clone() })
    }
}

impl<M: ConstMachine, T: Plain> Deref for Pinned<M, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `resolve` found it in this memory, where nothing is unmapped while that lives;
        // and any bytes are a `T`.
        unsafe { &*self.at }
    }
}

impl<M: ConstMachine, T> Clone for Pinned<M, T> {
    fn clone(&self) -> Self {
        Self { at: self.at, memory: self.memory.clone() }
    }
}

impl<M: ConstMachine, T> fmt::Debug for Pinned<M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:p})", self.at)
    }
}
