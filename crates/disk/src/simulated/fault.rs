//! What can go wrong at one call.

/// A fault, to be [planned](crate::Simulated::plan) for a call of some number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The machine stops in the middle of the call: what it would have written is among the changes
    /// that are not synced; what it would have named is not, for that is what the next call's crash
    /// leaves. The call and all later ones fail with [`Error::Crashed`](crate::Error::Crashed).
    Crash,
    /// The call fails with [`Error::Device`](crate::Error::Device). A write may have been made in part.
    /// A sync has made any part durable, sector by sector, and all of it counts as clean: no later
    /// sync makes the rest durable, though it is still read. That is what Linux does.
    Device,
    /// A sync fails as for `Device`, and what it has not made durable is not read any more: where
    /// the system drops it at once, or soon, as it may drop all that is clean. At other calls it does
    /// nothing.
    Dropped,
    /// The call fails with [`Error::NoSpace`](crate::Error::NoSpace), if it is one that may need space.
    /// The first half of a write was made, and of the room that was to be set aside. A sync fails as for `Device`: a file system that finds
    /// places late, or is on another machine, says only there that it has none.
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
