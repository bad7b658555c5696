//! Stacks: each simulated thread has one, and all take turns on one host thread.
//!
//! A thread that is to wait lets happen what is next where it is. Only if that comes to another
//! thread does it leave its stack, for the loop in `Simulation::run`, which goes to the other one.

use std::cell::Cell;
use std::ptr::NonNull;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::world::{Step, World};

/// A simulated thread's stack on the host.
const STACK: usize = 256 << 10;

thread_local! {
    static WORLD: Cell<Option<NonNull<World>>> = const { Cell::new(None) };
}

/// A simulated thread's own stack, and where it is on it.
pub(crate) type Fiber = Coroutine<(), (), (), DefaultStack>;

/// Whether a simulation runs on this host thread.
pub(crate) fn is_running() -> bool {
    WORLD.get().is_some()
}

/// Calls `f` with this host thread's simulation, if one of its threads runs.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&mut World, usize) -> R) -> Option<R> {
    let mut world = WORLD.get()?;
    // SAFETY: `Simulation::run` set the pointer to a world that it keeps until it clears it, and
    // no call of `with` is under way: `f` neither suspends its fiber nor calls `with`.
    let world = unsafe { world.as_mut() };
    let current = world.threads.current?;
    Some(f(world, current))
}

/// Lets others go on until an event says that this thread is to.
///
/// Inlined, for the host predicts where a function returns to by the order of calls, which a switch
/// of stacks breaks: the fewer returns follow one the better.
#[inline(always)]
pub(crate) fn suspend() {
    if let Some(yielder) = leave() {
        // SAFETY: a fiber's yielder lives on its stack for as long as it runs, and this is that
        // fiber.
        unsafe { (*yielder).suspend(()) };
    }
}

/// Lets happen what is next; where to leave this fiber, unless it is the one to go on.
#[inline(never)]
fn leave() -> Option<*const Yielder<(), ()>> {
    let left = with(|world, me| {
        world.decide();
        (world.next != Step::Thread(me)).then(|| world.threads[me].yielder)
    });
    left.expect("in a simulated thread")
}

/// The world, outside its threads.
pub(crate) fn world_now<R>(f: impl FnOnce(&mut World) -> R) -> R {
    let mut world = WORLD.get().expect("within `run`");
    // SAFETY: as in `with`: it lives, and nobody else looks at it now.
    f(unsafe { world.as_mut() })
}

/// A thread that has not begun.
pub(crate) fn fiber(body: Box<dyn FnOnce()>) -> Fiber {
    let stack = DefaultStack::new(STACK).expect("memory for a simulated thread's stack");
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        with(|world, me| world.threads[me].yielder = yielder);
        body();
        crate::memory::end();
    })
}

/// Sets and clears the pointer to the running world, and has the stacks of its threads.
pub(crate) struct Running {
    /// By thread, of those that have not ended.
    fibers: Vec<Option<Fiber>>,
}

impl Running {
    pub(crate) fn new(world: &mut World, fibers: Vec<Option<Fiber>>) -> Self {
        WORLD.set(Some(NonNull::from(world)));
        Self { fibers }
    }

    /// Runs a thread until another is to run, or it ends.
    pub(crate) fn turn(&mut self, thread: usize) {
        let fiber = self.fibers[thread].as_mut().expect("a thread that has not ended");
        if let CoroutineResult::Return(()) = fiber.resume(()) {
            self.fibers[thread] = None;
            world_now(|world| {
                world.ended(thread);
                world.decide();
            });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After a panic or a deadlock some are in the midst of their work. To unwind them would run
        // destructors that wait for others.
        self.fibers.drain(..).for_each(core::mem::forget);
        WORLD.set(None);
    }
}
