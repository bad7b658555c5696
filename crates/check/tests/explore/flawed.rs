//! The simulated machine with a flaw, with which code that relies on the missing part must fail.
//!
//! The flaw is selected at run time: with one type for each flaw, the whole stack would be compiled
//! once for each.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use latchwork_machine::{
    Chain, Clock, ConstMachine, Deadline, Level, Machine, Place, Slot, SlotTable, Slots, Waited,
    Word,
};
use latchwork_sim::{Simulated, clock};

/// A flaw of the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// No thread is woken.
    Deaf,
    /// The heavy barrier does nothing.
    Hasty,
    /// Fences do nothing.
    Loose,
}

/// [`Simulated`] with the flaw that was [selected](with).
#[derive(Default)]
pub(crate) struct Breakable;

/// The slots of a run. They are never freed: a run that is stuck leaves threads behind.
type Memory = (&'static SlotTable<Breakable>, &'static [Slot<Breakable>]);

thread_local! {
    // All simulated threads of a run are fibers of one thread.
    static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
    static SLOTS: Cell<Option<Memory>> = const { Cell::new(None) };
    /// The first slot of each simulated thread.
    static CHAINS: RefCell<Vec<Chain>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` on a machine with this flaw.
pub(crate) fn with<R>(flaw: Flaw, work: impl FnOnce() -> R) -> R {
    /// Resets the flaw even if the test fails, because the next test may run on this thread.
    struct Without;
    impl Drop for Without {
        fn drop(&mut self) {
            FLAW.set(None);
        }
    }
    FLAW.set(Some(flaw));
    let _without = Without;
    work()
}

fn has(flaw: Flaw) -> bool {
    FLAW.get() == Some(flaw)
}

/// Creates fresh slots before each run.
pub(crate) fn renew() {
    SLOTS.set(None);
    CHAINS.set(Vec::new());
}

fn me() -> usize {
    clock().expect("in a simulated thread").0
}

impl Machine for Breakable {
    type AtomicU8 = <Simulated as Machine>::AtomicU8;
    type AtomicU16 = <Simulated as Machine>::AtomicU16;
    type AtomicU32 = <Simulated as Machine>::AtomicU32;
    type AtomicU64 = <Simulated as Machine>::AtomicU64;

    /// Waiters sleep at once: their wake-ups are what the flaws concern.
    const SPIN_NS: u64 = 0;

    fn fence(order: Ordering) {
        if !has(Flaw::Loose) {
            Simulated::fence(order);
        }
    }
    fn light_barrier() {
        Simulated::light_barrier();
    }
    fn heavy_barrier() -> bool {
        has(Flaw::Hasty) || Simulated::heavy_barrier()
    }
    fn relax() {
        Simulated::relax();
    }
    fn yield_now() {
        Simulated::yield_now();
    }
    fn spin_until<W: Word>(word: &W, order: Ordering, done: impl Fn(W::Value) -> bool) -> W::Value {
        Simulated::spin_until(word, order, done)
    }
    fn wait(word: &Self::AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited {
        Simulated::wait(word, expected, deadline)
    }
    fn wake(word: &Self::AtomicU32) {
        if !has(Flaw::Deaf) {
            Simulated::wake(word);
        }
    }
    fn now(clock: Clock) -> u64 {
        Simulated::now(clock)
    }
    fn place() -> Place {
        Simulated::place()
    }
    fn spread(level: Level) -> bool {
        Simulated::spread(level)
    }

    fn slots<'a>(_: *const Self::AtomicU32) -> Slots<'a, Self> {
        let (table, slots) = SLOTS.get().unwrap_or_else(|| {
            let table: &'static SlotTable<Self> = Box::leak(Box::default());
            let slots: Vec<Slot<Self>> = (0..64).map(|_| Slot::default()).collect();
            (table, slots.leak())
        });
        SLOTS.set(Some((table, slots)));
        Slots::new(table, slots)
    }
    fn chain(_: &Slots<'_, Self>) -> Chain {
        CHAINS.with_borrow(|chains| chains.get(me()).copied().unwrap_or(0))
    }
    fn set_chain(_: &Slots<'_, Self>, chain: Chain) {
        CHAINS.with_borrow_mut(|chains| {
            chains.resize(chains.len().max(me() + 1), 0);
            chains[me()] = chain;
        });
    }
}

impl ConstMachine for Breakable {
    const U8: Self::AtomicU8 = Simulated::U8;
    const U16: Self::AtomicU16 = Simulated::U16;
    const U32: Self::AtomicU32 = Simulated::U32;
    const U64: Self::AtomicU64 = Simulated::U64;
}
