//! Memory that many processes share and that outlives each of them.
//!
//! A [`Region`] is a mapped file, or memory of this process, with the same calls. It allocates
//! *cells* of fixed sizes, names them by 4-byte [`Offset`]s that mean the same in every process,
//! and records which processes and threads use it: a slot for each process, whose life the kernel
//! vouches for, and a slot for each thread, in which the thread records what it is about to do. So
//! a process may be killed between any two instructions; another process finds its slots and
//! completes or undoes its operations. `docs/region.md` describes the layout.
//!
//! ```
//! use latchwork_region::{Options, Region};
//! use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
//!
//! let region = Region::private(&Options::default())?;
//! let thread = region.thread()?;
//! let cell = thread.alloc::<[AtomicU64; 3]>()?;
//! cell[1].store(7, Relaxed);
//! let offset = cell.publish();
//! // SAFETY: all who use this cell use it as three such words.
//! assert_eq!(unsafe { region.resolve(offset) }?[1].load(Relaxed), 7);
//! // SAFETY: nothing leads there any more.
//! unsafe { thread.free(offset) }?;
//! # Ok::<(), latchwork_region::Error>(())
//! ```
//!
//! | file | content |
//! |---|---|
//! | `header` | the start of a region, and the arithmetic of its layout |
//! | `memory` | where the bytes come from: heap, anonymous mapping, file |
//! | `copied` | a file that is only viewed |
//! | `file` | opening and creating files |
//! | `token` | life of processes: locks that the kernel drops at death |
//! | `slots` | the slots of processes and threads |
//! | `state` | whether a process runs or is stopped, and its command |
//! | `open` | creating and opening a [`Region`] |
//! | `region` | resolving offsets, growing, lists of processes and threads |
//! | `thread` | [`Thread`]: a claimed thread slot |
//! | `slab` | allocating and freeing cells |
//! | `sweep` | finding dead threads and repairing their lists of cells |
//! | `area` | [`Area`]: a long run of words next to the region |
//! | `layer`, `repair` | which layers live in a region; a sweep, in which each repairs its part |
//! | `audit` | counting every cell |
//!
//! No bytes of a region are trusted. Numbers read from one are checked before use and lead to an
//! [`Error`], not to undefined behaviour. A process that may write to a region can make it useless
//! to the others, but no more, with one exception: truncating the file kills every process that has
//! it mapped (`SIGBUS`). A view ([`Region::view`]) reads the file instead and returns an error.

#![warn(clippy::all)]

mod area;
mod audit;
mod copied;
mod error;
mod file;
mod header;
mod huge;
mod layer;
mod memory;
mod mount;
mod open;
mod pinned;
#[cfg(feature = "internals")]
mod places;
mod plain;
mod region;
mod repair;
mod slab;
mod slots;
mod space;
mod state;
mod sweep;
mod thread;
mod token;

pub use crate::area::{Area, AreaOptions};
pub use crate::audit::{Audit, Count};
pub use crate::error::Error;
pub use crate::header::{CLASSES, Options, ROOTS};
pub use crate::layer::Layer;
pub use crate::pinned::Pinned;
pub use crate::plain::{Offset, Plain};
pub use crate::region::Region;
pub use crate::repair::Repair;
pub use crate::slab::Cell;
pub use crate::slots::{INTENT_WORDS, LAYER_WORDS, ProcessInfo, ThreadInfo};
pub use crate::state::ProcessState;
pub use crate::sweep::{Dead, Fate, InHand};
pub use crate::thread::Thread;
pub use crate::token::Unforked;
