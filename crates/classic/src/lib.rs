//! Published locks, implemented from their papers over any machine, with which ours are compared.
//!
//! Each file is one lock: its source, its state, its invariants, and its memory order. The locks
//! are for measurements and not for use: a lock serves a number of threads that is fixed at its
//! creation, a thread passes its number with each call, and unlocking a lock that one does not hold
//! breaks it permanently. A thread that ends while it holds a lock leaves it held.
//!
//! [`exclusive`], [`shared`] and [`delegate`] create a lock by its short name; [`NAMES`] lists all.
//!
//! ```
//! use latchwork_classic::exclusive;
//! use latchwork_machine::Native;
//!
//! let lock = exclusive::<Native>("mcs", 2).unwrap();
//! lock.lock(0);
//! lock.unlock(0);
//! ```
//!
//! # Conventions
//!
//! A queue's node belongs to a thread, lies in the lock and is found by the thread's number plus
//! one; zero is none. Papers use addresses, so links have 4 bytes here instead of 8. Values that
//! only one thread or only the holder reads are also words of the machine, so that a simulator
//! charges for them. Words are on lines of their own, apart from the addresses of the arrays.

#![warn(clippy::all)]

mod ahmcs;
mod array;
mod backoff;
mod bakery;
mod clh;
mod cna;
mod cna_kernel;
mod cohort;
mod cohort_rw;
mod cst;
mod dekker;
mod delegation;
mod flat_combining;
mod hbo;
mod hclh;
mod hemlock;
mod hmcs;
mod malthusian;
mod mcs;
mod mcs_tp;
mod names;
mod osq;
mod qspinlock;
mod rcl;
mod stock_mutex;
mod stock_rwsem;
mod tas;
mod ticket;
mod ttas;
mod waiters;
mod words;

use latchwork_machine::{Level, Machine, Padded};

pub use crate::ahmcs::Ahmcs;
pub use crate::array::Array;
pub use crate::bakery::Bakery;
pub use crate::clh::Clh;
pub use crate::cna::Cna;
pub use crate::cna_kernel::{ByNode, CnaKernel};
pub use crate::cohort::{CBoMcs, Cohort, CohortTicket, Local, LocalMcs, LocalTicket, McsNode};
pub use crate::cohort_rw::CohortRw;
pub use crate::cst::Cst;
pub use crate::dekker::Dekker;
pub use crate::flat_combining::FlatCombining;
pub use crate::hbo::Hbo;
pub use crate::hclh::Hclh;
pub use crate::hemlock::Hemlock;
pub use crate::hmcs::Hmcs;
pub use crate::malthusian::Malthusian;
pub use crate::mcs::Mcs;
pub use crate::mcs_tp::McsTp;
pub use crate::names::{Kind, NAMES, Name, delegate, exclusive, shared};
pub use crate::qspinlock::{Fifo, Order, Qspinlock};
pub use crate::rcl::Rcl;
pub use crate::stock_mutex::StockMutex;
pub use crate::stock_rwsem::StockRwsem;
pub use crate::tas::Tas;
pub use crate::ticket::Ticket;
pub use crate::ttas::{Ttas, TtasPlain};
pub use crate::words::{Named, Nothing, Tell};

/// The most NUMA nodes that a hierarchical lock distinguishes. On a larger machine two nodes share
/// a part.
pub const NODES_MAX: usize = 64;

/// A lock with one holder for threads numbered from zero below a count.
pub trait Lock: Named + Send + Sync + 'static {
    /// Creates a free lock for threads `0..threads`.
    ///
    /// # Panics
    ///
    /// If the lock cannot serve that many; see [`Name::threads_max`].
    fn new(threads: usize) -> Self
    where
        Self: Sized;

    /// Locks it for thread `me`, a number that no other thread uses. Waits. Panics if the number is
    /// out of range.
    fn lock(&self, me: usize);

    /// Unlocks it. Thread `me` must hold it.
    fn unlock(&self, me: usize);

    /// Returns its memory use on a machine with `nodes` nodes, as built here.
    fn bytes(&self, nodes: usize) -> Bytes;
}

/// A lock with many readers or one writer for threads numbered from zero below a count.
pub trait SharedLock: Named + Send + Sync + 'static {
    /// Creates a free lock for threads `0..threads`.
    fn new(threads: usize) -> Self
    where
        Self: Sized;

    /// Read-locks it for thread `me`, a number that no other thread uses. Waits. Panics if the
    /// number is out of range.
    fn read(&self, me: usize);

    /// Releases a share. Thread `me` must have one.
    fn unread(&self, me: usize);

    /// Write-locks it for thread `me`. Waits. Panics like [`read`](Self::read).
    fn write(&self, me: usize);

    /// Releases it. Thread `me` must hold it for writing.
    fn unwrite(&self, me: usize);

    /// Returns its memory use on a machine with `nodes` nodes, as built here.
    fn bytes(&self, nodes: usize) -> Bytes;
}

/// A lock that moves operations to the data: another thread may run them.
pub trait Delegate: Named + Send + Sync + 'static {
    /// Creates a free lock for threads `0..threads`.
    fn new(threads: usize) -> Self
    where
        Self: Sized;

    /// Has `operation` run once, exclusively, and returns when it has. Panics if the number `me` is
    /// out of range.
    ///
    /// # Safety
    ///
    /// No other thread uses the number `me` at the same time, and no operation panics.
    unsafe fn with(&self, me: usize, operation: &mut (dyn FnMut() + Send));

    /// Returns whether operations need a serving thread.
    fn has_server(&self) -> bool {
        false
    }

    /// Serves as thread zero until `until` returns true, which is called repeatedly; returns at
    /// once if the lock needs no server. Operations that were requested before `until` returned
    /// true are done.
    ///
    /// # Panics
    ///
    /// If another thread serves.
    fn serve(&self, until: &dyn Fn() -> bool) {
        let _ = until;
    }

    /// Returns its memory use on a machine with `nodes` nodes, as built here.
    fn bytes(&self, nodes: usize) -> Bytes;
}

/// The memory use of a lock in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Of the lock itself, padded to lines where its paper pads.
    pub lock: usize,
    /// Of each waiting thread.
    pub waiter: usize,
    /// Of each holding thread.
    pub holder: usize,
}

impl Bytes {
    /// Creates the memory use of a lock of `lock` bytes with `node` bytes for each thread that
    /// waits or holds.
    pub(crate) const fn new(lock: usize, node: usize) -> Self {
        Self { lock, waiter: node, holder: node }
    }
}

/// One line for each of several threads or nodes.
pub(crate) type Row<T> = Box<[Padded<T>]>;

pub(crate) fn row<T: Default>(count: usize) -> Row<T> {
    (0..count).map(|_| Padded::default()).collect()
}

/// Returns the number of the node that this thread runs on, below [`NODES_MAX`].
pub(crate) fn node_here<M: Machine>() -> usize {
    if M::spread(Level::Node) { M::place().node() as usize % NODES_MAX } else { 0 }
}
