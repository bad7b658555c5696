//! What a thread that waits for an [`OptLatch`](super::OptLatch) says in its slot.
//!
//! # A waiter's way
//!
//! It is in no queue: see [`status::ALONE`].
//!
//! | status | to | by |
//! |---|---|---|
//! | `FREE` | `WAITING` | its thread |
//! | `WAITING` | `PARKED` | its thread, before it sleeps |
//! | `WAITING`, `PARKED` | `FREE` | its thread, which gives up |
//! | `WAITING`, `PARKED` | `GRANTED` | a caller |
//! | `WAITING`, `PARKED` | `HANDED` by a holder | that holder, before the latch names the waiter |
//! | `HANDED` | `GRANTED` | that holder, when the latch does, or does not after all |
//! | `HANDED` | `WAITING` | its thread, if that holder is dead |
//! | `WAITING`, `PARKED`, `HANDED` | `GRANTED` | a sweep, if its thread or that holder is dead |
//! | `GRANTED` | `FREE` | its thread |
//!
//! These are not the numbers that other latches write, so a caller whose waiter went away and waits
//! for a latch of another kind does nothing to it. If it waits for another latch of this kind it is
//! called for nothing, tries, and waits again.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{Machine, Slots, Word, status};

use super::HolderNumber;

pub(super) const WAITING: u32 = status::ALONE;
pub(super) const PARKED: u32 = status::ALONE_PARKED;
pub(super) use latchwork_machine::status::HANDED;
pub(super) const HANDER_SHIFT: u32 = status::BY_SHIFT;

const _: () = assert!(status::SECOND < status::ALONE && HolderNumber::MAX == status::BY_MAX);

/// Added to what a waiter wants: it lost too often ...
pub(super) const LOST: u32 = 4;
/// ... and again as often when it was called: it is handed the latch even if it sleeps.
pub(super) const OVERDUE: u32 = 8;
/// Where in a mode the [`Want`] is.
const WANT: u32 = 3;

/// What a thread wants of a latch.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Want {
    /// That no writer holds it.
    Read = 1,
    /// To be its sharer.
    Share = 2,
    /// To be its writer.
    Lock = 3,
}

/// One that waits, as a caller finds it.
pub(super) struct Waiter {
    pub(super) slot: u32,
    pub(super) status: u32,
    since: u64,
    /// A [`Want`], and what was added to it.
    pub(super) mode: u32,
    pub(super) number: Option<HolderNumber>,
}

impl Waiter {
    /// The slot with this number, if a thread waits there for the latch of this name.
    pub(super) fn at<M: Machine>(slots: &Slots<'_, M>, name: u64, number: u32) -> Option<Self> {
        let slot = slots.at(number);
        // Acquire: synchronizes with the Release in `wait_once`, for what follows.
        let status = slot.status.load(Acquire);
        if (status != WAITING && status != PARKED) || slot.latch.load(Relaxed) != name {
            return None;
        }
        Some(Self {
            slot: number,
            status,
            since: slot.place.load(Relaxed),
            mode: slot.mode.load(Relaxed),
            number: HolderNumber::new(slot.next.load(Relaxed)),
        })
    }

    /// What it wants.
    pub(super) fn wants(&self, want: Want) -> bool {
        self.mode & WANT == want as u32
    }

    /// Whether it lost too often, and can be given the latch at once: a latch that is handed to a
    /// thread that sleeps is held by nobody until that is awake.
    pub(super) fn is_to_be_handed<M: Machine>(&self) -> bool {
        let awake = self.status == WAITING || M::SPIN_NS == 0;
        self.mode & LOST != 0 && (awake || self.mode & OVERDUE != 0)
    }

    /// Those that lost too often come first, then those that came first.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        (self.mode & LOST == 0, self.since) < (other.mode & LOST == 0, other.since)
    }
}
