//! What simulated threads do, each workload named after what it stands for.

use latchwork_machine::{Integer, Machine, Padded, Word};
use latchwork_sim::{Simulated, work};
use std::sync::atomic::Ordering::Relaxed;

use super::lock::{SimLock, Subject};

type Data = Padded<<Simulated as Machine>::AtomicU64>;

/// A workload and what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it stands for.
    pub title: &'static str,
    /// What a thread does, again and again.
    pub shape: Shape,
    /// The lock it is about, if one is not asked for.
    pub locks: &'static [&'static str],
    /// What its operations lock under a lock manager, if it can be given one.
    pub names: Option<Names>,
}

/// What a thread does in one operation on a lock manager: it locks an object, and unlocks it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Names {
    /// Objects of its own that each thread takes, in turn, in a mode that excludes all others.
    pub own: usize,
    /// If not zero, objects that all threads take at random: the n-th is 1/n as frequent as the
    /// first (Zipf, exponent 1).
    pub common: usize,
    /// Operations in a thousand on a common object that exclude all others; the rest read, in a
    /// mode that is weak: it conflicts with none of its kind.
    pub writes: u32,
    /// Cycles between two operations; vary at random by a quarter. What the manager's own code
    /// computes is not in it: each of its accesses to memory is charged, one after the other, which
    /// is more than a real core would take for all of it.
    pub outside: u64,
}

impl Names {
    /// Objects of each thread, or of all.
    pub fn objects(&self) -> usize {
        if self.common > 0 { self.common } else { self.own }
    }

    /// The same with so many.
    pub fn with_objects(self, objects: usize) -> Self {
        match self.common {
            0 => Self { own: objects, ..self },
            _ => Self { common: objects, ..self },
        }
    }
}

const NAMES: Names = Names { own: 0, common: 0, writes: 0, outside: 100 };

/// What a thread does in one operation. Times are cycles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Before it takes the lock; varies at random by a quarter.
    pub outside: u64,
    /// Under the lock, besides its accesses.
    pub inside: u64,
    /// Lines that every section reads and writes.
    pub lines: usize,
    /// Lines of its own that a section reads, among `table` that all share: a table's entries.
    pub reads: usize,
    /// Lines of the table.
    pub table: usize,
    /// Operations in a thousand that take the lock whole and write to the table, not to a line of
    /// `lines`; the others take a share, if the lock has them.
    pub writes: u32,
    /// How often the lock is taken in one operation.
    pub times: usize,
    /// Lines with a counter that a reader raises and lowers: pins.
    pub pins: usize,
    /// Whether a pin's counter has a line apart from what readers read.
    pub isolated: bool,
}

const PLAIN: Shape = Shape {
    outside: 0,
    inside: 0,
    lines: 0,
    reads: 0,
    table: 0,
    writes: 1000,
    times: 1,
    pins: 0,
    isolated: false,
};

/// What Berkeley DB does for a lock and an unlock, without conflicts: two lookups of the locker.
const LOCK_BENCH: Shape =
    Shape { outside: 1150, inside: 40, reads: 2, table: 512, writes: 0, times: 2, ..PLAIN };

/// All workloads.
pub const ALL: &[Workload] = &[
    Workload {
        name: "line",
        title: "atomic operations on one line, by all (SOSP'13, figure 4)",
        shape: PLAIN,
        locks: &["fai", "swap", "cas-fai"],
        names: None,
    },
    Workload {
        name: "lock-loop",
        title: "the loop of SOSP'13, figure 5: one line under one lock, then a pause",
        shape: Shape { outside: 430, lines: 1, ..PLAIN },
        locks: &["tas", "ttas", "ticket", "mcs", "shfl-spin"],
        names: None,
    },
    Workload {
        name: "hash-table",
        title: "a table of 1024 buckets and 4096 entries under one lock, 1 % writes (SOSP'19, 11a)",
        shape: Shape { outside: 85, inside: 200, reads: 3, table: 4096, writes: 10, ..PLAIN },
        locks: &["qspinlock", "c-bo-mcs", "cna", "shfl-spin"],
        names: None,
    },
    Workload {
        name: "lock1",
        title: "fcntl locks on a file for each process, under one kernel lock (SOSP'19, 8b)",
        shape: Shape { outside: 1420, ..PLAIN },
        locks: &["qspinlock", "cna", "shfl-spin"],
        names: None,
    },
    Workload {
        name: "rename",
        title: "a file renamed in a directory for each thread, under one kernel lock (SOSP'19, 8a)",
        shape: Shape { outside: 6900, inside: 150, lines: 8, ..PLAIN },
        locks: &["qspinlock", "cna", "shfl-spin"],
        names: None,
    },
    Workload {
        name: "rw-mix",
        title: "a table under one reader-writer lock, 1 % writes",
        shape: Shape { outside: 200, inside: 100, reads: 3, table: 4096, writes: 10, ..PLAIN },
        locks: &["shfl-rwlock", "lw-latch", "lw-latch-cas", "lw-spinlock"],
        names: None,
    },
    Workload {
        name: "lwlock",
        title: "read-only pgbench: shared acquisitions of hot LWLocks",
        shape: Shape {
            outside: 200_000,
            inside: 60,
            reads: 1,
            table: 64,
            writes: 0,
            times: 4,
            ..PLAIN
        },
        locks: &["lw-spinlock", "lw-latch", "lw-latch-cas"],
        names: None,
    },
    Workload {
        name: "lock-bench",
        title: "Berkeley DB's lock_bench: the locker looked up under one latch, then a partition",
        shape: LOCK_BENCH,
        locks: &["ttas", "lw-spinlock", "lw-latch", "none"],
        names: None,
    },
    Workload {
        name: "header-packed",
        title: "a walk of buffer headers, pin and tag in one line",
        shape: Shape {
            outside: 300,
            inside: 20,
            reads: 2,
            table: 64,
            writes: 0,
            pins: 64,
            ..PLAIN
        },
        locks: &["lw-latch"],
        names: None,
    },
    Workload {
        name: "header-isolated",
        title: "the same, the pin on a line of its own",
        shape: Shape {
            outside: 300,
            inside: 20,
            reads: 2,
            table: 64,
            writes: 0,
            pins: 64,
            isolated: true,
            ..PLAIN
        },
        locks: &["lw-latch"],
        names: None,
    },
    Workload {
        name: "create",
        title: "files created in one directory, under its lock",
        shape: Shape { outside: 1500, inside: 600, lines: 12, ..PLAIN },
        locks: &["stock-mutex", "cst", "shfl-mutex"],
        names: None,
    },
    Workload {
        name: "lockmgr-disjoint",
        title: "lock and unlock: each thread its own 16 objects in turn, strong locks",
        shape: PLAIN,
        locks: MANAGERS,
        names: Some(Names { own: 16, ..NAMES }),
    },
    Workload {
        name: "lockmgr-hot",
        title: "lock and unlock: all read-lock one object",
        shape: PLAIN,
        locks: MANAGERS,
        names: Some(Names { common: 1, ..NAMES }),
    },
    Workload {
        name: "lockmgr-mixed",
        title: "lock and unlock: one of 1000 objects by Zipf's law, 1 % write-locked",
        shape: Shape { inside: 100, ..PLAIN },
        locks: MANAGERS,
        names: Some(Names { common: 1000, writes: 10, ..NAMES }),
    },
    Workload {
        name: "lockmgr-seed",
        title: "lock-bench, and the same lock and unlock of our lock manager: an object a thread",
        shape: LOCK_BENCH,
        locks: &["none", "stock-mutex", "lw-latch", "lockmgr"],
        names: Some(Names { own: 1, ..NAMES }),
    },
];

/// Lock managers, for workloads that latches cannot be given.
const MANAGERS: &[&str] = &["lockmgr", "lockmgr-table"];

impl Workload {
    /// The workload of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|w| w.name == name)
    }

    /// Whether its operations can be done under this latch, or with this lock manager.
    pub fn takes(&self, subject: &Subject) -> bool {
        match subject.manager {
            true => self.names.is_some(),
            false => self.locks != MANAGERS,
        }
    }

    /// Cycles between two operations under this latch or manager.
    pub fn outside(&self, subject: &Subject) -> u64 {
        self.names.filter(|_| subject.manager).map_or(self.shape.outside, |names| names.outside)
    }

    /// Cycles under the latch or lock, besides accesses.
    pub fn inside(&self, subject: &Subject) -> u64 {
        match self.names.filter(|_| subject.manager) {
            // Nobody waits for what is one's own.
            Some(names) if names.common == 0 => 0,
            _ => self.shape.inside,
        }
    }
}

/// The memory that the threads of a run share, besides the lock.
pub(super) struct Shared {
    lines: Vec<Data>,
    table: Vec<Data>,
    pins: Vec<Data>,
}

impl Shared {
    pub(super) fn new(shape: &Shape) -> Self {
        let many = |n: usize| (0..n).map(|_| Data::default()).collect();
        let pins = if shape.isolated { shape.pins } else { 0 };
        Self { lines: many(shape.lines), table: many(shape.table), pins: many(pins) }
    }

    /// Names and places, for reports.
    pub(super) fn parts(&self) -> [(&'static str, &[Data]); 3] {
        [("data", &self.lines), ("table", &self.table), ("pins", &self.pins)]
    }
}

/// A thread's own chance: not the simulation's, so that a thread does the same under every lock.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64, me: usize) -> Self {
        let mut dice =
            Self(((seed << 20) | (me as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = dice.next());
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// One operation. `waited` is given each acquisition to perform, so that it can time it.
pub(super) fn operation(
    shape: &Shape,
    lock: &dyn SimLock,
    shared: &Shared,
    me: usize,
    dice: &mut Dice,
    mut waited: impl FnMut(&mut dyn FnMut()),
) {
    let outside = shape.outside - shape.outside / 4;
    work(outside + dice.below(shape.outside as usize / 2 + 1) as u64);
    for _ in 0..shape.times {
        let writes = (dice.below(1000) as u32) < shape.writes;
        let start = dice.below(shape.table.max(1));
        let mut section = || {
            for line in &shared.lines {
                line.store(line.load(Relaxed).wrapping_add(1), Relaxed);
            }
            for n in 0..shape.reads {
                shared.table[(start + n) % shape.table].load(Relaxed);
            }
            if shape.pins > 0 {
                let pin = start % shape.pins;
                let word = if shape.isolated { &shared.pins[pin] } else { &shared.table[pin] };
                word.fetch_add(1, Relaxed);
                word.fetch_sub(1, Relaxed);
            }
            if writes && shape.table > 0 {
                shared.table[start].store(start as u64, Relaxed);
            }
            work(shape.inside);
        };
        if lock.ask(me, &mut section) {
            continue;
        }
        let whole = writes || shape.lines > 0;
        match whole {
            true => waited(&mut || lock.lock(me)),
            false => waited(&mut || lock.share(me)),
        }
        section();
        match whole {
            true => lock.unlock(me),
            false => lock.unshare(me),
        }
    }
}
