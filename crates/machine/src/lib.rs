//! What a lock runs on: words of memory, a way to wait, a clock, and a place.
//!
//! Every algorithm of this project is written once, over a type parameter `M:`[`Machine`]` =`
//! [`Native`], the way `HashMap<K, V, S>` carries its hasher. A user can ignore it; a test puts
//! another machine in its stead.
//!
//! | machine | crate | words | waiting |
//! |---|---|---|---|
//! | [`Native`] | here | `core` atomics | private futex |
//! | [`Shared`] | here | `core` atomics in a mapping | process-shared futex |
//! | `Loom` | `check` | loom's | a bell per word |
//!
//! A thread that waits does so in a [`Slot`]: one cache line, found by a small number, so that a
//! latch can name its waiters in 16 bits and needs no pointer, in one process or in many.

#![warn(clippy::all)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod copy;
mod descriptor;
mod machine;
mod native;
mod number;
mod pad;
mod place;
mod shared;
mod slot;
mod spin;
mod time;
mod word;

pub use crate::descriptor::{open, open_at};
pub use crate::machine::{ConstMachine, Machine, Waited};
pub use crate::native::Native;
pub use crate::pad::Padded;
pub use crate::place::{Level, Place, Topology};
pub use crate::shared::{AttachError, Attached, Shared};
pub use crate::slot::{Chain, MAX_SLOTS, Slot, SlotTable, Slots, status};
pub use crate::spin::Spin;
pub use crate::time::{Clock, Deadline};
pub use crate::word::{Integer, Word};
