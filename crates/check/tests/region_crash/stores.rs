//! Death between any two stores: a machine whose words ignore stores from a given one on, and all
//! operations of a region, cut off at each store in turn.
//!
//! Each death has two forms. In the second one the relaxed stores after the first lost store are
//! not lost, because nothing orders them after it. This tests the Release on each store whose
//! position matters to a sweep.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_check::cell;
use latchwork_machine::{
    Chain, Clock, ConstMachine, Deadline, Integer, Level, Machine, Native, Place, Slots, Waited,
    Word,
};
use latchwork_region::{Error, Fate, Offset, Options, Region, Thread};

/// The native machine with a limited number of stores per thread.
#[derive(Default)]
struct Mortal;

/// Relaxed stores after the first lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// They are lost.
    Never,
    /// They will be made; no store is lost yet.
    Soon,
    /// They are made, up to a lost store that they cannot pass in either direction.
    Now,
}

thread_local! {
    /// Remaining stores of this thread; later ones have no effect.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static AHEAD: Cell<Ahead> = const { Cell::new(Ahead::Never) };
}

/// Counts a store. Returns false if none remains.
fn spend() -> bool {
    LEFT.with(|left| {
        let now = left.get();
        if now != u64::MAX {
            left.set(now.saturating_sub(1));
        }
        now != 0
    })
}

/// Whether a store is made although others before it were lost.
fn runs_ahead(order: Ordering) -> bool {
    let (now, next) = match AHEAD.get() {
        Ahead::Soon => (false, Ahead::Now),
        Ahead::Now if order == Relaxed => (true, Ahead::Now),
        Ahead::Now | Ahead::Never => (false, Ahead::Never),
    };
    AHEAD.set(next);
    now
}

/// Runs `body` with this number of stores, and returns how many it did not need.
fn live_for(stores: u64, ahead: Ahead, body: impl FnOnce()) -> u64 {
    LEFT.set(stores);
    AHEAD.set(ahead);
    // A dead thread continues without effect. What it then reads may make it panic.
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    let left = LEFT.replace(u64::MAX);
    assert!(end.is_ok() || left == 0, "the body failed without a death");
    left
}

macro_rules! words {
    ($($name:ident: $word:ident, $value:ty);*) => {$(
        #[derive(Default)]
        #[repr(transparent)]
        struct $name(std::sync::atomic::$word);
        impl Word for $name {
            type Value = $value;
            fn load(&self, order: Ordering) -> $value { self.0.load(order) }
            fn store(&self, value: $value, order: Ordering) {
                if spend() || runs_ahead(order) { self.0.store(value, order) }
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                if spend() { self.0.swap(value, order) } else { self.0.load(Relaxed) }
            }
            fn compare_exchange(
                &self, old: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                // A dead thread's exchanges appear to succeed, so that it ends.
                if spend() { return self.0.compare_exchange(old, new, success, failure); }
                runs_ahead(success);
                Ok(old)
            }
        }
        impl Integer for $name {
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if spend() { self.0.fetch_add(value, order) } else { self.0.load(Relaxed) }
            }
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                if spend() { self.0.fetch_sub(value, order) } else { self.0.load(Relaxed) }
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                if spend() { self.0.fetch_or(value, order) } else { self.0.load(Relaxed) }
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                if spend() { self.0.fetch_and(value, order) } else { self.0.load(Relaxed) }
            }
        }
    )*};
}

words! { W8: AtomicU8, u8; W16: AtomicU16, u16; W32: AtomicU32, u32; W64: AtomicU64, u64 }

impl Machine for Mortal {
    type AtomicU8 = W8;
    type AtomicU16 = W16;
    type AtomicU32 = W32;
    type AtomicU64 = W64;
    const SPIN_NS: u64 = 0;
    fn fence(order: Ordering) {
        Native::fence(order);
    }
    fn light_barrier() {}
    fn heavy_barrier() -> bool {
        true
    }
    fn relax() {}
    fn yield_now() {}
    fn wait(_: &W32, _: u32, _: Option<Deadline>) -> Waited {
        panic!("a region never waits")
    }
    fn wake(_: &W32) {}
    fn now(clock: Clock) -> u64 {
        Native::now(clock)
    }
    fn place() -> Place {
        Native::place()
    }
    fn spread(_: Level) -> bool {
        false
    }
    fn slots<'a>(_: *const W32) -> Slots<'a, Self> {
        panic!("a region has no latch")
    }
    fn chain(_: &Slots<'_, Self>) -> Chain {
        0
    }
    fn set_chain(_: &Slots<'_, Self>, _: Chain) {}
}

#[allow(clippy::declare_interior_mutable_const, reason = "each use is meant to be a new word")]
impl ConstMachine for Mortal {
    const U8: W8 = W8(std::sync::atomic::AtomicU8::new(0));
    const U16: W16 = W16(std::sync::atomic::AtomicU16::new(0));
    const U32: W32 = W32(std::sync::atomic::AtomicU32::new(0));
    const U64: W64 = W64(AtomicU64::new(0));
}

/// 56 cells to a block and 16 to a batch: lists, spares, depots and new blocks are all used soon.
type Words = [AtomicU64; 120];

fn region() -> Region<Mortal> {
    let options = Options { processes: 4, threads: 4, waiters: 4, limit: 2 << 20, mode: 0o600 };
    Region::heap(&options).unwrap()
}

/// Allocates and frees enough to pass every step of the slab at least twice.
fn work(thread: &Thread<Mortal>, cells: u64) -> Result<(), Error> {
    let mut offsets = Vec::new();
    for _ in 0..cells {
        let cell = ManuallyDrop::new(thread.alloc_dirty::<Words>()?);
        let offset = cell.offset();
        // Noted in an intent word before it is published; the sum stands for a structure.
        offsets.push(offset);
        ManuallyDrop::into_inner(cell).publish();
    }
    for offset in offsets {
        cell::free(thread, offset)?;
    }
    Ok(())
}

/// Deaths before every `step`th store, in both forms.
fn deaths_at(step: usize) -> impl Iterator<Item = (u64, Ahead)> {
    (0..).step_by(step).flat_map(|stores| [Ahead::Never, Ahead::Soon].map(|ahead| (stores, ahead)))
}

/// The number of allocated cells that are neither a dead thread's cell in hand nor a structure's.
fn audit(region: &Region<Mortal>, at: u64) -> u64 {
    let audit = region.audit().unwrap();
    assert!(audit.is_sound(), "died before store {at}: {audit:?}");
    audit.used()
}

#[test]
fn a_thread_dies_before_each_of_its_stores() {
    let mut torn = 0;
    let mut deaths = 0;
    for (stores, ahead) in deaths_at(1) {
        let region = region();
        let killed = region.another().unwrap();
        // A second slot leaves batches in the depots, from which they are then taken.
        let other = region.another().unwrap();
        work(&other.thread().unwrap(), 40).unwrap();
        let mut thread = None;
        let left = live_for(stores, ahead, || {
            let thread = &*thread.insert(killed.thread().unwrap());
            // One at a time, so that at most the cell in hand is allocated at death.
            for _ in 0..2 {
                let cell = ManuallyDrop::new(thread.alloc::<Words>().unwrap());
                drop(ManuallyDrop::into_inner(cell));
            }
            let _ = work(thread, 70);
        });
        killed.die();
        drop(thread);
        torn += u64::from(!region.audit().unwrap().is_sound());
        // Published cells belong to the structure: here, the largest number of cells.
        region.sweep().unwrap();
        let kept = audit(&region, stores);
        assert!(kept <= 70, "{kept} cells in use");
        // All cells can be allocated and freed as before.
        let thread = region.thread().unwrap();
        work(&thread, 200).unwrap();
        assert_eq!(audit(&region, stores), kept);
        deaths += 1;
        if left > 0 {
            assert_eq!(kept, 0, "no thread died, but cells stayed in use");
            break;
        }
    }
    println!("died before each of {deaths} stores; {torn} left a list torn");
    assert!(deaths > 900 && torn > 100, "{deaths} deaths, {torn} torn: the machine does not kill");
}

/// A region in which a thread died in this way.
fn torn(stores: u64, ahead: Ahead) -> Region<Mortal> {
    let region = region();
    let killed = region.another().unwrap();
    work(&region.thread().unwrap(), 40).unwrap();
    let mut thread = None;
    live_for(stores, ahead, || {
        let thread = &*thread.insert(killed.thread().unwrap());
        let cell = ManuallyDrop::new(thread.alloc::<Words>().unwrap());
        drop(ManuallyDrop::into_inner(cell));
        let _ = work(thread, 70);
    });
    killed.die();
    drop(thread);
    region
}

#[test]
fn a_sweeper_dies_before_each_of_its_stores() {
    let (mut deaths, mut sweeps, mut batches) = (0, 0, 0);
    for (stores, ahead) in deaths_at(1).take_while(|(stores, _)| *stores < 1400) {
        // Every 84th death of the first form, and all that leave a batch torn; every death of the
        // second.
        let found = torn(stores, ahead).audit().unwrap();
        let batch = found.lost + found.doubled > 7;
        batches += u64::from(batch);
        if !batch && !stores.is_multiple_of(84) {
            continue;
        }
        for (sweeper_stores, sweeper_ahead) in deaths_at(1) {
            let region = torn(stores, ahead);
            let sweeper = region.another().unwrap();
            let left = live_for(sweeper_stores, sweeper_ahead, || {
                for dead in sweeper.dead_threads().unwrap() {
                    let _ = ManuallyDrop::new(dead.finish(|_| Fate::Free));
                }
            });
            sweeper.die();
            deaths += 1;
            sweeps += region.sweep().unwrap();
            let kept = audit(&region, stores);
            assert!(kept <= 70);
            if left > 0 {
                break;
            }
        }
    }
    println!(
        "{deaths} pairs of deaths, {sweeps} of them swept by the second; {batches} batches torn"
    );
    assert!(deaths > 2_000 && sweeps > 1_000 && batches > 20, "{deaths}, {sweeps}, {batches}");
}

#[test]
fn a_cell_in_hand_is_asked_about_once_at_every_death() {
    let mut asked_ever = 0;
    for (stores, ahead) in deaths_at(1) {
        let region = region();
        let killed = region.another().unwrap();
        let mut noted = Offset::<Words>::NULL;
        let mut thread = None;
        let left = live_for(stores, ahead, || {
            let thread = &*thread.insert(killed.thread().unwrap());
            let cell = ManuallyDrop::new(thread.alloc::<Words>().unwrap());
            noted = cell.offset();
            // The structure: a root with a link to the cell.
            region.root(0).unwrap().store(u64::from(noted.raw()), Release);
            ManuallyDrop::into_inner(cell).publish();
            // Removed from it again, and noted: from then on the cell may be free.
            region.root(1).unwrap().store(1, Release);
            region.root(0).unwrap().store(0, Release);
            let _ = cell::free(thread, noted);
        });
        killed.die();
        let root = region.root(0).unwrap().load(Relaxed);
        let mut asked = 0;
        for dead in region.dead_threads().unwrap() {
            dead.finish(|cell| {
                asked += 1;
                assert_eq!(cell.offset, noted.cast());
                if root == u64::from(cell.offset.raw()) { Fate::Keep } else { Fate::Free }
            })
            .unwrap();
        }
        assert!(asked <= 1);
        asked_ever += asked;
        let (used, leaves) = (audit(&region, stores), region.root(1).unwrap().load(Relaxed) != 0);
        assert!(used == u64::from(root != 0) || leaves && root == 0, "in use exactly if linked");
        if left > 0 {
            break;
        }
    }
    assert!(asked_ever > 100, "asked {asked_ever} times: the payload alone has 120 stores");
}
