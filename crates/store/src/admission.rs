//! Admission of tasks to a store's thread slots: a limited number of tasks have a transaction at a
//! time; the others wait in the order of their arrival.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::wakers::{Wakers, call, locked};

/// The number of free permits, and the waiting tasks.
pub(crate) struct Turns {
    state: Mutex<State>,
    process: u32,
}

struct State {
    free: usize,
    waiting: Wakers,
    /// Tasks that have been granted a permit and not been polled since.
    given: BTreeSet<u64>,
    /// Threads that are granting permits.
    giving: Vec<ThreadId>,
}

/// The permit of a task, until this is dropped.
pub(crate) struct Turn {
    of: Arc<Turns>,
}

/// A task that requests a permit.
pub(crate) struct Take {
    of: Arc<Turns>,
    /// `None` if it does not wait.
    number: Option<u64>,
}

impl Turns {
    /// Creates an admission queue with this many permits.
    pub(crate) fn new(free: usize) -> Self {
        let (waiting, given, giving) = (Wakers::default(), BTreeSet::new(), Vec::new());
        let state = Mutex::new(State { free, waiting, given, giving });
        Self { state, process: std::process::id() }
    }

    /// Returns whether this is the child of a fork: the permits belong to the parent, and a thread
    /// that does not exist may hold the mutex.
    fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns a future that is ready when the task has a permit.
    pub(crate) fn take(self: &Arc<Self>) -> Take {
        Take { of: self.clone(), number: None }
    }

    /// Returns a permit and grants free ones to the first waiters. A woken task may be dropped
    /// within the call of its waker and return its permit there. The thread that is already
    /// granting then handles that permit after the call, so that the recursion does not exhaust the
    /// stack.
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
            // Not under the mutex: the waker may poll or drop the task.
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
            // The next call reports the fork.
            return Poll::Ready(Turn { of: this.of.clone() });
        }
        let waker = cx.waker().clone();
        let mut state = locked(&this.of.state);
        let mine = match &this.number {
            Some(number) => state.given.remove(number),
            None => state.free > 0 && state.waiting.is_empty(),
        };
        if mine {
            // A granted permit is no longer counted as free.
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

    /// In the child of a fork, a thread that does not exist may hold the mutex.
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
