//! One ordered log that many processes append to concurrently. A killed process leaves no hole in
//! it.
//!
//! | file | content |
//! |---|---|
//! | `record.rs` | a record's bytes; [`Lsn`] |
//! | `control.rs`, `segment.rs`, `spans.rs` | the files: control blocks; segments |
//! | `layout.rs`, `line.rs`, `buffer.rs` | shared memory: frontiers, claims, slots; the buffer |
//! | `log.rs` | [`Log`] and [`Session`]; opening |
//! | `recover.rs` | recovery from files without a region: the end of the log, or damage |
//! | `credit.rs` | credit: the right to append |
//! | `group.rs` | requests for places, by NUMA node |
//! | `append.rs` | the append: place, copy, publish |
//! | `flight.rs` | records in flight, and the repair of those of dead and stopped threads |
//! | `undo_reserve.rs` | the space set aside for rollback, which never fails for lack of space |
//! | `flush.rs`, `gather.rs` | leader and followers; [`Mode`]; a leader waits for the last group |
//! | `slots.rs` | the transactions and commits of thread slots, read without a latch |
//! | `repair.rs` | the log's part of a sweep |
//! | `restore.rs` | the state of thread slots, restored in a new region |
//! | `files.rs` | records in files, one or all in order |
//! | `options.rs` | options, and the state found at open |
//! | `read.rs` | one record by its LSN; a scan |
//! | `pieces.rs` | all records in order, in large pieces, for redo |
//! | `pins.rs` | retention: pins, checkpoints, recycling |
//! | `copy.rs` | copies of the files while other threads append |
//! | `view.rs` | the shared memory, inspected by a process that takes no part |
//! | `reader.rs` | the files, inspected by a process that changes nothing |
//!
//! ```text
//!   reserve ---> build ---> place ---> copy ---> publish ---> commit (flush, as the mode says)
//!   waits        private    a leader   each      `end` moves  a leader writes the buffer out and
//!                           for many   its own                syncs; followers wait
//! ```
//!
//! The rest of a store depends on one total order of all records. A leader gives places to the
//! threads of a NUMA node under one latch; the threads copy their records concurrently; `end` moves
//! over whole records only. The place of a thread that is killed before its record is whole is
//! filled with a void record.
//!
//! A thread reserves room before it latches anything ([`Session::reserve`]). An append with credit
//! never waits for the disk and never fails for lack of space.
//!
//! A crash of the machine leaves a prefix of the log: if a record survives, all records before it
//! survive.

#![warn(clippy::all)]

mod append;
mod buffer;
mod control;
mod copy;
mod credit;
mod enlarge;
mod error;
mod files;
mod flight;
mod flush;
mod gather;
mod group;
mod layout;
mod line;
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
mod turn;
mod undo_reserve;
mod view;
mod wait;

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
