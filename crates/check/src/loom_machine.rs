//! The [`Machine`] trait on loom: every interleaving, and every value that a relaxed load may
//! return.
//!
//! Differences from a real machine: A word that threads can wait on contains a loom mutex and
//! condition variable, so sizes differ. Waiters sleep at once; on [`Looking`] they look first. A
//! wait with a deadline times out at once, which races with every waker. `SeqCst` accesses are
//! `AcqRel` in loom, so algorithms use fences where a store must precede a load.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use latchwork_machine::{
    Chain, Clock, Deadline, Integer, Level, Machine, Place, Slot, SlotTable, Slots, Waited, Word,
};
use loom::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};

/// Slots in a model's table: loom runs at most 4 threads in addition to the first.
const SLOTS: usize = 8;

loom::thread_local! {
    static CHAIN: Cell<Chain> = Cell::new(0);
    static PLACE: Cell<Place> = Cell::new(Place::UNKNOWN);
    static TIME: Cell<(u64, u64)> = Cell::new((0, 0));
}

/// Moves this thread to a node.
fn stand_on(node: u32) {
    PLACE.with(|place| place.set(Place::new(node, node, node, node)));
}

/// Runs `model` under every schedule with at most `preemptions` preemptions.
///
/// Prints the number of executions, so that an empty exploration is noticed.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let count = run(preemptions, model);
    assert!(count > 1, "{name}: nothing was explored");
    println!("{name}: {count} executions");
}

/// Returns the number of executions.
fn run(preemptions: usize, model: impl Fn() + Sync + Send + 'static) -> u64 {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = count.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.log = std::env::var("LOOM_LOG").is_ok();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    count.load(Ordering::Relaxed)
}

/// Whether `model` fails under [`explore`]: the control that a property can fail.
pub fn objects(preemptions: usize, model: impl Fn() + Sync + Send + 'static) -> bool {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(preemptions, model);
    }));
    result.is_err()
}

/// Defines a word type around one of loom's and forwards both traits to it.
macro_rules! words {
    ($($(#[$doc:meta])* $word:ident: $inner:ty, $value:ty $(, $part:ident: $kind:ty)*);*) => {$(
        $(#[$doc])*
        #[derive(Default)]
        pub struct $word { word: $inner, $($part: $kind,)* }
        impl Word for $word {
            type Value = $value;
            fn load(&self, order: Ordering) -> $value { self.word.load(order) }
            fn store(&self, value: $value, order: Ordering) { self.word.store(value, order) }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.word.swap(value, order)
            }
            fn compare_exchange(
                &self, old: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.word.compare_exchange(old, new, success, failure)
            }
        }
        impl Integer for $word {
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.word.fetch_add(value, order)
            }
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.word.fetch_sub(value, order)
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.word.fetch_or(value, order)
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.word.fetch_and(value, order)
            }
        }
    )*};
}

words! {
    /// One byte.
    Byte: AtomicU8, u8;
    /// Two bytes.
    Short: AtomicU16, u16;
    /// Eight bytes.
    Long: AtomicU64, u64;
    /// Four bytes, with a mutex and a condition variable.
    Waitable: AtomicU32, u32, mutex: Mutex<()>, condvar: Condvar
}

/// Defines a machine: a module, a type, and how long a waiter looks.
macro_rules! machines {
    ($($(#[$doc:meta])* $part:ident, $name:ident: $spin_ns:expr;)*) => {$(
        mod $part {
            use super::*;

            $(#[$doc])*
            #[derive(Default)]
            pub struct $name;

            struct Table {
                table: SlotTable<$name>,
                slots: Vec<Slot<$name>>,
            }

            loom::lazy_static! {
                static ref TABLE: Table = Table {
                    table: SlotTable::default(),
                    slots: (0..SLOTS).map(|_| Slot::default()).collect(),
                };
            }

            impl $name {
                /// Moves this thread to a node.
                pub fn stand_on(node: u32) {
                    stand_on(node);
                }
            }

            impl Machine for $name {
                type AtomicU8 = Byte;
                type AtomicU16 = Short;
                type AtomicU32 = Waitable;
                type AtomicU64 = Long;

                const SPIN_NS: u64 = $spin_ns;

                fn fence(order: Ordering) {
                    loom::sync::atomic::fence(order);
                }

                fn light_barrier() {
                    loom::sync::atomic::fence(Ordering::SeqCst);
                }

                fn heavy_barrier() -> bool {
                    loom::sync::atomic::fence(Ordering::SeqCst);
                    true
                }

                fn relax() {
                    // A waiter that looks must not give way, or no budget is ever spent.
                    if Self::SPIN_NS == 0 {
                        loom::hint::spin_loop();
                    }
                }

                fn yield_now() {
                    loom::thread::yield_now();
                }

                fn spin_until<W: Word>(word: &W, order: Ordering, done: impl Fn(W::Value) -> bool) -> W::Value {
                    loop {
                        let seen = word.load(order);
                        if done(seen) {
                            return seen;
                        }
                        loom::thread::yield_now();
                    }
                }

                fn wait(word: &Waitable, expected: u32, deadline: Option<Deadline>) -> Waited {
                    let mutex = word.mutex.lock().unwrap();
                    // Relaxed: the mutex orders it after the store of the previous waker.
                    if word.word.load(Ordering::Relaxed) != expected {
                        return Waited::Woken;
                    }
                    if deadline.is_some() {
                        return Waited::TimedOut;
                    }
                    drop(word.condvar.wait(mutex).unwrap());
                    Waited::Woken
                }

                fn wake(word: &Waitable) {
                    let _mutex = word.mutex.lock().unwrap();
                    word.condvar.notify_all();
                }

                fn now(_: Clock) -> u64 {
                    TIME.with(|time| {
                        let (now, step) = time.get();
                        time.set((now + step, step));
                        now
                    })
                }

                fn place() -> Place {
                    PLACE.with(Cell::get)
                }

                fn spread(_: Level) -> bool {
                    Self::place() != Place::UNKNOWN
                }

                fn slots<'a>(_: *const Waitable) -> Slots<'a, Self> {
                    Slots::new(&TABLE.table, &TABLE.slots)
                }

                fn chain(_: &Slots<'_, Self>) -> Chain {
                    CHAIN.with(Cell::get)
                }

                fn set_chain(_: &Slots<'_, Self>, chain: Chain) {
                    CHAIN.with(|first| first.set(chain));
                }
            }
        }
        pub use $part::$name;
    )*};
}

machines! {
    /// The machine of the model checker. Use it inside [`explore`].
    at_once, Loom: 0;
    /// The same, but a waiter looks for two units of time before it yields or sleeps. Time stands
    /// still until [`Looking::steps_by`].
    after_looks, Looking: 2;
}

impl Looking {
    /// Each time that this thread asks for the time from now on, so much of it has passed. Two or
    /// more: a yield shows that another thread wants its processor.
    pub fn steps_by(step: u64) {
        TIME.with(|time| time.set((0, step)));
    }
}
