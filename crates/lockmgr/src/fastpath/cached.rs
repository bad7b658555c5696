//! References into the region that an owner caches.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{Request, RequestAt, get};
use crate::memory::handle::{Known, Last, LastKnown, Owner};

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Caches a reference into the session's region. All such references live as long as the
    /// session.
    #[inline(always)]
    pub(crate) fn note<T>(&self, place: &'s T) -> Known<T> {
        Known(place)
    }

    /// Returns a cached reference.
    ///
    /// # Safety
    ///
    /// It was cached by this owner.
    #[inline(always)]
    pub(crate) unsafe fn at<T>(&self, known: Known<T>) -> &'s T {
        // SAFETY: it was a reference valid for the lifetime of the owner's session; `Owner` is
        // covariant in that lifetime, so `'s` now is no longer than `'s` was then.
        unsafe { &*known.0 }
    }

    /// Caches a held request as the last one.
    #[inline]
    pub(crate) fn remember(&self, at: RequestAt<M>, request: &'s Request<M>) -> Result<(), Error> {
        let object_at = get(&request.object);
        let object = self.memory.object(object_at)?;
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

    /// Returns the request that was cached last.
    #[inline(always)]
    pub(crate) fn last(&self) -> Option<Last<'s, M>> {
        let LastKnown { at, object_at, request, object } = self.last.get()?;
        // SAFETY: `remember_as` stored it with `note`.
        let request = unsafe { self.at(request) };
        // SAFETY: as above.
        let object = unsafe { self.at(object) };
        Some(Last { at, object_at, request, object })
    }

    /// Removes a request that is in no queue from the owner's list, and keeps it, recorded, as the
    /// spare for the session's next lock.
    #[inline]
    pub(crate) fn discard(&self, at: RequestAt<M>, request: &Request<M>) -> Result<(), Error> {
        self.memory.discard(self.cell, at, request)?;
        let head = get(&self.cell.head);
        self.forget_last();
        if head.is_null() {
            self.in_table.set(0);
        } else {
            let request = self.memory.request(head)?;
            if get(&request.state).holds() {
                self.remember(head, request)?;
            }
        }
        Ok(())
    }
}
