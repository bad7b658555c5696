//! Our spinning latch with less shuffling: the steps of figure 11e, SOSP 2019.

use latchwork_latch::{Policy, Shfl, Shuffling, SpinOnly};
use latchwork_sim::Simulated;

macro_rules! step {
    ($(#[$doc:meta] $name:ident, $policy:ident: $shuffling:ident;)*) => {$(
        #[derive(Default)]
        pub(super) struct $policy;

        impl Policy for $policy {
            const PARKS: bool = SpinOnly::PARKS;
            const PATIENCE: u32 = SpinOnly::PATIENCE;
                    const SHUFFLING: Shuffling = Shuffling::$shuffling;
        }

        #[$doc]
        pub(super) type $name = Shfl<$policy, Simulated>;
    )*};
}

step! {
    /// `Base`: an unsorted queue.
    Base, NeverShuffled: Never;
    /// `+Shuffler`: the head of the queue sorts it.
    Shuffler, ShuffledByHead: ByHead;
    /// `+Shufflers`: successive waiters sort it.
    Shufflers, ShuffledByWaiters: ByWaiters;
}
