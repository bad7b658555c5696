//! How the shuffled latches behave where the papers leave a choice.

use latchwork_machine::{Clock, Level, Machine};

/// Choices that are made when a program is compiled; each has a default that was measured.
pub trait Policy: Send + Sync + 'static {
    /// Whether a waiter that has looked in vain for its budget sleeps. If not, it yields.
    const PARKS: bool;

    /// How often the head of the queue may lose the latch to threads that did not queue, counted
    /// in budgets spent and exchanges lost, until every release is reserved for it.
    ///
    /// Stealing keeps a latch busy while the head wakes up, which takes longer than most critical
    /// sections. With a reservation in force at most those threads pass that were past the check:
    /// one each. Zero reserves from the start.
    const PATIENCE: u32;

    /// The same on a machine where [`LEVEL`](Self::LEVEL) makes a difference.
    ///
    /// A few losses let a thread that comes back at once keep the latch, and its data in its cache,
    /// for as long as a transfer or two take. See `docs/waiting.md`.
    const PATIENCE_APART: u32 = Self::PATIENCE;

    /// On a machine with several caches: how many budgets a waiter looks for, where no other
    /// thread wants its processor, before it sleeps. A budget is what it costs to sleep and to be
    /// woken. With one cache a waiter sleeps after one: the holder needs the processor.
    ///
    /// 1,024 are 3 ms, a time slice.
    const BUDGETS: u32 = 1024;

    /// How long a newcomer looks at the latch itself before it queues, in nanoseconds, on a machine
    /// where [`LEVEL`](Self::LEVEL) makes no difference.
    ///
    /// There a latch that changes hands in passing costs no more than one that is handed over, and
    /// whoever looks keeps it busy while the head of the queue wakes up.
    const LINGER_NS: u64 = 0;

    /// Whether a release touches nothing of the latch after the exchange that frees it, so that
    /// the next holder may free or unmap its memory. Costs an exchange instead of a store.
    const DETACHED: bool = false;

    /// What makes two waiters neighbours: a last-level cache, of which a node of some machines has
    /// several. On simulated two-socket machines with 32 of them that gives 2 to 4 times what nodes
    /// give (`docs/simulator.md`); where a node is one cache it is the same.
    const LEVEL: Level = Level::Cache;

    /// How many waiters in a row one group of neighbours may bring forward.
    ///
    /// A waiter of another group is passed by at most this many of them, plus the length of the
    /// queue when its turn began. The paper (SOSP 2019, section 4.2.1) has 1,024 and its code a
    /// random number. On eight simulated sockets 128 gives three quarters of the throughput of 512;
    /// the longer the turn, the longer it takes until all have had theirs. See `docs/waiting.md`.
    const BATCH: u32 = 512;

    /// How much of the sorting is done. Anything but the default is for comparison: the simulator
    /// judges the steps by SOSP 2019, figure 11e (`docs/simulator.md`).
    const SHUFFLING: Shuffling = Shuffling::Resumed;
}

/// Who sorts the waiters, and how. Each has all that those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffling {
    /// Nobody: first come, first served.
    Never,
    /// The head of the queue, for its group.
    ByHead,
    /// One waiter after another: the role is passed on while they wait.
    ByWaiters,
    /// The next shuffler resumes where the last one stopped, and does not walk the queue anew.
    Resumed,
}

impl Shuffling {
    /// Whether a waiter that is not the head may be the shuffler.
    pub(crate) const fn by_waiters(self) -> bool {
        matches!(self, Self::ByWaiters | Self::Resumed)
    }
}

/// Sleeps when waiting takes long: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Park;

impl Policy for Park {
    const PARKS: bool = true;
    const PATIENCE: u32 = 64;
    const PATIENCE_APART: u32 = 4;
    const LINGER_NS: u64 = 2_000;
}

/// As [`Park`], for latches whose memory the next holder may free at once, as POSIX allows it for
/// a mutex.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParkDetached;

impl Policy for ParkDetached {
    const PARKS: bool = true;
    const PATIENCE: u32 = Park::PATIENCE;
    const PATIENCE_APART: u32 = Park::PATIENCE_APART;
    const LINGER_NS: u64 = Park::LINGER_NS;
    const DETACHED: bool = true;
}

/// Never sleeps: for sections of a few instructions, with fewer threads than cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpinOnly;

/// The waiters of the reader-writer latches: they sleep after one budget, and are woken ahead of
/// their turn.
#[derive(Default)]
pub(crate) struct InTurns;

impl Policy for InTurns {
    const PARKS: bool = true;
    const PATIENCE: u32 = Park::PATIENCE;
    const LINGER_NS: u64 = Park::LINGER_NS;
    const BUDGETS: u32 = 1;
}

impl Policy for SpinOnly {
    const PARKS: bool = false;
    const PATIENCE: u32 = 0;
}

/// Looks for a newcomer's time whether `enter` succeeds; false if it must queue.
///
/// If nobody queues it yields between looks: should the holder have lost its processor, to the
/// holder. If others do there is more to run than processors, and a yield would cost the holder
/// its own.
pub(crate) fn linger<P: Policy, M: Machine>(
    alone: impl Fn() -> bool,
    mut enter: impl FnMut() -> bool,
) -> bool {
    if M::SPIN_NS == 0 || P::LINGER_NS == 0 || M::spread(P::LEVEL) {
        return false;
    }
    let alone = alone();
    let mut until = None;
    for look in 0u32.. {
        match (look, alone) {
            (0..7, _) => (0..1 << (look / 2)).for_each(|_| M::relax()),
            (_, true) => M::yield_now(),
            (_, false) => (0..16).for_each(|_| M::relax()),
        }
        if enter() {
            return true;
        }
        if look >= 7 {
            let now = M::now(Clock::Monotonic);
            if now >= *until.get_or_insert(now + P::LINGER_NS) {
                break;
            }
        }
    }
    false
}
