//! Actions of a thread at a named step, once; for example a stop until another thread continues it.
//!
//! A crate calls one hook per process, so all tests of a program share this one.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};

type Then = (&'static str, Box<dyn FnOnce()>);

thread_local! {
    static THEN: Cell<Option<Then>> = const { Cell::new(None) };
}

/// The hook of the steps.
pub fn at_step(step: &'static str) {
    // A thread that ends may still reach a step; it has no action then.
    let Ok(then) = THEN.try_with(Cell::take) else { return };
    match then {
        Some((at, then)) if at == step => then(),
        other => THEN.set(other),
    }
}

/// Sets the action of this thread at its next arrival at a step.
pub fn at(step: &'static str, then: impl FnOnce() + 'static) {
    THEN.set(Some((step, Box::new(then))));
}

/// Whether this thread has not reached the step.
pub fn is_waiting() -> bool {
    let then = THEN.take();
    let there = then.is_some();
    THEN.set(then);
    there
}

/// The stop of a thread at a step, once.
#[derive(Debug)]
pub struct Armed {
    step: &'static str,
    there: Sender<()>,
    goes_on: Receiver<()>,
}

impl Armed {
    /// Arms the stop for this thread.
    pub fn here(self) {
        let Self { step, there, goes_on } = self;
        at(step, move || {
            there.send(()).unwrap();
            // Or the other thread has ended.
            let _ = goes_on.recv();
        });
    }
}

/// The stopping thread as seen by another one. Dropping it lets the thread continue.
#[derive(Debug)]
pub struct Stopped {
    is_there: Receiver<()>,
    _go_on: Sender<()>,
}

impl Stopped {
    /// Waits until the thread has stopped.
    pub fn wait(&self) {
        self.is_there.recv().unwrap();
    }

    /// Lets the thread continue.
    pub fn go_on(self) {}
}

/// A stop at a step: the side of the stopping thread, and the other side.
pub fn stop_at(step: &'static str) -> (Armed, Stopped) {
    let ((there, is_there), (go_on, goes_on)) = (channel(), channel());
    (Armed { step, there, goes_on }, Stopped { is_there, _go_on: go_on })
}
