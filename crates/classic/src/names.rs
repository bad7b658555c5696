//! The locks by name, and their properties.

use latchwork_machine::Machine;

use crate::{
    Ahmcs, Array, Bakery, Bytes, CBoMcs, Clh, Cna, CnaKernel, CohortRw, CohortTicket, Cst, Dekker,
    Delegate, FlatCombining, Hbo, Hclh, Hemlock, Hmcs, Lock, Malthusian, Mcs, McsTp, Qspinlock,
    Rcl, SharedLock, StockMutex, StockRwsem, Tas, Ticket, Ttas, TtasPlain,
};

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One holder: [`exclusive`] creates it.
    Exclusive,
    /// Many readers or one writer: [`shared`] creates it.
    Shared,
    /// Operations that another thread may run: [`delegate`] creates it.
    Delegation,
}

/// A lock's name and origin.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// Its short name, such as `mcs`.
    pub short: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its authors and publication.
    pub paper: &'static str,
    /// The year of publication.
    pub year: u32,
    /// Its kind.
    pub kind: Kind,
    /// Whether it prefers waiters of its holder's node.
    pub numa: bool,
    /// Whether its waiters form queues, so that a rule decides which is next.
    pub queues: bool,
    /// Whether its waiters finally sleep.
    pub blocks: bool,
    /// The most threads that it can serve.
    pub threads_max: usize,
    /// Its bytes on a machine of 8 nodes, from table 1 of "Scalable and practical locking with
    /// shuffling" (Kashyap and others, SOSP 2019), if listed there.
    pub published: Option<Bytes>,
}

const MANY: usize = (u32::MAX >> 4) as usize;

const fn name(
    short: &'static str,
    title: &'static str,
    paper: &'static str,
    year: u32,
    kind: Kind,
) -> Name {
    let (numa, queues, blocks, threads_max, published) = (false, true, false, MANY, None);
    Name { short, title, paper, year, kind, numa, queues, blocks, threads_max, published }
}

impl Name {
    const fn numa(mut self) -> Self {
        self.numa = true;
        self
    }
    const fn races(mut self) -> Self {
        self.queues = false;
        self
    }
    const fn blocks(mut self) -> Self {
        self.blocks = true;
        self
    }
    const fn at_most(mut self, threads: usize) -> Self {
        self.threads_max = threads;
        self
    }
    const fn published(mut self, lock: usize, waiter: usize, holder: usize) -> Self {
        self.published = Some(Bytes { lock, waiter, holder });
        self
    }
}

use Kind::{Delegation, Exclusive, Shared};

/// All locks of this crate.
pub const NAMES: &[Name] = &[
    name("tas", "test and set", "folklore", 1964, Exclusive).races().published(1, 0, 0),
    name("ttas", "test, then test and set, with backoff", "Anderson, TPDS", 1990, Exclusive)
        .races(),
    name("ttas-plain", "test, then test and set", "Rudolph and Segall, ISCA", 1984, Exclusive)
        .races(),
    name("ticket", "ticket lock", "Mellor-Crummey and Scott, TOCS", 1991, Exclusive),
    name("array", "array of flags", "Anderson, TPDS", 1990, Exclusive),
    name("mcs", "MCS queue lock", "Mellor-Crummey and Scott, TOCS", 1991, Exclusive)
        .published(8, 12, 12),
    name("clh", "CLH queue lock", "Craig; Magnusson, Landin and Hagersten, IPPS", 1994, Exclusive),
    name(
        "qspinlock",
        "as Linux's queued spinlock",
        "Long and Zijlstra, Linux 4.2",
        2015,
        Exclusive,
    )
    .at_most(crate::qspinlock::THREADS_MAX),
    name("cna", "compact NUMA-aware lock", "Dice and Kogan, EuroSys", 2019, Exclusive)
        .numa()
        .published(8, 28, 28),
    name("cna-kernel", "CNA in a queued spinlock", "Kogan and Dice, for Linux", 2019, Exclusive)
        .numa()
        .at_most(crate::qspinlock::THREADS_MAX),
    name("cohort-ticket", "cohort of tickets, C-TKT-TKT", DICE_2012, 2012, Exclusive).numa(),
    name("c-bo-mcs", "cohort of MCS under backoff, C-BO-MCS", DICE_2012, 2012, Exclusive)
        .numa()
        .published(1152, 24, 24),
    name("hmcs", "hierarchical MCS, two levels", CHABBI_2015, 2015, Exclusive).numa(),
    name("cst", "CST: nodes' queues of threads, sleepers apart", KASHYAP_2017, 2017, Exclusive)
        .numa()
        .blocks()
        .published(1056, 24, 0),
    name("stock-mutex", "as Linux's mutex", "Molnar, Zijlstra and Low, Linux", 2016, Exclusive)
        .races()
        .blocks()
        .published(40, 32, 0),
    name("hemlock", "Hemlock", "Dice and Kogan, SPAA", 2021, Exclusive),
    name("malthusian", "Malthusian lock, spinning", "Dice, EuroSys", 2017, Exclusive),
    name("mcs-tp", "time-published MCS", "He, Scherer and Scott, HiPC", 2005, Exclusive),
    name("hbo", "hierarchical backoff", "Radovic and Hagersten, HPCA", 2003, Exclusive)
        .numa()
        .races(),
    name("hclh", "hierarchical CLH", "Luchangco, Nussbaum and Shavit, Euro-Par", 2006, Exclusive)
        .numa(),
    name("ahmcs", "adaptive HMCS", "Chabbi and Mellor-Crummey, PPoPP", 2016, Exclusive).numa(),
    name("dekker", "Dekker's algorithm", "Dijkstra, EWD 123", 1965, Exclusive).at_most(2),
    name("bakery", "Lamport's bakery", "Lamport, CACM", 1974, Exclusive),
    name(
        "stock-rwsem",
        "as Linux's semaphore",
        "Howells, Lespinasse and Long, Linux",
        2019,
        Shared,
    )
    .races()
    .blocks(),
    name("cohort-rw", "cohort reader-writer, C-RW-WP", CALCIU_2013, 2013, Shared).numa(),
    name("flat-combining", "flat combining", HENDLER_2010, 2010, Delegation).races(),
    name("rcl", "remote core locking", LOZI_2012, 2012, Delegation).races(),
];

const CALCIU_2013: &str = "Calciu, Dice, Lev, Luchangco, Marathe and Shavit, PPoPP";
const HENDLER_2010: &str = "Hendler, Incze, Shavit and Tzafrir, SPAA";
const KASHYAP_2017: &str = "Kashyap, Min and Kim, USENIX ATC";
const LOZI_2012: &str = "Lozi, David, Thomas, Lawall and Muller, USENIX ATC";
const DICE_2012: &str = "Dice, Marathe and Shavit, PPoPP";
const CHABBI_2015: &str = "Chabbi, Fagan and Mellor-Crummey, PPoPP";

/// Creates the lock with one holder of this name, free, for threads `0..threads`.
///
/// None if the lock does not exist or cannot serve that many.
pub fn exclusive<M: Machine>(name: &str, threads: usize) -> Option<Box<dyn Lock>> {
    fn boxed<L: Lock>(threads: usize) -> Box<dyn Lock> {
        Box::new(L::new(threads))
    }
    let new = match name {
        "tas" => boxed::<Tas<M>>,
        "ttas" => boxed::<Ttas<M>>,
        "ttas-plain" => boxed::<TtasPlain<M>>,
        "ticket" => boxed::<Ticket<M>>,
        "array" => boxed::<Array<M>>,
        "mcs" => boxed::<Mcs<M>>,
        "clh" => boxed::<Clh<M>>,
        "qspinlock" => boxed::<Qspinlock<M>>,
        "cna" => boxed::<Cna<M>>,
        "cna-kernel" => boxed::<CnaKernel<M>>,
        "cohort-ticket" => boxed::<CohortTicket<M>>,
        "c-bo-mcs" => boxed::<CBoMcs<M>>,
        "hmcs" => boxed::<Hmcs<M>>,
        "cst" => boxed::<Cst<M>>,
        "stock-mutex" => boxed::<StockMutex<M>>,
        "hemlock" => boxed::<Hemlock<M>>,
        "malthusian" => boxed::<Malthusian<M>>,
        "mcs-tp" => boxed::<McsTp<M>>,
        "hbo" => boxed::<Hbo<M>>,
        "hclh" => boxed::<Hclh<M>>,
        "ahmcs" => boxed::<Ahmcs<M>>,
        "dekker" => boxed::<Dekker<M>>,
        "bakery" => boxed::<Bakery<M>>,
        _ => return None,
    };
    serves(name, threads).then(|| new(threads))
}

/// Creates the lock with readers of this name, free, for threads `0..threads`.
///
/// None if the lock does not exist or cannot serve that many.
pub fn shared<M: Machine>(name: &str, threads: usize) -> Option<Box<dyn SharedLock>> {
    fn boxed<L: SharedLock>(threads: usize) -> Box<dyn SharedLock> {
        Box::new(L::new(threads))
    }
    let new = match name {
        "stock-rwsem" => boxed::<StockRwsem<M>>,
        "cohort-rw" => boxed::<CohortRw<M>>,
        _ => return None,
    };
    serves(name, threads).then(|| new(threads))
}

/// Creates the delegation lock of this name, free, for threads `0..threads`.
///
/// None if the lock does not exist or cannot serve that many.
pub fn delegate<M: Machine>(name: &str, threads: usize) -> Option<Box<dyn Delegate>> {
    fn boxed<L: Delegate>(threads: usize) -> Box<dyn Delegate> {
        Box::new(L::new(threads))
    }
    let new = match name {
        "flat-combining" => boxed::<FlatCombining<M>>,
        "rcl" => boxed::<Rcl<M>>,
        _ => return None,
    };
    serves(name, threads).then(|| new(threads))
}

fn serves(name: &str, threads: usize) -> bool {
    NAMES.iter().any(|n| n.short == name && threads <= n.threads_max)
}
