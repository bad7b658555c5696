//! What can go wrong at one call.

/// A fault, to be [planned](crate::Simulated::plan) for a call of some number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The machine stops in the middle of the call: what it would have written or named is among the
    /// changes that are not synced. The call and all later ones fail with
    /// [`Error::Crashed`](crate::Error::Crashed).
    Crash,
    /// The call fails with [`Error::Device`](crate::Error::Device). A write may have been made in part.
    /// A sync has made nothing durable, and what it would have made durable counts as clean: no
    /// later sync makes it so, though it is still read. That is what Linux does.
    Device,
    /// The call fails with [`Error::NoSpace`](crate::Error::NoSpace), if it is one that may need space.
    /// The first half of a write was made.
    NoSpace,
    /// A read ends after half of what was asked for.
    ShortRead,
    /// A write says `Ok` and nothing is written.
    LostWrite,
    /// A write says `Ok` and goes 4,096 bytes further on.
    Misdirected,
    /// A write stores, or a read returns, one bit that is wrong.
    FlippedBit,
    /// A sync of a file or a folder says `Ok` and makes nothing durable; a later one does.
    LostSync,
}
