//! The work of simulated threads. Each workload is named after the program it stands for.

use latchwork_machine::{Integer, Machine, Padded, Word};
use latchwork_sim::{Simulated, Spec, work};
use std::sync::atomic::Ordering::Relaxed;

use super::dice::Dice;
use super::lock::{Kind, SimLock, Subject};
use super::operations::{Appends, Names, Operations, Pages, Records};
use super::watch::{Watch, now};

type Data = Padded<<Simulated as Machine>::AtomicU64>;

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The name.
    pub name: &'static str,
    /// The program it stands for.
    pub title: &'static str,
    /// The operation of a thread under a latch.
    pub shape: Shape,
    /// The default locks.
    pub locks: &'static [&'static str],
    /// The operation of a thread on an engine, if the workload fits one.
    pub engine: Option<Operations>,
}

const NAMES: Names = Names { own: 0, common: 0, writes: 0, stripes: 0, outside: 100 };
const RECORDS: Records =
    Records { objects: 20_000, writes: 0, skewed: false, transfers: false, outside: 100 };

/// The operation of a thread. Times are cycles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Cycles before the lock; they vary at random by a quarter.
    pub outside: u64,
    /// An additional pause in proportion to the machine.
    pub pause: Pause,
    /// Cycles under the lock, besides accesses.
    pub inside: u64,
    /// Lines that every section reads and writes.
    pub lines: usize,
    /// Lines that a section reads at random among the shared `table`: entries of a table.
    pub reads: usize,
    /// Lines of the table.
    pub table: usize,
    /// Operations per thousand that take the lock exclusively and write to the table instead of
    /// `lines`. The others take a share, if the lock has a shared mode.
    pub writes: u32,
    /// Acquisitions of the lock in one operation.
    pub times: usize,
    /// Lines with a counter that a reader increments and decrements: pins.
    pub pins: usize,
    /// Whether a pin's counter is on a line of its own.
    pub isolated: bool,
}

/// A pause between two operations in proportion to the cost of an atomic operation on a line
/// modified as far away as possible. With it no thread runs two operations in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pause {
    /// No pause.
    None,
    /// In proportion to the largest latency of the machine.
    Machine(f64),
    /// In proportion to the largest latency between the processors used by the run; zero on one.
    Used(f64),
}

impl Pause {
    /// The pause in cycles.
    pub fn cycles(self, spec: &Spec, threads: usize) -> u64 {
        match self {
            Self::None => 0,
            Self::Machine(part) => (spec.largest_latency(spec.topology.cpus()) * part) as u64,
            Self::Used(part) => (spec.largest_latency(threads) * part) as u64,
        }
    }
}

const PLAIN: Shape = Shape {
    outside: 0,
    pause: Pause::None,
    inside: 0,
    lines: 0,
    reads: 0,
    table: 0,
    writes: 1000,
    times: 1,
    pins: 0,
    isolated: false,
};

/// A lock and an unlock of Berkeley DB without conflicts: two lookups of the locker.
const LOCK_BENCH: Shape =
    Shape { outside: 1150, inside: 40, reads: 2, table: 512, writes: 0, times: 2, ..PLAIN };

/// All workloads.
pub const ALL: &[Workload] = &[
    Workload {
        name: "line",
        title: "atomic operations on one line, half a largest latency apart (SOSP'13, figure 4)",
        // Half of the largest latency: fitted to the points at 2 threads of both machines.
        shape: Shape { pause: Pause::Used(0.5), ..PLAIN },
        locks: &["fai", "swap", "cas-fai"],
        engine: None,
    },
    Workload {
        name: "lock-loop",
        title: "the loop of SOSP'13, figure 5: one line under one lock, then a largest latency",
        shape: Shape { pause: Pause::Machine(1.0), lines: 1, ..PLAIN },
        locks: &["tas", "ttas", "ticket", "mcs", "shfl-spin"],
        engine: None,
    },
    Workload {
        name: "hash-table",
        title: "a table of 1024 buckets and 4096 entries under one lock, 1 % writes (SOSP'19, 11a)",
        shape: Shape { outside: 85, inside: 200, reads: 3, table: 4096, writes: 10, ..PLAIN },
        locks: &["qspinlock", "c-bo-mcs", "cna", "shfl-spin"],
        engine: None,
    },
    Workload {
        name: "lock1",
        title: "fcntl locks on a file for each process, under one kernel lock (SOSP'19, 8b)",
        shape: Shape { outside: 1420, ..PLAIN },
        locks: &["qspinlock", "cna", "shfl-spin"],
        engine: None,
    },
    Workload {
        name: "rename",
        title: "a file renamed in a directory for each thread, under one kernel lock (SOSP'19, 8a)",
        shape: Shape { outside: 6900, inside: 150, lines: 8, ..PLAIN },
        locks: &["qspinlock", "cna", "shfl-spin"],
        engine: None,
    },
    Workload {
        name: "rw-mix",
        title: "a table under one reader-writer lock, 1 % writes",
        shape: Shape { outside: 200, inside: 100, reads: 3, table: 4096, writes: 10, ..PLAIN },
        locks: &[
            "shfl-rwlock",
            "lw-latch",
            "lw-latch-cas",
            "biased-rwlock",
            "stock-rwsem",
            "lw-spinlock",
        ],
        engine: None,
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
        engine: None,
    },
    Workload {
        name: "lock-bench",
        title: "Berkeley DB's lock_bench: the locker looked up under one latch, then a partition",
        shape: LOCK_BENCH,
        locks: &["ttas", "lw-spinlock", "lw-latch", "none"],
        engine: None,
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
        engine: None,
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
        engine: None,
    },
    Workload {
        name: "create",
        title: "files created in one directory, under its lock",
        shape: Shape { outside: 1500, inside: 600, lines: 12, ..PLAIN },
        locks: &["stock-mutex", "cst", "shfl-mutex"],
        engine: None,
    },
    Workload {
        name: "lockmgr-disjoint",
        title: "lock and unlock: each thread its own 16 objects in turn, strong locks",
        shape: PLAIN,
        locks: MANAGERS,
        engine: Some(Operations::Locks(Names { own: 16, ..NAMES })),
    },
    Workload {
        name: "lockmgr-hot",
        title: "lock and unlock: all read-lock one object",
        shape: PLAIN,
        locks: MANAGERS,
        engine: Some(Operations::Locks(Names { common: 1, ..NAMES })),
    },
    Workload {
        name: "lockmgr-mixed",
        title: "lock and unlock: one of 1000 objects by Zipf's law, 1 % write-locked",
        shape: Shape { inside: 100, ..PLAIN },
        locks: MANAGERS,
        engine: Some(Operations::Locks(Names { common: 1000, writes: 10, ..NAMES })),
    },
    Workload {
        name: "lockmgr-ranges",
        title: "lock and unlock: each thread its own 16 keys in turn, as ranges of one keyspace",
        shape: PLAIN,
        locks: &["lockmgr"],
        engine: Some(Operations::Locks(Names { own: 16, stripes: 1, ..NAMES })),
    },
    Workload {
        name: "lockmgr-striped",
        title: "the same, the keyspace in 64 stripes",
        shape: PLAIN,
        locks: &["lockmgr"],
        engine: Some(Operations::Locks(Names { own: 16, stripes: 64, ..NAMES })),
    },
    Workload {
        name: "lockmgr-seed",
        title: "lock-bench, and the same lock and unlock of our lock manager: an object a thread",
        shape: LOCK_BENCH,
        locks: &["none", "stock-mutex", "lw-latch", "lockmgr"],
        engine: Some(Operations::Locks(Names { own: 1, ..NAMES })),
    },
    Workload {
        name: "pool-hot",
        title: "a word read from one page of a pool, which all read",
        shape: PLAIN,
        locks: POOLS,
        engine: Some(Operations::Pages(Pages { pages: 1, outside: 100 })),
    },
    Workload {
        name: "pool-uniform",
        title: "a word read from one of 1000 pages of a pool",
        shape: PLAIN,
        locks: POOLS,
        engine: Some(Operations::Pages(Pages { pages: 1000, outside: 100 })),
    },
    Workload {
        name: "log-append",
        title: "a record of 128 bytes appended to a log, none written to its file",
        shape: PLAIN,
        locks: LOGS,
        engine: Some(Operations::Appends(APPENDS)),
    },
    Workload {
        name: "log-durable",
        title: "a record of 128 bytes appended to a log and made durable; a sync takes 100 us",
        shape: PLAIN,
        locks: &["log"],
        engine: Some(Operations::Appends(Appends { durable: true, ..APPENDS })),
    },
    Workload {
        name: "store-get",
        title: "a record read in a snapshot of its own",
        shape: PLAIN,
        locks: STORES,
        engine: Some(Operations::Records(RECORDS)),
    },
    Workload {
        name: "store-put",
        title: "a record replaced in a transaction of its own, no wait for the disk",
        shape: PLAIN,
        locks: STORES,
        engine: Some(Operations::Records(Records { writes: 1000, ..RECORDS })),
    },
    Workload {
        name: "store-ycsb-a",
        title: "as YCSB A: half reads, half replaces, by Zipf's law with the exponent 0.99",
        shape: PLAIN,
        locks: STORES,
        engine: Some(Operations::Records(Records { writes: 500, skewed: true, ..RECORDS })),
    },
    Workload {
        name: "store-tproc-b",
        title: "as TPC-B: three reads and updates, an insert; 1,000 accounts and 100 tellers a branch",
        shape: PLAIN,
        locks: STORES,
        engine: Some(Operations::Records(Records { objects: 10, transfers: true, ..RECORDS })),
    },
];

/// Lock managers, for workloads that do not fit latches.
const MANAGERS: &[&str] = &["lockmgr", "lockmgr-table"];
/// Pools of pages.
const POOLS: &[&str] = &["pool", "pinned", "pinned-isolated"];
const APPENDS: Appends = Appends { bytes: 64, durable: false, outside: 100 };
const LOGS: &[&str] = &["log", "log-latched", "log-fetch-add"];
const STORES: &[&str] = &["store"];

impl Workload {
    /// The workload of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|w| w.name == name)
    }

    /// Whether the workload runs under this latch or on this engine.
    pub fn takes(&self, subject: &Subject) -> bool {
        let is_latch = |name: &&str| Subject::named(name).is_some_and(|s| s.kind == Kind::Latch);
        match subject.kind {
            Kind::Latch => self.locks.iter().any(is_latch),
            kind => self.engine.is_some_and(|operations| operations.kind() == kind),
        }
    }

    /// The operation on this subject, if it is an engine.
    pub fn on(&self, subject: &Subject) -> Option<Operations> {
        self.engine.filter(|_| subject.kind != Kind::Latch)
    }

    /// The timed part of an operation.
    pub fn timed(&self) -> &'static str {
        match self.engine.map(|operations| operations.kind()) {
            Some(Kind::Pool) => "reads",
            Some(Kind::Log) => "appends",
            Some(Kind::Store) => "transactions",
            Some(Kind::Manager) => "waits for a lock",
            Some(Kind::Latch) | None => "waits for the latch",
        }
    }

    /// The workload with the pause of this machine, independent of the processors used.
    pub fn on_machine(mut self, spec: &Spec) -> Self {
        if let Pause::Machine(_) = self.shape.pause {
            self.shape.outside += self.shape.pause.cycles(spec, spec.topology.cpus());
            self.shape.pause = Pause::None;
        }
        self
    }

    /// Writes per thousand operations, if they can be chosen: of a table under a latch.
    pub fn writes(&self) -> Option<u32> {
        (self.engine.is_none() && self.shape.table > 0).then_some(self.shape.writes)
    }

    /// Cycles between two operations under this latch or engine.
    pub fn outside(&self, subject: &Subject) -> u64 {
        self.on(subject).map_or(self.shape.outside, |mut operations| *operations.outside())
    }

    /// Cycles under the latch or lock, besides accesses.
    pub fn inside(&self, subject: &Subject) -> u64 {
        match self.on(subject) {
            Some(Operations::Locks(names)) if names.common > 0 => self.shape.inside,
            // No thread waits for its own objects.
            Some(_) => 0,
            None => self.shape.inside,
        }
    }
}

/// The memory shared by the threads of a run, besides the lock.
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

    /// Names and addresses, for reports.
    pub(super) fn parts(&self) -> [(&'static str, &[Data]); 3] {
        [("data", &self.lines), ("table", &self.table), ("pins", &self.pins)]
    }
}

/// Runs one operation and reports its wait to `watch`.
pub(super) fn operation(
    shape: &Shape,
    lock: &dyn SimLock,
    shared: &Shared,
    dice: &mut Dice,
    pause: u64,
    watch: &Watch<'_>,
) {
    let me = watch.me;
    let outside = shape.outside + pause;
    work(outside - outside / 4 + dice.below(outside as usize / 2 + 1) as u64);
    for _ in 0..shape.times {
        let writes = (dice.below(1000) as u32) < shape.writes;
        let start = dice.below(shape.table.max(1));
        let mut begun = 0.0;
        let mut section = || {
            begun = now();
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
        let asked = now();
        if lock.ask(me, &mut section) {
            // The section does not count as waiting, as with a lock that is held, although another
            // thread may have run it.
            watch.has_waited(asked, begun);
            continue;
        }
        let whole = writes || shape.lines > 0;
        match whole {
            true => watch.waited(&mut || lock.lock(me)),
            false => watch.waited(&mut || lock.share(me)),
        }
        section();
        match whole {
            true => lock.unlock(me),
            false => lock.unshare(me),
        }
    }
}
