//! The simulated machine with a flaw, so that a latch that relies on what is missing must fail.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use latchwork_machine::{
    Chain, Clock, ConstMachine, Deadline, Level, Machine, Place, Slot, SlotTable, Slots, Waited,
    Word,
};
use latchwork_sim::{Simulated, clock};

/// What is wrong.
pub(crate) trait Flaw: Default + Send + Sync + 'static {
    /// Nobody is woken.
    const DEAF: bool = false;
    /// The heavy barrier is none.
    const HASTY: bool = false;
    /// No fence is one.
    const LOOSE: bool = false;
}

#[derive(Default)]
pub(crate) struct Deaf;

impl Flaw for Deaf {
    const DEAF: bool = true;
}

#[derive(Default)]
pub(crate) struct Hasty;

impl Flaw for Hasty {
    const HASTY: bool = true;
}

#[derive(Default)]
pub(crate) struct Loose;

impl Flaw for Loose {
    const LOOSE: bool = true;
}

/// [`Simulated`], but for the flaw.
#[derive(Default)]
pub(crate) struct Flawed<F>(PhantomData<F>);

/// The slots of a run. They are never freed: a run that is stuck leaves threads behind.
type Memory<F> = (&'static SlotTable<Flawed<F>>, &'static [Slot<Flawed<F>>]);

thread_local! {
    static SLOTS: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
    /// Where each simulated thread's slots begin.
    static CHAINS: RefCell<Vec<Chain>> = const { RefCell::new(Vec::new()) };
}

/// Before each run: fresh slots, which nobody has.
pub(crate) fn renew() {
    SLOTS.set(None);
    CHAINS.set(Vec::new());
}

fn me() -> usize {
    clock().expect("in a simulated thread").0
}

impl<F: Flaw> Machine for Flawed<F> {
    type AtomicU8 = <Simulated as Machine>::AtomicU8;
    type AtomicU16 = <Simulated as Machine>::AtomicU16;
    type AtomicU32 = <Simulated as Machine>::AtomicU32;
    type AtomicU64 = <Simulated as Machine>::AtomicU64;

    const SPIN_NS: u64 = Simulated::SPIN_NS;

    fn fence(order: Ordering) {
        if !F::LOOSE {
            Simulated::fence(order);
        }
    }
    fn light_barrier() {
        Simulated::light_barrier();
    }
    fn heavy_barrier() -> bool {
        F::HASTY || Simulated::heavy_barrier()
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
        if !F::DEAF {
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
        let (table, slots) = SLOTS.with_borrow_mut(|slots| {
            let of_run = slots.get_or_insert_with(|| {
                let table: &'static SlotTable<Self> = Box::leak(Box::default());
                let slots: Vec<Slot<Self>> = (0..64).map(|_| Slot::default()).collect();
                let slots: &'static [Slot<Self>] = slots.leak();
                Box::new((table, slots))
            });
            *of_run.downcast_ref::<Memory<F>>().expect("one flaw in a run")
        });
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

impl<F: Flaw> ConstMachine for Flawed<F> {
    const U8: Self::AtomicU8 = Simulated::U8;
    const U16: Self::AtomicU16 = Simulated::U16;
    const U32: Self::AtomicU32 = Simulated::U32;
    const U64: Self::AtomicU64 = Simulated::U64;
}
