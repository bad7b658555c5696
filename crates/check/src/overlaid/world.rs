//! What the words hold in an execution, by address.
//!
//! Words of different sizes may share bytes: a cell is zeroed in words of eight, and used in words
//! of four. So eight bytes are split into *units* of the smallest size in which they were ever
//! used. A load or store of a larger word is one of each of its units; no algorithm may exchange a
//! word that is split.

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

/// What is done to a word.
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

/// Addresses are spread well enough by a multiplication.
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

/// Some bytes that are only used together, in this execution.
struct Unit {
    /// What was stored last.
    value: u64,
    /// The first thread that touched it, while threads are at it.
    first: Option<u8>,
    others: bool,
    stored: bool,
    /// In the threads' part, if it is known to be shared.
    atom: Option<Rc<AtomicU64>>,
}

/// Who does what at present.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// No execution: words are what they are.
    None,
    /// One thread sets the scene, or looks at it.
    One,
    /// Threads of loom's.
    All,
}

type Bell = Rc<(Mutex<()>, Condvar)>;

/// The words of an execution, and what is known of them from others.
pub(super) struct World {
    pub(super) part: Part,
    pub(super) me: u8,
    pub(super) flaw: Flaw,
    /// Naps of each thread that end at once.
    pub(super) naps: [u32; 8],
    /// Where each thread's waiter slots begin.
    pub(super) chains: [Chain; 8],
    units: ByAddress<Unit>,
    bells: ByAddress<Bell>,
    /// What each thread looked at last, and saw there.
    looked: [Option<(usize, u64)>; 8],
    /// Units whose next store wakes those who look at them again and again.
    watched: BTreeSet<usize>,
    /// By eight bytes, the size of their units.
    sizes: ByAddress<usize>,
    /// Units that are shared: as known at the start of the exploration, and by now.
    shared: BTreeSet<usize>,
    found: BTreeSet<usize>,
    /// Whether something was learned that this exploration did not know.
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
            bells: HashMap::default(),
            looked: [None; 8],
            watched: BTreeSet::new(),
            sizes: HashMap::default(),
            shared: BTreeSet::new(),
            found: BTreeSet::new(),
            learned: false,
        }
    }

    /// Forgets what was known of other memory, and plays with a flaw from now on.
    pub(super) fn renew(&mut self, flaw: Flaw) {
        *self = Self { flaw, ..Self::new() };
    }

    /// A new exploration, which knows all that was learned.
    pub(super) fn recall(&mut self) {
        self.shared = self.found.clone();
        self.learned = false;
    }

    pub(super) fn begin(&mut self) {
        self.units.clear();
        self.bells.clear();
        self.naps = [0; 8];
        self.chains = [0; 8];
        self.looked = [None; 8];
        self.watched.clear();
        self.me = 0;
        self.part = Part::One;
    }

    /// The threads' part begins: loom gets the words that they share.
    pub(super) fn open(&mut self) {
        for at in self.shared.clone() {
            let unit = self.unit(at);
            unit.atom = Some(Rc::new(AtomicU64::new(unit.value)));
        }
        self.part = Part::All;
    }

    /// It is over. All threads have ended: there is one value to be read.
    pub(super) fn close(&mut self) {
        self.part = Part::One;
        self.me = 0;
        self.units.values_mut().for_each(|unit| unit.atom = None);
    }

    /// Out of an execution, by its end or by a panic.
    pub(super) fn leave(&mut self) {
        self.part = Part::None;
        self.units.clear();
        self.bells.clear();
    }

    fn bell(&mut self, at: usize) -> Bell {
        self.bells.entry(at).or_default().clone()
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

    /// Whether a unit is loom's; notes who touches it.
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

/// Marks the bells of those who look, beside those of who sleeps: no address is so high.
const WATCH: usize = 1 << 63;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

pub(super) fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(f)
}

/// Does something that loom may answer by running other threads.
fn loomed<R>(f: impl FnOnce() -> R) -> R {
    let me = with(|world| world.me);
    let done = f();
    with(|world| world.me = me);
    done
}

fn cut(value: u64, size: usize) -> u64 {
    if size == 8 { value } else { value & ((1 << (size * 8)) - 1) }
}

/// What lies in memory.
fn lies_at(at: usize, size: usize) -> u64 {
    let word = core::ptr::with_exposed_provenance::<Raw>(at & !7);
    // SAFETY: a word of this machine lies there, in memory that is made of lines of eight bytes;
    // nobody stores to it while there is an execution.
    let whole = unsafe { &*word }.load(Relaxed);
    cut(whole >> (at % 8 * 8), size)
}

/// Does something to a word; none if there is no execution.
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
        // A thread that unwinds does what is left to do by itself.
        if std::thread::panicking() && world.part == Part::All {
            world.unit(at).atom = None;
        }
        let atom = world.touch(at, stores);
        // A relaxed store of what is there orders nothing and shows nothing. Were it one, each word
        // of a zeroed cell would double the executions.
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
        world.watched.remove(&at).then(|| world.bell(at | WATCH))
    });
    if let Some(bell) = watched {
        ring(&bell);
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

/// An exchange that is none.
fn torn(atom: &AtomicU64, old: u64, new: u64) -> Result<u64, u64> {
    // Acquire and Release: what is wrong here is something else.
    let seen = atom.load(Acquire);
    if seen != old {
        return Err(seen);
    }
    atom.store(new, Release);
    Ok(seen)
}

impl Flaw {
    /// The verb with its ordering as a flawed machine does it.
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

/// Whether loom is to be asked.
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
        // SeqCst: half of a pair of fences, as `Machine` says.
        loomed(|| loom::sync::atomic::fence(SeqCst));
    }
}

pub(super) fn heavy_barrier() {
    if all_play().is_some() {
        // SeqCst: the other half.
        loomed(|| loom::sync::atomic::fence(SeqCst));
    }
}

/// Lets others go on, at least until what this thread looked at last is another: looking at the
/// same again and again is one look.
pub(super) fn step_back() {
    if all_play().is_none() {
        return;
    }
    let still = |world: &mut World| {
        let looked = world.looked[world.me as usize % 8];
        looked.filter(|(at, seen)| world.unit(*at).value == *seen)
    };
    let Some((at, _)) = with(|world| still(world)) else {
        // It saw an old value, or nothing.
        return loomed(loom::thread::yield_now);
    };
    let bell = with(|world| world.bell(at | WATCH));
    let rung = loomed(|| bell.0.lock().unwrap());
    if with(|world| still(world).map(|_| world.watched.insert(at))).is_some() {
        loomed(|| drop(bell.1.wait(rung).unwrap()));
    } else {
        loomed(|| drop(rung));
    }
}

fn ring(bell: &Bell) {
    loomed(|| {
        let rung = bell.0.lock().unwrap();
        bell.1.notify_all();
        drop(rung);
    });
}

pub(super) fn wait(at: *const u8, same: impl Fn() -> bool, deadline: Option<Deadline>) -> Waited {
    if all_play().is_none() {
        return Waited::TimedOut;
    }
    if !with(|world| world.unit(at.addr()).atom.is_some()) {
        // Nobody else knows the word: this is a pause.
        loomed(loom::thread::yield_now);
        return Waited::TimedOut;
    }
    let bell = with(|world| world.bell(at.addr()));
    let rung = loomed(|| bell.0.lock().unwrap());
    if !same() {
        loomed(|| drop(rung));
        return Waited::Woken;
    }
    let short = with(|world| {
        let naps = &mut world.naps[world.me as usize % 8];
        let short = deadline.is_some() && *naps > 0;
        *naps -= u32::from(short);
        short
    });
    if short || deadline.is_some_and(|deadline| deadline.at == 0) {
        loomed(|| drop(rung));
        return Waited::TimedOut;
    }
    loomed(|| drop(bell.1.wait(rung).unwrap()));
    Waited::Woken
}

pub(super) fn wake(at: *const u8) {
    if all_play().is_some_and(|flaw| flaw != Flaw::Deaf) {
        ring(&with(|world| world.bell(at.addr())));
    }
}
