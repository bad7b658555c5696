//! Transferring a lock from one owner to another, atomically.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{MOVED, ObjectAt, RequestAt, get, put};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::numbers::OwnerNumber;
use crate::memory::state::State;
use crate::mode::Mode;

impl<M: ConstMachine> Owner<'_, M> {
    /// Transfers a lock to another owner of the same session. No third owner can get it in between.
    /// Its count is added to the other's count, and may then exceed 65,535. A lock that both hold
    /// is held in the mode that [`Modes::convert`](crate::Modes::convert) gives for the two. The
    /// limit of locks per owner does not apply. Berkeley DB (5.3) has this as `DB_LOCK_TRADE`.
    ///
    /// Neither owner may be waiting: a lock that is given to a waiting owner could close a cycle
    /// that no search would find. If the process dies during the transfer, both owners are released
    /// together or become orphans together; the lock may then be shown with both.
    ///
    /// Takes a latch. A weak lock is moved to the table, which closes its bias.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`]; [`Error::Count`] if the counts together reach 2^31;
    /// [`Error::NotGranted`] if a third owner, related to one of the two, holds a mode that
    /// conflicts with the new one; [`Error::Family`] if the sessions differ; [`Error::Waiting`] if
    /// either waits; [`Error::Name`], [`Error::Region`]. At an error the lock is held as before.
    pub fn trade(&self, name: &[u8], to: &Owner<'_, M>) -> Result<(), Error> {
        let memory = self.memory;
        if !core::ptr::eq(memory, to.memory) {
            return Err(Error::Family);
        }
        self.at_rest()?;
        to.at_rest()?;
        to.note_hold(name)?;
        let name = memory.named(name)?;
        let spot = self.memory.spot(name.hash);
        let latched = memory.latch(spot.partition)?;
        if let Some(page) = self.weak_page()?
            && let Some(entry) = self.entry_of(page, &name)
        {
            latched.close(spot.bias)?;
            self.settle(&latched, page, entry)?;
        }
        let at = self.find_held(&latched, &name, spot)?;
        if at.is_null() {
            drop(latched);
            memory.wake_all()?;
            return Err(Error::NotHeld);
        }
        if self.index == to.index {
            drop(latched);
            return memory.wake_all();
        }
        if let Some(page) = to.weak_page()?
            && let Some(entry) = to.entry_of(page, &name)
        {
            latched.close(spot.bias)?;
            to.settle(&latched, page, entry)?;
        }
        let traded = self.hand_over(&latched, at, to);
        drop(latched);
        if traded.is_ok() {
            self.discard(at, memory.request(at)?)?;
        }
        memory.wake_all()?;
        traded
    }

    /// Transfers one lock to another owner of the session. The new owner holds it before the old
    /// one releases it, under one latch: so no other owner gets it in between, and after a death
    /// both requests are in a list that the sweep walks. The caller discards the request. Entries
    /// of both owners for the object must be settled before.
    pub(crate) fn hand_over(
        &self,
        latched: &Latched<'_, M>,
        at: RequestAt<M>,
        to: &Owner<'_, M>,
    ) -> Result<(), Error> {
        let memory = self.memory;
        let mine = memory.request(at)?;
        let object_at = get(&mine.object);
        let (object, held) = (memory.object(object_at)?, get(&mine.state));
        let theirs = to.find_own(latched, object_at, object)?;
        to.note_in_table(u64::from(get(&object.hash)));
        if theirs.is_null() {
            self.may_have(latched, object_at, held.mode, to, held.mode)?;
            let (new, request) = to.new_request(object_at, latched.number, mine.count())?;
            memory.point("traded lock in the other's list");
            latched.link_front(object, new, request, held.mode)?;
        } else {
            let theirs = memory.request(theirs)?;
            // Both counts are below `MOVED`, so the sum does not overflow.
            let count = theirs.count() + mine.count();
            if count >= MOVED {
                return Err(Error::Count);
            }
            let old = get(&theirs.state).mode;
            let made = memory.modes().convert(old, held.mode);
            if made != old {
                self.may_have(latched, object_at, held.mode, to, made)?;
                if !memory.modes().is_weak(made) {
                    latched.close(object.bias())?;
                }
                latched.set(object, theirs, State::held(made));
            }
            put(&theirs.count, count);
        }
        memory.point("lock traded");
        latched.release(at, mine)
    }

    /// Checks whether `to` may hold `made` once this owner no longer holds `held`. Usually no other
    /// owner can conflict, because a holder that is compatible with one is compatible with the
    /// other. But a relative may have been compatible with a lock that conflicts with others, and
    /// two modes may combine to a mode that conflicts with more than both.
    fn may_have(
        &self,
        latched: &Latched<'_, M>,
        object_at: ObjectAt<M>,
        held: Mode,
        to: &Owner<'_, M>,
        made: Mode,
    ) -> Result<(), Error> {
        let (object, stops) =
            (self.memory.object(object_at)?, self.memory.modes().stopped_by(made));
        if get(&object.masks).held & stops == 0 {
            return Ok(());
        }
        let related = |a: OwnerNumber, b: OwnerNumber| {
            Ok::<bool, Error>(latched.is_kin(a, b)? || latched.is_kin(b, a)?)
        };
        for each in latched.requests(object) {
            let (_, request, state) = each?;
            let who = get(&request.owner);
            if !state.holds() || state.mode.bit() & stops == 0 || related(who, to.index)? {
                continue;
            }
            if who != self.index && (made != held || related(who, self.index)?) {
                return Err(Error::NotGranted);
            }
        }
        Ok(())
    }
}
