//! What a profiled program writes and a watcher reads: one file a process, mapped by the writer.
//!
//! ```text
//!  0          4096                  + 8,192 x 256           + 4,096 x 256        + 64 KiB
//! ┌──────────┬─────────────────────┬───────────────────────┬────────────────────┐
//! │ header   │ latches, by address │ call sites, by return │ the program's code │
//! │          │                     │ address and class     │ files, as text     │
//! └──────────┴─────────────────────┴───────────────────────┴────────────────────┘
//! ```
//!
//! The file is the live segment: a watcher reads it while the program runs, and after the program
//! was killed, called `_exit` or dropped its privileges there is as much in it as there was.
//! Writing takes no lock and allocates nothing; a full table counts what it could not hold.
//! A reader trusts no byte of it.

mod layout;
mod maps;
mod reader;
mod writer;

pub use crate::layout::{BUCKETS, Class};
pub use crate::reader::{FormatError, Mapping, Row, Snapshot};
pub use crate::writer::{cost_ns, forked, is_this_program, record, refused, start};
