//! A store's sessions: those of no thread, for transactions and snapshots that are objects, which
//! any thread may use, one after the other; and those of threads. All belong to the store, and end
//! with it: a thread that lives longer keeps nothing of it.

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

/// How many sessions wait for the next object at most; an eighth of all, if that is less.
const MOST: usize = 64;

/// Where no thread slot is left: how often a thread looks again while others are sweeping those of
/// the dead, and after how long.
const LOOKS: u32 = 100;
const NAP: Duration = Duration::from_millis(2);

/// A session, which a thread or an object keeps for the next call.
pub(crate) struct Kept<M: ConstMachine> {
    pub(crate) worker: StoreSession<M>,
    pub(crate) reads: Cell<bool>,
    pub(crate) writes: Cell<bool>,
    /// The thread has others, and gives this one back when it has used it.
    pub(crate) spare: Cell<bool>,
    /// Trees that it was asked for.
    pub(crate) trees: RefCell<Trees>,
    pub(crate) scratch: Cell<Scratch>,
}

/// Memory for the bytes of a key and of a value, which calls use one after the other.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl<M: ConstMachine> Kept<M> {
    pub(crate) fn new(worker: StoreSession<M>) -> Self {
        let (reads, writes, spare) = (Cell::new(false), Cell::new(false), Cell::new(false));
        let (trees, scratch) = (RefCell::default(), Cell::default());
        Self { worker, reads, writes, spare, trees, scratch }
    }

    /// Whether a snapshot of a call reads with it.
    #[inline]
    pub(crate) fn reading(&self) -> &Cell<bool> {
        &self.reads
    }

    /// Whether a transaction of a call writes with it.
    #[inline]
    pub(crate) fn writing(&self) -> &Cell<bool> {
        &self.writes
    }
}

/// A session with a place of its own on the heap: what borrows it moves with it.
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

    /// The session, for longer than this is borrowed.
    ///
    /// # Safety
    ///
    /// The caller uses it no longer than this lives.
    pub(crate) unsafe fn forever(&self) -> &'static Kept<M> {
        // SAFETY: as in `get`; the caller sees to the end.
        unsafe { self.0.as_ref() }
    }
}

impl<M: ConstMachine> Drop for Lone<M> {
    fn drop(&mut self) {
        // SAFETY: it was leaked in `new`, and what borrowed it is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// All sessions of a store in this process, but for those that objects have.
pub(crate) struct Sessions<M: ConstMachine> {
    idle: Mutex<Idle<M>>,
    /// Those that threads have, by their addresses: until the thread or the store ends.
    threads: Mutex<BTreeMap<usize, Lone<M>>>,
    process: u32,
}

/// Sessions that wait for the next object, or the next thread.
struct Idle<M: ConstMachine> {
    waiting: Vec<Lone<M>>,
    /// How many of them there may be now, and ever.
    allowed: usize,
    most: usize,
}

impl<M: ConstMachine> Idle<M> {
    /// Whether there is room for one more. Each process allows itself more only while half of the
    /// slots are free: many processes that do nothing leave some for one that begins.
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

    // The last two: some of the dead cannot be swept yet, and have the slots.
    matches!(why, Error::Locks(LocksError::Region(Threads(_) | Repair(_) | Handed(_))))
}

/// That no thread slot is left, and how many are whose.
fn all_held<M: ConstMachine>(home: &StoreInner<M>) -> Error {
    let region = home.manager.region();
    let (me, all) = (region.process().ok(), region.processes());
    // Each `open` of a process is one of the region's.
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
    /// Those of a store that so many threads of all processes use at a time.
    pub(crate) fn new(threads: u32) -> Self {
        let most = (threads as usize / 8).clamp(1, MOST);
        let idle = Idle { waiting: Vec::new(), allowed: 1, most };
        let process = std::process::id();
        Self { idle: Mutex::new(idle), threads: Mutex::default(), process }
    }

    /// One for the next object.
    pub(crate) fn take(&self, home: &Arc<StoreInner<M>>) -> Result<Lone<M>, Error> {
        // In the child of a fork a thread that is not there may have the mutex.
        home.manager.region().check()?;
        let waiting = locked(&self.idle).waiting.pop();
        match waiting {
            Some(lone) => Ok(lone),
            None => Ok(Lone::new(Kept::new(self.worker(home)?))),
        }
    }

    /// A new worker, in place of one that waits or is dead where no thread slot is left.
    pub(crate) fn worker(&self, home: &Arc<StoreInner<M>>) -> Result<StoreSession<M>, Error> {
        match home.worker() {
            Err(why) if is_none_left(&why) => {}
            other => return other,
        }
        // What cannot be undone keeps its slot; others may be free.
        let _ = home.sweep();
        // Nobody is told of it: those who sweep know nothing of who waits.
        let word = M::U32;
        for _ in 0..LOOKS {
            locked(&self.idle).waiting.clear();
            // Before the next try: a slot that is free by then is had.
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

    /// Keeps a session for the next object, unless it can be used no more.
    pub(crate) fn give(&self, lone: Lone<M>) {
        if lone.get().worker.home.manager.region().check().is_err() {
            // In the child of a fork it is the parent's, and a thread that is not there may have
            // the mutex.
            return core::mem::forget(lone);
        }
        let mut idle = locked(&self.idle);
        if lone.get().worker.is_free() && idle.has_room(&lone.get().worker.home) {
            idle.waiting.push(lone);
        }
    }

    /// One for the calling thread.
    pub(crate) fn hold(self: &Arc<Self>, home: &Arc<StoreInner<M>>) -> Result<Held<M>, Error> {
        let lone = self.take(home)?;
        let kept = lone.0;
        locked(&self.threads).insert(kept.addr().get(), lone);
        Ok(Held { of: Arc::downgrade(self), kept })
    }

    /// Gives up all of them: nobody uses the store any more.
    pub(crate) fn clear(&self) {
        locked(&self.idle).waiting.clear();
        locked(&self.threads).clear();
    }
}

/// A thread's hold on a session, which goes when this is dropped or the store ends.
pub(crate) struct Held<M: ConstMachine> {
    of: Weak<Sessions<M>>,
    /// Alive for as long as the store is and this is.
    pub(crate) kept: NonNull<Kept<M>>,
}

impl<M: ConstMachine> Drop for Held<M> {
    fn drop(&mut self) {
        let Some(of) = self.of.upgrade() else { return };
        // In the child of a fork the session is the parent's, and a thread that is not there may
        // have the mutex.
        if of.process == std::process::id() {
            // With the mutex held: the store that ends meanwhile waits.
            locked(&of.threads).remove(&self.kept.addr().get());
        }
    }
}

/// A hold on a session of a store of any machine.
pub(crate) trait AnyHeld {
    fn any(&self) -> &dyn Any;
    /// Whether its store has ended.
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
