//! All input and output of the pool, the log and the store, behind one trait.
//!
//! | file | content |
//! |---|---|
//! | `disk.rs` | the traits [`Disk`] and [`File`] |
//! | `error.rs` | errors, with operation and path |
//! | `calls.rs` | numbers and counts of calls |
//! | `system.rs` | [`System`]: `pread`, `pwrite`, `fdatasync` |
//! | `overlay.rs` | [`Overlay`], [`ReadOnly`]: files that must not change |
//! | `limit.rs` | this process's limit on the length of files: an error instead of a signal |
//! | `simulated.rs` | [`Simulated`]: a disk in memory with every fault, planned or random by seed |
//! | `buffer.rs` | memory aligned for direct I/O |
//! | `checksum.rs` | CRC32C |
//!
//! The traits are used as objects (`Arc<dyn Disk>`): an indirect call is negligible next to the
//! time of a device, and the upper layers need no type parameter for the disk.
//!
//! A program may rely on two guarantees: written bytes are durable when [`File::sync`] has returned
//! `Ok` for that file, and a name is durable when [`Disk::sync_folder`] has returned `Ok` for its
//! folder. Before that, any part of the changes may survive a crash and any other part may not.

#![warn(clippy::all)]

mod buffer;
mod calls;
mod checksum;
mod disk;
mod error;
mod limit;
mod overlay;
mod simulated;
mod system;

pub use crate::buffer::{ALIGNMENT, Buffer};
pub use crate::calls::{Calls, Operation};
pub use crate::checksum::{crc32c, crc32c_append};
pub use crate::disk::{Disk, File, Open};
pub use crate::error::{Error, Subject};
pub use crate::limit::within_limit;
pub use crate::overlay::{Overlay, ReadOnly};
pub use crate::simulated::{Fault, Simulated};
pub use crate::system::System;
