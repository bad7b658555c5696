//! Memory that many processes share, and that outlives any of them.
//!
//! A [`Region`] is a file that is mapped, or memory of this process alone, with the same calls on
//! both. It lends out *cells* of fixed sizes, names them by 4-byte [`Offset`]s that mean the same
//! in every process, and keeps a record of who is at work in it: a slot for each process, whose
//! life the kernel vouches for, and a slot for each thread, in which the thread notes what it is
//! about to do. So a process may be killed between any two instructions, and whoever meets its
//! slots finishes or undoes what it had begun. `docs/region.md` draws it.
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
//! | file | what |
//! |---|---|
//! | `header` | what a region begins with, and the arithmetic of its layout |
//! | `memory` | where the bytes come from: heap, anonymous mapping, file |
//! | `copied` | a file that is only looked at |
//! | `file` | which files are opened, and how one is made |
//! | `token` | who lives: locks that the kernel drops at death |
//! | `slots` | what a process and a thread leave in the region |
//! | `state` | whether a process runs or is stopped, and its command |
//! | `open` | making and opening a [`Region`] |
//! | `region` | resolving and growing it, and who is in it |
//! | `thread` | [`Thread`]: a claimed thread slot |
//! | `slab` | allocating and freeing cells |
//! | `sweep` | finding the dead, and putting right their lists of cells |
//! | `area` | [`Area`]: a long run of words beside the region |
//! | `layer`, `repair` | which layers live in a region; a sweep, in which each repairs its part |
//! | `audit` | counting every cell |
//!
//! No bytes of a region are trusted. Numbers read from one are checked before they are used, and
//! lead to an [`Error`], not to undefined behaviour. A process that may write to a region can
//! still make it useless to the others, but it can do no more than that to them, with one
//! exception: who truncates the file kills with `SIGBUS` those who have it mapped. Who only looks
//! ([`Region::view`]) reads it instead, and is told.

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
