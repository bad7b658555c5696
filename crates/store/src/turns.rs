//! Tasks take turns at a store's thread slots: so many have a transaction at a time, the others
//! wait, the first to come first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener, Listener as _};

/// How many may go on, and who waits.
pub(crate) struct Turns {
    state: Mutex<State>,
    /// A notice is a turn: it is the listener's from then on.
    next: Event,
}

struct State {
    free: usize,
    waiting: usize,
}

/// A task's turn, until this is dropped.
pub(crate) struct Turn {
    of: Arc<Turns>,
}

/// A task that waits for its turn.
struct Waits {
    of: Arc<Turns>,
    listener: Option<EventListener>,
}

impl Turns {
    /// So many at a time.
    pub(crate) fn new(free: usize) -> Self {
        Self { state: Mutex::new(State { free, waiting: 0 }), next: Event::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it is the task's turn.
    pub(crate) async fn take(self: &Arc<Self>) -> Turn {
        let mut waits = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Turn { of: self.clone() };
            }
            state.waiting += 1;
            Waits { of: self.clone(), listener: Some(self.next.listen()) }
        };
        if let Some(listener) = &mut waits.listener {
            listener.await;
        }
        waits.listener = None;
        Turn { of: self.clone() }
    }

    /// Gives a turn to the first that waits.
    fn pass(&self) {
        let mut state = self.state();
        match state.waiting.checked_sub(1) {
            Some(waiting) => {
                state.waiting = waiting;
                self.next.notify_additional(1);
            }
            None => state.free += 1,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.pass();
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        let mut state = self.of.state();
        // Under the mutex: a turn is given to a listener that is there.
        let had = listener.discard();
        if !had {
            state.waiting -= 1;
        }
        drop(state);
        if had {
            self.of.pass();
        }
    }
}
