//! Locks by name, for owners that wait for each other: the lock manager of a storage engine.
//!
//! A *lock* is transactional: it is named by bytes, taken in one of up to 16 modes, and held until
//! its owner releases it or ends. (A *latch* is short and physical: see `latchwork-latch`.)
//!
//! ```
//! use latchwork_lockmgr::{Manager, granular::{self, IX, X}};
//!
//! let manager = Manager::private(granular::modes())?;
//! let session = manager.session()?;
//! let owner = session.owner()?;
//! owner.lock(b"accounts", IX)?;
//! owner.lock(b"accounts/7", X)?;
//! owner.release_all()?;
//! # Ok::<(), latchwork_lockmgr::Error>(())
//! ```
//!
//! A manager lies in a [`Region`](latchwork_region::Region): in memory of this process, or in a
//! file that many processes map. The code is the same for both. When a process dies, a surviving
//! process releases the locks of its owners. The engine's recovery callback runs first:
//!
//! ```
//! use latchwork_lockmgr::{Manager, Options, shared::{self, X}};
//! use latchwork_region::Region;
//!
//! let region = Region::private(&latchwork_region::Options::default())?;
//! let undo = |owner, _label: &[u8]| {
//!     println!("{owner} died: its work is undone here, and then its locks are released");
//!     true
//! };
//! let manager =
//!     Manager::with_recovery(region, shared::modes(), Options::default(), Box::new(undo))?;
//! let session = manager.session()?;
//! session.owner()?.lock(b"page 9", X)?;
//! # Ok::<(), latchwork_lockmgr::Error>(())
//! ```
//!
//! `latchwork bank` is a program that does this, while its processes are killed again and again:
//! see `crates/cli/src/bank`.
//!
//! Each folder uses only the folders above it in this table. The house test checks this.
//!
//! | folder or file | contents |
//! |---|---|
//! | `error`, `ids`, `mode`, `preset`, `set`, `options` | arguments and results of a manager |
//! | `meter` | what a session counts: operations, wait times, events |
//! | `memory` | the cells in the region, and a thread's handle to them |
//! | `table` | objects, their queues, granting, operations without room |
//! | `fastpath` | locks that touch no shared line: weak, reserved, cached |
//! | `range` | ranges of keys: kinds, claims, keyspaces, trees, stripes |
//! | `deadlock` | finding cycles, choosing a victim, its report, the history |
//! | `recovery` | the sweep, repair, releasing the locks of dead owners, orphans |
//! | `owner` | requests, waits, releases, ranges, children, transfers, batches |
//! | `wakeup` | waiting without a thread: the notifier and futures |
//! | `observe` | snapshots, totals, views that take no latch, addresses |
//! | `manager`, `session`, `stored` | the objects that a program holds before it has an owner |
//!
//! # Events
//!
//! With the feature `tracing` the crate emits events for subscribers of the crate `tracing`. A
//! request that is granted immediately emits none. All events have the target `latchwork_lockmgr`.
//! They are emitted on the thread that did the work, without a latch held. A subscriber must not
//! use the session that emits the event.
//!
//! | level | message | fields |
//! |---|---|---|
//! | debug | `wait begun` | `owner`, `name`, `mode` |
//! | debug | `wait ended` | `owner`, `name`, `mode`, `ns`, `outcome` |
//! | warn | `timed out` | `owner`, `name`, `mode`, `ns` |
//! | warn | `deadlock broken` | `victim`, `owners`, `cycle` |
//! | info | `waiter moved to break a deadlock` | `owner`, `before`, `name` |
//! | info | `dead thread swept` | `thread`, `released`, `orphaned` |
//! | warn | `owner orphaned` | `owner`, `label` |
//! | info | `orphan released` | `owner` |
//!
//! `outcome` is `granted`, `deadlock`, `wounded`, `killed`, `timed out` or `withdrawn`.

#![warn(clippy::all, missing_debug_implementations)]

mod deadlock;
mod error;
mod fastpath;
mod ids;
mod manager;
mod memory;
mod meter;
mod mode;
mod observe;
mod options;
mod owner;
mod preset;
mod range;
mod recovery;
mod session;
mod set;
mod stored;
mod table;
mod wakeup;

pub use crate::error::{Cycle, Error, Link, Reason};
pub use crate::ids::OwnerId;
pub use crate::manager::Manager;
#[cfg(feature = "points")]
pub use crate::memory::crash_points::hook::set_point_hook;
pub use crate::memory::handle::Owner;
pub use crate::memory::names::NAME_MAX;
pub use crate::meter::counters::Stats;
pub use crate::meter::waits::{WAIT_CLASSES, Waits};
pub use crate::mode::{MODES_MAX, Mode, Modes, ModesError, ModesSpec};
pub use crate::observe::health::Health;
pub use crate::observe::stats::{LockInfo, PartitionTotals, Totals};
pub use crate::observe::view::{
    Deadlock, Edge, OwnerInfo, PartitionInfo, Snapshot, ThreadRef, Verified, View, Waiter,
};
pub use crate::options::{Options, OwnerOptions, Policy, Recovery, Step, Wait};
pub use crate::owner::adopted::Adopted;
pub use crate::owner::batch::{BatchError, BatchOp};
pub use crate::owner::blockers::Blocker;
pub use crate::owner::holdings::{Held, HeldRange};
pub use crate::owner::locks::HeldLock;
pub use crate::owner::nested::Child;
pub use crate::owner::range_request::RangeRequest;
pub use crate::owner::savepoint::Savepoint;
pub use crate::owner::wait::set_interrupt;
pub use crate::preset::{berkeley, granular, postgres, shared};
pub use crate::range::cells::KEYSPACE_MAX;
pub use crate::range::count::Claims;
pub use crate::range::kinds::{KEY_MAX, KeyRange, RangeInfo, RangeKind};
pub use crate::range::stripes::Stripes;
pub use crate::session::Session;
pub use crate::stored::{StoredFuture, StoredOwner};
pub use crate::wakeup::futures::LockFuture;
pub use crate::wakeup::range_futures::RangeFuture;
