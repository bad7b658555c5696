//! What a thread does at a named step, once: it stops there, say, until it is told to go on.
//!
//! A crate calls one hook of a process, so all tests of a program have this one.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};

type Then = (&'static str, Box<dyn FnOnce()>);

thread_local! {
    static THEN: Cell<Option<Then>> = const { Cell::new(None) };
}

/// The hook for steps.
pub fn at_step(step: &'static str) {
    // A thread that ends may still do something, and there is nothing for it then.
    let Ok(then) = THEN.try_with(Cell::take) else { return };
    match then {
        Some((at, then)) if at == step => then(),
        other => THEN.set(other),
    }
}

/// What this thread does when it comes to a step next.
pub fn at(step: &'static str, then: impl FnOnce() + 'static) {
    THEN.set(Some((step, Box::new(then))));
}

/// Whether this thread has not come there.
pub fn is_waiting() -> bool {
    let then = THEN.take();
    let there = then.is_some();
    THEN.set(then);
    there
}

/// Where a thread is to stop, once.
#[derive(Debug)]
pub struct Armed {
    step: &'static str,
    there: Sender<()>,
    goes_on: Receiver<()>,
}

impl Armed {
    /// For this thread, from now on.
    pub fn here(self) {
        let Self { step, there, goes_on } = self;
        at(step, move || {
            there.send(()).unwrap();
            // Or the other thread has ended.
            let _ = goes_on.recv();
        });
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
    (Armed { step, there, goes_on }, Stopped { is_there, _go_on: go_on })
}
