//! Which thread uses the transaction of a thread slot, so that a thread that would wait for a lock
//! detects that it would wait for itself.
//!
//! ```text
//!  63                  2   1   0
//! | number of a thread | l | c |     c: in a closure of the transaction, or polling one
//!                                    l: a task of the thread's event loop has the transaction
//! ```
//!
//! Zero means that no thread uses it, or that any thread may poll its task next. A task of an event
//! loop is polled by one thread only. A call that blocks this thread therefore never gets a lock of
//! the task's transaction.
//!
//! If the word says that the calling thread is in a closure, that thread has stored it, and the
//! closure has not returned: the transaction cannot end before the call does. If the word says only
//! that the thread used the transaction last, another thread may use it by now.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use latchwork_machine::{ConstMachine, Word};

const IN_CLOSURE: u64 = 1;
const OF_LOOP: u64 = 2;

thread_local! {
    /// Whether the thread has run an event loop with a task that had a transaction.
    static RUNS_LOOP: Cell<bool> = const { Cell::new(false) };
    /// How many closures the thread is in. On a machine whose threads share one host thread, the
    /// number for all of them.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns the word of the calling thread; zero if it is unknown.
#[inline]
fn me<M: ConstMachine>() -> u64 {
    M::thread() << 2
}

/// Returns whether the calling thread may run the event loop of a task that has a transaction.
pub(crate) fn runs_loop() -> bool {
    RUNS_LOOP.try_with(Cell::get).unwrap_or(true)
}

/// How the calling thread relates to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Another thread may use it.
    ByAnother,
    /// The calling thread called it last.
    Last,
    /// It belongs to a task of the event loop that the calling thread runs.
    OfLoop,
    /// The calling thread is in a closure that has it.
    InClosure,
}

/// The word of one thread slot.
pub(crate) struct User<M: ConstMachine>(M::AtomicU64);

impl<M: ConstMachine> Default for User<M> {
    fn default() -> Self {
        Self(M::AtomicU64::default())
    }
}

/// Records that the calling thread is in a closure that has the transaction, until this is dropped.
pub(crate) struct InClosure<'u, M: ConstMachine> {
    user: &'u User<M>,
    after: u64,
    /// Not `Send`, because it changes a count of its thread.
    thread: PhantomData<*const ()>,
}

/// The parts of a closure that has the transaction of a task, for bindings that poll it:
/// [`AsyncTransaction::closure`](crate::AsyncTransaction::closure).
pub struct TaskClosure<M: ConstMachine>(pub(crate) Arc<User<M>>);

impl<M: ConstMachine> Clone for TaskClosure<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: ConstMachine> TaskClosure<M> {
    /// Runs a part of the closure. All parts must run on the calling thread.
    pub fn run<R>(&self, part: impl FnOnce() -> R) -> R {
        let _ = RUNS_LOOP.try_with(|runs| runs.set(true));
        let mut in_closure = self.0.enter(false);
        if in_closure.after == 0 {
            in_closure.after = me::<M>() | OF_LOOP;
        }
        part()
    }
}

/// Records that the thread that created this runs a closure that has the transaction, until this is
/// dropped: see [`Transaction::enter`](crate::Transaction::enter). Any thread may drop it.
pub struct Entered<M: ConstMachine> {
    user: Arc<User<M>>,
    me: u64,
    after: u64,
}

impl<M: ConstMachine> Entered<M> {
    pub(crate) fn new(user: Arc<User<M>>) -> Self {
        let entered = user.enter(true);
        let (me, after) = (me::<M>(), entered.after);
        core::mem::forget(entered);
        Self { user, me, after }
    }
}

impl<M: ConstMachine> Drop for Entered<M> {
    fn drop(&mut self) {
        // Relaxed: as below.
        self.user.0.store(self.after, Relaxed);
        // If another thread drops it, the count of the first thread stays too high, which only
        // makes that thread look at more holders.
        if self.me == me::<M>() {
            let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
        }
    }
}

// Relaxed, all of them: what a thread reads about itself it has stored; about others it reads only
// that they are others.
impl<M: ConstMachine> User<M> {
    /// Records that the calling thread enters a closure. Afterwards the word says that this thread
    /// used the transaction last, if it `stays` with the thread.
    #[inline]
    pub(crate) fn enter(&self, stays: bool) -> InClosure<'_, M> {
        let (me, before) = (me::<M>(), self.0.load(Relaxed));
        let after = match before == me | IN_CLOSURE {
            true => before,
            false if stays => me,
            false => 0,
        };
        if me != 0 {
            self.0.store(me | IN_CLOSURE, Relaxed);
        }
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        InClosure { user: self, after, thread: PhantomData }
    }

    /// Runs a part of a task's closure.
    pub(crate) fn run<R>(&self, part: impl FnOnce() -> R) -> R {
        let _in_closure = self.enter(false);
        part()
    }

    /// Called when a new transaction begins.
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }

    pub(crate) fn used(&self) -> Used {
        let (me, word) = (me::<M>(), self.0.load(Relaxed));
        match () {
            () if me == 0 || word & !(IN_CLOSURE | OF_LOOP) != me => Used::ByAnother,
            () if word & IN_CLOSURE != 0 => Used::InClosure,
            () if word & OF_LOOP != 0 => Used::OfLoop,
            () => Used::Last,
        }
    }

    /// Returns whether the calling thread is in a closure of another transaction.
    pub(crate) fn is_nested(&self) -> bool {
        let own = u32::from(self.used() == Used::InClosure);
        DEPTH.try_with(|depth| depth.get() > own).unwrap_or(false)
    }
}

impl<M: ConstMachine> Drop for InClosure<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.user.0.store(self.after, Relaxed);
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}
