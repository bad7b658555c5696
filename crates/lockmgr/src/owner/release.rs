//! Releasing locks, all or some of them; and reading what an owner holds.

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use crate::Error;
use crate::error::corrupt_list;
use crate::memory::cells::{Request, RequestAt, Spot, get, put};
use crate::memory::entry::Entry;
use crate::memory::handle::{Last, Owner};
use crate::memory::latch::Latched;
use crate::memory::names;
use crate::memory::names::Name;
use crate::memory::state::State;
use crate::mode::Mode;
use crate::options::{Step, Wait};
use crate::range::kinds::RangeKind;

impl<M: ConstMachine> Owner<'_, M> {
    /// Releases a lock once. The last release frees it and grants it to waiters.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`], [`Error::Name`], [`Error::Waiting`], [`Error::Region`].
    #[inline]
    pub fn unlock(&self, name: &[u8]) -> Result<(), Error> {
        self.unlock_by(name, false)
    }

    /// Releases a lock, regardless of how often it was taken. Succeeds if the lock is not held.
    ///
    /// # Errors
    ///
    /// The errors of [`unlock`](Self::unlock).
    pub fn release_object(&self, name: &[u8]) -> Result<(), Error> {
        self.unlock_by(name, true)
    }

    #[inline]
    fn unlock_by(&self, name: &[u8], all: bool) -> Result<(), Error> {
        self.at_rest()?;
        let both = !all && self.has_two_places();
        if !all && !both && self.unlock_last(name)? {
            return Ok(());
        }
        let bytes = name;
        let name = self.memory.named(bytes)?;
        let spot = self.memory.spot(name.hash);
        if both && !self.gather_one(&name, spot)? && self.unlock_last(bytes)? {
            return Ok(());
        }
        if self.entries.get() != 0 && self.weak_unlock(&name, spot, all)? && !all {
            return Ok(());
        }
        self.unlock_in_table(&name, spot, all)
    }

    /// Releases the lock that was taken last, if it has this name, without a hash or a search.
    /// Returns false if it has another name.
    #[inline]
    fn unlock_last(&self, name: &[u8]) -> Result<bool, Error> {
        if let (Some((at, bias)), Some(page)) = (self.last_entry(), self.known_page())
            && self.entries.get() >> at & 1 != 0
        {
            let length = get(&page.states[at]).length;
            if length == name.len() && names::is_in(name, &page.names[at]) {
                self.drop_entry(page, at, bias, false)?;
                return Ok(true);
            }
        }
        match self.last() {
            Some(last) => self.unlock_request(last, name),
            None => Ok(false),
        }
    }

    #[inline(never)]
    fn unlock_request(&self, last: Last<'_, M>, name: &[u8]) -> Result<bool, Error> {
        let Last { at, object_at, request, object } = last;
        // The request is held, so its object keeps its name: reading the name needs no latch.
        if !self.memory.has_name(object_at, object, name)? {
            return Ok(false);
        }
        let latched = self.memory.latch(get(&request.partition))?;
        self.give_back(latched, at, request, false)?;
        Ok(true)
    }

    #[inline(never)]
    fn unlock_in_table(&self, name: &Name<'_>, spot: Spot, all: bool) -> Result<(), Error> {
        let latched = self.memory.latch(spot.partition)?;
        let at = self.find_held(&latched, name, spot)?;
        if at.is_null() {
            return if all { Ok(()) } else { Err(Error::NotHeld) };
        }
        self.give_back(latched, at, self.memory.request(at)?, all)
    }

    /// Decrements the count of a request. At zero the request leaves its queue.
    #[inline(always)]
    fn give_back(
        &self,
        latched: Latched<'_, M>,
        at: RequestAt<M>,
        request: &Request<M>,
        all: bool,
    ) -> Result<(), Error> {
        let count = request.count();
        if count > 1 && !all {
            put(&request.count, count - 1);
            return Ok(());
        }
        latched.release(at, request)?;
        drop(latched);
        self.discard(at, request)?;
        self.memory.wake_all()
    }

    /// Returns the owner's request for a name, or null.
    #[inline]
    pub(crate) fn find_held(
        &self,
        latched: &Latched<'_, M>,
        name: &Name<'_>,
        spot: Spot,
    ) -> Result<RequestAt<M>, Error> {
        if let Some(Last { at, object_at, request, object }) = self.last()
            && get(&request.partition) == spot.partition
            && latched.is_named(object_at, object, name)?
        {
            return Ok(at);
        }
        let object_at = latched.find(name)?;
        if object_at.is_null() {
            return Ok(Offset::NULL);
        }
        self.find_own(latched, object_at, self.memory.object(object_at)?)
    }

    /// Releases all locks, in time proportional to their number.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`], [`Error::Region`].
    pub fn release_all(&self) -> Result<(), Error> {
        self.release_some(|_, _, _| true)?;
        if let Some(journal) = self.journal.get() {
            journal.clear();
        }
        Ok(())
    }

    /// Releases all locks as [`release_all`](Self::release_all) does, and grants each to the next
    /// request in its queue, regardless of [`barge_for`](crate::Options::barge_for). For an owner
    /// that was aborted and requests the same locks again, possibly before the waiting owners run.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`], [`Error::Region`].
    pub fn release_all_in_turn(&self) -> Result<(), Error> {
        self.memory.in_turn.set(true);
        let released = self.release_all();
        self.memory.in_turn.set(false);
        released
    }

    /// Releases all locks in modes that do not write, and all ranges in [kinds](crate::RangeKind)
    /// that do not write.
    ///
    /// # Errors
    ///
    /// [`Error::Waiting`], [`Error::Region`].
    pub fn release_reads(&self) -> Result<(), Error> {
        self.at_rest()?;
        // One count and one mode decide whether a lock stays.
        self.gather_all()?;
        self.release_some(|mode, _, kind| {
            !kind.map_or_else(|| self.memory.modes().is_write(mode), RangeKind::is_write)
        })
    }

    /// Releases the locks for which `which` returns true, given the mode, the mark, and the kind of
    /// a range.
    pub(crate) fn release_some(
        &self,
        which: impl Fn(Mode, u32, Option<RangeKind>) -> bool,
    ) -> Result<(), Error> {
        self.at_rest()?;
        if let Some(page) = self.weak_page()? {
            for at in self.entries_among(u32::MAX) {
                let entry = get(&page.states[at]);
                if which(entry.mode, get(&page.marks[at]), None) {
                    let spot = self.memory.spot(get(&page.hashes[at]));
                    let bias = &self.memory.biases(spot.partition)?[spot.bias as usize];
                    self.drop_entry(page, at, bias, true)?;
                }
            }
        }
        self.refresh_filter()?;
        self.forget_last();
        let (mut at, mut left) = (get(&self.cell.head), get(&self.cell.held));
        while !at.is_null() {
            if left == 0 {
                return corrupt_list();
            }
            left -= 1;
            let request = self.memory.request(at)?;
            let next = get(&request.own_next);
            let (state, kind) = (get(&request.state), self.memory.kind_of(self.cell, at)?);
            if which(state.mode, get(&request.mark), kind) {
                self.memory.forget_range(self.cell, at)?;
                let latched = self.memory.latch(get(&request.partition))?;
                latched.release(at, request)?;
                drop(latched);
                self.memory.discard(self.cell, at, request)?;
            }
            at = next;
        }
        if get(&self.cell.head).is_null() {
            self.in_table.set(0);
        }
        self.memory.wake_all()
    }

    /// Returns the number of names that it holds, including weak locks.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn held(&self) -> Result<usize, Error> {
        let mut weak = 0;
        if let Some(page) = self.weak_page()? {
            for at in self.entries_among(u32::MAX) {
                let hash = get(&page.hashes[at]);
                let latched = self.memory.latch(self.memory.spot(hash).partition)?;
                self.settle(&latched, page, at)?;
                let entry = get(&page.states[at]);
                let bytes = names::read::<M>(&page.names[at], entry.length);
                let name = Name { bytes: &bytes, hash };
                // A part that was taken while the bias was closed may be in the table.
                if entry.count != 0
                    && self.find_held(&latched, &name, self.memory.spot(hash))?.is_null()
                {
                    weak += 1;
                }
            }
            self.memory.wake_all()?;
        }
        Ok(get(&self.cell.held) as usize + weak)
    }

    /// Returns the mode in which it holds a name, and how often it took the lock; `None` if it does
    /// not hold it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`], [`Error::Region`].
    pub fn holds(&self, name: &[u8]) -> Result<Option<(Mode, u32)>, Error> {
        let name = self.memory.named(name)?;
        let latched = self.memory.latch(self.memory.spot(name.hash).partition)?;
        let mut found = None;
        if let Some(page) = self.weak_page()?
            && let Some(at) = self.entry_of(page, &name)
        {
            self.settle(&latched, page, at)?;
            let entry = get(&page.states[at]);
            if entry.count != 0 {
                found = Some((entry.mode, entry.count));
            }
        }
        let at = self.find_held(&latched, &name, self.memory.spot(name.hash))?;
        if !at.is_null() {
            let request = self.memory.request(at)?;
            let (state, count) = (get(&request.state), request.count());
            found = match found {
                _ if !state.holds() => found,
                None => Some((state.mode, count)),
                Some((mode, n)) => {
                    let made = self.memory.modes().convert(state.mode, mode);
                    Some((made, n.saturating_add(count)))
                }
            };
        }
        drop(latched);
        self.memory.wake_all()?;
        Ok(found)
    }

    /// Replaces the mode of a held lock by a weaker one. Needs no memory.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if it is not held in a mode that covers `mode`; [`Error::Mode`],
    /// [`Error::Waiting`], [`Error::Region`].
    pub fn downgrade(&self, name: &[u8], mode: Mode) -> Result<(), Error> {
        self.at_rest()?;
        self.allowed(mode)?;
        let name = self.memory.named(name)?;
        let spot = self.memory.spot(name.hash);
        let latched = self.memory.latch(spot.partition)?;
        if let Some(changed) = self.downgrade_entry(&latched, &name, spot, mode)? {
            return changed;
        }
        self.gather(&latched, &name)?;
        let mut at = self.find_held(&latched, &name, spot)?;
        let modes = self.memory.modes();
        let was_weak = |at: RequestAt<M>| -> Result<bool, Error> {
            Ok(modes.is_weak(get(&self.memory.request(at)?.state).mode))
        };
        if at.is_null() || was_weak(at)? && !modes.is_weak(mode) {
            // A strong request is under no open bias, and a request that was strong already needs
            // no closing.
            latched.close(spot.bias)?;
            if let Some(page) = self.weak_page()?
                && let Some(at) = self.entry_of(page, &name)
            {
                self.settle(&latched, page, at)?;
            }
            at = self.find_held(&latched, &name, spot)?;
        }
        self.note_in_table(name.hash);
        if at.is_null() {
            drop(latched);
            self.memory.wake_all()?;
            return Err(Error::NotHeld);
        }
        let request = self.memory.request(at)?;
        let object = self.memory.object(get(&request.object))?;
        let old = get(&request.state);
        if !self.memory.modes().covers(old.mode, mode) {
            drop(latched);
            self.memory.wake_all()?;
            return Err(Error::NotHeld);
        }
        latched.set(object, request, State::held(mode));
        latched.advance(object)?;
        drop(latched);
        self.memory.wake_all()
    }

    /// Downgrades a lock that is in the owner's own memory only, and leaves its bias as it is: a
    /// table lock that is converted from read to write and back does not close its bias. Returns
    /// `None` if the lock is not there.
    fn downgrade_entry(
        &self,
        latched: &Latched<'_, M>,
        name: &Name<'_>,
        spot: Spot,
        mode: Mode,
    ) -> Result<Option<Result<(), Error>>, Error> {
        let Some(page) = self.weak_page()? else { return Ok(None) };
        let Some(at) = self.entry_of(page, name) else { return Ok(None) };
        let (entry, modes) = (get(&page.states[at]), self.memory.modes());
        // The latch prevents closing.
        let bias = get(&self.memory.biases(spot.partition)?[spot.bias as usize]);
        let here = entry.count != 0 && entry.bias == bias;
        if !here
            || !(bias.is_reserved() || modes.is_weak(mode))
            || !self.find_held(latched, name, spot)?.is_null()
        {
            return Ok(None);
        }
        if !modes.covers(entry.mode, mode) {
            return Ok(Some(Err(Error::NotHeld)));
        }
        put(&page.states[at], Entry { mode, ..entry });
        Ok(Some(Ok(())))
    }

    /// Requests a stronger mode of a held lock, without counting it again. A conversion precedes
    /// all requests that hold nothing of the name.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`], and the errors of [`lock_with`](Self::lock_with).
    pub fn convert(&self, name: &[u8], mode: Mode, wait: Wait) -> Result<(), Error> {
        if self.holds(name)?.is_none() {
            return Err(Error::NotHeld);
        }
        self.ready()?;
        self.allowed(mode)?;
        self.note_hold(name)?;
        let name = self.memory.named(name)?;
        let spot = self.memory.spot(name.hash);
        // In the table one request states the whole lock.
        self.memory.with_room(|| self.gather_in_table(&name, spot))?;
        self.memory.counters.request();
        let deadline = if let Wait::Until(deadline) = wait { Some(deadline) } else { None };
        if self.request_in_table(&name, spot, mode, wait)? == Step::Waiting {
            self.finish(deadline)?;
        }
        self.unlock_in_table(&name, spot, false)
    }

    /// Tries names in order, and takes the first lock that is available without waiting. Returns
    /// its index, or `None`.
    ///
    /// # Errors
    ///
    /// The errors of [`try_lock`](Self::try_lock), except for [`Error::NotGranted`].
    pub fn lock_any<'n>(
        &self,
        names: impl IntoIterator<Item = &'n [u8]>,
        mode: Mode,
    ) -> Result<Option<usize>, Error> {
        for (at, name) in names.into_iter().enumerate() {
            match self.try_lock(name, mode) {
                Ok(()) => return Ok(Some(at)),
                Err(Error::NotGranted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
