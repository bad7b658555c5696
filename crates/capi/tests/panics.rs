//! A panic in a call ends in a code and an error, and is not propagated.

use std::ffi::CStr;
use std::ptr::null_mut;

use latchwork_capi::codes::lw_code::LW_PANIC;
use latchwork_capi::error::{lw_error_code, lw_error_free, lw_error_message};
use latchwork_capi::panics;

#[test]
fn panics_end_in_a_code() {
    let mut error = null_mut();
    // SAFETY: a place for a pointer.
    assert_eq!(unsafe { panics(&raw mut error) }, LW_PANIC as i32);
    // SAFETY: the error that the call has made.
    assert_eq!(unsafe { lw_error_code(error) }, LW_PANIC as i32);
    // SAFETY: as above.
    let text = unsafe { lw_error_message(error) };
    // SAFETY: it ends with a zero, and lives as long as the error.
    let text = unsafe { CStr::from_ptr(text) };
    assert!(text.to_str().unwrap().ends_with("number 7"), "{text:?}");
    // SAFETY: as above, and it is not used afterwards.
    unsafe { lw_error_free(error) };
    // SAFETY: no place for an error.
    assert_eq!(unsafe { panics(null_mut()) }, LW_PANIC as i32);
}
