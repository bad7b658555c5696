//! All input and output of the pool, the log and the store, behind one trait.
//!
//! | file | idea |
//! |---|---|
//! | `disk.rs` | the traits [`Disk`] and [`File`]: what the layers above may ask of a disk |
//! | `error.rs` | what a disk can answer, with the operation and the path |
//! | `calls.rs` | every call has a number; how many there were of each operation |
//! | `system.rs` | [`System`]: `pread`, `pwrite`, `fdatasync` |
//! | `overlay.rs` | [`Overlay`], [`ReadOnly`]: files that must not change |
//! | `limit.rs` | this process's limit on the length of files: an error and no signal |
//! | `simulated.rs` | [`Simulated`]: a disk in memory with every fault, by plan or by seed |
//! | `buffer.rs` | memory whose address suits direct I/O |
//! | `checksum.rs` | CRC32C |
//!
//! The traits are used as objects (`Arc<dyn Disk>`): a call that may take a device's time does not
//! notice an indirect jump, and the layers above need no type parameter for the disk.
//!
//! What a program may rely on, and no more: bytes written are on the disk when [`File::sync`] has
//! returned `Ok` for that file; a name is there after a crash when [`Disk::sync_folder`] has returned
//! `Ok` for its folder. Between, any part of what was written may be there and any other part not.

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
