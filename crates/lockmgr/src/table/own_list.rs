//! An owner's list of its requests.

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::Memory;
use crate::memory::cells::{ObjectAt, OwnerCell, Request, RequestAt, Small, get, put};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::numbers::PartitionNumber;
use crate::memory::state::{State, status};

impl<'s, M: ConstMachine> Owner<'s, M> {
    #[inline]
    pub(crate) fn next_mark(&self) -> u32 {
        let mark = get(&self.cell.marks).saturating_add(1);
        put(&self.cell.marks, mark);
        mark
    }

    /// Returns this owner's request on an object, or null.
    #[inline(always)]
    pub(crate) fn find_own(
        &self,
        latched: &Latched<'_, M>,
        object_at: ObjectAt<M>,
        object: &Small<M>,
    ) -> Result<RequestAt<M>, Error> {
        let (held, length) = (get(&self.cell.held), get(&object.length));
        if held == 0 || length == 0 {
            return Ok(Offset::NULL);
        }
        self.find_among(latched, object_at, object)
    }

    #[inline(never)]
    fn find_among(
        &self,
        latched: &Latched<'_, M>,
        object: ObjectAt<M>,
        it: &Small<M>,
    ) -> Result<RequestAt<M>, Error> {
        let (held, length) = (get(&self.cell.held), get(&it.length));
        if held < length {
            let (mut at, mut steps) = (get(&self.cell.head), 0);
            while !at.is_null() {
                if steps > held {
                    return corrupt_list();
                }
                steps += 1;
                let request = self.memory.request(at)?;
                let linked = get(&request.state).status;
                if get(&request.object) == object && !matches!(linked, status::NEW | status::DENIED)
                {
                    return Ok(at);
                }
                at = get(&request.own_next);
            }
            return Ok(Offset::NULL);
        }
        for each in latched.requests(it) {
            let (at, request, _) = each?;
            if get(&request.owner) == self.index && !request.is_moved() {
                return Ok(at);
            }
        }
        Ok(Offset::NULL)
    }

    /// Inserts a request at the front of the owner's list.
    #[inline]
    pub(crate) fn adopt(&self, at: RequestAt<M>, request: &Request<M>) -> Result<(), Error> {
        let head = get(&self.cell.head);
        put(&request.own_prev, Offset::NULL);
        put(&request.own_next, head);
        put(&self.cell.head, at);
        if !head.is_null() {
            put(&self.memory.request(head)?.own_prev, at);
        }
        put(&self.cell.held, get(&self.cell.held).wrapping_add(1));
        Ok(())
    }

    /// Creates a request in the owner's list, and in no queue.
    #[inline]
    pub(crate) fn new_request(
        &self,
        object: ObjectAt<M>,
        partition: PartitionNumber,
        count: u32,
    ) -> Result<(RequestAt<M>, &'s Request<M>), Error> {
        let memory: &'s Memory<M> = self.memory;
        let spare = memory.spare.replace(Offset::NULL);
        if !spare.is_null() {
            let request = memory.request(spare)?;
            self.begin_request(spare, request, object, partition, count)?;
            memory.strike_request()?;
            memory.point("request its owner's alone");
            return Ok((spare, request));
        }
        let cell = memory.thread.alloc_dirty::<Request<M>>()?;
        let at = cell.offset();
        self.begin_request(at, &cell, object, partition, count)?;
        cell.publish();
        Ok((at, memory.request(at)?))
    }

    #[inline(always)]
    fn begin_request(
        &self,
        at: RequestAt<M>,
        request: &Request<M>,
        object: ObjectAt<M>,
        partition: PartitionNumber,
        count: u32,
    ) -> Result<(), Error> {
        put(&request.state, State::NEW);
        put(&request.object, object);
        put(&request.owner, self.index);
        put(&request.count, count);
        put(&request.partition, partition);
        put(&request.mark, self.next_mark());
        // Into the owner's list first, so that a sweep finds it there at any instant.
        self.adopt(at, request)?;
        self.memory.point("request in the owner's list");
        Ok(())
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Removes a request from the owner's list and keeps it as the spare; see [`Owner::discard`].
    #[inline]
    pub(crate) fn discard(
        &self,
        cell: &OwnerCell<M>,
        at: RequestAt<M>,
        request: &Request<M>,
    ) -> Result<(), Error> {
        self.note_request(at)?;
        let (prev, next) = (get(&request.own_prev), get(&request.own_next));
        if prev.is_null() {
            put(&cell.head, next);
        } else {
            put(&self.request(prev)?.own_next, next);
        }
        self.point("request out of the owner's list");
        if !next.is_null() {
            put(&self.request(next)?.own_prev, prev);
        }
        put(&cell.held, get(&cell.held).wrapping_sub(1));
        self.spare.set(at);
        Ok(())
    }

    pub(crate) fn own_list(&self, cell: &OwnerCell<M>) -> Result<Vec<RequestAt<M>>, Error> {
        let (mut found, mut at) = (Vec::new(), get(&cell.head));
        while !at.is_null() {
            found.push(at);
            at = get(&self.request(at)?.own_next);
            if found.len() > 1 << 26 {
                return corrupt_list();
            }
        }
        Ok(found)
    }
}
