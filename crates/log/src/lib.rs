//! One ordered log that many processes append to, and that no death leaves a hole in.
//!
//! | file | idea |
//! |---|---|
//! | `record.rs` | a record's bytes; [`Lsn`] |
//! | `control.rs`, `segment.rs` | the files: control blocks; segments, made ahead and recycled |
//! | `layout.rs` | what all processes share: frontiers, claims, slots, buffer |
//! | `log.rs` | [`Log`] and [`Session`]; opening |
//! | `recover.rs` | the files without a region: where the log ends, or that it is damaged |
//! | `append.rs` | credit, and the append: copy under the latch, `end` moved last |
//! | `aside.rs` | what is set aside for undoing, which never fails for want of space |
//! | `flush.rs` | leader and followers; [`Mode`] |
//! | `slots.rs` | what thread slots have in the log: transactions, commits |
//! | `repair.rs` | what a dead thread left |
//! | `restore.rs` | what thread slots had, made again in a new region |
//! | `files.rs` | records in files, one or all in order |
//! | `options.rs` | how a log is made, and what was found |
//! | `read.rs` | one record by its LSN; a scan |
//! | `pieces.rs` | all records in order, in large pieces, for redo |
//! | `pins.rs` | what is kept: pins, checkpoints, recycling |
//! | `copy.rs` | the files copied while others append |
//! | `view.rs` | the shared memory looked at by a process that takes no part |
//! | `look.rs` | the files looked at by one who changes nothing |
//!
//! ```text
//!   reserve ---> build ---> append ---> commit (flush, as the mode says)
//!   waits        private    latch       leader writes the buffer out and syncs; followers wait
//! ```
//!
//! One total order of all records is what the rest of a store stands on. A record is copied
//! under a latch that names its holder, and `end` is moved last: so a thread that is killed in
//! the middle leaves nothing, and bytes below `end` are whole records at any moment. (To
//! reserve a place and copy outside, as PostgreSQL, InnoDB and Aether do, loses what comes
//! after the hole of a dead process.)
//!
//! Waiting for room is asked for before a thread latches anything ([`Session::reserve`]); an
//! append with credit neither waits for the disk nor fails for want of space.
//!
//! What a crash of the machine leaves is a beginning of the log: never a record without those
//! before it.

#![warn(clippy::all)]

mod append;
mod buffer;
mod control;
mod copy;
mod enlarge;
mod error;
mod files;
mod flush;
mod layout;
mod log;
mod options;
mod pieces;
mod pins;
mod places;
mod point;
mod read;
mod reader;
mod record;
mod recover;
mod repair;
mod restore;
mod segment;
mod slots;
mod spans;
mod undo_reserve;
mod view;

pub use crate::error::Error;
pub use crate::flush::Mode;
pub use crate::layout::{COMMITS, SlotView};
pub use crate::log::{Log, Session};
pub use crate::options::{Options, Recovered};
pub use crate::pieces::{Piece, Pieces};
pub use crate::pins::{Checkpoint, PinInfo};
#[cfg(feature = "points")]
pub use crate::point::hook::set_point_hook;
pub use crate::read::Scan;
pub use crate::reader::{FileScan, LogFiles};
pub use crate::record::{
    ASIDE_LEAST, Entry, EntryView, Flags, Head, Lsn, RECORD_MAX, Record, UNIT,
};
pub use crate::view::{LogView, LogWork};
