//! The life of a frame: a page comes in, is written out, is evicted; what a death left is repaired.
//!
//! | file | what |
//! |---|---|
//! | `fault` | bringing a page in; the states of a frame |
//! | `ahead` | several pages by one call to the disk |
//! | `pin` | pages that are to stay |
//! | `resize` | a larger or a smaller pool |
//! | `free` | pages that are nobody's, to be had again |
//! | `remove` | files that go, and their pages |
//! | `write` | writing pages out |
//! | `clock` | which frame is used next for another page |
//! | `repair`, `sweep` | what a death left; the pool's part of a region's sweep |

pub(crate) mod ahead;
pub(crate) mod clock;
pub(crate) mod fault;
pub(crate) mod free;
pub(crate) mod pin;
pub(crate) mod remove;
pub(crate) mod repair;
pub(crate) mod resize;
pub(crate) mod sweep;
pub(crate) mod write;
