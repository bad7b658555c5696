//! Which thread is at work on the transaction of a thread slot, so that a thread that is about to
//! wait for a lock finds that it would wait for itself.
//!
//! ```text
//!  63                  2   1   0
//! | number of a thread | l | c |     c: it is in a closure that has the transaction, or polls one
//!                                    l: the transaction is a task's of the loop that it runs
//! ```
//!
//! Zero says nothing: no thread, or a task that any thread may poll next. A task of a loop is
//! polled by one thread only. A call that blocks this thread therefore never gets a lock of the
//! task's transaction.
//!
//! A word that says of the calling thread that it is in a closure was stored by that thread, and
//! the closure has not returned: the transaction cannot end before the call does. A word that says
//! only that the thread used the transaction last says less: another thread may have it by now.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use latchwork_machine::{ConstMachine, Word};

const IN_CLOSURE: u64 = 1;
const OF_LOOP: u64 = 2;

thread_local! {
    /// Whether the thread has run a loop of which a task had a transaction.
    static RUNS_LOOP: Cell<bool> = const { Cell::new(false) };
    /// How many closures the thread is in: on a machine whose threads share one of the host's, how
    /// many all of them are in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The word of the calling thread; zero if it is not known.
#[inline]
fn me<M: ConstMachine>() -> u64 {
    M::thread() << 2
}

/// Whether the calling thread may run the loop of a task that has a transaction.
pub(crate) fn runs_loop() -> bool {
    RUNS_LOOP.try_with(Cell::get).unwrap_or(true)
}

/// Who uses a transaction, as far as the calling thread is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Perhaps another thread.
    ByAnother,
    /// The calling thread called it last.
    Last,
    /// A task of the loop that the calling thread runs.
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

/// While this lives the calling thread is in a closure that has the transaction.
pub(crate) struct InClosure<'u, M: ConstMachine> {
    user: &'u User<M>,
    after: u64,
    /// Not `Send`: it counts for its thread.
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

/// While this lives the thread that made it runs a closure that has the transaction: see
/// [`Transaction::enter`](crate::Transaction::enter). It may be dropped by another thread.
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
        // Another thread leaves the count of the first one too high: that looks at more holders.
        if self.me == me::<M>() {
            let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
        }
    }
}

// Relaxed, all of them: what a thread reads of itself it has stored, and of others it reads only
// that they are others.
impl<M: ConstMachine> User<M> {
    /// The calling thread enters a closure. Afterwards the word says that it used the transaction
    /// last, if it `stays` this thread's.
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

    /// A new transaction begins.
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

    /// Whether the calling thread is in a closure of another transaction than this one.
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
