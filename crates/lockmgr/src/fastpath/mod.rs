//! Locks that touch no shared line: weak locks under an open bias, reserved locks, cached lookups.

pub(crate) mod bias;
pub(crate) mod cached;
pub(crate) mod entry;
pub(crate) mod gather;
pub(crate) mod learned;
pub(crate) mod reserved;
pub(crate) mod weak;
