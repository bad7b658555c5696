//! What a thread of a test does at the pool's points: a process has one hook, and many tests.

use std::cell::RefCell;

use latchwork_check::stops;
use latchwork_pool::set_point_hook;

type Does = Box<dyn Fn(&'static str)>;

thread_local! {
    static DOES: RefCell<Option<Does>> = const { RefCell::new(None) };
}

/// Has steps of this program's threads be places to stop at, and to do what their tests say.
pub(super) fn hooked() {
    set_point_hook(|name| {
        // A thread that ends has none any more.
        let _ = DOES.try_with(|does| {
            if let Some(does) = &*does.borrow() {
                does(name);
            }
        });
        stops::at_step(name);
    });
}

/// Has `does` called at each point that this thread comes by from now on, with its name.
pub(super) fn at_points(does: impl Fn(&'static str) + 'static) {
    hooked();
    DOES.set(Some(Box::new(does)));
}
