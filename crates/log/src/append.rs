//! Appends records.
//!
//! | step | action | left by a thread that is killed after it |
//! |---|---|---|
//! | 1 | request a place in a request word of the group | a request, which its repair removes |
//! | 2 | a leader gives places to all requests, under the latch | a place without a record |
//! | 3 | save the slot in its note, set `COPYING`, change it | a slot to restore from the note |
//! | 4 | copy the record to its place | bytes beyond `end`, which no thread reads |
//! | 5 | set `DONE` | the record |
//! | 6 | the leader moves `end` over the batch | the record; another thread moves `end` |
//!
//! In step 6 the leader first waits for its whole batch and for the batches before it.
//!
//! Steps 3 to 5 of different threads run concurrently. The place of a thread that died before step
//! 5 is filled with a record that is [`VOID`](crate::Flags::VOID), which readers skip: see
//! `flight.rs`.
//!
//! A thread that is stopped (SIGSTOP) while it holds the latch, or between `COPYING` and `DONE`,
//! delays `end`, and so all commits, until it continues or is killed. Its stores can arrive at any
//! time, so no other thread may fill its place. `LogView::work` names the thread. In all other
//! steps the remaining threads continue after some milliseconds. They fill the place of a thread
//! that has not begun to copy; that thread requests a new place when it continues. If the buffer or
//! the segments have no room for that second record, they first wait for the disk. They also do the
//! work of a leader that is stopped before it has the latch or after step 5.
//!
//! A leader that waits for its batch may briefly wait for a later record that uses the same word.
//!
//! Places are given only within [`record_max`](crate::Log::record_max) bytes of `end`. A reader of
//! old bytes must expect stores up to that far beyond `end`.
//!
//! Memory order: the record's words are relaxed stores before `DONE` (Release). The leader loads
//! `DONE` (Acquire), then exchanges `end` (Release); all changes of `end` are exchanges, so they
//! are one release sequence. A thread that reads the buffer loads `end` (Acquire) first. A reader
//! of *old* bytes, which an append may overwrite, reads them, fences (Acquire) and loads `end`
//! again. The fence (Release) in `Buffer::store` comes after the loads of `end` on which the place
//! depends, and before the words: a reader that saw a new word sees an `end` no older than those.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_latch::{Exclusive, HolderDied};
use latchwork_machine::{ConstMachine, Word};

use crate::group::{Group, Numbers, REQUESTS, Request, State};
use crate::layout::{BYTES_SHIFT, Claimed, Shared, Slot};
use crate::options::SPINS;
use crate::point::point;
use crate::wait::Wait;
use crate::{Error, Lsn, Record, Session};

/// The number of a request word in [`Slot::flight`].
const WORD: u64 = (1 << BYTES_SHIFT) - 1;

/// A place in the log, and the work that remains for it.
struct Place<'a, M: ConstMachine> {
    group: &'a Group<M>,
    /// The number of the thread's request word, and the word's value.
    number: usize,
    request: Request,
    /// The batch, if this thread led it.
    batch: Option<Batch>,
}

/// The places that one leader gave.
struct Batch {
    from: u64,
    to: u64,
    /// The request words that got one.
    numbers: Numbers,
}

impl<'a, M: ConstMachine> Place<'a, M> {
    fn word(&self) -> &'a M::AtomicU64 {
        self.group.request(self.number)
    }
}

impl Batch {
    /// Gives the next place to a request. Returns the new value of its word.
    fn add(&mut self, number: usize, request: Request) -> Request {
        let placed = request.placed(self.to);
        self.numbers = self.numbers.with(Numbers::of(number));
        self.to += request.bytes();
        placed
    }
}

/// The range in which places may be given: `ahead` bytes from the end.
struct Room {
    /// A lower bound of the end.
    end: u64,
    ahead: u64,
}

impl Room {
    fn fits<M: ConstMachine>(&mut self, shared: &Shared<M>, to: u64) -> bool {
        if to > self.end + self.ahead {
            // Relaxed: the thread that gets the place, and a reader that sees the bytes stored
            // there, load the end later.
            self.end = shared.end.0.load(Relaxed);
        }
        to <= self.end + self.ahead
    }
}

impl<M: ConstMachine> Session<M> {
    /// Appends a record for which credit was reserved, and returns its place.
    ///
    /// A record that is not [`SYSTEM`](crate::Flags::SYSTEM) becomes the slot's last record. A
    /// record with [`LAST`](crate::Flags::LAST) commits the slot's transaction. The same [`Record`]
    /// can be appended again; each append adds a record to the log.
    ///
    /// Blocks until the records before it are copied, usually for less than a microsecond.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoCredit`] if the thread has less credit than the record needs,
    /// [`Error::Broken`] if a write or a sync of the log has failed, and [`Error::Threads`] for a
    /// record of another slot that is not [`SYSTEM`](crate::Flags::SYSTEM).
    ///
    /// # Death
    ///
    /// If the thread is killed in the call, the log has the whole record or nothing of it.
    pub fn append(&self, record: &mut Record) -> Result<Lsn, Error> {
        match self.append_if(record, None)? {
            Some(lsn) => Ok(lsn),
            None => Err(Error::Broken),
        }
    }

    /// Appends the record if the log is still [marked](crate::Log::marked) at `mark`. Otherwise
    /// appends nothing and returns `None`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`append`](Self::append).
    pub fn append_since(&self, record: &mut Record, mark: Lsn) -> Result<Option<Lsn>, Error> {
        self.append_if(record, Some(mark))
    }

    fn append_if(&self, record: &mut Record, mark: Option<Lsn>) -> Result<Option<Lsn>, Error> {
        let (shared, slot) = (self.log.shared()?, self.log.slot_of(self.slot)?);
        let of = record.slot();
        if of != self.slot && !record.is_system() {
            return Err(Error::Threads(of));
        }
        let bytes = record.bytes() as u64;
        if slot.credit() < bytes + record.aside {
            return Err(Error::NoCredit);
        }
        self.check_broken(shared)?;
        let word = slot.flight.load(Relaxed) & WORD;
        // Release: a thread that loads the size of this record in `flights` finds that the request
        // word has left the record before.
        slot.flight.store(bytes << BYTES_SHIFT | word, Release);
        let asked = Request::asked(self.slot, bytes, mark.map(|mark| mark.0));
        let appended = self.append_asked(shared, slot, record, asked);
        let Some(lsn) = self.or_break(shared, appended)? else { return Ok(None) };
        if record.is_last() {
            slot.held.store(0, Relaxed);
            if slot.aside.load(Relaxed) != 0 {
                let latched = self.latch()?;
                self.free_aside(shared, slot);
                drop(latched);
            }
        }
        Ok(Some(Lsn(lsn)))
    }

    /// Appends the record if the request is not refused, and returns its place.
    fn append_asked(
        &self,
        shared: &Shared<M>,
        slot: &Slot<M>,
        record: &mut Record,
        asked: Request,
    ) -> Result<Option<u64>, Error> {
        let Some(place) = self.begin_copy(shared, slot, asked)? else { return Ok(None) };
        let (lsn, bytes) = (place.request.lsn(), record.bytes() as u64);
        point("append: copying");
        if !record.is_system() {
            chain(slot, lsn, record.is_last());
        }
        slot.newest.store(lsn, Relaxed);
        slot.used.store(slot.used.load(Relaxed) + bytes, Relaxed);
        // A thread that dies before `DONE` leaves too much until its transaction ends.
        slot.held.store(slot.held.load(Relaxed) + record.aside, Relaxed);
        point("append: slot");
        record.place(lsn);
        // The size of the buffer is loaded after the place: it may have been doubled before that.
        self.log.buffer_in(shared)?.store(lsn, record.words())?;
        point("append: copied");
        // Release: synchronizes with the Acquire of the thread that moves `end`.
        place.word().store(place.request.done().0, Release);
        point("append: done");
        self.publish(shared, &place, lsn + bytes)?;
        point("append: end");
        Ok(Some(lsn))
    }

    /// Breaks the log after an error of a thread that has a request: the request cannot be ended,
    /// and other threads would wait for it. Only damaged memory leads to such an error.
    fn or_break<R>(&self, shared: &Shared<M>, done: Result<R, Error>) -> Result<R, Error> {
        if done.is_err() {
            // Release: as in `lead_and_wake`.
            shared.broken.0.store(1, Release);
        }
        done
    }

    /// Obtains a place, notes the slot and claims the copy. Returns none if a leader refused that.
    fn begin_copy<'a>(
        &self,
        shared: &'a Shared<M>,
        slot: &Slot<M>,
        asked: Request,
    ) -> Result<Option<Place<'a, M>>, Error> {
        loop {
            let place = self.place(shared, slot, asked)?;
            if place.request.state() == State::Refused {
                self.decline(shared, &place)?;
                return Ok(None);
            }
            point("append: placed");
            note(slot, place.request.lsn());
            // Release: orders the note before this exchange, as a repair expects.
            let (placed, copying) = (place.request.0, place.request.copying().0);
            if place.word().compare_exchange(placed, copying, Release, Relaxed).is_ok() {
                return Ok(Some(place));
            }
            // This thread was so late that another thread has filled its place.
            if let Some(batch) = &place.batch {
                self.publish(shared, &place, batch.to)?;
            }
        }
    }

    /// Requests credit from the leader of the group, which grants it if enough is free.
    pub(crate) fn request_credit(
        &self,
        shared: &Shared<M>,
        slot: &Slot<M>,
        bytes: u64,
    ) -> Result<(), Error> {
        let place = self.place(shared, slot, Request::credit(self.slot, bytes));
        let declined = place.and_then(|place| self.decline(shared, &place));
        self.or_break(shared, declined)
    }

    /// Ends a request that has no place. If this thread led, it first publishes its batch.
    fn decline(&self, shared: &Shared<M>, place: &Place<'_, M>) -> Result<(), Error> {
        if let Some(batch) = &place.batch {
            self.publish(shared, place, batch.to)?;
        }
        // Release: orders this store before the slot's next request.
        place.word().store(Request::idle(self.slot).0, Release);
        Ok(())
    }

    /// Obtains a place, from another leader or as the leader.
    fn place<'a>(
        &self,
        shared: &'a Shared<M>,
        slot: &Slot<M>,
        asked: Request,
    ) -> Result<Place<'a, M>, Error> {
        let (number, group) = shared.group();
        let mut own = self.ask(shared, slot, (number, group), asked)?;
        let mut wait = Wait::new(group);
        loop {
            point("append: asked");
            let word = group.request(own);
            // Acquire: synchronizes with the Release in `serve`.
            let request = Request(word.load(Acquire));
            if request.slot() != Some(self.slot) {
                // The request had a place, and this thread was so late that another thread has
                // filled it.
                own = self.ask(shared, slot, (number, group), asked)?;
                continue;
            }
            if request.state() != State::Asked {
                return Ok(Place { group, number: own, request, batch: None });
            }
            // The claim only keeps other threads away from the latch, so it is taken from a thread
            // that seems to be stopped or dead.
            let leader = group.leader.0.load(Relaxed);
            // Acquire: as in `claim`.
            if (leader == 0 || wait.is_long())
                && group.leader.0.compare_exchange(leader, self.me(), Acquire, Relaxed).is_ok()
            {
                let _leads = Claimed { word: &group.leader.0, me: self.me() };
                point("append: leads");
                if let Some((request, batch)) = self.serve(shared, group, own)? {
                    return Ok(Place { group, number: own, request, batch: Some(batch) });
                }
                // Relaxed: loaded again above.
                if word.load(Relaxed) != asked.0 {
                    continue;
                }
                // The record has no room yet. Other threads need the latch to make some.
                wait.end_period();
            }
            self.wait(shared, &mut wait)?;
        }
    }

    /// Stores the request in a word of the group, preferably in the word that the thread used last.
    /// Returns the word's number.
    fn ask(
        &self,
        shared: &Shared<M>,
        slot: &Slot<M>,
        (number, group): (usize, &Group<M>),
        asked: Request,
    ) -> Result<usize, Error> {
        let last = (slot.flight.load(Relaxed) & WORD) as usize;
        let newest = slot.newest.load(Relaxed);
        let first = if last / REQUESTS == number { last % REQUESTS } else { 0 };
        // Release, here and below: synchronizes with the Acquire in `serve`, and a repair that
        // finds the request finds its length.
        let uses = |word: &M::AtomicU64, seen: u64| {
            word.compare_exchange(seen, asked.0, Release, Relaxed).is_ok()
        };
        // Without a load before the exchange, which would fetch the line twice.
        let done = Request::idle(self.slot).placed(newest).done();
        if last / REQUESTS == number && newest != 0 && uses(group.request(first), done.0) {
            return Ok(first);
        }
        // Acquire, and below: a repair that finds the request finds no older end.
        let (mut end, mut wait) = (group.end.0.load(Acquire), Wait::new(group));
        loop {
            for free in Group::<M>::numbers(first) {
                let word = group.request(free);
                let seen = word.load(Relaxed);
                // The bit comes before the request: a leader reads no word without one.
                if Request(seen).is_free(end) && group.use_request(free) && uses(word, seen) {
                    let bytes = slot.flight.load(Relaxed) & !WORD;
                    // Release: as in `append_if`.
                    slot.flight.store(bytes | (number * REQUESTS + free) as u64, Release);
                    return Ok(free);
                }
            }
            // The group's copy of the end may be old.
            // Acquire: as above.
            end = shared.end.0.load(Acquire);
            self.wait(shared, &mut wait)?;
        }
    }

    /// Gives places to the requests of a group: first to this thread's own, then to as many others
    /// as fit.
    fn serve(
        &self,
        shared: &Shared<M>,
        group: &Group<M>,
        own: usize,
    ) -> Result<Option<(Request, Batch)>, Error> {
        let append = &shared.append;
        let turn = shared.turns.wait();
        let latched = self.latch()?;
        point("append: latched");
        let (marked, from) = (shared.found.marked.load(Relaxed), append.reserved.load(Relaxed));
        // Acquire: synchronizes with the Release in `publish`: the end is at this place or beyond.
        let mut room = Room { end: group.end.0.load(Acquire), ahead: self.log.record_max() };
        let mut batch = Batch { from, to: from, numbers: Numbers::NONE };
        let asks = |number: usize| {
            // Acquire: synchronizes with the Release in `ask`: the slot's credit is as its thread
            // left it.
            let request = Request(group.request(number).load(Acquire));
            (request.state() == State::Asked).then_some(request)
        };
        let Some(request) = asks(own).filter(|request| request.slot() == Some(self.slot)) else {
            shared.turns.end(turn);
            latched.unchanged();
            return Ok(None);
        };
        let mut looks = 0;
        while request.allows(marked) && !room.fits(shared, from + request.bytes()) && looks < SPINS
        {
            // The appends before it do not need the latch to finish.
            looks += 1;
            M::relax();
        }
        let mut answer = |number: usize, request: Request| {
            let to = batch.to + request.bytes();
            let answered = if let Some(bytes) = request.asks_for_credit() {
                if let Some(Ok(slot)) = request.slot().map(|slot| self.log.slot_of(slot)) {
                    // The thread checks its credit afterwards, and finds the reason if it is too
                    // small.
                    let _ = self.grant(shared, slot, bytes);
                }
                request.placed(0)
            } else if !request.allows(marked) {
                request.placed(0)
            } else if room.fits(shared, to) {
                batch.add(number, request)
            } else {
                return None;
            };
            // Release: synchronizes with the Acquire in `place`: the thread sees its credit, and
            // stores only where the end that was loaded here allows it.
            group.request(number).store(answered.0, Release);
            Some(answered)
        };
        let placed = answer(own, request);
        if placed.is_some() {
            let others = group.used().without(Numbers::of(own));
            let mut requests = others.filter_map(|number| Some((number, asks(number)?)));
            while requests.next().is_some_and(|(number, request)| answer(number, request).is_some())
            {
            }
        }
        point("append: served");
        append.reserved.store(batch.to, Relaxed);
        shared.turns.end(turn);
        drop(latched);
        Ok(placed.map(|placed| (placed, batch)))
    }

    /// Waits until the end is at `to` or beyond. A leader moves it there.
    fn publish(&self, shared: &Shared<M>, place: &Place<'_, M>, to: u64) -> Result<(), Error> {
        let (group, mut wait) = (place.group, Wait::new(place.group));
        let Some(batch) = &place.batch else {
            // Acquire: synchronizes with the Release in `raise_end`: an end that this thread loads
            // later is no older.
            while group.end.0.load(Acquire) < to {
                self.wait(shared, &mut wait)?;
            }
            return Ok(());
        };
        if batch.from == batch.to {
            return Ok(());
        }
        for number in batch.numbers {
            // Acquire: synchronizes with the Release of `DONE`, or with that of a repair. If `end`
            // is past the record, the word may be used for another one.
            let state = || Request(group.request(number).load(Acquire)).state();
            while matches!(state(), State::Placed | State::Copying) {
                self.wait(shared, &mut wait)?;
                // Relaxed: as below. Not in each look: all leaders need the line.
                if wait.looks() > SPINS.into() && shared.end.0.load(Relaxed) >= batch.to {
                    break;
                }
            }
        }
        loop {
            // Relaxed: the exchange below is part of the release sequence of the exchange before,
            // so a thread that acquires this one acquires all before it.
            let end = shared.end.0.load(Relaxed);
            if end >= batch.to {
                break;
            }
            if end < batch.from {
                self.wait(shared, &mut wait)?;
                continue;
            }
            // Release: synchronizes with the Acquire of every thread that reads below `end`.
            if shared.end.0.compare_exchange(end, batch.to, Release, Relaxed).is_ok() {
                break;
            }
        }
        point("append: published");
        if batch.numbers != Numbers::of(place.number) {
            group.raise_end(batch.to);
        }
        Ok(())
    }

    /// Takes the latch of all appends, and repairs it if its holder died.
    pub(crate) fn latch(&self) -> Result<Exclusive<'_, Self, M>, Error> {
        let shared = self.log.shared()?;
        loop {
            match shared.append.latch.lock(self) {
                Ok(latched) => return Ok(latched),
                Err(HolderDied(dead)) => {
                    let over = || shared.append.latch.take_over(dead, self);
                    match self.log.for_dead(u64::from(dead.get()), over)? {
                        Some(Some(latched)) => {
                            self.log.repair_append(shared)?;
                            return Ok(latched);
                        }
                        // Another thread repairs the latch, or has repaired it.
                        Some(None) | None => M::yield_now(),
                    }
                }
            }
        }
    }

    pub(crate) fn check_broken(&self, shared: &Shared<M>) -> Result<(), Error> {
        // Relaxed: no other word depends on it.
        if shared.broken.0.load(Relaxed) != 0 { Err(Error::Broken) } else { Ok(()) }
    }
}

/// Saves the slot in its note. A repair restores it after a death before the record at `lsn` is in
/// the buffer.
pub(crate) fn note<M: ConstMachine>(slot: &Slot<M>, lsn: u64) {
    let note = &slot.note;
    for (word, value) in [
        (&note.first, &slot.first),
        (&note.last, &slot.last),
        (&note.commits, &slot.commits),
        (&note.used, &slot.used),
    ] {
        word.store(value.load(Relaxed), Relaxed);
    }
    // Release: a killed process leaves exactly the stores that its instructions made. The compiler
    // keeps this store after those above, and the fence keeps those below after it.
    note.lsn.store(lsn, Release);
    M::fence(Release);
}

/// Makes `lsn` the slot's last record; with `commits`, also its commit.
fn chain<M: ConstMachine>(slot: &Slot<M>, lsn: u64, commits: bool) {
    let first = match slot.first.load(Relaxed) {
        0 => lsn,
        first => first,
    };
    if commits {
        let count = slot.commits.load(Relaxed);
        let entry = &slot.list[count as usize % slot.list.len()];
        entry[0].store(first, Relaxed);
        entry[1].store(lsn, Relaxed);
        // Release, all three: synchronize with the Acquires in `slots.rs`.
        slot.commits.store(count + 1, Release);
        slot.first.store(0, Release);
        slot.last.store(0, Release);
    } else {
        // Release, both: as above.
        slot.first.store(first, Release);
        slot.last.store(lsn, Release);
    }
}
