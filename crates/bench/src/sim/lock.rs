//! The locks of simulated workloads, by name.

use latchwork_classic::{self as classic, Named, Tell};
use latchwork_latch::{
    Biased, BiasedShare, CompareExchange, FetchAdd, LwLatch, Policy, RwLatch, Shfl, ShflMutex,
    ShflRwLock, ShflSpin,
};
use latchwork_machine::{Integer, Machine, Padded, Word};
use latchwork_sim::Simulated;
use std::cell::RefCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::steps;

/// A lock as used by workloads, by thread `me`.
pub trait SimLock {
    /// Acquires it exclusively.
    fn lock(&self, me: usize);
    /// Releases it.
    fn unlock(&self, me: usize);
    /// Acquires a share; exclusive if the lock has no shared mode.
    fn share(&self, me: usize) {
        self.lock(me);
    }
    /// Releases a share.
    fn unshare(&self, me: usize) {
        self.unlock(me);
    }
    /// Runs a section under a delegation lock. Returns false if this is not one.
    fn ask(&self, me: usize, section: &mut (dyn FnMut() + Send)) -> bool {
        let _ = (me, section);
        false
    }
    /// Reports the words of the lock: address, size in bytes, and name with the prefix `name`.
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        let _ = (name, tell);
    }
}

/// A lock of a workload.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The name.
    pub name: &'static str,
    /// Description or origin.
    pub title: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// Whether it has a shared mode.
    pub shared: bool,
    /// The workloads that it fits.
    pub kind: Kind,
}

/// The subject of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A latch.
    Latch,
    /// A lock manager.
    Manager,
    /// A pool of pages.
    Pool,
    /// A log.
    Log,
    /// A store.
    Store,
}

impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Latch => "latch",
            Self::Manager => "lock manager",
            Self::Pool => "pool",
            Self::Log => "log",
            Self::Store => "store",
        })
    }
}

const OURS: &[Subject] = &[
    ours("shfl-spin", "ShflLock that spins", false),
    ours("shfl-base", "the same, its queue never sorted", false),
    ours("shfl-shuffler", "the same, sorted by the head of the queue alone", false),
    ours("shfl-shufflers", "the same, sorted by one waiter after another, from the start", false),
    ours("shfl-mutex", "ShflLock that parks: our default", false),
    ours("shfl-rwlock", "ShflLock for readers and writers", true),
    ours("lw-latch", "LWLock with fetch_add", true),
    ours("lw-latch-cas", "LWLock with compare_exchange", true),
    ours("biased-rwlock", "ShflLock for readers and writers, biased towards readers", true),
    ours("biased-lw-latch", "LWLock with fetch_add, biased towards readers", true),
];

const MADE_HERE: &[Subject] = &[
    Subject {
        name: "lw-spinlock",
        title: "LWLock of before 2014: its state under a spinlock",
        rival: true,
        shared: true,
        kind: Kind::Latch,
    },
    Subject {
        name: "none",
        title: "no lock: an unsafe bound",
        rival: true,
        shared: true,
        kind: Kind::Latch,
    },
];

/// Subjects of the workloads on engines.
const ENGINES: &[Subject] = &[
    engine(Kind::Manager, "lockmgr", "our lock manager"),
    engine(Kind::Manager, "lockmgr-table", "the same, its weak locks in the table like all others"),
    engine(Kind::Pool, "pool", "our pool, whose readers write nothing"),
    Subject {
        rival: true,
        ..engine(Kind::Pool, "pinned", "frames with a pin count, found under a bucket's latch")
    },
    Subject {
        rival: true,
        ..engine(Kind::Pool, "pinned-isolated", "the same, each count on its line")
    },
    engine(Kind::Log, "log", "our log"),
    Subject {
        rival: true,
        ..engine(Kind::Log, "log-latched", "a log whose records are copied under one mutex")
    },
    Subject {
        rival: true,
        ..engine(Kind::Log, "log-fetch-add", "a log whose places are reserved by fetch_add")
    },
    engine(Kind::Store, "store", "our store, without a wait for the disk"),
];

const fn engine(kind: Kind, name: &'static str, title: &'static str) -> Subject {
    Subject { name, title, rival: false, shared: true, kind }
}

/// Single operations on one cache line for the workload `line`. They exclude nothing.
const OPERATIONS: &[Subject] = &[
    operation("fai", "fetch_add"),
    operation("swap", "swap"),
    operation("cas-fai", "fetch_add made of compare_exchange"),
];

/// A rival without a shared mode.
const fn operation(name: &'static str, title: &'static str) -> Subject {
    Subject { name, title, rival: true, shared: false, kind: Kind::Latch }
}

const fn ours(name: &'static str, title: &'static str, shared: bool) -> Subject {
    Subject { name, title, rival: false, shared, kind: Kind::Latch }
}

impl Subject {
    /// All locks, ours first, then the operations of the workload `line` and the engines.
    pub fn all() -> Vec<Self> {
        let theirs = classic::NAMES.iter().filter(|n| n.short != "rcl");
        let theirs = theirs.map(|n| operation(n.short, n.title));
        let rest = MADE_HERE.iter().chain(OPERATIONS).chain(ENGINES).copied();
        OURS.iter().copied().chain(theirs).chain(rest).collect()
    }

    /// The subject of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|s| s.name == name)
    }

    /// A free lock for `threads` threads. `None` if it cannot serve them.
    pub fn make(&self, threads: usize) -> Option<Box<dyn SimLock>> {
        match self.name {
            "shfl-spin" => Some(Box::new(Aligned::<ShflSpin<Simulated>>::default())),
            "shfl-base" => Some(Box::new(Aligned::<steps::Base>::default())),
            "shfl-shuffler" => Some(Box::new(Aligned::<steps::Shuffler>::default())),
            "shfl-shufflers" => Some(Box::new(Aligned::<steps::Shufflers>::default())),
            "shfl-mutex" => Some(Box::new(Aligned::<ShflMutex<Simulated>>::default())),
            "shfl-rwlock" => Some(Box::new(Aligned::<ShflRwLock<Simulated>>::default())),
            "lw-latch" => Some(Box::new(Aligned::<LwLatch<FetchAdd, Simulated>>::default())),
            "lw-latch-cas" => {
                Some(Box::new(Aligned::<LwLatch<CompareExchange, Simulated>>::default()))
            }
            "biased-rwlock" => Some(Box::new(BiasedLock::<ShflRwLock<Simulated>>::new(threads))),
            "biased-lw-latch" => {
                Some(Box::new(BiasedLock::<LwLatch<FetchAdd, Simulated>>::new(threads)))
            }
            "lw-spinlock" => Some(Box::new(Aligned::<SpinProtected>::default())),
            "none" => Some(Box::new(Nothing)),
            "fai" | "swap" | "cas-fai" => {
                Some(Box::new(Operation { name: self.name, word: Padded::default() }))
            }
            name => classic_lock(name, threads),
        }
    }
}

fn classic_lock(name: &str, threads: usize) -> Option<Box<dyn SimLock>> {
    if let Some(lock) = classic::exclusive::<Simulated>(name, threads) {
        return Some(Box::new(Classic(lock)));
    }
    if let Some(lock) = classic::shared::<Simulated>(name, threads) {
        return Some(Box::new(ClassicShared(lock)));
    }
    Some(Box::new(Delegate(classic::delegate::<Simulated>(name, threads)?)))
}

/// A lock on a cache line of its own, as allocated by kernels and databases.
#[derive(Default)]
struct Aligned<L>(Padded<L>);

impl<L> Aligned<L> {
    /// Reports the words at these offsets.
    fn tell(&self, name: &str, words: &[(usize, usize, &str)], tell: &mut Tell<'_>) {
        let start = core::ptr::from_ref(&*self.0).addr();
        tell(start, size_of::<L>(), name);
        for (offset, len, word) in words {
            tell(start + offset, *len, &format!("{name}.{word}"));
        }
    }
}

impl<P: Policy> SimLock for Aligned<Shfl<P, Simulated>> {
    fn lock(&self, _: usize) {
        self.0.lock();
    }
    fn unlock(&self, _: usize) {
        // SAFETY: workloads unlock only what they locked.
        unsafe { self.0.unlock() };
    }
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.tell(
            name,
            &[(0, 1, "held"), (1, 1, "reserve"), (2, 2, "parked"), (4, 4, "tail")],
            tell,
        );
    }
}

macro_rules! shared {
    ($($lock:ty: $fields:expr),*) => {$(
        impl SimLock for Aligned<$lock> {
            fn lock(&self, _: usize) {
                self.0.lock_exclusive();
            }
            fn unlock(&self, _: usize) {
                // SAFETY: workloads unlock only what they locked.
                unsafe { self.0.unlock_exclusive() };
            }
            fn share(&self, _: usize) {
                self.0.lock_shared();
            }
            fn unshare(&self, _: usize) {
                // SAFETY: workloads release only their own share.
                unsafe { self.0.unlock_shared() };
            }
            fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
                self.tell(name, $fields, tell);
            }
        }
    )*};
}

shared!(
    ShflRwLock<Simulated>: &[(0, 8, "count"), (8, 8, "queue")],
    LwLatch<FetchAdd, Simulated>: &[(0, 4, "state"), (4, 2, "list"), (6, 2, "queue")],
    LwLatch<CompareExchange, Simulated>: &[(0, 4, "state"), (4, 2, "list"), (6, 2, "queue")]
);

/// A biased latch with the share of each thread.
struct BiasedLock<L: RwLatch> {
    latch: Aligned<Biased<L>>,
    shares: RefCell<Vec<Option<BiasedShare>>>,
}

impl<L: RwLatch> BiasedLock<L> {
    fn new(threads: usize) -> Self {
        let shares = (0..threads).map(|_| None).collect();
        Self { latch: Aligned::default(), shares: RefCell::new(shares) }
    }
}

impl<L: RwLatch<Machine = Simulated>> SimLock for BiasedLock<L> {
    fn lock(&self, _: usize) {
        self.latch.0.lock_exclusive();
    }
    fn unlock(&self, _: usize) {
        // SAFETY: workloads unlock only what they locked.
        unsafe { self.latch.0.unlock_exclusive() };
    }
    fn share(&self, me: usize) {
        let share = self.latch.0.lock_shared();
        self.shares.borrow_mut()[me] = Some(share);
    }
    fn unshare(&self, me: usize) {
        let share = self.shares.borrow_mut()[me].take().expect("a share that was taken");
        // SAFETY: workloads release only their own share.
        unsafe { self.latch.0.unlock_shared(share) };
    }
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.latch.tell(name, &[(0, 8, "bias"), (8, 8, "shares"), (16, 16, "latch")], tell);
    }
}

struct Classic(Box<dyn classic::Lock>);

impl SimLock for Classic {
    fn lock(&self, me: usize) {
        self.0.lock(me);
    }
    fn unlock(&self, me: usize) {
        self.0.unlock(me);
    }
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.0.tell_words(name, tell);
    }
}

struct ClassicShared(Box<dyn classic::SharedLock>);

impl SimLock for ClassicShared {
    fn lock(&self, me: usize) {
        self.0.write(me);
    }
    fn unlock(&self, me: usize) {
        self.0.unwrite(me);
    }
    fn share(&self, me: usize) {
        self.0.read(me);
    }
    fn unshare(&self, me: usize) {
        self.0.unread(me);
    }
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.0.tell_words(name, tell);
    }
}

/// A delegation lock; see [`SimLock::ask`].
struct Delegate(Box<dyn classic::Delegate>);

impl SimLock for Delegate {
    fn lock(&self, _: usize) {
        unreachable!("a delegate is asked");
    }
    fn unlock(&self, _: usize) {
        unreachable!("a delegate is asked");
    }
    fn ask(&self, me: usize, section: &mut (dyn FnMut() + Send)) -> bool {
        // SAFETY: each simulated thread has its own number, and sections do not panic.
        unsafe { self.0.with(me, section) };
        true
    }
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.0.tell_words(name, tell);
    }
}

/// The reader side of PostgreSQL's LWLock until 9.4: counters guarded by a spinlock, changed for
/// each share (Freund, "Wait free LW_SHARED lwlock acquisition", 2013). A waiter polls.
#[derive(Default)]
struct SpinProtected {
    spin: <Simulated as Machine>::AtomicU32,
    shares: <Simulated as Machine>::AtomicU32,
    exclusive: <Simulated as Machine>::AtomicU32,
}

impl SpinProtected {
    fn guarded<R>(&self, f: impl FnOnce(&Self) -> R) -> R {
        // As in `s_lock`: an exchange first, then polling with pauses. Acquire: synchronizes with
        // the Release below.
        while self.spin.swap(1, Acquire) != 0 {
            Simulated::relax();
            while self.spin.load(Relaxed) != 0 {
                Simulated::relax();
            }
        }
        let result = f(self);
        // Release: synchronizes with the Acquire above.
        self.spin.store(0, Release);
        result
    }

    fn until(&self, enter: impl Fn(&Self) -> bool) {
        while !self.guarded(&enter) {
            Simulated::yield_now();
        }
    }
}

impl SimLock for Aligned<SpinProtected> {
    fn lock(&self, _: usize) {
        self.0.until(|l| {
            let free = l.shares.load(Relaxed) == 0 && l.exclusive.load(Relaxed) == 0;
            if free {
                l.exclusive.store(1, Relaxed);
            }
            free
        });
    }
    fn unlock(&self, _: usize) {
        self.0.guarded(|l| l.exclusive.store(0, Relaxed));
    }
    fn share(&self, _: usize) {
        self.0.until(|l| {
            let free = l.exclusive.load(Relaxed) == 0;
            if free {
                l.shares.store(l.shares.load(Relaxed) + 1, Relaxed);
            }
            free
        });
    }
    fn unshare(&self, _: usize) {
        self.0.guarded(|l| l.shares.store(l.shares.load(Relaxed) - 1, Relaxed));
    }
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.tell(name, &[(0, 4, "spinlock"), (4, 4, "shares"), (8, 4, "exclusive")], tell);
    }
}

struct Operation {
    name: &'static str,
    word: Padded<<Simulated as Machine>::AtomicU64>,
}

impl SimLock for Operation {
    fn lock(&self, _: usize) {
        match self.name {
            "fai" => {
                self.word.fetch_add(1, Relaxed);
            }
            "swap" => {
                self.word.swap(1, Relaxed);
            }
            _ => loop {
                let seen = self.word.load(Relaxed);
                if self.word.compare_exchange(seen, seen + 1, Relaxed, Relaxed).is_ok() {
                    break;
                }
            },
        }
    }
    fn unlock(&self, _: usize) {}
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        self.word.tell_words(&format!("{name}.word"), tell);
    }
}

struct Nothing;

impl SimLock for Nothing {
    fn lock(&self, _: usize) {}
    fn unlock(&self, _: usize) {}
}
