//! What managers, owners and requests are told to do.

use std::time::Duration;

use latchwork_machine::Deadline;

use crate::ids::OwnerId;
#[cfg(doc)]
use crate::{Error, Owner, Session};

/// What a manager may do; a process's own choice, not kept in the region.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a waiter waits before it looks for a deadlock that it is part of. 200 us. One that
    /// waits for an owner that waits, too, looks at once.
    pub detect_after: Duration,
    /// Which owner a detector aborts.
    pub policy: Policy,
    /// The most locks of one owner; none by default. Of weak locks only those that are in the table
    /// count; the others are 32 at most.
    pub owner_locks: Option<u32>,
    /// Whether weak modes are taken in the owner's own memory. True; if the system had no
    /// asymmetric barrier when the manager was made it counts as false.
    pub weak: bool,
    /// Whether the first weak lock of a name that nobody has locked is taken in the owner's own
    /// memory. False: a name comes there when 32 weak locks of it, or of others that share its
    /// bias, went through the table, so that a strong lock of a new name need not look at any
    /// owner. After strong locks each part of the table learns when that is worth it.
    pub opens_early: bool,
    /// How often a session asks for a name before it is reserved for it: then its strong locks,
    /// too, are taken in the owner's own memory until somebody else asks for it. 32; 0 is never.
    pub keep_after: u32,
    /// For how long other requests may go before one that waits and whose turn it is (*barging*).
    /// Zero: never. A lock that is let go is held by the next waiter at once, as a rule, though
    /// that one may have to be woken first: with more threads than processors the lock then costs
    /// a switch of threads each time. With this the waiter is *called* and the lock stays free,
    /// for the first that asks, until the waiter has come for it; a waiter that has waited so long
    /// is given the lock. Only among modes that exclude themselves, and not among nested owners.
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

/// Called with each dead owner that held locks, before they are released: true releases them,
/// false keeps the owner as *orphaned*, until [`Session::release_orphan`].
///
/// It is asked by its process's sweeps, about the dead that they meet, and about those that a
/// process without a callback met before. Of several processes one asks at a time. Should that
/// process die, or the callback panic, before all is done, the next sweep asks again.
pub type Recovery = Box<dyn Fn(OwnerId, &[u8]) -> bool + Send + Sync>;

/// The policies of Berkeley DB. In each, owners with the lowest priority come first, and among
/// those the policy decides; ties go to the younger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The youngest: it has done least. The default.
    Youngest,
    /// The oldest.
    Oldest,
    /// Any.
    Random,
    /// The owner that holds the most locks.
    MaxLocks,
    /// The owner that holds the fewest.
    MinLocks,
    /// The owner that holds the most locks in modes that write.
    MaxWrites,
    /// The owner that holds the fewest of those.
    MinWrites,
    /// The owner that has waited longest.
    Expire,
    /// What this release thinks best: `Youngest`.
    Default,
}

/// What an owner is to be.
#[derive(Clone, Copy, Debug)]
pub struct OwnerOptions<'a> {
    /// Victims are chosen from those with the lowest. 100.
    pub priority: u32,
    /// For people: the first 32 bytes are kept.
    pub label: &'a str,
    /// How old it is, if it is to be as old as it was at its last attempt: what
    /// [`Owner::age`] said then.
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
    /// Until it is granted, or a deadlock is found and this owner is the victim.
    Detect,
    /// Not at all: [`Error::NotGranted`].
    Never,
    /// As `Detect`, but [`Error::TimedOut`] at this instant.
    Until(Deadline),
    /// Only for younger owners: [`Error::Died`] if an older one is in the way (Rosenkrantz,
    /// Stearns and Lewis, 1978). Needs no detector if all do the same.
    Die,
    /// For older owners only: younger ones that are in the way are told to fail, with
    /// [`Error::Aborted`], where they wait or when they next ask for a lock (same paper).
    Wound,
}

impl Wait {
    /// Its deadline, if it has one.
    pub(crate) fn deadline(self) -> Option<Deadline> {
        if let Self::Until(deadline) = self { Some(deadline) } else { None }
    }
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The lock is held.
    Granted,
    /// It waits: [`Owner::finish`] or [`Owner::poll`] or [`Owner::cancel`] comes next.
    Waiting,
}
