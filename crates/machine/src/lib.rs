//! The interface between locks and the machine: words of memory, waiting, clocks and places.
//!
//! Every algorithm of this project is written once, over a type parameter `M:`[`Machine`]` =`
//! [`Native`], as `HashMap<K, V, S>` takes its hasher. Users can ignore it; tests use another
//! machine.
//!
//! | machine | crate | words | waiting |
//! |---|---|---|---|
//! | [`Native`] | here | `core` atomics | private futex |
//! | [`Shared`] | here | `core` atomics in a mapping | process-shared futex |
//! | `Loom` | `check` | loom's | a notifier per word |
//!
//! A thread waits in a [`Slot`]: one cache line with a small number. A latch therefore names its
//! waiters in 16 bits and needs no pointer, in one process or in many.

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
pub use crate::spin::{Spin, crowded_until, finds_crowd, pause_for};
pub use crate::time::{Clock, Deadline};
pub use crate::word::{Integer, Word};
