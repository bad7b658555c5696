//! A thread that stops at a named step, says so, and waits until it is told to go on.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};

type Stop = (&'static str, Sender<()>, Receiver<()>);

thread_local! {
    static STOP: Cell<Option<Stop>> = const { Cell::new(None) };
}

/// The hook for steps.
pub fn at_step(step: &'static str) {
    // A thread that ends may still do something, and has no stop then.
    let Ok(stop) = STOP.try_with(Cell::take) else { return };
    match stop {
        Some((at, stopped, go_on)) if at == step => {
            stopped.send(()).unwrap();
            // Or the other thread has ended.
            let _ = go_on.recv();
        }
        other => STOP.set(other),
    }
}

/// Where a thread is to stop, once.
#[derive(Debug)]
pub struct Armed(Stop);

impl Armed {
    /// For this thread, from now on.
    pub fn here(self) {
        STOP.set(Some(self.0));
    }

    /// Whether this thread has not come there.
    pub fn is_waiting() -> bool {
        let stop = STOP.take();
        let there = stop.is_some();
        STOP.set(stop);
        there
    }
}

/// The thread that is to stop, as another sees it. Dropped, it lets it go on.
#[derive(Debug)]
pub struct Stopped {
    is_there: Receiver<()>,
    _go_on: Sender<()>,
}

impl Stopped {
    /// Waits until the thread is there.
    pub fn wait(&self) {
        self.is_there.recv().unwrap();
    }

    /// Lets it go on.
    pub fn go_on(self) {}
}

/// A stop at a step, for a thread, and its other side.
pub fn stop_at(step: &'static str) -> (Armed, Stopped) {
    let ((there, is_there), (go_on, goes_on)) = (channel(), channel());
    (Armed((step, there, goes_on)), Stopped { is_there, _go_on: go_on })
}
