//! Which thread is at work on the transaction of a thread slot, so that a thread that is about to
//! wait for a lock finds that it would wait for itself.
//!
//! ```text
//!  63                  1   0
//! | number of a thread | c |     c: it is in a closure that has the transaction, or polls one
//! ```
//!
//! Zero says nothing: no thread, or a task, which any thread may go on with.
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

thread_local! {
    /// How many closures the thread is in: on a machine whose threads share one of the host's, how
    /// many all of them are in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The word of the calling thread; zero if it is not known.
#[inline]
fn me<M: ConstMachine>() -> u64 {
    M::thread() << 1
}

/// Who uses a transaction, as far as the calling thread is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Perhaps another thread.
    ByAnother,
    /// The calling thread called it last.
    Last,
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
            () if me == 0 || word & !IN_CLOSURE != me => Used::ByAnother,
            () if word == me => Used::Last,
            () => Used::InClosure,
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
