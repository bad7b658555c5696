//! The values of words in an execution, by address.
//!
//! Words of different sizes may share bytes: a cell is zeroed in words of eight bytes and used in
//! words of four. Eight bytes are therefore split into *units* of the smallest size used so far. A
//! load or store of a larger word accesses each of its units. No algorithm may exchange a word that
//! is split.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::atomic::AtomicU64 as Raw;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};

use latchwork_machine::{Chain, Deadline, Waited};
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};

use super::learn::Flaw;

/// An operation on a word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    Load(Ordering),
    Store(u64, Ordering),
    Swap(u64, Ordering),
    Exchange(u64, u64, Ordering, Ordering),
    Add(u64, Ordering),
    Or(u64, Ordering),
    And(u64, Ordering),
}

/// A multiplication spreads addresses well enough.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        panic!("addresses only")
    }
    fn write_usize(&mut self, address: usize) {
        let product = u128::from(address as u64) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

pub(super) type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<Spread>>;

/// Bytes that are only used together in this execution.
struct Unit {
    /// The last value stored.
    value: u64,
    /// The first thread that accessed it in the concurrent part.
    first: Option<u8>,
    others: bool,
    stored: bool,
    /// Loom's atomic, in the concurrent part, if the unit is known to be shared.
    atom: Option<Rc<AtomicU64>>,
}

/// The part of the execution.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// No execution: words are plain memory.
    None,
    /// One thread prepares or inspects.
    One,
    /// Loom's threads run.
    All,
}

type WakeList = Rc<(Mutex<()>, Condvar)>;

/// The words of an execution, and knowledge from earlier ones.
pub(super) struct World {
    pub(super) part: Part,
    pub(super) me: u8,
    pub(super) flaw: Flaw,
    /// Naps of each thread that end at once.
    pub(super) naps: [u32; 8],
    /// The first waiter slot of each thread.
    pub(super) chains: [Chain; 8],
    units: ByAddress<Unit>,
    wake_lists: ByAddress<WakeList>,
    /// The last unit that each thread loaded, and its value.
    looked: [Option<(usize, u64)>; 8],
    /// Units whose next store wakes the threads that poll them.
    watched: BTreeSet<usize>,
    /// The unit size of each eight bytes.
    sizes: ByAddress<usize>,
    /// The shared units: at the start of the exploration, and now.
    shared: BTreeSet<usize>,
    found: BTreeSet<usize>,
    /// Whether this exploration learned something.
    pub(super) learned: bool,
}

impl World {
    fn new() -> Self {
        Self {
            part: Part::None,
            me: 0,
            flaw: Flaw::None,
            naps: [0; 8],
            chains: [0; 8],
            units: HashMap::default(),
            wake_lists: HashMap::default(),
            looked: [None; 8],
            watched: BTreeSet::new(),
            sizes: HashMap::default(),
            shared: BTreeSet::new(),
            found: BTreeSet::new(),
            learned: false,
        }
    }

    /// Forgets earlier memory and uses a flaw from now on.
    pub(super) fn renew(&mut self, flaw: Flaw) {
        *self = Self { flaw, ..Self::new() };
    }

    /// Starts an exploration with all that was learned.
    pub(super) fn recall(&mut self) {
        self.shared = self.found.clone();
        self.learned = false;
    }

    pub(super) fn begin(&mut self) {
        self.units.clear();
        self.wake_lists.clear();
        self.naps = [0; 8];
        self.chains = [0; 8];
        self.looked = [None; 8];
        self.watched.clear();
        self.me = 0;
        self.part = Part::One;
    }

    /// Starts the concurrent part: creates loom's atomics for shared units.
    pub(super) fn open(&mut self) {
        for at in self.shared.clone() {
            let unit = self.unit(at);
            unit.atom = Some(Rc::new(AtomicU64::new(unit.value)));
        }
        self.part = Part::All;
    }

    /// Ends the concurrent part. All threads have ended, so each unit has one value.
    pub(super) fn close(&mut self) {
        self.part = Part::One;
        self.me = 0;
        self.units.values_mut().for_each(|unit| unit.atom = None);
    }

    /// Leaves an execution, at its end or by a panic.
    pub(super) fn leave(&mut self) {
        self.part = Part::None;
        self.units.clear();
        self.wake_lists.clear();
    }

    fn wake_list(&mut self, at: usize) -> WakeList {
        self.wake_lists.entry(at).or_default().clone()
    }

    fn size(&self, at: usize) -> usize {
        self.sizes.get(&(at & !7)).copied().unwrap_or(8)
    }

    fn unit(&mut self, at: usize) -> &mut Unit {
        let size = self.size(at);
        self.units.entry(at).or_insert_with(|| Unit {
            value: lies_at(at, size),
            first: None,
            others: false,
            stored: false,
            atom: None,
        })
    }

    /// Splits eight bytes into smaller units.
    fn split(&mut self, at: usize, size: usize) {
        let (base, old) = (at & !7, self.size(at));
        for unit in (base..base + 8).step_by(old) {
            let value = self.units.remove(&unit).map(|unit| unit.value);
            let was_shared = self.found.remove(&unit);
            for at in (unit..unit + old).step_by(size) {
                if let Some(value) = value {
                    let value = cut(value >> ((at - unit) * 8), size);
                    let part = Unit {
                        value,
                        first: Some(self.me),
                        others: true,
                        stored: false,
                        atom: None,
                    };
                    self.units.insert(at, part);
                }
                if was_shared {
                    self.found.insert(at);
                    self.learned = true;
                }
            }
        }
        self.sizes.insert(base, size);
    }

    /// The unit's atomic, if it is shared. Records the access.
    fn touch(&mut self, at: usize, stores: bool) -> Option<Rc<AtomicU64>> {
        let (part, me) = (self.part, self.me);
        let unit = self.unit(at);
        if part != Part::All {
            return None;
        }
        if unit.atom.is_some() {
            return unit.atom.clone();
        }
        unit.others |= unit.first.is_some_and(|first| first != me);
        unit.first.get_or_insert(me);
        unit.stored |= stores;
        if unit.others && unit.stored {
            self.found.insert(at);
            self.learned = true;
        }
        None
    }
}

/// Distinguishes the wake lists of polling threads from those of sleeping ones. No address is this
/// high.
const WATCH: usize = 1 << 63;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

pub(super) fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(f)
}

/// Calls loom, which may run other threads in between.
fn loomed<R>(f: impl FnOnce() -> R) -> R {
    let me = with(|world| world.me);
    let done = f();
    with(|world| world.me = me);
    done
}

fn cut(value: u64, size: usize) -> u64 {
    if size == 8 { value } else { value & ((1 << (size * 8)) - 1) }
}

/// The bytes in memory.
fn lies_at(at: usize, size: usize) -> u64 {
    let word = core::ptr::with_exposed_provenance::<Raw>(at & !7);
    // SAFETY: a word of this machine, in memory of lines of eight bytes; no thread stores to it
    // during an execution.
    let whole = unsafe { &*word }.load(Relaxed);
    cut(whole >> (at % 8 * 8), size)
}

/// Runs an operation on a word. `None` outside of an execution.
pub(super) fn access(at: *const u8, size: usize, verb: Verb) -> Option<Result<u64, u64>> {
    let at = at.expose_provenance();
    let unit = with(|world| {
        if world.part == Part::None {
            return None;
        }
        match world.sizes.get(&(at & !7)) {
            None => _ = world.sizes.insert(at & !7, size),
            Some(known) if *known > size => world.split(at, size),
            Some(_) => {}
        }
        Some(world.size(at))
    })?;
    if unit == size {
        return Some(do_unit(at, size, verb));
    }
    let mut seen = 0;
    for (place, part) in (at..at + size).step_by(unit).enumerate() {
        let shift = place * unit * 8;
        match verb {
            Verb::Load(_) => seen |= do_unit(part, unit, verb).unwrap_or(0) << shift,
            Verb::Store(value, order) => {
                let _ = do_unit(part, unit, Verb::Store(cut(value >> shift, unit), order));
            }
            _ => panic!("a word that is exchanged, and used in parts"),
        }
    }
    Some(Ok(seen))
}

fn do_unit(at: usize, size: usize, verb: Verb) -> Result<u64, u64> {
    let stores = !matches!(verb, Verb::Load(_));
    let (atom, flaw) = with(|world| {
        // A thread that unwinds runs alone.
        if std::thread::panicking() && world.part == Part::All {
            world.unit(at).atom = None;
        }
        let atom = world.touch(at, stores);
        // A relaxed store of the present value orders nothing and shows nothing. As a store, each
        // word of a zeroed cell would double the executions.
        let idle = matches!(verb, Verb::Store(new, Relaxed) if new == world.unit(at).value);
        (atom.filter(|_| !idle), world.flaw)
    });
    let Some(atom) = atom else {
        return with(|world| {
            let unit = world.unit(at);
            let (next, done) = apply(unit.value, verb);
            unit.value = cut(next, size);
            done
        });
    };
    let done = loomed(|| match verb {
        Verb::Exchange(old, new, ..) if flaw == Flaw::Torn => torn(&atom, old, new),
        _ => on_atom(&atom, flaw.weaken(verb)),
    });
    let watched = with(|world| {
        let (Ok(seen), true) = (done, stores) else {
            let seen = done.unwrap_or_else(|seen| seen);
            world.looked[world.me as usize % 8] = Some((at, cut(seen, size)));
            return None;
        };
        world.unit(at).value = cut(apply(seen, verb).0, size);
        world.watched.remove(&at).then(|| world.wake_list(at | WATCH))
    });
    if let Some(wake_list) = watched {
        wake_all(&wake_list);
    }
    done.map(|seen| cut(seen, size)).map_err(|seen| cut(seen, size))
}

fn apply(value: u64, verb: Verb) -> (u64, Result<u64, u64>) {
    match verb {
        Verb::Load(_) => (value, Ok(value)),
        Verb::Store(new, _) | Verb::Swap(new, _) => (new, Ok(value)),
        Verb::Exchange(old, new, ..) if old == value => (new, Ok(value)),
        Verb::Exchange(..) => (value, Err(value)),
        Verb::Add(more, _) => (value.wrapping_add(more), Ok(value)),
        Verb::Or(bits, _) => (value | bits, Ok(value)),
        Verb::And(bits, _) => (value & bits, Ok(value)),
    }
}

fn on_atom(atom: &AtomicU64, verb: Verb) -> Result<u64, u64> {
    match verb {
        Verb::Load(order) => Ok(atom.load(order)),
        Verb::Store(value, order) => {
            atom.store(value, order);
            Ok(0)
        }
        Verb::Swap(value, order) => Ok(atom.swap(value, order)),
        Verb::Exchange(old, new, success, failure) => {
            atom.compare_exchange(old, new, success, failure)
        }
        Verb::Add(value, order) => Ok(atom.fetch_add(value, order)),
        Verb::Or(bits, order) => Ok(atom.fetch_or(bits, order)),
        Verb::And(bits, order) => Ok(atom.fetch_and(bits, order)),
    }
}

/// A compare-exchange that is not atomic.
fn torn(atom: &AtomicU64, old: u64, new: u64) -> Result<u64, u64> {
    // Acquire and Release: the flaw is elsewhere.
    let seen = atom.load(Acquire);
    if seen != old {
        return Err(seen);
    }
    atom.store(new, Release);
    Ok(seen)
}

impl Flaw {
    /// The operation with the ordering of a flawed machine.
    fn weaken(self, verb: Verb) -> Verb {
        let weak = |order: Ordering| match (self, order) {
            // Relaxed: that is the flaw.
            (Flaw::Lax, _) => Relaxed,
            _ => order,
        };
        match verb {
            Verb::Load(order) => Verb::Load(weak(order)),
            Verb::Store(value, order) => Verb::Store(value, weak(order)),
            Verb::Swap(value, order) => Verb::Swap(value, weak(order)),
            Verb::Exchange(old, new, success, failure) => {
                Verb::Exchange(old, new, weak(success), weak(failure))
            }
            Verb::Add(value, order) => Verb::Add(value, weak(order)),
            Verb::Or(bits, order) => Verb::Or(bits, weak(order)),
            Verb::And(bits, order) => Verb::And(bits, weak(order)),
        }
    }
}

/// The flaw, in the concurrent part.
fn all_play() -> Option<Flaw> {
    let (part, flaw) = with(|world| (world.part, world.flaw));
    (part == Part::All && !std::thread::panicking()).then_some(flaw)
}

pub(super) fn fence(order: Ordering) {
    if all_play().is_some_and(|flaw| flaw != Flaw::Unfenced) {
        loomed(|| loom::sync::atomic::fence(order));
    }
}

pub(super) fn light_barrier() {
    if all_play().is_some_and(|flaw| flaw != Flaw::Hasty) {
        // SeqCst: one of a pair of fences, as required by `Machine`.
        loomed(|| loom::sync::atomic::fence(SeqCst));
    }
}

pub(super) fn heavy_barrier() {
    if all_play().is_some() {
        // SeqCst: the other fence.
        loomed(|| loom::sync::atomic::fence(SeqCst));
    }
}

/// Lets other threads run, at least until the unit loaded last changes. Repeated polling counts as
/// one load.
pub(super) fn step_back() {
    if all_play().is_none() {
        return;
    }
    let still = |world: &mut World| {
        let looked = world.looked[world.me as usize % 8];
        looked.filter(|(at, seen)| world.unit(*at).value == *seen)
    };
    let Some((at, _)) = with(|world| still(world)) else {
        // It loaded an old value, or nothing.
        return loomed(loom::thread::yield_now);
    };
    let wake_list = with(|world| world.wake_list(at | WATCH));
    let guard = loomed(|| wake_list.0.lock().unwrap());
    if with(|world| still(world).map(|_| world.watched.insert(at))).is_some() {
        loomed(|| drop(wake_list.1.wait(guard).unwrap()));
    } else {
        loomed(|| drop(guard));
    }
}

fn wake_all(wake_list: &WakeList) {
    loomed(|| {
        let guard = wake_list.0.lock().unwrap();
        wake_list.1.notify_all();
        drop(guard);
    });
}

pub(super) fn wait(at: *const u8, same: impl Fn() -> bool, deadline: Option<Deadline>) -> Waited {
    if all_play().is_none() {
        return Waited::TimedOut;
    }
    if !with(|world| world.unit(at.addr()).atom.is_some()) {
        // No other thread knows the word: this is a pause.
        loomed(loom::thread::yield_now);
        return Waited::TimedOut;
    }
    let wake_list = with(|world| world.wake_list(at.addr()));
    let guard = loomed(|| wake_list.0.lock().unwrap());
    if !same() {
        loomed(|| drop(guard));
        return Waited::Woken;
    }
    let short = with(|world| {
        let naps = &mut world.naps[world.me as usize % 8];
        let short = deadline.is_some() && *naps > 0;
        *naps -= u32::from(short);
        short
    });
    if short || deadline.is_some_and(|deadline| deadline.at == 0) {
        loomed(|| drop(guard));
        return Waited::TimedOut;
    }
    loomed(|| drop(wake_list.1.wait(guard).unwrap()));
    Waited::Woken
}

pub(super) fn wake(at: *const u8) {
    if all_play().is_some_and(|flaw| flaw != Flaw::Deaf) {
        wake_all(&with(|world| world.wake_list(at.addr())));
    }
}
