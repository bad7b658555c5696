//! Conversion of the C library's timeouts to deadlines.

use libc::{EINVAL, ETIMEDOUT, c_int, clockid_t, timespec};

use latchwork_machine::{Clock, Deadline};

/// Returns the clock `id`, if waits for a lock support it.
pub(crate) fn clock(id: clockid_t) -> Result<Clock, c_int> {
    match id {
        libc::CLOCK_REALTIME => Ok(Clock::Realtime),
        libc::CLOCK_MONOTONIC => Ok(Clock::Monotonic),
        _ => Err(EINVAL),
    }
}

/// Returns the instant `at`, or an error: `EINVAL`, or `ETIMEDOUT` for an instant before 1970.
///
/// # Safety
///
/// `at` points to a `timespec`.
pub(crate) unsafe fn deadline(clock: Clock, at: *const timespec) -> Result<Deadline, c_int> {
    // SAFETY: the caller's promise is the same.
    let at = unsafe { at.read() };
    if !(0..1_000_000_000).contains(&at.tv_nsec) {
        return Err(EINVAL);
    }
    let Ok(seconds) = u64::try_from(at.tv_sec) else { return Err(ETIMEDOUT) };
    let at = seconds.saturating_mul(1_000_000_000).saturating_add(at.tv_nsec as u64);
    Ok(Deadline { clock, at })
}
