//! The slot of a thread that waits for an [`OptLatch`](super::OptLatch).
//!
//! # States of a waiter
//!
//! A waiter is in no queue: see [`status::ALONE`].
//!
//! | status | to | by |
//! |---|---|---|
//! | `FREE` | `WAITING` | its thread |
//! | `WAITING` | `PARKED` | its thread, before it sleeps |
//! | `WAITING`, `PARKED` | `FREE` | its thread, when it gives up |
//! | `WAITING`, `PARKED` | `GRANTED` | a caller |
//! | `WAITING`, `PARKED` | `HANDED` by a holder | that holder, before the latch names the waiter |
//! | `HANDED` | `GRANTED` | that holder, after the latch names the waiter, or the handover failed |
//! | `HANDED` | `WAITING` | its thread, if that holder is dead |
//! | `WAITING`, `PARKED`, `HANDED` | `GRANTED` | a sweep, if its thread or that holder is dead |
//! | `GRANTED` | `FREE` | its thread |
//!
//! Other latches do not write these values. So a caller whose waiter has left, and waits for a
//! latch of another kind, does not affect it. If it waits for another latch of this kind, it is
//! called in vain, tries, and waits again.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{Machine, Slots, Word, status};

use super::HolderNumber;

pub(super) const WAITING: u32 = status::ALONE;
pub(super) const PARKED: u32 = status::ALONE_PARKED;
pub(super) use latchwork_machine::status::HANDED;
pub(super) const HANDER_SHIFT: u32 = status::BY_SHIFT;

const _: () = assert!(status::SECOND < status::ALONE && HolderNumber::MAX == status::BY_MAX);

/// Added to a waiter's want: it lost too often ...
pub(super) const LOST: u32 = 4;
/// ... and as often again after it was called: it is handed the latch even if it sleeps.
pub(super) const OVERDUE: u32 = 8;
/// The bits of a mode that hold the [`Want`].
const WANT: u32 = 3;

/// The want of a waiting thread.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Want {
    /// That no writer holds the latch.
    Read = 1,
    /// To become its sharer.
    Share = 2,
    /// To become its writer.
    Lock = 3,
}

/// A waiter, as a caller reads it.
pub(super) struct Waiter {
    pub(super) slot: u32,
    pub(super) status: u32,
    since: u64,
    /// A [`Want`], with the additions above.
    pub(super) mode: u32,
    pub(super) number: Option<HolderNumber>,
}

impl Waiter {
    /// Returns the waiter in the slot of this number, if it waits for the latch of this name.
    pub(super) fn at<M: Machine>(slots: &Slots<'_, M>, name: u64, number: u32) -> Option<Self> {
        let slot = slots.at(number);
        // Acquire: synchronizes with the Release in `wait_once`, before the loads that follow.
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

    /// Returns whether it wants this.
    pub(super) fn wants(&self, want: Want) -> bool {
        self.mode & WANT == want as u32
    }

    /// Returns whether it lost too often and can be handed the latch immediately. A latch that is
    /// handed to a sleeping thread is idle until that thread is awake.
    pub(super) fn is_to_be_handed<M: Machine>(&self) -> bool {
        let awake = self.status == WAITING || M::SPIN_NS == 0;
        self.mode & LOST != 0 && (awake || self.mode & OVERDUE != 0)
    }

    /// Returns whether it precedes another waiter: waiters that lost too often come first, then the
    /// earliest.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        (self.mode & LOST == 0, self.since) < (other.mode & LOST == 0, other.since)
    }
}
