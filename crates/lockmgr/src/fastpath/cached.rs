//! Places of the region that an owner remembers, so that it need not look them up again.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{Request, Small, get};
use crate::owner::handle::Owner;

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

/// A request of an owner, and its object, as found.
pub(crate) struct Last<'s, M: ConstMachine> {
    pub(crate) at: u32,
    pub(crate) object_at: u32,
    pub(crate) request: &'s Request<M>,
    pub(crate) object: &'s Small<M>,
}

/// The same, as an owner keeps it.
pub(crate) struct LastKnown<M: ConstMachine> {
    at: u32,
    object_at: u32,
    request: Known<Request<M>>,
    object: Known<Small<M>>,
}

impl<M: ConstMachine> Clone for LastKnown<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for LastKnown<M> {}

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

    /// Keeps a request that holds as the last one.
    #[inline]
    pub(crate) fn remember(&self, at: u32, request: &'s Request<M>) -> Result<(), Error> {
        let object_at = get(&request.object);
        let object = self.session.object(object_at)?;
        self.remember_as(Last { at, object_at, request, object });
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn remember_as(&self, last: Last<'s, M>) {
        let (request, object) = (self.note(last.request), self.note(last.object));
        self.last.set(Some(LastKnown { at: last.at, object_at: last.object_at, request, object }));
    }

    #[inline(always)]
    pub(crate) fn forget_last(&self) {
        self.last.set(None);
    }

    /// The request that was remembered last, if it still holds.
    #[inline(always)]
    pub(crate) fn last(&self) -> Option<Last<'s, M>> {
        let LastKnown { at, object_at, request, object } = self.last.get()?;
        // SAFETY: it was noted by `remember_as`.
        let request = unsafe { self.at(request) };
        // SAFETY: as above.
        let object = unsafe { self.at(object) };
        Some(Last { at, object_at, request, object })
    }
}
