//! Options of managers, owners and requests.

use std::time::Duration;

use latchwork_machine::Deadline;

use crate::ids::OwnerId;
#[cfg(doc)]
use crate::{Error, Owner, Session};

/// Options of a manager. Each process chooses its own; they are not stored in the region.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a waiter waits before it searches for a deadlock that it is part of. Default: 200
    /// us. A waiter searches immediately if a holder of the lock also waits.
    pub detect_after: Duration,
    /// Which owner a detector aborts.
    pub policy: Policy,
    /// The largest number of locks of one owner; unlimited by default. Weak locks count only while
    /// they are in the table; an owner has at most 32 others.
    pub owner_locks: Option<u32>,
    /// Whether weak modes are locked in the owner's own memory. Default: true. Without effect if
    /// the system had no asymmetric barrier when the manager was created.
    pub weak: bool,
    /// Whether the first weak lock of a free name is stored in the owner's own memory. Default:
    /// false. Then a name is opened to weak locks after 32 weak locks of that name, or of names
    /// with the same bias, went through the table, so that a strong lock of a new name need not
    /// inspect any owner. After strong locks each partition learns when opening pays off.
    pub opens_early: bool,
    /// How many times a session requests a name before the name is reserved for it. The session
    /// then takes strong locks of that name in its own memory until another session requests it.
    /// Default: 32; 0 disables reservations.
    pub keep_after: u32,
    /// For how long a new request may overtake the next waiter in the queue (*barging*). Default:
    /// zero, never. Without barging, a released lock usually passes to the next waiter immediately,
    /// even if that waiter must first be woken. With more threads than processors, each lock then
    /// costs a thread switch. With barging, the waiter is *called* and the lock stays free for the
    /// first thread that requests it, until the called waiter takes it. A waiter that has waited
    /// this long is granted the lock directly. Applies only to modes that conflict with themselves,
    /// and not to nested owners.
    pub barge_for: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            detect_after: Duration::from_micros(200),
            policy: Policy::Youngest,
            owner_locks: None,
            weak: true,
            opens_early: false,
            keep_after: 32,
            barge_for: Duration::ZERO,
        }
    }
}

/// The recovery callback: called for each dead owner that held locks, before its locks are
/// released. Returns true to release them, or false to keep the owner as an *orphan* until
/// [`Session::release_orphan`].
///
/// A sweep calls it for each dead owner that the sweep finds or that a process without a callback
/// found earlier. One process at a time calls it. If that process dies, or the callback panics, the
/// next sweep calls it again.
pub type Recovery = Box<dyn Fn(OwnerId, &[u8]) -> bool + Send + Sync>;

/// How a detector chooses the victim of a deadlock, as in Berkeley DB. Each policy considers only
/// the owners of the lowest priority. Ties are resolved in favor of the older owner: the younger
/// one is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The youngest owner, which has done the least work. The default.
    Youngest,
    /// The oldest owner.
    Oldest,
    /// Any owner.
    Random,
    /// The owner that holds the most locks.
    MaxLocks,
    /// The owner that holds the fewest locks.
    MinLocks,
    /// The owner that holds the most locks in modes that write.
    MaxWrites,
    /// The owner that holds the fewest locks in modes that write.
    MinWrites,
    /// The owner that has waited longest.
    Expire,
    /// The recommended policy of this release: `Youngest`.
    Default,
}

/// Options of an owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnerOptions<'a> {
    /// Victims are chosen among the owners of the lowest priority. Default: 100.
    pub priority: u32,
    /// A text for diagnostics. The first 32 bytes are stored.
    pub label: &'a str,
    /// The age of the owner. To retry a transaction, pass what [`Owner::age`] returned at the first
    /// attempt, so that the retry does not become younger. `None` means now.
    pub age: Option<u64>,
}

impl Default for OwnerOptions<'_> {
    fn default() -> Self {
        Self { priority: 100, label: "", age: None }
    }
}

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Waits until the lock is granted, or a deadlock is found and this owner is the victim.
    Detect,
    /// Does not wait: returns [`Error::NotGranted`].
    Never,
    /// Waits as `Detect`, but returns [`Error::TimedOut`] at this instant.
    Until(Deadline),
    /// Waits only for younger owners; returns [`Error::Died`] if an older one is in the way
    /// (Rosenkrantz, Stearns and Lewis, 1978). Needs no deadlock detector if all requests use this
    /// mode.
    Die,
    /// Waits only for older owners. Younger owners in the way are aborted: their waiting request,
    /// or their next one, fails with [`Error::Aborted`] (same paper).
    Wound,
}

impl Wait {
    /// Returns the deadline, if the wait has one.
    pub(crate) fn deadline(self) -> Option<Deadline> {
        if let Self::Until(deadline) = self { Some(deadline) } else { None }
    }
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The lock is held.
    Granted,
    /// The request waits. Continue with [`Owner::finish`], [`Owner::poll`] or [`Owner::cancel`].
    Waiting,
}
