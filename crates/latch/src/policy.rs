//! Policies of the shuffled latches, where the papers leave a choice.

use latchwork_machine::{Clock, Level, Machine};

/// Choices at compile time. Each has a measured default.
pub trait Policy: Send + Sync + 'static {
    /// Whether a waiter sleeps after it has spun for its budget in vain. If not, it yields.
    const PARKS: bool;

    /// How often the head of the queue may lose the latch to threads that did not queue, counted in
    /// spent budgets and lost exchanges, before every release is reserved for it.
    ///
    /// Such threads keep the latch busy while the head wakes up, which takes longer than most
    /// critical sections. While a reservation is in force, at most one pass is possible for each
    /// thread that was past the check. Zero reserves from the start.
    const PATIENCE: u32;

    /// The same on a machine where [`LEVEL`](Self::LEVEL) makes a difference.
    ///
    /// A few losses let a thread that returns immediately keep the latch, and its data in its
    /// cache, as long as one or two transfers take. See `docs/waiting.md`.
    const PATIENCE_APART: u32 = Self::PATIENCE;

    /// On a machine with several caches: for how many budgets a waiter spins before it sleeps, if
    /// no other thread wants its processor. A budget is the cost of sleeping and being woken. With
    /// one cache a waiter sleeps after one budget, because the holder needs the processor.
    ///
    /// 1,024 are 3 ms, a time slice.
    const BUDGETS: u32 = 1024;

    /// How long a newcomer spins on the latch itself before it queues, in nanoseconds, on a machine
    /// where [`LEVEL`](Self::LEVEL) makes no difference.
    ///
    /// There a latch that a newcomer takes costs no more than a handover, and a spinning newcomer
    /// keeps it busy while the head of the queue wakes up.
    const LINGER_NS: u64 = 0;

    /// Whether a release touches nothing of the latch after the exchange that frees it, so that the
    /// next holder may free or unmap its memory. Costs an exchange instead of a store.
    const DETACHED: bool = false;

    /// The level at which two waiters are neighbours: a last-level cache. A node of some machines
    /// has several. On simulated two-socket machines with 32 caches this gives 2 to 4 times the
    /// throughput of nodes (`docs/simulator.md`); if a node is one cache, there is no difference.
    const LEVEL: Level = Level::Cache;

    /// How many waiters in a row one group of neighbours may bring forward.
    ///
    /// At most this many of them pass a waiter of another group, plus the length of the queue when
    /// its turn began. The paper (SOSP 2019, section 4.2.1) has 1,024 and its code a random number.
    /// On eight simulated sockets 128 gives three quarters of the throughput of 512; a longer turn
    /// lengthens the time until all groups have had theirs. See `docs/waiting.md`.
    const BATCH: u32 = 512;

    /// Which steps of the sorting are used. Values other than the default are for comparison: the
    /// simulator evaluates the steps as in SOSP 2019, figure 11e (`docs/simulator.md`).
    const SHUFFLING: Shuffling = Shuffling::Resumed;
}

/// Which waiters sort the queue, and how. Each variant includes the previous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffling {
    /// No sorting: first come, first served.
    Never,
    /// The head of the queue sorts its group.
    ByHead,
    /// One waiter after another sorts: the role is passed on while they wait.
    ByWaiters,
    /// The next shuffler resumes where the last one stopped, instead of walking the queue again.
    Resumed,
}

impl Shuffling {
    /// Returns whether a waiter that is not the head may be the shuffler.
    pub(crate) const fn by_waiters(self) -> bool {
        matches!(self, Self::ByWaiters | Self::Resumed)
    }
}

/// Sleeps if the wait is long. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Park;

impl Policy for Park {
    const PARKS: bool = true;
    const PATIENCE: u32 = 64;
    const PATIENCE_APART: u32 = 4;
    const LINGER_NS: u64 = 2_000;
}

/// [`Park`] for latches whose memory the next holder may free immediately, as POSIX allows for a
/// mutex.
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

/// The policy of waiters of the reader-writer latches: they sleep after one budget, and are woken
/// ahead of their turn.
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

/// Calls `enter` repeatedly for the time that a newcomer may spin. Returns false if it must queue.
///
/// If the queue is empty it yields between two attempts, in case the holder has lost its processor.
/// If not, there are more runnable threads than processors, and a yield would only take the
/// processor from the holder.
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
