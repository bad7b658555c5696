//! An object's requests, as a list: linking, unlinking, and the counters that depend on their
//! states.
//!
//! Holders are in the list in no order. Waiters are in queue order, behind `first`.
//! `table/granting.rs` decides which one is next.
//!
//! `masks` has at least all modes held and all modes waited for. It is made exact when it would
//! block a request without need.

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{BIASES, CONVERSION, Request, RequestAt, Small, get, put};
use crate::memory::latch::Latched;
pub(crate) use crate::memory::state::State;
use crate::memory::state::status;
use crate::mode::Mode;

/// A list that is longer is corrupt.
pub(crate) const LIST_MAX: u32 = 1 << 26;

/// A request of a list: its offset, a reference to it, and its state.
pub(crate) type Listed<'a, M> = (RequestAt<M>, &'a Request<M>, State);

impl<M: ConstMachine> Latched<'_, M> {
    /// Returns the requests of an object.
    pub(crate) fn requests<'a>(
        &'a self,
        object: &Small<M>,
    ) -> impl Iterator<Item = Result<Listed<'a, M>, Error>> + use<'a, M> {
        self.requests_from(get(&object.head))
    }

    /// Returns whether a request is in the queue of its object. Reads every object of the
    /// partition, so it is used only to repair the state of dead threads.
    pub(crate) fn is_queued(&self, at: RequestAt<M>) -> Result<bool, Error> {
        let object_at = get(&self.memory.request(at)?.object);
        if !self.each_object()?.contains(&object_at) {
            return Ok(false);
        }
        for each in self.requests(self.memory.object(object_at)?) {
            if each?.0 == at {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn requests_from<'a>(
        &'a self,
        first: RequestAt<M>,
    ) -> impl Iterator<Item = Result<Listed<'a, M>, Error>> + use<'a, M> {
        let (mut at, mut steps) = (first, 0);
        core::iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            steps += 1;
            let offset = at;
            let request = match self.memory.request(offset) {
                Ok(request) if steps < LIST_MAX => request,
                Ok(_) => {
                    at = Offset::NULL;
                    return Some(corrupt_list());
                }
                Err(error) => {
                    at = Offset::NULL;
                    return Some(Err(error));
                }
            };
            at = get(&request.next);
            Some(Ok((offset, request, get(&request.state))))
        })
    }

    /// Updates the number of strong requests of its bias for a change of state.
    #[inline(always)]
    pub(crate) fn count_strong(&self, object: &Small<M>, old: State, new: State) {
        let modes = self.memory.modes();
        let strong = |state: State| !modes.all_weak(state.mask());
        match (strong(old), strong(new)) {
            (false, true) => self.more(object.bias()),
            (true, false) => self.fewer(object.bias()),
            _ => {}
        }
    }

    /// Counts a request that holds a mode from now on.
    #[inline(always)]
    pub(crate) fn count_in(&self, bias: u32, mode: Mode) {
        if !self.memory.modes().is_weak(mode) {
            self.more(bias);
        }
    }

    /// Counts a request that no longer holds a mode.
    #[inline(always)]
    pub(crate) fn count_out(&self, bias: u32, mode: Mode) {
        if !self.memory.modes().is_weak(mode) {
            self.fewer(bias);
        }
    }

    #[inline(always)]
    fn more(&self, bias: u32) {
        let count = &self.strong[(bias % BIASES) as usize];
        // The counter saturates: then the bias is never opened again, which is correct but slower.
        put(count, get(count).saturating_add(1));
    }

    #[inline(always)]
    fn fewer(&self, bias: u32) {
        let count = &self.strong[(bias % BIASES) as usize];
        if get(count) != u16::MAX {
            put(count, get(count).saturating_sub(1));
        }
    }

    /// Changes a request's state, and all counters that depend on it.
    #[inline]
    pub(crate) fn set(&self, object: &Small<M>, request: &Request<M>, new: State) {
        let old = get(&request.state);
        self.count_strong(object, old, new);
        let converting = |s: State| u32::from(s.status == status::CONVERTING) * CONVERSION;
        if converting(new) != converting(old) {
            // Wrapping, here and below: in a damaged region a number may have any value.
            let info = get(&object.info).wrapping_add(converting(new));
            put(&object.info, info.wrapping_sub(converting(old)));
        }
        put(&object.masks, get(&object.masks).with(new));
        // Release, in `put`: synchronizes with the Acquire in `Owner::poll`.
        put(&request.state, new);
    }

    /// Links a request that was in no queue as a holder, at the front.
    #[inline]
    pub(crate) fn link_front(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        request: &Request<M>,
        mode: Mode,
    ) -> Result<(), Error> {
        let head = get(&object.head);
        put(&request.next, head);
        put(&request.prev, Offset::NULL);
        self.count_in(object.bias(), mode);
        put(&object.masks, get(&object.masks).with(State::held(mode)));
        put(&request.state, State::held(mode));
        self.memory.point("request about to be linked");
        put(&object.head, at);
        self.memory.point("request linked");
        if head.is_null() {
            put(&object.tail, at);
        } else {
            put(&self.memory.request(head)?.prev, at);
        }
        put(&object.length, get(&object.length).wrapping_add(1));
        Ok(())
    }

    /// Links a waiting request before another one, or at the end.
    pub(crate) fn link_before(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        before: RequestAt<M>,
        state: State,
    ) -> Result<(), Error> {
        let request = self.memory.request(at)?;
        let prev = if before.is_null() {
            get(&object.tail)
        } else {
            get(&self.memory.request(before)?.prev)
        };
        put(&request.next, before);
        put(&request.prev, prev);
        self.set(object, request, state);
        self.memory.point("request about to be linked");
        if prev.is_null() {
            put(&object.head, at);
        } else {
            put(&self.memory.request(prev)?.next, at);
        }
        self.memory.point("request linked");
        if before.is_null() {
            put(&object.tail, at);
        } else {
            put(&self.memory.request(before)?.prev, at);
        }
        let first = get(&object.first);
        if first.is_null() || first == before {
            put(&object.first, at);
        }
        put(&object.length, get(&object.length).wrapping_add(1));
        Ok(())
    }

    /// Removes a request from the list, after storing its last state. A request that is found in a
    /// list with such a state was being removed when its remover died.
    #[inline]
    pub(crate) fn unlink(
        &self,
        object: &Small<M>,
        at: RequestAt<M>,
        request: &Request<M>,
        last: State,
    ) -> Result<(), Error> {
        let old = get(&request.state);
        if old.status == status::HELD && last.status == status::NEW {
            self.count_out(object.bias(), old.mode);
            put(&request.state, last);
        } else {
            self.set(object, request, last);
        }
        self.memory.point("request about to be unlinked");
        let (prev, next) = (get(&request.prev), get(&request.next));
        if prev.is_null() {
            put(&object.head, next);
        } else {
            put(&self.memory.request(prev)?.next, next);
        }
        self.memory.point("request unlinked");
        if next.is_null() {
            put(&object.tail, prev);
        } else {
            put(&self.memory.request(next)?.prev, prev);
        }
        if get(&object.first) == at {
            put(&object.first, next);
        }
        put(&object.length, get(&object.length).wrapping_sub(1));
        Ok(())
    }

    /// Removes a held request that is the only one in the list.
    #[inline(always)]
    pub(crate) fn unlink_only(&self, object: &Small<M>, request: &Request<M>, old: State) {
        self.count_out(object.bias(), old.mode);
        put(&request.state, State { status: status::NEW, ..old });
        self.memory.point("request about to be unlinked");
        put(&object.head, Offset::NULL);
        self.memory.point("request unlinked");
        put(&object.tail, Offset::NULL);
        put(&object.length, 0);
    }
}
