//! Tasks take turns at a store's thread slots: so many have a transaction at a time, the others
//! wait, the first to come first.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::wakers::{Wakers, call, locked};

/// How many may go on, and who waits.
pub(crate) struct Turns {
    state: Mutex<State>,
    process: u32,
}

struct State {
    free: usize,
    waiting: Wakers,
    /// Those whose turn it is, and who were not polled since.
    given: BTreeSet<u64>,
    /// Threads that give turns.
    giving: Vec<ThreadId>,
}

/// A task's turn, until this is dropped.
pub(crate) struct Turn {
    of: Arc<Turns>,
}

/// A task that wants a turn.
pub(crate) struct Take {
    of: Arc<Turns>,
    /// None if it does not wait.
    number: Option<u64>,
}

impl Turns {
    /// So many at a time.
    pub(crate) fn new(free: usize) -> Self {
        let (waiting, given, giving) = (Wakers::default(), BTreeSet::new(), Vec::new());
        let state = Mutex::new(State { free, waiting, given, giving });
        Self { state, process: std::process::id() }
    }

    /// Whether this is the child of a fork: the turns are the parent's, and a thread that is not
    /// there may have the mutex.
    fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Ready when it is the task's turn.
    pub(crate) fn take(self: &Arc<Self>) -> Take {
        Take { of: self.clone(), number: None }
    }

    /// Gives turns back, and to the first that wait. A task that is woken may be dropped at once,
    /// in the call of its waker, and gives its turn back there: the thread that is at it sees to
    /// that one, too, when the call has ended, so that no crowd of them fills the stack.
    fn pass(&self) {
        if self.is_of_parent() {
            return;
        }
        let me = thread::current().id();
        let mut state = locked(&self.state);
        state.free += 1;
        if state.giving.contains(&me) {
            return;
        }
        state.giving.push(me);
        while state.free > 0
            && let Some((number, waker)) = state.waiting.first()
        {
            state.free -= 1;
            state.given.insert(number);
            // Not under the mutex: it may poll the task, or drop it.
            drop(state);
            call(waker);
            state = locked(&self.state);
        }
        state.giving.retain(|thread| *thread != me);
    }
}

impl Future for Take {
    type Output = Turn;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let this = self.get_mut();
        if this.of.is_of_parent() {
            // The next call says so.
            return Poll::Ready(Turn { of: this.of.clone() });
        }
        let waker = cx.waker().clone();
        let mut state = locked(&this.of.state);
        let mine = match &this.number {
            Some(number) => state.given.remove(number),
            None => state.free > 0 && state.waiting.is_empty(),
        };
        if mine {
            // A turn that was given is not free any more.
            state.free -= usize::from(this.number.is_none());
            this.number = None;
            return Poll::Ready(Turn { of: this.of.clone() });
        }
        let before = state.waiting.put(&mut this.number, waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.pass();
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(number) = self.number.filter(|_| !self.of.is_of_parent()) else { return };
        let mut state = locked(&self.of.state);
        let waker = state.waiting.remove(number);
        let had = state.given.remove(&number);
        drop(state);
        drop(waker);
        if had {
            self.of.pass();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::task::Waker;

    use super::*;

    /// In the child of a fork a thread that is not there may have the mutex.
    #[test]
    fn a_turn_in_the_child_of_a_fork_waits_for_nobody() {
        let process = std::process::id().wrapping_add(1);
        let turns = Arc::new(Turns { process, ..Turns::new(0) });
        let mut take = turns.take();
        let _there = locked(&turns.state);
        let poll = Pin::new(&mut take).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_ready());
    }
}
