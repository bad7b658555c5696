//! Fibers: each simulated thread has a stack, and all of them share one host thread.
//!
//! A thread that must wait processes the next events on its own stack. Only if the next event
//! belongs to another thread does it switch, to the loop in `Simulation::run`, which switches to
//! the other thread.

use std::cell::Cell;
use std::ptr::NonNull;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::world::{Step, World};

/// The size of a simulated thread's stack on the host.
const STACK: usize = 256 << 10;

thread_local! {
    static WORLD: Cell<Option<NonNull<World>>> = const { Cell::new(None) };
}

/// The stack of a simulated thread, and its position there.
pub(crate) type Fiber = Coroutine<(), (), (), DefaultStack>;

/// Returns whether a simulation runs on this host thread.
pub(crate) fn is_running() -> bool {
    WORLD.get().is_some()
}

/// Calls `f` with this host thread's simulation, if one of its threads runs.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&mut World, usize) -> R) -> Option<R> {
    let mut world = WORLD.get()?;
    // SAFETY: `Simulation::run` set the pointer to a world that it keeps until it clears it, and no
    // call of `with` is in progress: `f` neither suspends its fiber nor calls `with`.
    let world = unsafe { world.as_mut() };
    let current = world.threads.current?;
    Some(f(world, current))
}

/// Lets other threads run until an event resumes this thread.
///
/// Inlined, because the host predicts return addresses by the order of calls, which a switch of
/// stacks breaks: fewer returns after a switch are faster.
#[inline(always)]
pub(crate) fn suspend() {
    if let Some(yielder) = leave() {
        // SAFETY: a fiber's yielder lives on its stack while it runs, and this is that fiber.
        unsafe { (*yielder).suspend(()) };
    }
}

/// Processes the next events. Returns the yielder of this fiber, unless this thread continues.
#[inline(never)]
fn leave() -> Option<*const Yielder<(), ()>> {
    let left = with(|world, me| {
        world.decide();
        (world.next != Step::Thread(me)).then(|| world.threads[me].yielder)
    });
    left.expect("in a simulated thread")
}

/// Calls `f` with the world, outside its threads.
pub(crate) fn world_now<R>(f: impl FnOnce(&mut World) -> R) -> R {
    let mut world = WORLD.get().expect("within `run`");
    // SAFETY: as in `with`: it lives, and no other code accesses it now.
    f(unsafe { world.as_mut() })
}

/// Creates the fiber of a thread that has not started.
pub(crate) fn fiber(body: Box<dyn FnOnce()>) -> Fiber {
    let stack = DefaultStack::new(STACK).expect("memory for a simulated thread's stack");
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        with(|world, me| world.threads[me].yielder = yielder);
        body();
        crate::memory::end();
    })
}

/// Sets and clears the pointer to the running world, and owns the stacks of its threads.
pub(crate) struct Running {
    /// By thread; `None` after its end.
    fibers: Vec<Option<Fiber>>,
}

impl Running {
    pub(crate) fn new(world: &mut World, fibers: Vec<Option<Fiber>>) -> Self {
        WORLD.set(Some(NonNull::from(world)));
        Self { fibers }
    }

    /// Runs a thread until another thread must run, or it ends.
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
        // After a panic or a deadlock some fibers are suspended in their work. Unwinding them would
        // run destructors that wait for others.
        self.fibers.drain(..).for_each(core::mem::forget);
        WORLD.set(None);
    }
}
