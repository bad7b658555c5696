//! A store as one process has it: region, log, pool, locks, and the repairs that it registers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use latchwork_disk::{Calls, Disk};
use latchwork_lockmgr::Manager;
use latchwork_log::{Log, Lsn, Mode};
use latchwork_machine::ConstMachine;
use latchwork_pool::{FileId, Pool};
use latchwork_region::Repair;

use crate::Error;
use crate::error::of_tree;
use crate::files::empty::EmptyLeaf;
use crate::files::shared::Shared;
use crate::user::{Used, User};

/// How a store's parts are made: see [`Options`](crate::Options) for what keeps its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of pages that are kept in memory: 1 MiB at least; 64 MiB by default. Memory is taken
    /// as it is used. Of several processes that have a store open the one that asks for most
    /// counts.
    pub cache: u64,
    /// Bytes up to which the cache may grow while the store is open, if another process asks for
    /// more than the first one did: 4 GiB by default, and never less than `cache`. Each process
    /// sets as many addresses aside, and a byte of memory is used for each page.
    pub cache_max: u64,
    /// Bytes of a page of a store that is made anew: 4,096 to 65,536, a power of two; 8,192 by
    /// default.
    pub page: u32,
    /// Bytes of the log's buffer: 1 MiB at least, a power of two; 16 MiB by default. Memory is
    /// taken as it is used.
    pub log_buffer: u64,
    /// Bytes of a segment of the log, a file, not less than its buffer; 64 MiB by default. A store
    /// keeps what it was made with. Its first segment has 512 KiB, and the next ones double until
    /// they have this size.
    pub log_segment: u64,
    /// A checkpoint is made when so many bytes were logged: 256 MiB by default. After a crash of
    /// the machine about as many are redone.
    pub log_budget: u64,
    /// Bytes of log that snapshots and open transactions may keep. Behind that the oldest snapshot
    /// gets [`Error::SnapshotTooOld`] when it needs an old version, and an open transaction is
    /// rolled back, which gets [`Error::TransactionTooOld`]. Not less than `log_budget`; 4 GiB by
    /// default.
    pub history: u64,
    /// Bytes that locks may take, of 150 or so each, and 200 KiB for each thread that writes or has
    /// a transaction open: 64 MiB, which is enough for 300 threads, to 64 GiB; 16 GiB by default.
    /// Each process sets as many addresses aside, and no memory.
    pub locks: u64,
    /// How many thread slots there are for all processes: 2 to 16,000, 512 by default. Each thread
    /// that has used the store has one until it ends, and each [`Transaction`](crate::Transaction)
    /// and kept snapshot one of its own; a thread has another while it makes a table, and may have
    /// one while a call is in the closure of another. A process keeps up to 64 for the next of
    /// these, or an eighth of all if that is less, which other processes do not get.
    pub threads: u32,
    /// When commits return that do not say otherwise: by default when they are durable. In
    /// [`Mode::Periodic`] the first commit after that time syncs, and nothing does in a pause: the
    /// last commits before one are durable when [`Store::sync`](crate::Store::sync) was called, or
    /// a checkpoint made, as the last process that closes the store does.
    pub mode: Mode,
}

impl Default for Sizes {
    /// 64 MiB of pages of 8 KiB, a log buffer of 16 MiB, segments of 64 MiB, a checkpoint each
    /// 256 MiB, 4 GiB of history, 16 GiB for locks, 512 threads, and commits that return when they
    /// are durable.
    fn default() -> Self {
        Self {
            cache: 64 << 20,
            cache_max: 4 << 30,
            page: 8192,
            log_buffer: 16 << 20,
            log_segment: 64 << 20,
            log_budget: 256 << 20,
            history: 4 << 30,
            locks: 16 << 30,
            threads: 512,
            mode: Mode::Full,
        }
    }
}

impl Sizes {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what| Err(Error::Options(what));
        if !self.page.is_power_of_two() || !(4096..=65_536).contains(&self.page) {
            return wrong("page: a power of two from 4,096 to 65,536");
        }
        if self.cache < 1 << 20 || self.cache.max(self.cache_max) / u64::from(self.page) > 1 << 30 {
            return wrong("cache, cache_max: 1 MiB at least, 2^30 pages at most");
        }
        if !self.log_buffer.is_power_of_two() || !(1 << 20..=1 << 34).contains(&self.log_buffer) {
            return wrong("log_buffer: a power of two, 1 MiB to 16 GiB");
        }
        if self.log_buffer < 32 * u64::from(self.page) {
            return wrong("log_buffer: 32 pages at least");
        }
        if self.log_segment < self.log_buffer || !self.log_segment.is_multiple_of(4096) {
            return wrong("log_segment: a multiple of 4,096, not less than log_buffer");
        }
        if self.log_segment > 1 << 36 {
            return wrong("log_segment: 64 GiB at most");
        }
        if !(64 << 20..=1 << 36).contains(&self.locks) {
            return wrong("locks: 64 MiB to 64 GiB");
        }
        if self.history < self.log_budget {
            return wrong("history: not less than log_budget");
        }
        // A thread that writes to a new table needs another slot to make it.
        if !(2..=16_000).contains(&self.threads) {
            return wrong("threads: 2 to 16,000");
        }
        Ok(())
    }

    /// How the region is made.
    pub(crate) fn region(&self) -> latchwork_region::Options {
        latchwork_region::Options {
            threads: self.threads,
            // A thread of a program keeps the one that it once waited in, and a thread slot is used
            // by many of them in turn. One that gets none waits nevertheless, awake now and then.
            waiters: (8 * self.threads).clamp(4096, latchwork_machine::MAX_SLOTS),
            limit: self.locks,
            ..latchwork_region::Options::default()
        }
    }

    /// Bytes of memory that processes share, about.
    pub(crate) fn memory(&self) -> u64 {
        self.cache + self.cache / 64 + self.log_buffer + (16 << 20)
    }

    /// Frames for so many bytes of pages.
    pub(crate) fn frames_for(&self, bytes: u64) -> u32 {
        (bytes / u64::from(self.page)).max(64) as u32
    }
}

/// Why a transaction was not undone, and its first record: it may have been undone since.
#[derive(Clone)]
pub(crate) struct Stuck {
    pub(crate) first: Lsn,
    pub(crate) why: Error,
}

/// The parts.
pub(crate) struct StoreInner<M: ConstMachine> {
    pub(crate) manager: Manager<M>,
    pub(crate) log: Log<M>,
    pub(crate) pool: Pool<M>,
    pub(crate) shared: Shared<M>,
    pub(crate) file: FileId,
    /// Bytes of key and value together that a record may have.
    pub(crate) record_max: usize,
    pub(crate) sizes: Sizes,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) folder: PathBuf,
    /// Why transactions of dead slots could not be undone, when it was tried last.
    pub(crate) stuck: Mutex<BTreeMap<u32, Stuck>>,
    /// Leaves that may be empty, of sessions that are over.
    pub(crate) empty: Mutex<VecDeque<EmptyLeaf>>,
    /// What tables are called, by their trees: those that this process has used.
    pub(crate) names: RwLock<HashMap<u32, String>>,
    /// The slots of prepared transactions, by their ids, as this process saw them when it last
    /// looked for one: each may have been decided since.
    pub(crate) prepared: Mutex<HashMap<Vec<u8>, u32>>,
    /// What of its calls to the disk this process has counted in shared memory.
    pub(crate) published: Mutex<Calls>,
    /// Who uses the transactions of this process's thread slots.
    pub(crate) users: Mutex<HashMap<u32, Arc<User<M>>>>,
    /// Registered with the region for as long as this lives.
    pub(crate) _undo: Arc<dyn Repair<M>>,
}

/// Bytes that a new thread maps besides its stack, and some more.
const THREAD: usize = 1 << 20;

impl<M: ConstMachine> StoreInner<M> {
    /// Who uses the transaction of a thread slot.
    pub(crate) fn used(&self, slot: u32) -> Used {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.get(&slot).map_or(Used::ByAnother, |user| user.used())
    }

    /// Whether this process has the addresses that a thread with such a stack needs. Rust's library
    /// maps memory in the new thread itself, for its handler of stack overflows, and ends the
    /// process where there is none; so this is asked before. Another thread of the program that
    /// maps the last addresses in between is not accounted for.
    pub(crate) fn has_room_for_thread(&self, stack: usize) -> Result<(), Error> {
        Ok(self.manager.region().has_addresses((stack + THREAD) as u64)?)
    }

    /// The table that has the tree, as errors name it.
    pub(crate) fn table(&self, tree: u32) -> String {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&tree).cloned().unwrap_or_else(|| of_tree(tree))
    }

    /// Has errors name a table so.
    pub(crate) fn name_table(&self, tree: u32, name: &str) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.insert(tree, name.to_owned());
    }
}

/// A store in ordinary memory, for the tests of its parts.
#[cfg(test)]
pub(crate) mod stage {
    use std::path::Path;
    use std::sync::Arc;

    use latchwork_disk::{Disk, Simulated};
    use latchwork_machine::Native;
    use latchwork_region::{Options, Region};

    use super::{Sizes, StoreInner};

    pub(crate) fn begin() -> (Region<Native>, Arc<StoreInner<Native>>) {
        let sizes = Sizes { threads: 8, locks: 64 << 20, ..Sizes::default() };
        let options = Options { threads: sizes.threads, limit: 64 << 20, ..Options::default() };
        let region = Region::private(&options).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(Simulated::new());
        let home = StoreInner::open(&region, &disk, Path::new("/store"), &sizes, 1).unwrap();
        (region, home)
    }
}
