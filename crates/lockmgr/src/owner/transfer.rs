//! Handing a lock from one owner to another, with nobody in between.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::cells::{MOVED, ObjectAt, RequestAt, get, put};
use crate::memory::handle::Owner;
use crate::memory::latch::Latched;
use crate::memory::numbers::OwnerNumber;
use crate::memory::state::State;
use crate::mode::Mode;

impl<M: ConstMachine> Owner<'_, M> {
    /// Gives one lock to another owner of the same session, with its count, which is added to the
    /// other's and may pass 65,535 so; no third owner can come in between. What both hold is held
    /// in the mode that [`Modes::convert`](crate::Modes::convert) makes of the two. The limit of
    /// locks per owner does not count here. Berkeley DB (5.3) has it as `DB_LOCK_TRADE`.
    ///
    /// Neither may wait: a lock that comes to an owner that waits could close a cycle that no
    /// search would find. Should the process die in between, both are released together, or are
    /// orphans together; the lock may then be seen with both.
    ///
    /// Costs a latch; a weak lock goes to the table, and so closes its bias.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`]; [`Error::Count`] if the counts together reach 2^31;
    /// [`Error::NotGranted`] if a third owner, of the family of one of the two, holds what the
    /// other may not hold beside it; [`Error::Family`] if the sessions differ; [`Error::Waiting`]
    /// if either waits; [`Error::Name`], [`Error::Region`]. Then it is held as before.
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

    /// Makes one lock another owner's, of the same session. That one holds it before this one lets
    /// go, under one latch: so nobody gets it in between, and after a death both are in a list that
    /// the sweep walks. The caller discards the request. What both have of the object in their weak
    /// pages is settled before.
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
            // Both are below `MOVED`, so the sum is a number.
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

    /// Whether `to` may have `made` when this owner no longer holds `held`. Usually nobody else is
    /// to be asked, for an owner that bears the one bears the other. But a relative bore what a
    /// stranger would not, and two modes may make one that conflicts with more than both.
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
