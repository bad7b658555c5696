//! Locks by name, for owners that wait for each other: the lock manager of a storage engine.
//!
//! A *lock* is transactional: it is named by bytes, taken in one of up to 16 modes, and kept by its
//! owner until that ends. (A *latch* is short and physical: see `latchwork-latch`.)
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
//! All of it lies in a [`Region`](latchwork_region::Region): in memory of this process, or in a
//! file that many map. The code is the same. Dead owners' locks are released by the thread that
//! meets them, after the engine had its say:
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
//! `latchwork bank` is a program that does so, with processes that are killed all the time:
//! `crates/cli/src/bank`.
//!
//! Each folder knows those above it in this table alone; the house test holds that.
//!
//! | folder or file | what |
//! |---|---|
//! | `error`, `ids`, `mode`, `preset`, `set`, `options` | what is said to a manager, and by it |
//! | `meter` | counters, times of waits, events: what a session notes of itself |
//! | `memory` | what lies in the region, and what a thread has in hand to work there |
//! | `table` | objects, their queues, granting; what is done when memory is short |
//! | `fastpath` | locks that touch no shared line: weak, reserved, cached |
//! | `range` | ranges of keys: kinds, claims, keyspaces, trees, stripes |
//! | `deadlock` | finding cycles, choosing a victim, its report, the history |
//! | `recovery` | the sweep, repair, releasing what the dead had, orphans |
//! | `owner` | requests, waits, releases, ranges, children, transfers, batches |
//! | `wakeup` | waiting without a thread: the notifier and futures |
//! | `observe` | snapshots, totals, views that take no latch, addresses |
//! | `manager`, `session`, `stored` | what a program has in hand before an owner |
//!
//! # Events
//!
//! With the feature `tracing` there are events for a subscriber of the crate of that name. A
//! request that is granted at once has none, and runs no code of theirs. All have the target
//! `latchwork_lockmgr`. They are emitted on the thread that did the work, with no latch held; a
//! subscriber must not use the session that is at work there.
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
