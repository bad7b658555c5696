//! Places of the region that an owner remembers, so that it need not look them up again.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{Request, RequestAt, get};
use crate::memory::handle::{Known, Last, LastKnown, Owner};

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

    /// Takes a request that is in no queue out of the owner's list, and keeps it, noted, for the
    /// next lock of this session.
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
