//! The data that a profiled program writes and a watcher reads: one file per process, mapped by the
//! writer.
//!
//! ```text
//!  0        4096              + 8,192 x 320     + 4,096 x 320     + 1,024 x 2,432   + 64 KiB
//! ┌────────┬─────────────────┬─────────────────┬─────────────────┬─────────────────┐
//! │ header │ latches, by     │ call sites, by  │ call chains of  │ the program's   │
//! │        │ address         │ return address  │ waits: pieces   │ code files, as  │
//! │        │                 │ and class       │ of stacks       │ text            │
//! └────────┴─────────────────┴─────────────────┴─────────────────┴─────────────────┘
//! ```
//!
//! The file is the live segment: a watcher reads it while the program runs. After the program was
//! killed, called `_exit` or dropped its privileges, the file still has all that was recorded.
//! Writing takes no lock and allocates nothing; a full table counts what it could not store. A
//! reader trusts no byte of it.

mod layout;
mod maps;
mod place;
mod reader;
mod stack;
mod writer;

pub use crate::layout::{BUCKETS, Class};
pub use crate::place::Place;
pub use crate::reader::{FormatError, Mapping, Row, Snapshot, Stack};
pub use crate::stack::Caller;
pub use crate::writer::{
    Cost, Wait, cost, forked, is_this_program, passed_over, record, refused, start, wait_begins,
    wait_ended,
};
