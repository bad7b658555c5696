//! The optimistic latch: 8 bytes, whose readers store nothing.
//!
//! A reader loads the version, reads the data, and loads the version again: if no writer came in
//! between, the data that it read are one state. Sequence locks (Linux 2.5.60, 2003) and optimistic
//! lock coupling (Leis, Scheibner, Kemper and Neumann, DaMoN 2016) have this idea. Differences: the
//! word names its holder, so that a waiter can detect a dead holder; a holder that changed nothing
//! restores the version; writers queue in the slots of the machine without links, so that no death
//! breaks the queue; and a reader that fails too often becomes a *sharer*, named in the word.
//!
//! # State
//!
//! ```text
//!  63                          17 16           3    2         1         0
//! ┌──────────────────────────────┬──────────────┬─────────┬─────────┬─────────┐
//! │ VERSION, one more per change │ HOLDER, or 0 │ STARVED │ WAITERS │EXCLUSIVE│
//! └──────────────────────────────┴──────────────┴─────────┴─────────┴─────────┘
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | no `EXCLUSIVE`, no `HOLDER` | `EXCLUSIVE`, `HOLDER` | a writer; an upgrade of this version |
//! | no `EXCLUSIVE`, no `HOLDER` | `HOLDER` | a sharer |
//! | `EXCLUSIVE` | version + 1, no `EXCLUSIVE`, no `HOLDER` | the writer, after a change |
//! | `EXCLUSIVE` | no `EXCLUSIVE`, no `HOLDER` | the writer, without a change |
//! | `HOLDER` without `EXCLUSIVE` | no `HOLDER` | the sharer; a waiter that finds it dead |
//! | held | another `HOLDER`, version + 1 if changed | a holder, for a starved waiter |
//! | `EXCLUSIVE` of a dead holder | `EXCLUSIVE` of another | a repairer: [`OptLatch::take_over`] |
//! | held | `WAITERS` | a waiter, before it sleeps; a called waiter, when it has the latch |
//! | held | `WAITERS`, `STARVED` | a waiter that lost too often |
//! | held | neither | a holder that is about to search for waiters, at or before its release |
//!
//! # Invariants
//!
//! 1. Data change only under `EXCLUSIVE`, and only its holder clears it, unless that holder is
//!    dead.
//! 2. After a change the version differs from the version before it.
//! 3. `HOLDER` names the thread that may release; there is at most one holder, writer or sharer.
//! 4. A thread sleeps only after it has set `WAITERS` in a held word. So the release that makes the
//!    word free sees `WAITERS`, and calls one of the threads that want to hold the latch. That
//!    thread sets `WAITERS` when it takes the latch, or before it sleeps again; otherwise it passes
//!    the call on.
//!
//! # The sharer
//!
//! A process that dies would leak its count of sharers. A named sharer is not leaked: the writer
//! that waits for it finds it dead and clears the name, because a sharer leaves nothing to repair.
//! One sharer is enough: while it holds the latch there is no writer, so all other readers succeed
//! without sharing. A thread that wants to share a latch that has a sharer waits for it, so it must
//! not already hold a share.
//!
//! # Fairness
//!
//! A release calls the waiter that came first, and all readers. A called waiter tries to take the
//! latch for [`Machine::SPIN_NS`] before it sleeps again. A waiter that lost [`Holder::LOSSES`]
//! such attempts to other threads sets `STARVED`, and spins for as long before it sleeps: a release
//! in that time hands it the latch while it is still held. After as many losses again, the next
//! release hands it the latch even if it sleeps. A reader that lost as often briefly becomes a
//! sharer. So of n waiters the last one is served after at most n x 2 x `LOSSES` calls.
//!
//! # Memory order
//!
//! The reader is `load(word); fence(Acquire); loads of data; fence(Acquire); load(word)`, the
//! writer is `exchange(word, EXCLUSIVE); fence(Release); stores of data; exchange(word, Release)`.
//!
//! - *Begun late enough*: a reader that saw a version synchronizes with the `Release` that wrote
//!   it, by its first fence. It sees no data older than that version.
//! - *Ended early enough*: if a load of data sees a store by a writer, then that writer's
//!   `fence(Release)` synchronizes with the reader's second fence, so its last load sees the word
//!   of that writer or a later one: `EXCLUSIVE`, or a version other than the reader's.
//!
//! The second fence cannot be an `Acquire` on the load that follows: on ARM an earlier load may be
//! satisfied after a load-acquire (`LDAR` delays later accesses only), and `DMB ISHLD`, which the
//! fence compiles to, keeps the two apart. Likewise an `Acquire` exchange lets later stores pass
//! the store half of the exchange (`LDAXR`/`STXR`), and the `DMB ISH` of the writer's fence does
//! not. On x86 neither fence is an instruction. Loads are relaxed with a fence, and not acquiring,
//! because Rust promises only that for a read-only mapping.
//!
//! # Effects of a death
//!
//! | dead thread | left state | repaired by |
//! |---|---|---|
//! | a reader | nothing | not needed |
//! | a sharer | its name | a waiter, which clears it |
//! | a writer | its name, with `EXCLUSIVE` | a waiter: [`HolderDied`], take over, repair |
//! | a waiter | a slot in a waiting status | a release, which calls it in vain |
//! | a caller or a called waiter | waiters that are not called | such a waiter: [`Holder::nap`] |

mod call;
mod cell;
mod guard;
mod holder;
mod wait;
mod waiter;

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Deadline, Machine, Native, Word};

pub use self::cell::{OptCell, View, Words};
pub use self::guard::{Exclusive, Share};
pub use self::holder::{Holder, HolderDied, HolderNumber, LocalHolder};
use self::waiter::Want;

const EXCLUSIVE: u64 = 1;
const WAITERS: u64 = 1 << 1;
const STARVED: u64 = 1 << 2;
/// The bits that waiters set.
const CALLS: u64 = WAITERS | STARVED;
const HOLDER_SHIFT: u32 = 3;
const HOLDER: u64 = (HolderNumber::MAX as u64) << HOLDER_SHIFT;
const CHANGE: u64 = 1 << 17;
/// The version has 47 bits: 4.5 years at a million changes a second of one latch. A reader misses a
/// change only if it stops during one read for exactly 2^47 changes.
const VERSION: u64 = !(CHANGE - 1);

const _: () = assert!(EXCLUSIVE | CALLS | HOLDER | VERSION == u64::MAX);
const _: () = assert!(EXCLUSIVE & WAITERS == 0 && HOLDER & (EXCLUSIVE | CALLS) == 0);
const _: () = assert!(size_of::<OptLatch>() == 8);

/// Optimistic attempts of [`OptLatch::read_with`] before it shares the latch.
pub const ATTEMPTS: u32 = 8;

/// A latch whose readers store nothing: 8 bytes, free when zero.
///
/// It guards words that are read while they may be written, so all of them are atomic, as in
/// [`OptCell`]. There is no poisoning. A thread that ends while it holds the latch leaves it held;
/// a waiter whose [`Holder`] can detect this gets [`HolderDied`].
#[derive(Default)]
#[repr(transparent)]
pub struct OptLatch<M: Machine = Native> {
    word: M::AtomicU64,
}

/// The version that a reader saw, to be validated.
///
/// 47 bits count the changes: at ten million a second they repeat after 162 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// Returns the number of changes, to store in a word of memory.
    pub const fn get(self) -> u64 {
        self.0 >> VERSION.trailing_zeros()
    }

    /// Creates a version from its number. 47 bits of it are used.
    pub const fn new(count: u64) -> Self {
        Self(count << VERSION.trailing_zeros())
    }
}

impl OptLatch {
    /// Creates a free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<M: ConstMachine> OptLatch<M> {
    /// A free latch, on any machine whose words can be created at compile time.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a latch of its own")]
    pub const FREE: Self = Self { word: M::U64 };
}

/// Reading.
impl<M: Machine> OptLatch<M> {
    /// Begins to read, unless a writer holds the latch. Stores nothing.
    #[inline(always)]
    pub fn try_read(&self) -> Option<Version> {
        let seen = self.word.load(Relaxed);
        // Acquire: synchronizes with the Release of the last writer, in `release`, so that the
        // reads that follow see its writes.
        M::fence(Acquire);
        (seen & EXCLUSIVE == 0).then_some(Version(seen & VERSION))
    }

    /// Begins to read. Blocks while a writer holds the latch. Stores nothing unless it waits.
    ///
    /// # Errors
    ///
    /// [`HolderDied`] if `holder` reports that the writer is dead.
    ///
    /// # Panics
    ///
    /// Panics if 65,534 threads wait for latches, or if this thread holds the latch already.
    #[inline]
    pub fn read<H: Holder<M>>(&self, holder: &H) -> Result<Version, HolderDied> {
        match self.try_read() {
            Some(version) => Ok(version),
            None => self.read_slow(holder),
        }
    }

    /// Returns whether all data read since `version` are one state. Stores nothing.
    #[inline(always)]
    pub fn validate(&self, version: Version) -> bool {
        // Acquire: synchronizes with the Release fence in `Exclusive::new`: a reader that read a
        // word of a later writer sees that writer in the load below.
        M::fence(Acquire);
        self.word.load(Relaxed) & (VERSION | EXCLUSIVE) == version.0
    }

    /// Calls `read` until its result is of one state of the data, and returns the result.
    ///
    /// `read` may see torn data, and is called again if it did: it must not act on what it sees,
    /// and must terminate for any data. After [`ATTEMPTS`] failures it is called once more while
    /// this thread shares the latch.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// Panics as [`read`](Self::read) does.
    #[inline]
    pub fn read_with<H: Holder<M>, R>(
        &self,
        holder: &H,
        mut read: impl FnMut() -> R,
    ) -> Result<R, HolderDied> {
        for _ in 0..ATTEMPTS {
            let version = self.read(holder)?;
            let result = read();
            if self.validate(version) {
                return Ok(result);
            }
        }
        loop {
            let share = self.share(holder)?;
            let result = read();
            // A waiter that wrongly considers its sharer dead lets a writer in.
            if self.validate(share.version()) {
                return Ok(result);
            }
        }
    }

    /// Shares the latch: no writer gets in until the share is dropped. Other readers are not
    /// affected.
    ///
    /// There is one sharer at a time, so **a thread must not take a second share while it holds
    /// one**, of any latch. If the sharer dies, the next thread that waits for it continues.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// Panics as [`read`](Self::read) does.
    pub fn share<'a, H: Holder<M>>(&'a self, holder: &'a H) -> Result<Share<'a, H, M>, HolderDied> {
        loop {
            if let Some(share) = self.share_until_maybe(holder, None)? {
                return Ok(share);
            }
        }
    }

    /// Shares the latch, or returns `None` when the deadline passes.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// Panics as [`read`](Self::read) does.
    pub fn share_until<'a, H: Holder<M>>(
        &'a self,
        holder: &'a H,
        deadline: Deadline,
    ) -> Result<Option<Share<'a, H, M>>, HolderDied> {
        self.share_until_maybe(holder, Some(deadline))
    }

    fn share_until_maybe<'a, H: Holder<M>>(
        &'a self,
        holder: &'a H,
        deadline: Option<Deadline>,
    ) -> Result<Option<Share<'a, H, M>>, HolderDied> {
        let taken = match self.take(Want::Share, holder.number()) {
            Some(held) => Some(held),
            None => self.wait(Want::Share, holder, deadline)?,
        };
        Ok(taken.map(|held| Share::new(self, holder, held)))
    }
}

/// Writing.
impl<M: Machine> OptLatch<M> {
    /// Takes the latch exclusively if it is free.
    #[inline]
    pub fn try_lock<'a, H: Holder<M>>(&'a self, holder: &'a H) -> Option<Exclusive<'a, H, M>> {
        self.take(Want::Lock, holder.number()).map(|held| Exclusive::new(self, holder, held))
    }

    /// Takes the latch exclusively if it is free and the data have not changed since `version`:
    /// then the data that were read since are current.
    #[inline]
    pub fn try_upgrade<'a, H: Holder<M>>(
        &'a self,
        version: Version,
        holder: &'a H,
    ) -> Option<Exclusive<'a, H, M>> {
        let mut seen = version.0;
        loop {
            let held = version.0 | EXCLUSIVE | holder.number().bits();
            // Acquire: synchronizes with the Release of the last holder, in `release`.
            match self.word.compare_exchange(seen, held | seen & CALLS, Acquire, Relaxed) {
                Ok(_) => return Some(Exclusive::new(self, holder, held)),
                // Waiters may have set or cleared their bits.
                Err(now) if now != seen && now & !CALLS == version.0 => seen = now,
                Err(_) => return None,
            }
        }
    }

    /// Takes the latch exclusively. Blocks while it is held.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// Panics as [`read`](Self::read) does.
    #[inline]
    pub fn lock<'a, H: Holder<M>>(
        &'a self,
        holder: &'a H,
    ) -> Result<Exclusive<'a, H, M>, HolderDied> {
        loop {
            if let Some(held) = self.take(Want::Lock, holder.number()) {
                return Ok(Exclusive::new(self, holder, held));
            }
            if let Some(held) = self.wait(Want::Lock, holder, None)? {
                return Ok(Exclusive::new(self, holder, held));
            }
        }
    }

    /// Takes the latch exclusively, or returns `None` when the deadline passes.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// Panics as [`read`](Self::read) does.
    pub fn lock_until<'a, H: Holder<M>>(
        &'a self,
        holder: &'a H,
        deadline: Deadline,
    ) -> Result<Option<Exclusive<'a, H, M>>, HolderDied> {
        let taken = match self.take(Want::Lock, holder.number()) {
            Some(held) => Some(held),
            None => self.wait(Want::Lock, holder, Some(deadline))?,
        };
        Ok(taken.map(|held| Exclusive::new(self, holder, held)))
    }

    /// Takes the latch over from a dead writer. If several threads try, one succeeds.
    ///
    /// The data are as that writer left them. The caller repairs them and then drops the guard,
    /// which releases the latch. If the caller dies before that, the latch names it as its dead
    /// holder. With the caller's own number this returns the guard of a latch that it holds.
    ///
    /// The caller must know that the thread `dead` no longer runs: a number is not given to another
    /// thread before everything that its last owner held has been taken over.
    pub fn take_over<'a, H: Holder<M>>(
        &'a self,
        dead: HolderNumber,
        holder: &'a H,
    ) -> Option<Exclusive<'a, H, M>> {
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) == EXCLUSIVE | dead.bits() {
            let next = seen & !HOLDER | holder.number().bits();
            // Acquire: synchronizes with the Release of the holder before `dead`. The stores of
            // `dead` itself were complete when the system reported its end.
            match self.word.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return Some(Exclusive::new(self, holder, next & !CALLS)),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Removes the name of a dead sharer, which stored nothing, from the latch. Returns whether it
    /// was there. Does not block. The caller must know the same as for
    /// [`take_over`](Self::take_over).
    pub fn forget_sharer<H: Holder<M>>(&self, dead: HolderNumber, holder: &H) -> bool {
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) == dead.bits() {
            let next = seen & !HOLDER | holder.number().bits();
            // Relaxed: a sharer stored nothing. The share is released like any other, and waiters
            // are called.
            match self.word.compare_exchange(seen, next, Relaxed, Relaxed) {
                Ok(_) => {
                    drop(Share::new(self, holder, next & !CALLS));
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }
}

/// Inspection.
impl<M: Machine> OptLatch<M> {
    /// Returns the current holder of the latch, and whether it is a writer.
    pub fn holder(&self) -> Option<(HolderNumber, bool)> {
        // Relaxed: a snapshot.
        let seen = self.word.load(Relaxed);
        HolderNumber::of(seen).map(|number| (number, seen & EXCLUSIVE != 0))
    }

    /// Returns whether a writer or a sharer holds the latch at this moment.
    pub fn is_locked(&self) -> bool {
        self.holder().is_some()
    }
}

impl<M: Machine> fmt::Debug for OptLatch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: a snapshot.
        let seen = self.word.load(Relaxed);
        f.debug_struct("OptLatch")
            .field("version", &Version(seen & VERSION).get())
            .field("exclusive", &(seen & EXCLUSIVE != 0))
            .field("holder", &HolderNumber::of(seen).map(HolderNumber::get))
            .field("waiters", &(seen & WAITERS != 0))
            .field("starved", &(seen & STARVED != 0))
            .finish()
    }
}
