//! The native machine with an invented topology: each thread chooses its node.
//!
//! Shuffling does nothing on a machine with one node, such as most hosts of tests. Here it works on
//! real memory and real threads.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use latchwork_machine::{
    Chain, Clock, ConstMachine, Deadline, Level, Machine, Native, Place, Slot, SlotTable, Slots,
    Waited,
};

/// [`Native`] with as many nodes as the threads choose.
#[derive(Default)]
pub struct Scattered;

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::UNKNOWN) };
    static CHAIN: Cell<Chain> = const { Cell::new(0) };
    static HAUNT: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    static WAKES: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// More than the threads of the stress tests: slots are not returned.
const SLOTS: usize = 4096;

struct Table {
    table: SlotTable<Scattered>,
    slots: [Slot<Scattered>; SLOTS],
}

// SAFETY: a table and its slots are atomic integers, for which all zero is a value.
static TABLE: Table = unsafe { core::mem::zeroed() };

impl Scattered {
    /// Moves this thread to a node.
    pub fn stand_on(node: u32) {
        PLACE.set(Place::new(node, node, node, node));
    }
}

impl Scattered {
    /// Runs `action` instead of each sleep of this thread, until it is set again.
    ///
    /// So one thread can act for all, and the number of times that a waiter is passed does not
    /// depend on scheduling.
    pub fn instead_of_sleeping(action: Option<Box<dyn FnMut()>>) {
        HAUNT.set(action);
    }

    /// Runs `action` when this thread next wakes another: the steps of other threads in the
    /// meantime.
    pub fn when_it_wakes(action: Box<dyn FnOnce()>) {
        WAKES.set(Some(action));
    }
}

impl Machine for Scattered {
    type AtomicU8 = AtomicU8;
    type AtomicU16 = AtomicU16;
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;

    const SPIN_NS: u64 = Native::SPIN_NS;

    fn fence(order: Ordering) {
        Native::fence(order);
    }

    fn light_barrier() {
        Native::light_barrier();
    }

    fn heavy_barrier() -> bool {
        Native::heavy_barrier()
    }

    fn relax() {
        Native::relax();
    }

    fn yield_now() {
        Native::yield_now();
    }

    fn wait(word: &AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited {
        let Some(mut action) = HAUNT.take() else { return Native::wait(word, expected, deadline) };
        action();
        HAUNT.set(Some(action));
        Waited::Woken
    }

    fn wake(word: &AtomicU32) {
        if let Some(action) = WAKES.take() {
            action();
        }
        Native::wake(word);
    }

    fn now(clock: Clock) -> u64 {
        Native::now(clock)
    }

    fn place() -> Place {
        PLACE.get()
    }

    fn spread(_: Level) -> bool {
        true
    }

    fn slots<'a>(_: *const AtomicU32) -> Slots<'a, Self> {
        Slots::new(&TABLE.table, &TABLE.slots)
    }

    fn chain(_: &Slots<'_, Self>) -> Chain {
        CHAIN.get()
    }

    fn set_chain(_: &Slots<'_, Self>, chain: Chain) {
        CHAIN.set(chain);
    }
}

impl ConstMachine for Scattered {
    const U8: AtomicU8 = AtomicU8::new(0);
    const U16: AtomicU16 = AtomicU16::new(0);
    const U32: AtomicU32 = AtomicU32::new(0);
    const U64: AtomicU64 = AtomicU64::new(0);
}
