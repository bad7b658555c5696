//! Recording for a profile.

use crate::mode::PROFILE;

pub(crate) use latchwork_profile::{Caller, Class};

use latchwork_profile::Wait;

/// Records an acquisition that did not wait.
#[inline]
pub(crate) fn at_once(mode: u32, class: Class, object: usize, caller: Caller) {
    if mode & PROFILE != 0 {
        latchwork_profile::record(class, object, caller);
    }
}

/// Records a failed try.
#[inline]
pub(crate) fn refused(mode: u32, class: Class, object: usize, caller: Caller) {
    if mode & PROFILE != 0 {
        latchwork_profile::refused(class, object, caller.address);
    }
}

/// Records that a wait begins; none without a profile.
#[inline]
pub(crate) fn begin(mode: u32, class: Class, object: usize, caller: Caller) -> Option<Wait> {
    (mode & PROFILE != 0).then(|| latchwork_profile::wait_begins(class, object, caller))
}

/// Records that the wait has ended.
#[inline]
pub(crate) fn end(wait: Option<Wait>, class: Class, object: usize, caller: Caller, taken: bool) {
    if let Some(wait) = wait {
        latchwork_profile::wait_ended(class, object, caller, wait, taken);
    }
}
