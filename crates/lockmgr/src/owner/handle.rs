//! Owners: who holds locks, and what they can do.

use core::cell::Cell;
use core::fmt;
use std::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Native};

use crate::fastpath::cached::{Known, LastKnown};
use crate::fastpath::weak::Taken;
use crate::memory::cells::{
    FREE, LIVE, OWNERS, OwnerCell, Request, Small, Spot, WeakPage, get, put, status,
};
use crate::memory::latch::Latched;
use crate::memory::names::Name;
use crate::memory::state::State;
use crate::mode::Mode;
use crate::observe::watch::Watch;
use crate::session::Session;
use crate::table::objects::ring;
use crate::{Error, Reason};

/// Names an owner: a slot, and which of its owners. The same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId {
    /// The slot.
    pub index: u32,
    /// How many owners the slot has had.
    pub generation: u32,
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// What an owner is to be.
#[derive(Clone, Copy, Debug)]
pub struct OwnerOptions<'a> {
    /// Victims are chosen from those with the lowest. 100.
    pub priority: u32,
    /// For people: the first 32 bytes are kept.
    pub label: &'a str,
    /// How old it is, if it is to be as old as it was at its last attempt: what
    /// [`Owner::age`] said then.
    pub age: Option<u64>,
}

impl Default for OwnerOptions<'_> {
    fn default() -> Self {
        Self { priority: 100, label: "", age: None }
    }
}

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Until it is granted, or a deadlock is found and this owner is the victim.
    Detect,
    /// Not at all: [`Error::NotGranted`].
    Never,
    /// As `Detect`, but [`Error::TimedOut`] at this instant.
    Until(Deadline),
    /// Only for younger owners: [`Error::Died`] if an older one is in the way (Rosenkrantz,
    /// Stearns and Lewis, 1978). Needs no detector if all do the same.
    Die,
    /// For older owners only: younger ones that are in the way are told to fail, with
    /// [`Error::Doomed`], where they wait or when they next ask for a lock (same paper).
    Wound,
}

impl Wait {
    /// Its deadline, if it has one.
    pub(crate) fn deadline(self) -> Option<Deadline> {
        if let Self::Until(deadline) = self { Some(deadline) } else { None }
    }
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The lock is held.
    Granted,
    /// It waits: [`Owner::finish`] or [`Owner::poll`] or [`Owner::cancel`] comes next.
    Waiting,
}

/// An owner of locks. Dropping it releases them all.
///
/// If its process dies, whoever meets what it holds releases it, after the recovery callback
/// was asked.
pub struct Owner<'s, M: ConstMachine = Native> {
    pub(crate) session: &'s Session<M>,
    pub(crate) cell: &'s OwnerCell<M>,
    /// The filter of its page of owners.
    pub(crate) filter: &'s M::AtomicU64,
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// The request that waits; null if none does.
    pub(crate) pending: Cell<u32>,
    /// Whether that is a conversion.
    pub(crate) converting: Cell<bool>,
    /// By bit, the entries of the weak page that count something, and those that are kept.
    pub(crate) entries: Cell<u32>,
    pub(crate) kept: Cell<u32>,
    /// The entry that was taken last, if any was, and its bias.
    pub(crate) last_entry: Cell<Option<(usize, Known<M::AtomicU32>)>>,
    /// A request that holds, most often the last one that was granted, if it is known.
    pub(crate) last: Cell<Option<LastKnown<M>>>,
    /// Its weak page, once it was found.
    pub(crate) page: Cell<Option<Known<WeakPage<M>>>>,
    pub(crate) watch: Watch,
}

impl<M: ConstMachine> Session<M> {
    /// A new owner.
    ///
    /// # Errors
    ///
    /// [`Error::Cap`] with half a million owners at a time; [`Error::Region`].
    pub fn owner(&self) -> Result<Owner<'_, M>, Error> {
        self.owner_with(&OwnerOptions::default())
    }

    /// A new owner that is thus.
    ///
    /// # Errors
    ///
    /// As for [`owner`](Self::owner).
    pub fn owner_with(&self, options: &OwnerOptions<'_>) -> Result<Owner<'_, M>, Error> {
        let (index, cell) = self.free_owner()?;
        let filter = &self.page(index / OWNERS)?.ok_or(Error::Foreign)?.filter;
        let generation = get(&cell.generation).wrapping_add(1);
        for word in [&cell.parent, &cell.head, &cell.held, &cell.writes, &cell.waiting, &cell.doom]
        {
            put(word, 0);
        }
        put(&cell.spared, 0);
        put(&cell.marks, 0);
        put(&cell.priority, options.priority);
        put(&cell.age, options.age.unwrap_or_else(|| self.now()));
        for (word, chunk) in cell.label.iter().zip(label_words(options.label)) {
            put(word, chunk);
        }
        put(&cell.generation, generation);
        put(&cell.state, LIVE);
        let owner = Owner {
            session: self,
            cell,
            filter,
            index,
            generation,
            pending: Cell::new(0),
            converting: Cell::new(false),
            entries: Cell::new(0),
            kept: Cell::new(if self.keeps { get(&cell.kept) } else { 0 }),
            last_entry: Cell::new(None),
            last: Cell::new(None),
            page: Cell::new(None),
            watch: Watch::default(),
        };
        if owner.kept.get() != 0 {
            owner.weak_page()?;
        }
        Ok(owner)
    }
}

fn label_words(label: &str) -> [u64; 4] {
    let mut words = [0; 4];
    for (at, byte) in label.bytes().take(32).enumerate() {
        words[at / 8] |= u64::from(byte) << (at % 8 * 8);
    }
    words
}

impl<'s, M: ConstMachine> Owner<'s, M> {
    /// Its name for others.
    pub fn id(&self) -> OwnerId {
        OwnerId { index: self.index, generation: self.generation }
    }

    /// When it began: to be given to the owner of the next attempt, so that it gets older.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn age(&self) -> Result<u64, Error> {
        self.session.region().check()?;
        Ok(get(&self.cell.age))
    }

    /// Takes a lock, waiting as long as it takes. A lock that is held already is counted, and
    /// converted if the mode asks for more.
    ///
    /// # Errors
    ///
    /// [`Error::Mode`], [`Error::Name`], [`Error::Deadlock`], [`Error::Doomed`],
    /// [`Error::Waiting`], [`Error::Cap`], [`Error::Region`]. What was held before is held still.
    #[inline]
    pub fn lock(&self, name: &[u8], mode: Mode) -> Result<(), Error> {
        match self.request(name, mode, Wait::Detect)? {
            Step::Granted => Ok(()),
            Step::Waiting => self.finish(None),
        }
    }

    /// Takes a lock if that is possible at once.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`]; others as for [`lock`](Self::lock).
    pub fn try_lock(&self, name: &[u8], mode: Mode) -> Result<(), Error> {
        self.request(name, mode, Wait::Never).map(|_| ())
    }

    /// Takes a lock, or gives up after a while.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]; others as for [`lock`](Self::lock).
    pub fn lock_timeout(&self, name: &[u8], mode: Mode, wait: Duration) -> Result<(), Error> {
        self.lock_with(name, mode, Wait::Until(self.session.after(wait)))
    }

    /// Takes a lock, waiting as told.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock), and as each [`Wait`] says.
    pub fn lock_with(&self, name: &[u8], mode: Mode, wait: Wait) -> Result<(), Error> {
        let deadline = if let Wait::Until(deadline) = wait { Some(deadline) } else { None };
        match self.request(name, mode, wait)? {
            Step::Granted => Ok(()),
            Step::Waiting => self.finish(deadline),
        }
    }

    /// Asks for a lock, and returns whether it is granted or waits. While it waits the owner can do
    /// nothing but [`poll`](Self::poll), [`finish`](Self::finish) and [`cancel`](Self::cancel).
    ///
    /// # Errors
    ///
    /// As for [`lock_with`](Self::lock_with), but for deadlocks and time, which come later.
    #[inline]
    pub fn request(&self, name: &[u8], mode: Mode, wait: Wait) -> Result<Step, Error> {
        self.ready()?;
        self.allowed(mode)?;
        let name = self.session.named(name)?;
        let spot = Spot::of(name.hash);
        let mut taken = Taken::No;
        if self.session.weak & mode.bit() != 0 {
            taken = self.weak_take(&name, spot, mode);
        } else if self.may_have_kept(name.hash) {
            taken = self.kept_take(&name, spot, mode);
        }
        if taken == Taken::Yes {
            self.session.counters.weak();
            return Ok(Step::Granted);
        }
        self.request_slow(name, spot, mode, wait, taken)
    }

    /// The same, where the first try in the owner's own memory was not enough.
    #[inline(never)]
    fn request_slow(
        &self,
        name: Name<'_>,
        spot: Spot,
        mode: Mode,
        wait: Wait,
        taken: Taken,
    ) -> Result<Step, Error> {
        let session = self.session;
        if session.weak & mode.bit() != 0 {
            if self.weak_lock(&name, spot, mode, taken)? {
                session.counters.weak();
                return Ok(Step::Granted);
            }
            // Perhaps it is kept for this slot: in any mode.
            match self.kept_take(&name, spot, mode) {
                Taken::Yes => {
                    session.counters.weak();
                    return Ok(Step::Granted);
                }
                Taken::No => {}
                Taken::Closed(at, old) => {
                    self.weak_undo(spot, at, old)?;
                }
            }
        } else if let Taken::Closed(at, old) = taken {
            self.weak_undo(spot, at, old)?;
        }
        session.counters.request();
        if self.asks_often(&name, mode) && session.with_room(|| self.keep(&name, spot, mode))? {
            session.counters.granted();
            return Ok(Step::Granted);
        }
        self.request_in_table(&name, spot, mode, wait)
    }

    #[inline]
    pub(crate) fn allowed(&self, mode: Mode) -> Result<(), Error> {
        if self.session.modes().has(mode) { Ok(()) } else { Err(Error::Mode(mode)) }
    }

    /// Whether the owner may do something other than to wait. First of all it is told if this is
    /// the child of a fork, where its cell is gone.
    #[inline]
    pub(crate) fn at_rest(&self) -> Result<(), Error> {
        self.session.region().check()?;
        if self.pending.get() != 0 { Err(Error::Waiting) } else { Ok(()) }
    }

    /// Whether the owner may ask for a lock now.
    #[inline]
    pub(crate) fn ready(&self) -> Result<(), Error> {
        self.at_rest()?;
        match get(&self.cell.doom) {
            0 => Ok(()),
            why => Err(reason(why)),
        }
    }

    #[inline]
    pub(crate) fn next_mark(&self) -> u32 {
        let mark = get(&self.cell.marks).wrapping_add(1);
        put(&self.cell.marks, mark);
        mark
    }

    /// This owner's request on an object, of those in its list; null if there is none.
    #[inline(always)]
    pub(crate) fn find_own(
        &self,
        latched: &Latched<'_, M>,
        object_at: u32,
        object: &Small<M>,
    ) -> Result<u32, Error> {
        let (held, length) = (get(&self.cell.held), get(&object.length));
        if held == 0 || length == 0 {
            return Ok(0);
        }
        self.find_among(latched, object_at, object)
    }

    #[inline(never)]
    fn find_among(
        &self,
        latched: &Latched<'_, M>,
        object: u32,
        it: &Small<M>,
    ) -> Result<u32, Error> {
        let (held, length) = (get(&self.cell.held), get(&it.length));
        if held < length {
            let (mut at, mut steps) = (get(&self.cell.head), 0);
            while at != 0 {
                if steps > held {
                    return ring();
                }
                steps += 1;
                let request = self.session.request(at)?;
                let linked = get(&request.state) & 0xff;
                if get(&request.object) == object && !matches!(linked, status::NEW | status::DENIED)
                {
                    return Ok(at);
                }
                at = get(&request.own_next);
            }
            return Ok(0);
        }
        for each in latched.requests(it) {
            let (at, request, _) = each?;
            if get(&request.owner) == self.index && !request.is_moved() {
                return Ok(at);
            }
        }
        Ok(0)
    }

    /// Puts a request in front of the owner's list.
    #[inline]
    pub(crate) fn adopt(&self, at: u32, request: &Request<M>) -> Result<(), Error> {
        let head = get(&self.cell.head);
        put(&request.own_prev, 0);
        put(&request.own_next, head);
        put(&self.cell.head, at);
        if head != 0 {
            put(&self.session.request(head)?.own_prev, at);
        }
        put(&self.cell.held, get(&self.cell.held).wrapping_add(1));
        Ok(())
    }

    /// Takes a request that is in no queue out of the owner's list, and keeps it, noted, for the
    /// next lock of this session.
    #[inline]
    pub(crate) fn discard(&self, at: u32, request: &Request<M>) -> Result<(), Error> {
        self.session.discard(self.cell, at, request)?;
        let head = get(&self.cell.head);
        self.forget_last();
        if head != 0 {
            let request = self.session.request(head)?;
            if State::of(get(&request.state)).holds() {
                self.remember(head, request)?;
            }
        }
        Ok(())
    }

    /// A request in the owner's list, and in no queue.
    #[inline]
    pub(crate) fn new_request(
        &self,
        object: u32,
        partition: u32,
        count: u32,
    ) -> Result<(u32, &'s Request<M>), Error> {
        let session: &'s Session<M> = self.session;
        let spare = session.spare.take();
        if spare != 0 {
            let request = session.request(spare)?;
            self.begin_request(spare, request, object, partition, count)?;
            session.strike_request()?;
            session.point("request its owner's alone");
            return Ok((spare, request));
        }
        let cell = session.thread.alloc_dirty::<Request<M>>()?;
        let at = cell.offset().raw();
        self.begin_request(at, cell.value(), object, partition, count)?;
        cell.publish();
        Ok((at, session.request(at)?))
    }

    #[inline(always)]
    fn begin_request(
        &self,
        at: u32,
        request: &Request<M>,
        object: u32,
        partition: u32,
        count: u32,
    ) -> Result<(), Error> {
        put(&request.state, status::NEW);
        put(&request.object, object);
        put(&request.owner, self.index);
        put(&request.count, count);
        put(&request.partition, partition);
        put(&request.mark, self.next_mark());
        // First in the owner's list, so that whoever sweeps finds it there at any instant.
        self.adopt(at, request)?;
        self.session.point("request in the owner's list");
        Ok(())
    }
}

impl<M: ConstMachine> Session<M> {
    /// As [`Owner::discard`], for one whose cell is this.
    #[inline]
    pub(crate) fn discard(
        &self,
        cell: &OwnerCell<M>,
        at: u32,
        request: &Request<M>,
    ) -> Result<(), Error> {
        self.note_request(at)?;
        let (prev, next) = (get(&request.own_prev), get(&request.own_next));
        if prev == 0 {
            put(&cell.head, next);
        } else {
            put(&self.request(prev)?.own_next, next);
        }
        self.point("request out of the owner's list");
        if next != 0 {
            put(&self.request(next)?.own_prev, prev);
        }
        put(&cell.held, get(&cell.held).wrapping_sub(1));
        self.spare.set(at);
        Ok(())
    }
}

/// Why an owner is told to fail, as a number and back.
pub(crate) fn reason(why: u32) -> Error {
    match why {
        1 => Error::Doomed(Reason::Deadlock),
        2 => Error::Doomed(Reason::Wounded),
        _ => Error::Doomed(Reason::Killed),
    }
}

pub(crate) fn reason_number(reason: Reason) -> u32 {
    match reason {
        Reason::Deadlock => 1,
        Reason::Wounded => 2,
        Reason::Killed => 3,
    }
}

impl<M: ConstMachine> Drop for Owner<'_, M> {
    fn drop(&mut self) {
        let _ = self.cancel();
        if self.release_all().is_ok() && get(&self.cell.generation) == self.generation {
            put(&self.cell.state, FREE);
            self.session.give_owner(self.index);
        }
    }
}
