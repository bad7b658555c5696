//! [`Simulated`]: the [`Machine`] of a simulation.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use latchwork_machine::{
    Chain, Clock, ConstMachine, Deadline, Level, Machine, Native, Place, Slots, Waited, Word,
};

use crate::fiber::{suspend, with};
use crate::memory::{drain, load, watch};
use crate::os;
use crate::word::Cell;
use crate::world::World;

/// A simulated machine, as locks use it.
///
/// Its threads are those of the [`Simulation`](crate::Simulation) that runs on this host thread.
/// Outside a simulation its words are plain atomics, so that data can be set up and inspected;
/// waiting and slots panic there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simulated;

impl Machine for Simulated {
    type AtomicU8 = Cell<AtomicU8>;
    type AtomicU16 = Cell<AtomicU16>;
    type AtomicU32 = Cell<AtomicU32>;
    type AtomicU64 = Cell<AtomicU64>;

    const SPIN_NS: u64 = Native::SPIN_NS;

    fn fence(order: Ordering) {
        if order == Ordering::SeqCst {
            drain();
        }
    }

    fn light_barrier() {}

    fn heavy_barrier() -> bool {
        os::heavy_barrier();
        true
    }

    #[inline]
    fn relax() {
        if with(World::pause) == Some(true) {
            suspend();
        }
    }

    fn yield_now() {
        os::yield_now();
    }

    fn spin_until<W: Word>(word: &W, order: Ordering, done: impl Fn(W::Value) -> bool) -> W::Value {
        loop {
            let seen = word.load(order);
            if done(seen) {
                return seen;
            }
            watch(core::ptr::from_ref(word).addr());
        }
    }

    fn wait(word: &Self::AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited {
        if deadline.is_some_and(|d| with(|w, me| w.deadline_passed(me, d)) == Some(true)) {
            return Waited::TimedOut;
        }
        os::wait(core::ptr::from_ref(word).addr(), || word.peek() == expected, deadline)
    }

    fn wake(word: &Self::AtomicU32) {
        os::wake(core::ptr::from_ref(word).addr());
    }

    fn now(clock: Clock) -> u64 {
        with(|world, me| {
            // The cost of reading the time-stamp counter.
            world.spend(me, 20);
            world.look_at_clock();
            world.now_ns(me, clock)
        })
        .unwrap_or(0)
    }

    /// Threads of a simulation share one host thread.
    fn thread() -> u64 {
        // No thread of the host has such a number.
        with(|_, me| 1 << 62 | me as u64).unwrap_or_else(<Native as Machine>::thread)
    }

    fn place() -> Place {
        with(|world, me| {
            world.spend(me, 2);
            world.spec.topology.place_of(world.threads[me].cpu)
        })
        .unwrap_or(Place::UNKNOWN)
    }

    fn spread(level: Level) -> bool {
        with(|world, _| world.spec.topology.spread(level)).unwrap_or(false)
    }

    fn slots<'a>(_: *const Self::AtomicU32) -> Slots<'a, Self> {
        let found = with(|world, _| {
            (
                core::ptr::from_ref(&**world.slots.table),
                core::ptr::from_ref(world.slots.all.as_slice()),
            )
        });
        let (table, slots) = found.expect("latches wait in simulated threads only");
        // SAFETY: table and slots are in allocations of their own, which are not borrowed mutably
        // and outlive the fibers; the caller is a latch in one of the fibers, and keeps the result
        // no longer than its wait.
        let table = unsafe { &*table };
        // SAFETY: as above.
        let slots = unsafe { &*slots };
        Slots::new(table, slots)
    }

    fn chain(_: &Slots<'_, Self>) -> Chain {
        with(|world, me| world.threads[me].chain).unwrap_or(0)
    }

    fn set_chain(_: &Slots<'_, Self>, chain: Chain) {
        with(|world, me| world.threads[me].chain = chain);
    }
}

#[allow(clippy::declare_interior_mutable_const, reason = "each use is meant to be a new word")]
impl ConstMachine for Simulated {
    const U8: Self::AtomicU8 = Cell::new(AtomicU8::new(0));
    const U16: Self::AtomicU16 = Cell::new(AtomicU16::new(0));
    const U32: Self::AtomicU32 = Cell::new(AtomicU32::new(0));
    const U64: Self::AtomicU64 = Cell::new(AtomicU64::new(0));
}

/// A slot is one line of the simulated machine, so that waiting costs as much as on a real machine.
const _: () = assert!(size_of::<latchwork_machine::Slot<Simulated>>() == 64);

/// Charges a load of `data`, one line at a time: plain data that a lock guards.
pub fn touch<T>(data: &T) {
    let start = core::ptr::from_ref(data).addr();
    for line in (start >> 6)..=((start + size_of::<T>().max(1) - 1) >> 6) {
        load((line << 6).max(start));
    }
}

/// Returns the number of the calling simulated thread and its clock in nanoseconds; `None` outside
/// a simulation.
///
/// Costs no simulated time: it is for workloads, not for locks.
#[inline]
pub fn clock() -> Option<(usize, f64)> {
    with(|world, me| (me, world.threads[me].time as f64 / world.spec.ghz))
}

/// Lets the calling simulated thread compute for this many cycles.
#[inline]
pub fn work(cycles: u64) {
    with(|world, me| world.spend(me, cycles));
}

/// Kills another simulated thread at its current position, as a signal would: it does nothing more,
/// its stores become visible, and everything on its stack is leaked. Only for explorations.
///
/// # Panics
///
/// Panics outside an exploration, or if `thread` is the caller.
pub fn kill(thread: usize) {
    with(|world, me| {
        assert!(thread != me, "a thread does not kill itself");
        world.kill(thread);
    })
    .expect("in a simulated thread");
}
