//! Locks that touch no shared line: weak ones under an open bias, reserved ones, cached look-ups.

pub(crate) mod bias;
pub(crate) mod cached;
pub(crate) mod entry;
pub(crate) mod gather;
pub(crate) mod learned;
pub(crate) mod reserved;
pub(crate) mod weak;
