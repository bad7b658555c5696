//! Our spinning latch with less shuffling: the steps of SOSP'19, figure 11e.

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
    /// `Base`: the queue as it comes.
    Base, NeverShuffled: Never;
    /// `+Shuffler`: its head sorts it.
    Shuffler, ShuffledByHead: ByHead;
    /// `+Shufflers`: one waiter after another does.
    Shufflers, ShuffledByWaiters: ByWaiters;
}
