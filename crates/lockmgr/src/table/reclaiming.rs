//! When memory is short: what is kept for the next one is freed, and what was half done is undone.
//!
//! A partition keeps idle objects, about one in each chain, for whoever comes again with a name.
//! Where a region cannot grow these may be all that it has: so who finds no room frees them, in all
//! partitions, and asks once more. Giving back never needs room.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::memory::cells::{
    BIASES, PARTITIONS, Request, Spot, WEAK, WEAK_WORDS, WeakPage, get, put, status,
};
use crate::memory::latch::Latched;
use crate::memory::names::{self, Name};
use crate::mode::Mode;
use crate::owner::handle::{Owner, Step, Wait};
use crate::session::Session;
use crate::table::objects::{CHAIN_MAX, ring};
use crate::table::queues::State;

/// Whether there was no room.
pub(crate) fn is_short(error: &Error) -> bool {
    use latchwork_region::Error::{FileLimit, Full, NoSpace};
    matches!(error, Error::Region(Full(_) | NoSpace | FileLimit))
}

impl<M: ConstMachine> Owner<'_, M> {
    /// A request that goes to the table.
    #[inline(always)]
    pub(crate) fn request_in_table(
        &self,
        name: &Name<'_>,
        spot: Spot,
        mode: Mode,
        wait: Wait,
    ) -> Result<Step, Error> {
        match self.request_once(name, spot, mode, wait) {
            Err(error) if is_short(&error) => {
                self.session.again(error, || self.request_once(name, spot, mode, wait))
            }
            end => end,
        }
    }
}

impl<M: ConstMachine> Session<M> {
    /// Does something, and if there was no room for it once more, after idle objects were freed. No
    /// latch may be held.
    pub(crate) fn with_room<T>(&self, deed: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        match deed() {
            Err(error) if is_short(&error) => self.again(error, deed),
            end => end,
        }
    }

    #[cold]
    #[inline(never)]
    fn again<T>(&self, error: Error, deed: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let mut freed = 0;
        for number in 0..PARTITIONS {
            // What somebody is at work in is passed by.
            if let Some(latched) = self.try_latch(number)? {
                freed += latched.free_idle()?;
            }
        }
        if freed == 0 { Err(error) } else { deed() }
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// Frees the objects that have no requests, and returns how many they were.
    fn free_idle(&self) -> Result<u32, Error> {
        let mut freed = 0;
        for chain in self.heads()? {
            let (mut link, mut at, mut steps) = (chain, get(chain), 0);
            while at != 0 {
                let object = self.session.object(at)?;
                let next = get(&object.next);
                if get(&object.head) == 0 {
                    self.session.note_object(at, self.number)?;
                    put(link, next);
                    put(&self.objects, get(&self.objects).wrapping_sub(1));
                    self.session.point("object unlinked");
                    self.session.free_object(at, object.name_length())?;
                    freed += 1;
                } else {
                    link = &object.next;
                }
                at = next;
                steps += 1;
                if steps == CHAIN_MAX {
                    return ring();
                }
            }
        }
        Ok(freed)
    }

    /// After a bias was closed and not all that was to be moved could be: takes out what was, and
    /// opens it again, as it was. No strong request may be under it yet. Owners from `end` on were
    /// not looked at.
    ///
    /// The entries are the truth again. That the bias has an old value once more is no matter: none
    /// of its entries was settled meanwhile, for that needs the latch. Who saw it closed took back
    /// what it had done, and comes for the latch; it finds nothing moved, and its entry as it left
    /// it. Should we die on the way, the bias is closed, and who mends collects again.
    #[cold]
    pub(crate) fn reopen(&self, bias: u32, open: u32, end: u32) -> Result<(), Error> {
        let session = self.session;
        let here = Spot { partition: self.number, bias };
        let some = session.each_weak(here).take_while(|(owner, _)| *owner < end);
        for (owner, cell) in some.filter(|(_, cell)| get(&cell.weak) != 0) {
            let page: &WeakPage<M> = session.region().resolve(Offset::from_raw(get(&cell.weak)))?;
            for at in 0..WEAK {
                // Acquire: synchronizes with the Release in `weak_take`. What counts nothing any
                // more may have been moved while it did.
                let entry = crate::fastpath::weak::Entry::of(page.states[at].load(Acquire));
                let hash = get(&page.hashes[at]);
                if entry.bias != open
                    || Spot::of(hash) != here
                    || !(1..=WEAK_WORDS * 8).contains(&entry.length)
                {
                    continue;
                }
                let bytes = names::read::<M>(&page.names[at], entry.length);
                let object_at = self.find(&Name { bytes: &bytes, hash })?;
                if object_at == 0 {
                    continue;
                }
                let moved = self.moved_of(page, at, object_at, owner)?;
                if moved != 0 {
                    let object = session.object(object_at)?;
                    session.note_request(moved)?;
                    let last = State { status: status::NEW, ..State::held(Mode(0)) };
                    self.unlink(object, moved, session.request(moved)?, last)?;
                    if get(&object.head) == 0 {
                        self.retire(object_at, object)?;
                    }
                    session.thread.free(Offset::<Request<M>>::from_raw(moved))?;
                }
            }
        }
        put(&session.biases(self.number)?[(bias % BIASES) as usize], open);
        Ok(())
    }
}
