//! The optimistic latch: 8 bytes, whose readers store nothing.
//!
//! A reader notes the version, reads, and looks again: if no writer came in between, what it read
//! is one state of the data. Sequence locks (Linux 2.5.60, 2003) and optimistic lock coupling
//! (Leis, Scheibner, Kemper and Neumann, DaMoN 2016) are the idea. What differs: the word names its
//! holder, so that a waiter can find a dead one; a holder that changed nothing restores the
//! version; writers queue in the slots of the machine without links, so that no death breaks the
//! queue; and a reader that fails too often is named in the word as a *sharer*.
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
//! | `EXCLUSIVE` | version + 1, no `EXCLUSIVE`, no `HOLDER` | the writer, which changed something |
//! | `EXCLUSIVE` | no `EXCLUSIVE`, no `HOLDER` | the writer, which changed nothing |
//! | `HOLDER` without `EXCLUSIVE` | no `HOLDER` | the sharer; a waiter that finds it dead |
//! | held | another `HOLDER`, version + 1 if changed | a holder, for a starved waiter |
//! | `EXCLUSIVE` of a dead holder | `EXCLUSIVE` of another | a repairer: [`OptLatch::take_over`] |
//! | held | `WAITERS` | a waiter, before it sleeps; one that was called, when it has the latch |
//! | held | `WAITERS`, `STARVED` | a waiter that lost too often |
//! | held | neither | a holder that is about to look at who waits, as it lets go or before |
//!
//! # Invariants
//!
//! 1. Data change only under `EXCLUSIVE`, and only its holder clears it, unless that holder is
//!    dead.
//! 2. Whenever a change is over the version differs from what it was before the change.
//! 3. `HOLDER` names who may release; there is at most one, writer or sharer.
//! 4. A thread sleeps only after it has set `WAITERS` in a held word. So the release that makes the
//!    word free sees `WAITERS`, and calls one of those that want to hold the latch. That one sets
//!    `WAITERS` when it takes the latch, or before it sleeps again; or else it passes the call on.
//!
//! # The sharer
//!
//! A count of sharers would be leaked by a process that dies. One sharer, named, is not: the writer
//! that waits for it finds it dead and clears the name, for a sharer leaves nothing to repair. One
//! is enough: while it is there no writer is, so all other readers succeed as they are. A thread
//! that wants to share a latch that has a sharer waits for it; so it must not hold a share already.
//!
//! # Fairness
//!
//! A release calls the waiter that came first, and all readers. To be called is to be told to try,
//! for [`Machine::SPIN_NS`] before one sleeps again. A waiter that lost [`Holder::LOSSES`] such
//! trials to others says `STARVED`, and looks for as long before it sleeps: a release in that time
//! hands it the latch, still closed. After as many trials again it is handed the latch by the next
//! release even if it sleeps. A reader that lost as often becomes a sharer for a moment. So of n
//! waiters the last one is served after at most n x 2 x `LOSSES` calls.
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
//!   of that writer or a later one: `EXCLUSIVE`, or a version that is not the reader's.
//!
//! The second fence cannot be an `Acquire` on the load that follows: on ARM an earlier load may be
//! satisfied after a load-acquire (`LDAR` holds up later accesses only), and `DMB ISHLD`, which the
//! fence is, is what keeps the two apart. Likewise an `Acquire` exchange lets later stores pass the
//! store half of the exchange (`LDAXR`/`STXR`), and the `DMB ISH` of the writer's fence does not.
//! On x86 neither fence is an instruction. Loads are relaxed with a fence, and not acquiring,
//! because that is what Rust promises for a mapping that is read-only.
//!
//! # What a death leaves
//!
//! | dead | left | put right by |
//! |---|---|---|
//! | a reader | nothing | nobody |
//! | a sharer | its name | a waiter, which clears it |
//! | a writer | its name, with `EXCLUSIVE` | a waiter: [`HolderDied`], take over, repair |
//! | a waiter | a slot that says that it waits | a release, which calls it in vain |
//! | one that calls, or was called | waiters that nobody calls | such a waiter: [`Holder::nap`] |

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
/// What waiters say.
const CALLS: u64 = WAITERS | STARVED;
const HOLDER_SHIFT: u32 = 3;
const HOLDER: u64 = (HolderNumber::MAX as u64) << HOLDER_SHIFT;
const CHANGE: u64 = 1 << 17;
///
/// It has 47 bits: 4.5 years of a million changes a second of one latch. A reader takes changed
/// data for unchanged only if it stops in one read for exactly 2^47 changes.
const VERSION: u64 = !(CHANGE - 1);

const _: () = assert!(EXCLUSIVE | CALLS | HOLDER | VERSION == u64::MAX);
const _: () = assert!(EXCLUSIVE & WAITERS == 0 && HOLDER & (EXCLUSIVE | CALLS) == 0);
const _: () = assert!(size_of::<OptLatch>() == 8);

/// How often [`OptLatch::read_with`] tries before it shares.
pub const ATTEMPTS: u32 = 8;

/// A latch whose readers store nothing: 8 bytes, free when zero.
///
/// It guards words that are read while they may be written, so all of them are atomic, as in
/// [`OptCell`]. No poisoning; a thread that ends while it holds the latch leaves it held, and a
/// waiter whose [`Holder`] can tell gets [`HolderDied`].
#[derive(Default)]
#[repr(transparent)]
pub struct OptLatch<M: Machine = Native> {
    word: M::AtomicU64,
}

/// What a reader saw of a latch, to be validated.
///
/// 47 bits count the changes: at ten million a second they repeat after 162 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// The count of changes, for a word of memory.
    pub const fn get(self) -> u64 {
        self.0 >> VERSION.trailing_zeros()
    }

    /// A version from its count, of which 47 bits are used.
    pub const fn new(count: u64) -> Self {
        Self(count << VERSION.trailing_zeros())
    }
}

impl OptLatch {
    /// A free latch.
    pub const fn new() -> Self {
        Self::FREE
    }
}

impl<M: ConstMachine> OptLatch<M> {
    /// A free latch, on any machine whose words can be made at compile time.
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
        // reads that follow see what it wrote.
        M::fence(Acquire);
        (seen & EXCLUSIVE == 0).then_some(Version(seen & VERSION))
    }

    /// Begins to read; waits for a writer. Stores nothing unless it waits.
    ///
    /// # Errors
    ///
    /// [`HolderDied`] if `holder` says so of the writer.
    ///
    /// # Panics
    ///
    /// If 65,534 threads wait for latches; if this thread holds the latch already.
    #[inline]
    pub fn read<H: Holder<M>>(&self, holder: &H) -> Result<Version, HolderDied> {
        match self.try_read() {
            Some(version) => Ok(version),
            None => self.read_slow(holder),
        }
    }

    /// Whether all that was read since `version` is one state of the data. Stores nothing.
    #[inline(always)]
    pub fn validate(&self, version: Version) -> bool {
        // Acquire: synchronizes with the Release fence in `Exclusive::new`: who read a word of a
        // later writer sees that writer in the load below.
        M::fence(Acquire);
        self.word.load(Relaxed) & (VERSION | EXCLUSIVE) == version.0
    }

    /// Runs `read` until what it returns is of one state of the data, and returns that.
    ///
    /// `read` may see torn data, and runs again if it did: it must not act on what it sees, and
    /// must end whatever it sees. After [`ATTEMPTS`] failures it runs once more as the latch's
    /// sharer.
    ///
    /// # Errors, panics
    ///
    /// As [`read`](Self::read).
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
            // A waiter that takes its sharer for dead lets a writer in.
            if self.validate(share.version()) {
                return Ok(result);
            }
        }
    }

    /// Shares the latch: no writer gets in until the share is dropped. Other readers read.
    ///
    /// There is one sharer at a time, so **a thread must not take a second share while it holds
    /// one**, of whichever latch. If the sharer dies, the next that waits for it goes on.
    ///
    /// # Errors, panics
    ///
    /// As [`read`](Self::read).
    pub fn share<'a, H: Holder<M>>(&'a self, holder: &'a H) -> Result<Share<'a, H, M>, HolderDied> {
        loop {
            if let Some(share) = self.share_until_maybe(holder, None)? {
                return Ok(share);
            }
        }
    }

    /// Shares the latch, or gives up at `deadline` and returns none.
    ///
    /// # Errors, panics
    ///
    /// As [`read`](Self::read).
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
    /// Takes the latch for oneself if it is free.
    #[inline]
    pub fn try_lock<'a, H: Holder<M>>(&'a self, holder: &'a H) -> Option<Exclusive<'a, H, M>> {
        self.take(Want::Lock, holder.number()).map(|held| Exclusive::new(self, holder, held))
    }

    /// Takes the latch for oneself if it is free and nobody changed anything since `version`: then
    /// what was read since is what there is.
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
                // Somebody waits, or waited: so much may differ.
                Err(now) if now != seen && now & !CALLS == version.0 => seen = now,
                Err(_) => return None,
            }
        }
    }

    /// Takes the latch for oneself.
    ///
    /// # Errors, panics
    ///
    /// As [`read`](Self::read).
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

    /// Takes the latch for oneself, or gives up at `deadline` and returns none.
    ///
    /// # Errors, panics
    ///
    /// As [`read`](Self::read).
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

    /// Takes the latch over from a dead writer: of several threads one succeeds.
    ///
    /// The data are as the dead writer left them. The caller repairs them and then drops the guard,
    /// which passes the latch on. If it dies on the way, its own name is that of the dead. With the
    /// caller's own number this is the guard of a latch that it holds.
    ///
    /// The caller must know that `dead` is not at work any more: a number is not given to another
    /// thread before all that its last owner held has been taken over.
    pub fn take_over<'a, H: Holder<M>>(
        &'a self,
        dead: HolderNumber,
        holder: &'a H,
    ) -> Option<Exclusive<'a, H, M>> {
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) == EXCLUSIVE | dead.bits() {
            let next = seen & !HOLDER | holder.number().bits();
            // Acquire: synchronizes with the Release of the holder before the dead one. What the
            // dead one itself stored was stored when the system said that it had ended.
            match self.word.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return Some(Exclusive::new(self, holder, next & !CALLS)),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Takes the name of a dead sharer out of the latch, which stored nothing; true if it was
    /// there. Does not wait. The caller knows what [`take_over`](Self::take_over) says.
    pub fn forget_sharer<H: Holder<M>>(&self, dead: HolderNumber, holder: &H) -> bool {
        let mut seen = self.word.load(Relaxed);
        while seen & (EXCLUSIVE | HOLDER) == dead.bits() {
            let next = seen & !HOLDER | holder.number().bits();
            // Relaxed: a sharer stored nothing. The share is let go as any is, and waiters called.
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

/// Looking.
impl<M: Machine> OptLatch<M> {
    /// Who holds the latch at this moment, and whether as a writer.
    pub fn holder(&self) -> Option<(HolderNumber, bool)> {
        // Relaxed: a snapshot.
        let seen = self.word.load(Relaxed);
        HolderNumber::of(seen).map(|number| (number, seen & EXCLUSIVE != 0))
    }

    /// Whether the latch is held at this moment, by a writer or a sharer.
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
