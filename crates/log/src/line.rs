//! A cache line of one word, or of two that the same threads use.

use latchwork_machine::Machine;

/// A word that shares its cache line with at most one other word.
#[repr(C, align(64))]
pub(crate) struct Line<M: Machine>(
    pub(crate) M::AtomicU64,
    pub(crate) M::AtomicU64,
    [M::AtomicU64; 6],
);
