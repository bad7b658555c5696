//! A store in one process: region, log, pool, locks, and the repairs that it registers.

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

/// Sizes and modes of a store: see [`Options`](crate::Options) for which of them can change.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of the page cache in bytes: at least 1 MiB; default 64 MiB. Memory is allocated as it
    /// is used. If several processes have a store open, the largest request counts.
    pub cache: u64,
    /// Size in bytes to which the cache may grow while the store is open, if another process
    /// requests more than the first one: default 4 GiB, and never less than `cache`. Each process
    /// reserves this much address space, and a byte of memory is used for each page.
    pub cache_max: u64,
    /// Page size of a new store in bytes: a power of two from 4,096 to 65,536; default 8,192.
    pub page: u32,
    /// Size of the log buffer in bytes: a power of two of at least 1 MiB; default 16 MiB. Memory is
    /// allocated as it is used.
    pub log_buffer: u64,
    /// Size of a log segment (a file) in bytes, not less than the log buffer; default 64 MiB. A
    /// store keeps the size that it was created with. Its first segment has 512 KiB, and the next
    /// ones double until they have this size.
    pub log_segment: u64,
    /// A checkpoint is made after this many bytes of log; default 256 MiB. After a crash of the
    /// machine about this much is redone.
    pub log_budget: u64,
    /// Maximum bytes of log that snapshots and open transactions may retain. Beyond that, the
    /// oldest snapshot gets [`Error::SnapshotTooOld`] when it needs an old version, and an open
    /// transaction is rolled back and gets [`Error::TransactionTooOld`]. Not less than
    /// `log_budget`; default 4 GiB.
    pub history: u64,
    /// Maximum bytes of memory for locks, of about 150 each, and 200 KiB for each thread that
    /// writes or has a transaction open: 64 MiB, which suffices for 300 threads, to 64 GiB; default
    /// 16 GiB. Each process reserves this much address space, and no memory.
    pub locks: u64,
    /// Number of thread slots for all processes: 2 to 16,000; default 512. Each thread that has
    /// used the store has a slot until it ends, and each [`Transaction`](crate::Transaction) and
    /// kept snapshot has one of its own. A thread uses another one while it creates a table, and
    /// may use another one for a call within the closure of a transaction. A process keeps up to 64
    /// unused slots for reuse, or an eighth of all if that is less; other processes cannot use
    /// these.
    pub threads: u32,
    /// When commits return, unless their transaction says otherwise; by default, when they are
    /// durable. In [`Mode::Periodic`] the first commit after that period syncs. Nothing syncs
    /// during a pause: the last commits before it become durable with a call of
    /// [`Store::sync`](crate::Store::sync) or a checkpoint, which the last process that closes the
    /// store makes.
    pub mode: Mode,
}

impl Default for Sizes {
    /// 64 MiB of pages of 8 KiB, a log buffer of 16 MiB, segments of 64 MiB, a checkpoint after
    /// each 256 MiB of log, 4 GiB of history, 16 GiB for locks, 512 threads, and commits that
    /// return when they are durable.
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
        // A thread that writes to a new table needs another slot to create it.
        if !(2..=16_000).contains(&self.threads) {
            return wrong("threads: 2 to 16,000");
        }
        Ok(())
    }

    /// Returns the options of the region.
    pub(crate) fn region(&self) -> latchwork_region::Options {
        latchwork_region::Options {
            threads: self.threads,
            // A thread of a program keeps the waiter slot in which it first waited, and many
            // threads use a thread slot in turn. A thread without a waiter slot still waits, by
            // waking up periodically.
            waiters: (8 * self.threads).clamp(4096, latchwork_machine::MAX_SLOTS),
            limit: self.locks,
            ..latchwork_region::Options::default()
        }
    }

    /// Returns the approximate size in bytes of the shared memory.
    pub(crate) fn memory(&self) -> u64 {
        self.cache + self.cache / 64 + self.log_buffer + (16 << 20)
    }

    /// Returns the number of frames for this many bytes of pages.
    pub(crate) fn frames_for(&self, bytes: u64) -> u32 {
        (bytes / u64::from(self.page)).max(64) as u32
    }
}

/// Why a transaction was not rolled back, and its first record, by which a later rollback is
/// detected.
#[derive(Clone)]
pub(crate) struct Stuck {
    pub(crate) first: Lsn,
    pub(crate) why: Error,
}

/// The parts of a store in this process.
pub(crate) struct StoreInner<M: ConstMachine> {
    pub(crate) manager: Manager<M>,
    pub(crate) log: Log<M>,
    pub(crate) pool: Pool<M>,
    pub(crate) shared: Shared<M>,
    pub(crate) file: FileId,
    /// Maximum length in bytes of key and value of a record together.
    pub(crate) record_max: usize,
    pub(crate) sizes: Sizes,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) folder: PathBuf,
    /// Why transactions of dead slots could not be rolled back in the last attempt.
    pub(crate) stuck: Mutex<BTreeMap<u32, Stuck>>,
    /// Leaves that may be empty, noted by sessions that have ended.
    pub(crate) empty: Mutex<VecDeque<EmptyLeaf>>,
    /// The names of tables by tree, for tables that this process has used.
    pub(crate) names: RwLock<HashMap<u32, String>>,
    /// The slots of prepared transactions by id, as of the last search of this process. They may
    /// have been decided since.
    pub(crate) prepared: Mutex<HashMap<Vec<u8>, u32>>,
    /// The disk calls that this process has added to the counts in shared memory.
    pub(crate) published: Mutex<Calls>,
    /// Which threads use the transactions of this process's thread slots.
    pub(crate) users: Mutex<HashMap<u32, Arc<User<M>>>>,
    /// Registered with the region for as long as this lives.
    pub(crate) _undo: Arc<dyn Repair<M>>,
}

/// Upper bound of the bytes that a new thread maps in addition to its stack.
const THREAD: usize = 1 << 20;

impl<M: ConstMachine> StoreInner<M> {
    /// Returns how the calling thread relates to the transaction of a thread slot.
    pub(crate) fn used(&self, slot: u32) -> Used {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.get(&slot).map_or(Used::ByAnother, |user| user.used())
    }

    /// Checks that this process has the address space for a thread with such a stack. Rust's
    /// library maps memory in the new thread itself, for its handler of stack overflows, and aborts
    /// the process if that fails; so this is checked first. If another thread maps the last
    /// addresses in between, the check does not help.
    pub(crate) fn has_room_for_thread(&self, stack: usize) -> Result<(), Error> {
        Ok(self.manager.region().has_addresses((stack + THREAD) as u64)?)
    }

    /// Returns the name of the table of a tree, for error texts.
    pub(crate) fn table(&self, tree: u32) -> String {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&tree).cloned().unwrap_or_else(|| of_tree(tree))
    }

    /// Sets the name of a tree's table, for error texts.
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
