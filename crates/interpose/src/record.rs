//! What a profile wants to know.

use crate::mode::PROFILE;

pub(crate) use latchwork_profile::Class;

use latchwork_machine::{Clock, Machine, Native};

/// An acquisition that did not wait.
#[inline]
pub(crate) fn at_once(mode: u32, class: Class, object: usize, caller: usize) {
    if mode & PROFILE != 0 {
        latchwork_profile::record(class, object, caller, None);
    }
}

/// A try that failed.
#[inline]
pub(crate) fn refused(mode: u32, class: Class, object: usize, caller: usize) {
    if mode & PROFILE != 0 {
        latchwork_profile::refused(class, object, caller);
    }
}

/// The time, if anybody wants to know it.
#[inline]
pub(crate) fn begin(mode: u32) -> u64 {
    if mode & PROFILE != 0 { Native::now(Clock::Monotonic) } else { 0 }
}

/// A wait that began at `wait` has ended.
#[inline]
pub(crate) fn end(mode: u32, class: Class, object: usize, caller: usize, wait: u64, taken: bool) {
    if mode & PROFILE == 0 {
        return;
    }
    let waited = Native::now(Clock::Monotonic).saturating_sub(wait);
    if taken {
        latchwork_profile::record(class, object, caller, Some(waited));
    } else {
        latchwork_profile::refused(class, object, caller);
    }
}
