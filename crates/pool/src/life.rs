//! The life of a frame: a page comes in, is written, is evicted; what a dead thread left is
//! repaired.
//!
//! | file | content |
//! |---|---|
//! | `fault` | bringing a page in; the states of a frame |
//! | `ahead` | several pages by one call to the disk |
//! | `pin` | pages that stay |
//! | `resize` | a larger or a smaller pool |
//! | `free` | free pages that can be used again |
//! | `remove` | removing files and their pages |
//! | `write` | writing pages |
//! | `clock` | choosing a frame for another page |
//! | `repair`, `sweep` | repair after a death; the pool's part of a region's sweep |

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
