//! Places of the region that an owner remembers, so that it need not look them up again.

use latchwork_machine::ConstMachine;

use crate::owner::Owner;

/// A place of the region in which its owner's session works.
///
/// A reference in a `Cell` would say the same, but make owners invariant in their session's
/// lifetime: then none could be handed to a function beside another that lives shorter.
pub(crate) struct Known<T>(*const T);

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Known<T> {}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Remembers a place of the session's region, whose references are all as long as this one.
    #[inline(always)]
    pub(crate) fn note<T>(&self, place: &'s T) -> Known<T> {
        Known(place)
    }

    /// The place, again.
    ///
    /// # Safety
    ///
    /// It was noted by this owner.
    #[inline(always)]
    pub(crate) unsafe fn at<T>(&self, known: Known<T>) -> &'s T {
        // SAFETY: it was a reference good for as long as the owner's session; `Owner` is covariant
        // in that lifetime, so that `'s` now is no longer than `'s` was then.
        unsafe { &*known.0 }
    }
}
