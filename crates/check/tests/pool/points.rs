//! Actions of a test's thread at the pool's points. A process has one hook for all tests.

use std::cell::RefCell;

use latchwork_check::stops;
use latchwork_pool::set_point_hook;

type Does = Box<dyn Fn(&'static str)>;

thread_local! {
    static DOES: RefCell<Option<Does>> = const { RefCell::new(None) };
}

/// Installs the hook of this program: steps where threads can stop or run their tests' actions.
pub(super) fn hooked() {
    set_point_hook(|name| {
        // A thread that ends has no action any more.
        let _ = DOES.try_with(|does| {
            if let Some(does) = &*does.borrow() {
                does(name);
            }
        });
        stops::at_step(name);
    });
}

/// Calls `does` with the name of each point that this thread reaches from now on.
pub(super) fn at_points(does: impl Fn(&'static str) + 'static) {
    hooked();
    DOES.set(Some(Box::new(does)));
}
