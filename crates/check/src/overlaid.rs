//! The [`Machine`] trait on loom over ordinary memory, for regions.
//!
//! The words of [`Loom`](crate::Loom) are larger than real ones and do not fit into a region. The
//! words of this machine keep their size and address, like the simulator's. Inside of [`explore`]
//! their values are kept separately, by address (`world.rs`). The memory itself does not change and
//! is the start of each execution. A region is therefore created once, by plain stores, and not in
//! each of a hundred thousand executions.
//!
//! An execution has three parts. One thread prepares the memory, then [`together`] runs threads
//! under loom's control, then one thread inspects the result. Only words that one thread of the
//! second part stores to and another one accesses become loom atomics. They are learned: an
//! execution that finds a new one ends its exploration, and the next exploration starts with this
//! knowledge. An exploration counts if it learned nothing.
//!
//! Waiting: no thread spins, and a sleeper sleeps until it is woken, however near its deadline, so
//! a lost wake-up is a deadlock. A deadline in the past ends a wait at once, and so do the naps
//! allowed by [`nap_short`]. Times are zero.
//!
//! `docs/memory.md` says what loom cannot check.

mod learn;
mod world;

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use latchwork_machine::{
    Chain, Clock, ConstMachine, Deadline, Integer, Level, Machine, Place, Slot, SlotTable, Slots,
    Waited, Word,
};

pub use learn::{Action, Count, Flaw, explore, nap_short, objects, together};
use world::{Verb, access};

/// Loom's machine with words of real size, for regions. For use inside [`explore`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlaid;

/// A word of ordinary memory, and its value in an exploration.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Laid<A>(A);

/// Implements both traits for words of one size: by the world in an exploration, otherwise by the
/// word.
macro_rules! words {
    ($($inner:ident: $value:ty),*) => {$(
        impl Laid<$inner> {
            fn at(&self, verb: Verb) -> Option<Result<$value, $value>> {
                let done = access(core::ptr::from_ref(self).cast(), size_of::<$value>(), verb)?;
                Some(done.map(|seen| seen as $value).map_err(|seen| seen as $value))
            }

            /// An operation that cannot fail.
            fn do_at(&self, verb: Verb) -> Option<$value> {
                self.at(verb).map(|done| done.unwrap_or_else(|seen| seen))
            }
        }

        impl Word for Laid<$inner> {
            type Value = $value;
            fn load(&self, order: Ordering) -> $value {
                self.do_at(Verb::Load(order)).unwrap_or_else(|| self.0.load(order))
            }
            fn store(&self, value: $value, order: Ordering) {
                if self.do_at(Verb::Store(value.into(), order)).is_none() {
                    self.0.store(value, order);
                }
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.do_at(Verb::Swap(value.into(), order))
                    .unwrap_or_else(|| self.0.swap(value, order))
            }
            fn compare_exchange(
                &self, old: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.at(Verb::Exchange(old.into(), new.into(), success, failure))
                    .unwrap_or_else(|| self.0.compare_exchange(old, new, success, failure))
            }
        }

        impl Integer for Laid<$inner> {
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.do_at(Verb::Add(value.into(), order))
                    .unwrap_or_else(|| self.0.fetch_add(value, order))
            }
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.do_at(Verb::Add(value.wrapping_neg().into(), order))
                    .unwrap_or_else(|| self.0.fetch_sub(value, order))
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.do_at(Verb::Or(value.into(), order))
                    .unwrap_or_else(|| self.0.fetch_or(value, order))
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.do_at(Verb::And(value.into(), order))
                    .unwrap_or_else(|| self.0.fetch_and(value, order))
            }
        }
    )*};
}

words!(AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);

/// Waiter slots of a model's threads. As memory it stays all zero, like that of every model.
struct Waiters {
    table: SlotTable<Overlaid>,
    slots: [Slot<Overlaid>; 8],
}

// SAFETY: a table and its slots are words over atomic integers for which all zero is a value.
static WAITERS: Waiters = unsafe { core::mem::zeroed() };

impl Machine for Overlaid {
    type AtomicU8 = Laid<AtomicU8>;
    type AtomicU16 = Laid<AtomicU16>;
    type AtomicU32 = Laid<AtomicU32>;
    type AtomicU64 = Laid<AtomicU64>;

    const SPIN_NS: u64 = 0;

    fn fence(order: Ordering) {
        world::fence(order);
    }

    fn light_barrier() {
        world::light_barrier();
    }

    fn heavy_barrier() -> bool {
        world::heavy_barrier();
        true
    }

    fn relax() {
        world::step_back();
    }

    fn yield_now() {
        world::step_back();
    }

    fn spin_until<W: Word>(word: &W, order: Ordering, done: impl Fn(W::Value) -> bool) -> W::Value {
        loop {
            let seen = word.load(order);
            if done(seen) {
                return seen;
            }
            world::step_back();
        }
    }

    fn wait(word: &Self::AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited {
        let at = core::ptr::from_ref(word).cast::<u8>();
        world::wait(at, || word.load(Ordering::Relaxed) == expected, deadline)
    }

    fn wake(word: &Self::AtomicU32) {
        world::wake(core::ptr::from_ref(word).cast());
    }

    fn now(_: Clock) -> u64 {
        0
    }

    fn place() -> Place {
        Place::UNKNOWN
    }

    fn spread(_: Level) -> bool {
        false
    }

    fn slots<'a>(_: *const Self::AtomicU32) -> Slots<'a, Self> {
        Slots::new(&WAITERS.table, &WAITERS.slots)
    }

    fn chain(_: &Slots<'_, Self>) -> Chain {
        world::with(|world| world.chains[world.me as usize])
    }

    fn set_chain(_: &Slots<'_, Self>, chain: Chain) {
        world::with(|world| world.chains[world.me as usize] = chain);
    }
}

impl ConstMachine for Overlaid {
    const U8: Self::AtomicU8 = Laid(AtomicU8::new(0));
    const U16: Self::AtomicU16 = Laid(AtomicU16::new(0));
    const U32: Self::AtomicU32 = Laid(AtomicU32::new(0));
    const U64: Self::AtomicU64 = Laid(AtomicU64::new(0));
}
