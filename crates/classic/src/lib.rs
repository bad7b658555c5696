//! The published locks that ours are judged against, each from its paper, over any machine.
//!
//! Each file is one lock: whose idea, its state, what always holds, and who orders memory for whom.
//! They are yardsticks and not for use: a lock serves a number of threads that is fixed when it is
//! made, a thread says its number with each call, and unlocking what one does not hold breaks the
//! lock for good. A thread that ends while it holds a lock leaves it held.
//!
//! [`exclusive`], [`shared`] and [`delegate`] make a lock by its short name; [`NAMES`] lists all.
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
//! one; zero is nobody. Papers use addresses, so links are 4 bytes here where they are 8 there.
//! What only one thread or only the holder reads is a word of the machine as well, so that a
//! simulator charges for it. Words lie on lines of their own, apart from the addresses of the
//! arrays.

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

/// NUMA nodes that a hierarchical lock keeps apart. On a larger machine two nodes share a part.
pub const NODES_MAX: usize = 64;

/// A lock with one holder, for the threads numbered from zero below a count.
pub trait Lock: Named + Send + Sync + 'static {
    /// A free lock for threads `0..threads`.
    ///
    /// # Panics
    ///
    /// If the lock cannot serve so many; see [`Name::threads_max`].
    fn new(threads: usize) -> Self
    where
        Self: Sized;

    /// Takes the lock for thread `me`, which no other thread calls itself. Panics if there is no
    /// such number.
    fn lock(&self, me: usize);

    /// Gives it back. Thread `me` holds it.
    fn unlock(&self, me: usize);

    /// What it costs in memory on a machine with so many nodes, as built here.
    fn bytes(&self, nodes: usize) -> Bytes;
}

/// A lock with many readers or one writer, for the threads numbered from zero below a count.
pub trait SharedLock: Named + Send + Sync + 'static {
    /// A free lock for threads `0..threads`.
    fn new(threads: usize) -> Self
    where
        Self: Sized;

    /// Takes a share for thread `me`, which no other thread calls itself. Panics if there is no
    /// such number.
    fn read(&self, me: usize);

    /// Gives it back. Thread `me` has one.
    fn unread(&self, me: usize);

    /// Takes the whole for thread `me`. Panics as [`read`](Self::read) does.
    fn write(&self, me: usize);

    /// Gives it back. Thread `me` holds it.
    fn unwrite(&self, me: usize);

    /// What it costs in memory on a machine with so many nodes, as built here.
    fn bytes(&self, nodes: usize) -> Bytes;
}

/// A lock that takes an operation to the data: another thread may run it.
pub trait Delegate: Named + Send + Sync + 'static {
    /// A free lock for threads `0..threads`.
    fn new(threads: usize) -> Self
    where
        Self: Sized;

    /// Has `operation` run once, while no other is, and returns when it has. Panics if there is no
    /// number `me`.
    ///
    /// # Safety
    ///
    /// No other thread calls itself `me` in the meantime, and no operation panics.
    unsafe fn with(&self, me: usize, operation: &mut (dyn FnMut() + Send));

    /// Whether operations wait for a thread that serves.
    fn has_server(&self) -> bool {
        false
    }

    /// Serves as thread zero until `until`, which is asked again and again; returns at once if
    /// there is nothing to serve. What was asked for before `until` came true is done.
    ///
    /// # Panics
    ///
    /// If another thread serves.
    fn serve(&self, until: &dyn Fn() -> bool) {
        let _ = until;
    }

    /// What it costs in memory on a machine with so many nodes, as built here.
    fn bytes(&self, nodes: usize) -> Bytes;
}

/// What a lock costs in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// The lock itself. Padded to lines where its paper pads.
    pub lock: usize,
    /// Each thread that waits.
    pub waiter: usize,
    /// Each thread that holds it.
    pub holder: usize,
}

impl Bytes {
    /// A lock of `lock` bytes, for which each thread needs `node` bytes as it waits and holds.
    pub(crate) const fn new(lock: usize, node: usize) -> Self {
        Self { lock, waiter: node, holder: node }
    }
}

/// One line for each of several threads or nodes.
pub(crate) type Row<T> = Box<[Padded<T>]>;

pub(crate) fn row<T: Default>(count: usize) -> Row<T> {
    (0..count).map(|_| Padded::default()).collect()
}

/// The number of the node that this thread runs on, below [`NODES_MAX`].
pub(crate) fn node_here<M: Machine>() -> usize {
    if M::spread(Level::Node) { M::place().node() as usize % NODES_MAX } else { 0 }
}
