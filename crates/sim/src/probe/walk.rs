//! Measuring with two threads and some lines: the cost of an access whose line is elsewhere.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Lines that are walked in a round.
const LINES: usize = 128;
/// Rounds for each figure of a pair of cpus.
const ROUNDS: usize = 101;

/// The state and the access that a walk measures. Not stores: the store buffer hides their cost,
/// and a fence that waits for them costs more than they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    LoadModified,
    LoadExclusive,
    LoadMemory,
    AtomicModified,
    AtomicShared,
    Handover,
}

use Case::*;

/// All cases, with their keys in a machine's file.
pub(super) const CASES: &[(Case, &str)] = &[
    (LoadModified, "load.modified"),
    (LoadExclusive, "load.exclusive"),
    (LoadMemory, "load.memory"),
    (AtomicModified, "atomic.modified"),
    (AtomicShared, "atomic.shared"),
    (Handover, "handover"),
];

/// Whether lines can be flushed from all caches, which two of the states need.
const FLUSHES: bool = cfg!(target_arch = "x86_64");

impl Case {
    pub(super) fn can_be_measured(self) -> bool {
        FLUSHES || !matches!(self, LoadExclusive | LoadMemory)
    }
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(super::refused)
}

/// A line that is walked, in its first 64 bytes, and two more lines that keep prefetching of the
/// neighbours away from it.
#[repr(C, align(64))]
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
        let line =
            |_| Line { next: AtomicPtr::default(), word: AtomicU64::new(0), _apart: [0; 22] };
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
            // Relaxed: threads that walk were started or signalled after this.
            lines[order[at]].next.store(next, Ordering::Relaxed);
        }
        Self { lines }
    }

    /// Walks the circle once, following `visit`, and returns the last position.
    #[inline]
    fn walk(&self, visit: impl Fn(&Line) -> *mut Line) -> *mut Line {
        let mut at = core::ptr::from_ref(&self.lines[0]).cast_mut();
        for _ in 0..LINES {
            // SAFETY: `new` linked each line to one of `lines`, no thread changes a link, and all
            // are atomics that `self` keeps alive.
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

    /// Adds to a word, whose result determines the next position.
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
            // SAFETY: flushing a line of our own changes only where it is cached.
            unsafe { core::arch::x86_64::_mm_clflush(core::ptr::from_ref(line).cast()) };
        }
        // SAFETY: a fence has no conditions.
        unsafe { core::arch::x86_64::_mm_mfence() };
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn flush(&self) {}
}

/// Two threads that take turns on a circle of lines.
pub(super) struct Couple {
    circle: Circle,
    turn: Padded,
}

#[repr(align(128))]
struct Padded(AtomicUsize);

impl Couple {
    /// Measures one access of `walker` after `owner` has prepared the lines, in nanoseconds: the
    /// median of the rounds.
    pub(super) fn measure(case: Case, owner: usize, walker: usize) -> io::Result<f64> {
        // Created by a thread on the owner's cpu, so that the lines have their home there.
        let circle = std::thread::scope(|scope| {
            let circle = || pin(owner).map(|()| Circle::new());
            scope.spawn(circle).join().expect("no panic")
        });
        let couple = Self { circle: circle?, turn: Padded(AtomicUsize::new(0)) };
        let work = |owns: bool, cpu: usize| -> io::Result<Vec<f64>> {
            // Runs even if pinning fails; otherwise the other thread would wait forever.
            let pinned = pin(cpu);
            let times =
                if case == Handover { couple.hand_over(owns) } else { couple.rounds(case, owns) };
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
            // Other programs may keep the other thread from its cpu.
            if looks.is_multiple_of(4096) { yield_now() } else { spin_loop() }
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
                    LoadExclusive => {
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
                if case == AtomicShared {
                    circle.load();
                }
                self.done(turn + 2);
            } else {
                self.wait_for(turn + 1);
                if case == AtomicShared {
                    circle.load();
                }
                self.done(turn + 1);
                self.wait_for(turn + 3);
                times.push(per_line(|| case.access(circle)));
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
                    // Relaxed: the word itself is all that is passed on.
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
            AtomicModified | AtomicShared | Handover => circle.atomic(),
        }
    }
}

fn per_line(walk: impl FnOnce()) -> f64 {
    let started = Instant::now();
    walk();
    started.elapsed().as_nanos() as f64 / LINES as f64
}

/// Costs of a core without contention.
pub(super) struct Alone {
    pub(super) ghz: f64,
    pub(super) l1: f64,
    pub(super) atomic_hit: f64,
    pub(super) pause: f64,
}

pub(super) fn alone(cpu: usize) -> io::Result<Alone> {
    let measure = || -> io::Result<Alone> {
        pin(cpu)?;
        let circle = Circle::new();
        let quickest = |what: &dyn Fn(), times: usize| {
            let one = |_| {
                let started = Instant::now();
                (0..times).for_each(|_| what());
                started.elapsed().as_nanos() as f64 / times as f64
            };
            // Every disturbance makes it slower.
            (0..ROUNDS).map(one).fold(f64::MAX, f64::min)
        };
        // Six dependent instructions of one cycle each, on any processor.
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

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
