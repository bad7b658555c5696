//! The pool of a store's sessions. Transaction and snapshot objects use sessions that belong to no
//! thread, because any thread may use such an object. Threads keep sessions of their own. All
//! sessions belong to the store and end with it, even if a thread lives longer.

use core::any::Any;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use latchwork_lockmgr::Error as LocksError;
use latchwork_machine::{ConstMachine, Deadline};
use latchwork_region::Error as RegionError;

use crate::Error;
use crate::files::inner::StoreInner;
use crate::files::session::StoreSession;
use crate::names::Trees;
use crate::wakers::locked;

/// Maximum number of idle sessions, or an eighth of the thread slots if that is less.
const MOST: usize = 64;

/// How often, and at what interval, a thread retries when no thread slot is free while other
/// threads sweep those of dead threads.
const LOOKS: u32 = 100;
const NAP: Duration = Duration::from_millis(2);

/// A session that a thread or an object keeps for its next call.
pub(crate) struct Kept<M: ConstMachine> {
    pub(crate) worker: StoreSession<M>,
    pub(crate) writes: Cell<bool>,
    /// The thread has other sessions, and returns this one after use.
    pub(crate) spare: Cell<bool>,
    /// Cached trees of tables.
    pub(crate) trees: RefCell<Trees>,
    pub(crate) scratch: Cell<Scratch>,
}

/// Buffers for the bytes of a key and a value, reused by successive calls.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl<M: ConstMachine> Kept<M> {
    pub(crate) fn new(worker: StoreSession<M>) -> Self {
        let (writes, spare) = (Cell::new(false), Cell::new(false));
        let (trees, scratch) = (RefCell::default(), Cell::default());
        Self { worker, writes, spare, trees, scratch }
    }

    /// Returns the flag that a snapshot of a call uses the session.
    #[inline]
    pub(crate) fn reading(&self) -> &Cell<bool> {
        &self.worker.reads
    }

    /// Returns the flag that a transaction of a call uses the session.
    #[inline]
    pub(crate) fn writing(&self) -> &Cell<bool> {
        &self.writes
    }
}

/// A session with a stable address on the heap: moving it does not invalidate what borrows it.
pub(crate) struct Lone<M: ConstMachine>(NonNull<Kept<M>>);

// SAFETY: a session is made of parts that refer to each other and to what all threads share; no
// other part of the program has a reference to it, and it is not `Sync`.
unsafe impl<M: ConstMachine> Send for Lone<M> {}

impl<M: ConstMachine> Lone<M> {
    pub(crate) fn new(kept: Kept<M>) -> Self {
        Self(NonNull::from(Box::leak(Box::new(kept))))
    }

    pub(crate) fn get(&self) -> &Kept<M> {
        // SAFETY: it was leaked in `new`, and is freed when this is dropped.
        unsafe { self.0.as_ref() }
    }

    /// Returns the session for longer than this is borrowed.
    ///
    /// # Safety
    ///
    /// The caller must not use it after this is dropped.
    pub(crate) unsafe fn forever(&self) -> &'static Kept<M> {
        // SAFETY: as in `get`; the caller ensures that it is not used after the end.
        unsafe { self.0.as_ref() }
    }
}

impl<M: ConstMachine> Drop for Lone<M> {
    fn drop(&mut self) {
        // SAFETY: it was leaked in `new`, and what borrowed it is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// All sessions of a store in this process, except those that objects use.
pub(crate) struct Sessions<M: ConstMachine> {
    idle: Mutex<Idle<M>>,
    /// Sessions of threads, by address, until the thread or the store ends.
    threads: Mutex<BTreeMap<usize, Lone<M>>>,
    process: u32,
}

/// Idle sessions.
struct Idle<M: ConstMachine> {
    waiting: Vec<Lone<M>>,
    /// How many may be idle now, and the limit of that number.
    allowed: usize,
    most: usize,
}

impl<M: ConstMachine> Idle<M> {
    /// Returns whether one more may be idle. A process raises its number only while half of the
    /// slots are free, so that many idle processes leave slots for a new one.
    fn has_room(&mut self, home: &StoreInner<M>) -> bool {
        let is_full = self.waiting.len() >= self.allowed;
        if is_full && self.allowed < self.most {
            let half = home.sizes.threads as usize / 2;
            if home.manager.region().threads().count() <= half {
                self.allowed = (2 * self.allowed).min(self.most);
            }
        }
        self.waiting.len() < self.allowed
    }
}

fn is_none_left(why: &Error) -> bool {
    use RegionError::{Handed, Repair, Threads};

    // The last two: some dead threads cannot be swept yet, and hold the slots.
    matches!(why, Error::Locks(LocksError::Region(Threads(_) | Repair(_) | Handed(_))))
}

/// Creates the error that no thread slot is free, with the number of slots that this process holds.
fn all_held<M: ConstMachine>(home: &StoreInner<M>) -> Error {
    let region = home.manager.region();
    let (me, all) = (region.process().ok(), region.processes());
    // Each `open` of a process is a process of the region.
    let who = |of| {
        let one = all.iter().find(|one| Some((one.slot, one.generation)) == of)?;
        Some((one.pid, one.start, one.namespace))
    };
    let mine = who(me);
    let held = region.threads().map(|thread| Some((thread.process, thread.process_generation)));
    let here = held.filter(|of| *of == me || mine.is_some() && who(*of) == mine).count();
    Error::Threads { limit: home.sizes.threads, here: u32::try_from(here).unwrap_or(u32::MAX) }
}

impl<M: ConstMachine> Sessions<M> {
    /// Creates the pool for a store with this many thread slots.
    pub(crate) fn new(threads: u32) -> Self {
        let most = (threads as usize / 8).clamp(1, MOST);
        let idle = Idle { waiting: Vec::new(), allowed: 1, most };
        let process = std::process::id();
        Self { idle: Mutex::new(idle), threads: Mutex::default(), process }
    }

    /// Takes a session for an object.
    pub(crate) fn take(&self, home: &Arc<StoreInner<M>>) -> Result<Lone<M>, Error> {
        // In the child of a fork, a thread that does not exist may hold the mutex.
        home.manager.region().check()?;
        let waiting = locked(&self.idle).waiting.pop();
        match waiting {
            Some(lone) => Ok(lone),
            None => Ok(Lone::new(Kept::new(self.worker(home)?))),
        }
    }

    /// Creates a session. If no thread slot is free, frees those of idle sessions and of dead
    /// threads.
    pub(crate) fn worker(&self, home: &Arc<StoreInner<M>>) -> Result<StoreSession<M>, Error> {
        match home.worker() {
            Err(why) if is_none_left(&why) => {}
            other => return other,
        }
        // A transaction that cannot be rolled back keeps its slot; others may be free.
        let _ = home.sweep();
        // Sleep, because a sweep does not wake the threads that wait for slots.
        let word = M::U32;
        for _ in 0..LOOKS {
            locked(&self.idle).waiting.clear();
            // Check before the next try, so that a slot freed before the check is found by it.
            let others_sweep = home.manager.region().threads().any(|thread| thread.swept);
            match home.worker() {
                Err(why) if is_none_left(&why) && others_sweep => {
                    M::wait(&word, 0, Some(Deadline::after::<M>(NAP)));
                }
                Err(why) if is_none_left(&why) => break,
                other => return other,
            }
        }
        home.worker().map_err(|why| match is_none_left(&why) {
            true => all_held(home),
            false => why,
        })
    }

    /// Returns a session to the pool, unless it cannot be used again.
    pub(crate) fn give(&self, lone: Lone<M>) {
        if lone.get().worker.home.manager.region().check().is_err() {
            // In the child of a fork it belongs to the parent, and a thread that does not exist may
            // hold the mutex.
            return core::mem::forget(lone);
        }
        let mut idle = locked(&self.idle);
        if lone.get().worker.is_free() && idle.has_room(&lone.get().worker.home) {
            idle.waiting.push(lone);
        }
    }

    /// Takes a session for the calling thread.
    pub(crate) fn hold(self: &Arc<Self>, home: &Arc<StoreInner<M>>) -> Result<Held<M>, Error> {
        let lone = self.take(home)?;
        let kept = lone.0;
        locked(&self.threads).insert(kept.addr().get(), lone);
        Ok(Held { of: Arc::downgrade(self), kept })
    }

    /// Drops all sessions, when the store has no users left.
    pub(crate) fn clear(&self) {
        locked(&self.idle).waiting.clear();
        locked(&self.threads).clear();
    }
}

/// A thread's hold on a session. The session ends when this is dropped or the store ends.
pub(crate) struct Held<M: ConstMachine> {
    of: Weak<Sessions<M>>,
    /// Valid while both the store and this exist.
    pub(crate) kept: NonNull<Kept<M>>,
}

impl<M: ConstMachine> Drop for Held<M> {
    fn drop(&mut self) {
        let Some(of) = self.of.upgrade() else { return };
        // In the child of a fork the session belongs to the parent, and a thread that does not
        // exist may hold the mutex.
        if of.process == std::process::id() {
            // With the mutex held, so that a concurrent end of the store waits.
            locked(&of.threads).remove(&self.kept.addr().get());
        }
    }
}

/// A hold on a session, for any machine parameter.
pub(crate) trait AnyHeld {
    fn any(&self) -> &dyn Any;
    /// Returns whether its store has ended.
    fn is_over(&self) -> bool;
}

impl<M: ConstMachine> AnyHeld for Held<M> {
    fn any(&self) -> &dyn Any {
        self
    }

    fn is_over(&self) -> bool {
        self.of.strong_count() == 0
    }
}
