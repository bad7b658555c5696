//! Faults of one call.

/// A fault that can be [planned](crate::Simulated::plan) for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The machine stops in the middle of the call. The data of a write are among the unsynced
    /// changes; a change of names is not, because a crash at the next call leaves that. The call
    /// and all later ones fail with [`Error::Crashed`](crate::Error::Crashed).
    Crash,
    /// The call fails with [`Error::Device`](crate::Error::Device). A write may have been done in
    /// part. A sync has made any part durable, sector by sector, and all of it counts as clean: no
    /// later sync makes the rest durable, although it is still readable. Linux behaves so.
    Device,
    /// A sync fails as for `Device`, and the part that it has not made durable is no longer
    /// readable: the system drops it at once, or soon, as it may drop all clean data. Other calls
    /// are not affected.
    Dropped,
    /// The call fails with [`Error::NoSpace`](crate::Error::NoSpace), if it is one that may need
    /// space. The first half of a write, or of an allocation, was done. A sync fails as for
    /// `Device`: a file system with delayed allocation, or on another machine, reports only there
    /// that it has no space.
    NoSpace,
    /// A read ends after half of the requested bytes.
    ShortRead,
    /// A write returns `Ok` and nothing is written.
    LostWrite,
    /// A write returns `Ok` and its data are written 4,096 bytes further on.
    Misdirected,
    /// A write stores, or a read returns, one wrong bit.
    FlippedBit,
    /// A sync of a file or a folder returns `Ok` and makes nothing durable; a later one does.
    LostSync,
}
