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
//! All of it lies in a [`Region`](latchwork_region::Region): in memory of this process, or in a file
//! that many map. The code is the same. Dead owners' locks are released by whoever meets them, after
//! the engine had its say:
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
//! | file | what |
//! |---|---|
//! | `mode`, `preset`, `set` | which modes conflict, and what two make together |
//! | `name`, `layout`, `blocks`, `known` | names, and the cells in the region |
//! | `manager`, `session`, `owner` | what a user has in hand |
//! | `pages` | which owners are free |
//! | `stored` | owners that hold their manager by count |
//! | `request`, `release` | what an owner does |
//! | `family`, `trade`, `batch` | children, savepoints; locks handed on; several deeds in one call |
//! | `range*` | locks on ranges of keys |
//! | `weak`, `bias` | locks that touch no shared line, and where they may |
//! | `kept` | strong locks that touch none, for a thread that has them for itself |
//! | `room` | what is done when memory is short |
//! | `latch`, `table`, `queue`, `state`, `turn` | the others: partitions, objects, and whose turn it is |
//! | `wait`, `detect`, `search`, `victim`, `verdict` | waiting, and what becomes of those who wait in a ring |
//! | `record` | the last deadlocks, for people |
//! | `future`, `bell` | waiting without a thread |
//! | `note`, `death` | what a thread says it is about to free; putting right what the dead left |
//! | `sweep`, `orphan` | who looks for the dead; dead owners that are kept |
//! | `stats`, `watch`, `waits` | counting and looking; how long requests waited |
//! | `trace` | events for the crate `tracing`, with the feature of that name |
//! | `inspect` | looking without being there: no slot, no latch, no store |
//!
//! # Events
//!
//! With the feature `tracing` there are events for a subscriber of the crate of that name. A request
//! that is granted at once has none, and runs no code of theirs. All have the target
//! `latchwork_lockmgr`. They are emitted on the thread that did the deed, with no latch held; a
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

#![warn(clippy::all)]

mod batch;
mod bell;
mod bias;
mod blocks;
mod death;
mod detect;
mod error;
mod family;
mod future;
mod inspect;
mod kept;
mod known;
mod latch;
mod layout;
mod manager;
mod mode;
mod name;
mod note;
mod orphan;
mod owner;
mod pages;
mod places;
mod point;
mod preset;
mod queue;
mod range;
mod range_cell;
mod range_change;
mod range_future;
mod range_kind;
mod range_request;
mod range_space;
mod range_tree;
mod record;
mod release;
mod request;
mod room;
mod search;
mod session;
mod set;
mod state;
mod stats;
mod stored;
mod sweep;
mod table;
#[cfg(feature = "tracing")]
mod trace;
mod trade;
mod turn;
mod verdict;
mod victim;
mod wait;
mod waits;
mod watch;
mod weak;

pub use crate::batch::{BatchError, Deed};
pub use crate::error::{Cycle, Error, Link, Reason};
pub use crate::family::{Child, Savepoint};
pub use crate::future::LockFuture;
pub use crate::inspect::{
    Deadlock, Edge, OwnerInfo, PartitionInfo, Party, Picture, Verified, View, Waiter,
};
pub use crate::manager::{Manager, Options, Recovery};
pub use crate::mode::{MODES_MAX, Mode, Modes, ModesError, ModesSpec};
pub use crate::name::NAME_MAX;
pub use crate::orphan::Adopted;
pub use crate::owner::{Owner, OwnerId, OwnerOptions, Step, Wait};
#[cfg(feature = "points")]
pub use crate::point::hook::set_point_hook;
pub use crate::preset::{berkeley, granular, postgres, shared};
pub use crate::range_cell::KEYSPACE_MAX;
pub use crate::range_change::Claims;
pub use crate::range_future::RangeFuture;
pub use crate::range_kind::{KEY_MAX, KeyRange, RangeKind};
pub use crate::range_request::RangeRequest;
pub use crate::session::Session;
pub use crate::stats::{PartitionTotals, Row, Stats, Totals};
pub use crate::stored::{StoredFuture, StoredOwner};
pub use crate::victim::Policy;
pub use crate::waits::{WAIT_CLASSES, Waits};
