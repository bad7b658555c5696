//! The host as a machine: what its cores and the ways between them cost.
//!
//! Two threads, each pinned to a cpu. One brings some lines into a state; the other walks them, each
//! access waiting for the one before it, in an order that no prefetcher guesses. So a figure is what
//! the requesting core waits, as the simulator means it. Also two cores that pass one line to and
//! fro by compare-and-swap, as core-to-core-latency does, which no figure of the model is made of:
//! it is written down for comparison.
//!
//! Every figure is the median of many rounds, so other programs that run now and then do no harm.

use std::fmt;
use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::Instant;

use latchwork_machine::{Place, Topology};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::spec::Spec;

/// Whose figures are borrowed: the machine that the model was fitted on.
const LIKE: &str = "westmere-ex-80";
/// Lines that are walked in a round.
const LINES: usize = 128;
/// Rounds for each figure of a pair of cpus.
const ROUNDS: usize = 101;
/// Pairs of cpus that are measured at each distance.
const PAIRS: usize = 4;

static SYSFS: Topology = Topology::at("/sys/devices/system");

/// What a walk finds and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    LoadModified,
    LoadExclusive,
    LoadMemory,
    StoreModified,
    StoreExclusive,
    StoreShared,
    AtomicModified,
    AtomicShared,
    Handover,
}

use Case::*;

/// All, with the keys that they have in a machine's file.
const CASES: &[(Case, &str)] = &[
    (LoadModified, "load.modified"),
    (LoadExclusive, "load.exclusive"),
    (LoadMemory, "load.memory"),
    (StoreModified, "store.modified"),
    (StoreExclusive, "store.exclusive"),
    (StoreShared, "store.shared"),
    (AtomicModified, "atomic.modified"),
    (AtomicShared, "atomic.shared"),
    (Handover, "handover"),
];

/// Whether lines can be pushed out of all caches, which two of the states need.
const FLUSHES: bool = cfg!(target_arch = "x86_64");

impl Case {
    fn can_be_measured(self) -> bool {
        FLUSHES || !matches!(self, LoadExclusive | LoadMemory | StoreExclusive)
    }
}

/// What was found out about this host.
#[derive(Clone, Debug)]
pub struct Probe {
    title: String,
    ghz: f64,
    l1: f64,
    atomic_hit: f64,
    pause: f64,
    shape: Shape,
    /// Nanoseconds of each case at each distance, with the number of pairs that it is of; none
    /// where there is no such pair or no way to measure it.
    figures: Vec<(Case, &'static str, Vec<Option<f64>>)>,
    pairs: Vec<usize>,
}

/// Cpus by where they are, as regular as a machine's file has to be.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    sockets: usize,
    caches: usize,
    cores: usize,
    smt: usize,
    /// Hops between sockets.
    hops: Vec<Vec<u8>>,
    /// The sockets are not all alike, and were taken for the largest.
    uneven: bool,
}

/// Measures this host. Takes some seconds, and both of two cpus at a time.
///
/// # Errors
///
/// If the system does not say or does not let us choose where a thread runs.
pub fn probe() -> io::Result<Probe> {
    let cpus = allowed()?;
    let places: Vec<(usize, Place)> = cpus.iter().map(|cpu| (*cpu, SYSFS.place_of(*cpu))).collect();
    let shape = Shape::of(&places, numa_distance);
    let alone = alone(cpus[0])?;
    let distances = shape.distances();
    let mut figures: Vec<_> =
        CASES.iter().map(|(case, key)| (*case, *key, vec![None; distances])).collect();
    let mut pairs = Vec::new();
    for distance in 0..distances {
        let there = shape.pairs(&places, distance);
        for (case, _, row) in figures.iter_mut().filter(|(case, ..)| case.can_be_measured()) {
            let mut all = Vec::new();
            for (a, b) in &there {
                all.push(Couple::measure(*case, *a, *b)?);
            }
            row[distance] = (!all.is_empty()).then(|| median(&mut all));
        }
        pairs.push(there.len());
    }
    Ok(Probe {
        title: title(cpus.len()),
        ghz: alone.ghz,
        l1: alone.l1,
        atomic_hit: alone.atomic_hit,
        pause: alone.pause,
        shape,
        figures,
        pairs,
    })
}

/// The cpus that this program may use.
fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn title(cpus: usize) -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model);
    let model: String = model.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).collect();
    format!("{model}, {cpus} cpus")
}

/// What the kernel says about how far a node is from another.
fn numa_distance(from: u32, to: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/node/node{from}/distance"));
    text.ok()?.split_whitespace().nth(to as usize)?.parse().ok()
}

impl Shape {
    fn of(places: &[(usize, Place)], distance: impl Fn(u32, u32) -> Option<u32>) -> Self {
        let socket = |place: &Place| place.socket().unwrap_or(0);
        let mut sockets: Vec<(u32, u32)> = places.iter().map(|(_, p)| (socket(p), p.node())).collect();
        sockets.sort_unstable();
        sockets.dedup_by_key(|(socket, _)| *socket);
        // The most of what there is: groups of `outer`, each with how many of `inner`.
        let most = |outer: &dyn Fn(&Place) -> u64, inner: &dyn Fn(&Place, usize) -> u64| {
            let mut all: Vec<_> = places.iter().map(|(cpu, p)| (outer(p), inner(p, *cpu))).collect();
            all.sort_unstable();
            all.dedup();
            let sizes: Vec<_> = all.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
            let (low, high) = (sizes.iter().min(), sizes.iter().max());
            (high.copied().unwrap_or(1), low != high)
        };
        let whole = |place: &Place| u64::from(socket(place));
        let cache = |place: &Place| u64::from(socket(place)) << 32 | u64::from(place.cache());
        let core = |place: &Place| u64::from(place.core());
        let (mut caches, a) = most(&whole, &|place, _| cache(place));
        let (mut cores, b) = most(&cache, &|place, _| core(place));
        let (smt, c) = most(&core, &|_, cpu| cpu as u64);
        if cores == 1 {
            // A cache that no other core shares is no level of its own.
            (caches, cores) = (1, caches);
        }
        let far = |(a, from): (u32, u32), (b, to): (u32, u32)| match a == b {
            true => 0,
            false => distance(from, to).unwrap_or(20).max(11),
        };
        let mut steps: Vec<u32> =
            sockets.iter().flat_map(|a| sockets.iter().map(move |b| far(*a, *b))).collect();
        steps.sort_unstable();
        steps.dedup();
        let hop = |a, b| steps.iter().position(|step| *step == far(a, b).max(far(b, a)));
        let row = |a: &(u32, u32)| sockets.iter().map(|b| hop(*a, *b).unwrap_or(1).min(8) as u8).collect();
        let hops = sockets.iter().map(row).collect();
        Self { sockets: sockets.len(), caches, cores, smt, hops, uneven: a || b || c }
    }

    fn most_hops(&self) -> usize {
        self.hops.iter().flatten().copied().max().unwrap_or(0).into()
    }

    fn distances(&self) -> usize {
        1 + usize::from(self.caches > 1) + self.most_hops()
    }

    /// Some pairs of cpus of different cores that are so far from each other.
    fn pairs(&self, places: &[(usize, Place)], distance: usize) -> Vec<(usize, usize)> {
        let mut sockets: Vec<_> = places.iter().map(|(_, place)| place.socket()).collect();
        sockets.sort_unstable();
        sockets.dedup();
        let number = |place: &Place| sockets.binary_search(&place.socket()).unwrap_or(0);
        let levels = usize::from(self.caches > 1);
        let between = |a: &Place, b: &Place| match self.hops[number(a)][number(b)] {
            0 if levels == 0 || a.cache() == b.cache() => 0,
            0 => 1,
            hops => levels + usize::from(hops),
        };
        let mut found = Vec::new();
        for (at, (a, here)) in places.iter().enumerate() {
            let others = places[at + 1..].iter().filter(|(_, there)| there.core() != here.core());
            found.extend(
                others.filter(|(_, there)| between(here, there) == distance).map(|(b, _)| (*a, *b)),
            );
        }
        // From all over the machine.
        let step = (found.len() / PAIRS).max(1);
        found.into_iter().step_by(step).take(PAIRS).collect()
    }
}

/// A line, and two more that keep the neighbours' prefetching off it.
#[repr(align(64))]
struct Line {
    next: AtomicPtr<Line>,
    word: AtomicU64,
    _apart: [u64; 22],
}

/// Lines linked in a circle, in an order without a pattern.
struct Circle {
    lines: Box<[Line]>,
}

impl Circle {
    fn new() -> Self {
        let line = |_| Line { next: AtomicPtr::default(), word: AtomicU64::new(0), _apart: [0; 22] };
        let lines: Box<[Line]> = (0..LINES).map(line).collect();
        let mut order: Vec<usize> = (0..LINES).collect();
        let mut dice = 0x9e37_79b9_7f4a_7c15u64;
        for at in (1..LINES).rev() {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            order.swap(at, (dice % (at as u64 + 1)) as usize);
        }
        for at in 0..LINES {
            let next = core::ptr::from_ref(&lines[order[(at + 1) % LINES]]).cast_mut();
            // Relaxed: whoever walks was started, or told, after this.
            lines[order[at]].next.store(next, Ordering::Relaxed);
        }
        Self { lines }
    }

    /// Goes round once, by what `visit` says is next, and returns where it came to.
    #[inline]
    fn walk(&self, visit: impl Fn(&Line) -> *mut Line) -> *mut Line {
        let mut at = core::ptr::from_ref(&self.lines[0]).cast_mut();
        for _ in 0..LINES {
            // SAFETY: `new` linked each line to one of `lines`, nobody changes a link, and all are
            // atomics that `self` keeps alive.
            at = visit(unsafe { &*at });
        }
        black_box(at)
    }

    fn load(&self) {
        self.walk(|line| line.next.load(Ordering::Relaxed));
    }

    fn modify(&self) {
        self.lines.iter().for_each(|line| line.word.store(1, Ordering::Relaxed));
    }

    /// Stores, each seen by all before the next is begun.
    fn store(&self) {
        for at in 0..LINES {
            let line = &self.lines[(at * 45) % LINES];
            line.word.store(at as u64, Ordering::Relaxed);
            // SeqCst: waits until the store has its line; its partner is the clock.
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// Adds nothing, each time to the link that names the next line.
    fn atomic(&self) {
        let nothing = black_box(0u64);
        let mut seen = 0;
        for at in 0..LINES {
            let line = &self.lines[(at * 45 + (seen & nothing) as usize) % LINES];
            seen = line.word.fetch_add(1, Ordering::Relaxed);
        }
        black_box(seen);
    }

    #[cfg(target_arch = "x86_64")]
    fn flush(&self) {
        for line in &self.lines {
            // SAFETY: flushing a line of our own changes nothing but where it is kept.
            unsafe { core::arch::x86_64::_mm_clflush(core::ptr::from_ref(line).cast()) };
        }
        // SAFETY: a fence has no conditions.
        unsafe { core::arch::x86_64::_mm_mfence() };
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn flush(&self) {}
}

/// Two threads that take turns on a circle.
struct Couple {
    circle: Circle,
    turn: Padded,
}

#[repr(align(128))]
struct Padded(AtomicUsize);

impl Couple {
    /// Nanoseconds of one access of `walker` after `owner` has prepared: the median round's.
    fn measure(case: Case, owner: usize, walker: usize) -> io::Result<f64> {
        let couple = Self { circle: Circle::new(), turn: Padded(AtomicUsize::new(0)) };
        let work = |owns: bool, cpu: usize| -> io::Result<Vec<f64>> {
            // Tell the other even if this fails, or it would wait for ever.
            let pinned = pin(cpu);
            let times = if case == Handover { couple.hand_over(owns) } else { couple.rounds(case, owns) };
            pinned.map(|()| times)
        };
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| work(true, owner));
            let second = scope.spawn(|| work(false, walker));
            (first.join().expect("no panic"), second.join().expect("no panic"))
        });
        first?;
        Ok(median(&mut second?))
    }

    fn wait_for(&self, turn: usize) {
        let mut looks = 0u32;
        // Acquire: synchronizes with the Release in `done`.
        while self.turn.0.load(Ordering::Acquire) != turn {
            looks += 1;
            // The other may be kept from its cpu by other programs.
            if looks % 4096 == 0 { yield_now() } else { spin_loop() }
        }
    }

    fn done(&self, turn: usize) {
        // Release: synchronizes with the Acquire in `wait_for`.
        self.turn.0.store(turn + 1, Ordering::Release);
    }

    fn rounds(&self, case: Case, owns: bool) -> Vec<f64> {
        let circle = &self.circle;
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let turn = round * 4;
            if owns {
                self.wait_for(turn);
                match case {
                    LoadExclusive | StoreExclusive => {
                        circle.flush();
                        circle.load();
                    }
                    LoadMemory => {
                        circle.modify();
                        circle.flush();
                    }
                    _ => circle.modify(),
                }
                self.done(turn);
                self.wait_for(turn + 2);
                if matches!(case, StoreShared | AtomicShared) {
                    circle.load();
                }
                self.done(turn + 2);
            } else {
                self.wait_for(turn + 1);
                if matches!(case, StoreShared | AtomicShared) {
                    circle.load();
                }
                self.done(turn + 1);
                self.wait_for(turn + 3);
                times.push(per_line(|| case.access(circle)) - baseline(case, circle));
                self.done(turn + 3);
            }
        }
        times
    }

    fn hand_over(&self, owns: bool) -> Vec<f64> {
        const TIMES: usize = 64;
        let mut times = Vec::new();
        let mine = usize::from(!owns);
        for _ in 0..ROUNDS {
            let started = Instant::now();
            for _ in 0..TIMES {
                let mut looks = 0u32;
                let swap = || {
                    let word = &self.turn.0;
                    // Relaxed: the word is all that is passed on.
                    word.compare_exchange(mine, 1 - mine, Ordering::Relaxed, Ordering::Relaxed)
                };
                while swap().is_err() {
                    looks += 1;
                    if looks.is_multiple_of(4096) {
                        yield_now();
                    }
                }
            }
            times.push(started.elapsed().as_nanos() as f64 / (2 * TIMES) as f64);
        }
        times
    }
}

impl Case {
    fn access(self, circle: &Circle) {
        match self {
            LoadModified | LoadExclusive | LoadMemory => circle.load(),
            StoreModified | StoreExclusive | StoreShared => circle.store(),
            AtomicModified | AtomicShared | Handover => circle.atomic(),
        }
    }
}

/// What a store costs that finds its line at hand, but for a cycle or two: the fence after it.
fn baseline(case: Case, circle: &Circle) -> f64 {
    match case {
        StoreModified | StoreExclusive | StoreShared => per_line(|| circle.store()),
        _ => 0.0,
    }
}

fn per_line(walk: impl FnOnce()) -> f64 {
    let started = Instant::now();
    walk();
    started.elapsed().as_nanos() as f64 / LINES as f64
}

/// What a core does without others.
struct Alone {
    ghz: f64,
    l1: f64,
    atomic_hit: f64,
    pause: f64,
}

fn alone(cpu: usize) -> io::Result<Alone> {
    let measure = || -> io::Result<Alone> {
        pin(cpu)?;
        let circle = Circle::new();
        let quickest = |what: &dyn Fn(), times: usize| {
            let one = |_| {
                let started = Instant::now();
                (0..times).for_each(|_| what());
                started.elapsed().as_nanos() as f64 / times as f64
            };
            // Whatever disturbs makes it slower.
            (0..ROUNDS).map(one).fold(f64::MAX, f64::min)
        };
        // Six instructions that wait for each other, a cycle each, whatever the processor.
        let chain = || {
            let mut x = black_box(88_172_645_463_325_252u64);
            for _ in 0..10_000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            black_box(x);
        };
        let ghz = 60_000.0 / quickest(&chain, 1);
        let lines = LINES as f64;
        Ok(Alone {
            ghz,
            l1: quickest(&|| circle.load(), 32) / lines * ghz,
            atomic_hit: quickest(&|| circle.atomic(), 32) / lines * ghz,
            pause: quickest(&spin_loop, 1000) * ghz,
        })
    };
    std::thread::scope(|scope| scope.spawn(measure).join().expect("no panic"))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
