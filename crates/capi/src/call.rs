//! The common parts of all calls: panics are caught, arguments checked, errors handed out.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use latchwork_store::{Error, KEY_MAX, VALUE_MAX};

use crate::codes::lw_code::*;
use crate::error::{lw_error, report};
pub(crate) use crate::failure::Answer;
use crate::failure::{Failure, misuse};

/// Runs the body of a call, which ends in an answer, an error, or a panic, which it catches.
/// `*error` is NULL after an answer.
///
/// # Safety
///
/// `error` is null, or a place for a pointer.
#[inline]
pub(crate) unsafe fn call(error: *mut *mut lw_error, body: impl FnOnce() -> Answer) -> c_int {
    // The store rolls back the work that a panic has interrupted.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => {
            if !error.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *error = core::ptr::null_mut() };
            }
            answer as c_int
        }
        // SAFETY: the caller's promise.
        Ok(Err(failure)) => unsafe { report(failure, error) },
        // SAFETY: the caller's promise.
        Err(panic) => unsafe { report(panicked(&*panic), error) },
    }
}

#[cold]
fn panicked(panic: &(dyn core::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Failure::Other(LW_PANIC, format!("a defect of the library, please report it: {text}"))
}

/// The bytes of an argument.
///
/// # Safety
///
/// So many bytes can be read there, as long as the slice lives.
#[inline]
pub(crate) unsafe fn bytes<'b>(at: *const c_void, length: usize) -> Result<&'b [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if at.is_null() || length > isize::MAX as usize {
        return Err(no_bytes(at.is_null(), length));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(at.cast(), length) })
}

#[cold]
fn no_bytes(null: bool, length: usize) -> Failure {
    match null {
        true => misuse(format!("a pointer to {length} bytes is NULL")),
        false => misuse(format!("{length} bytes: no memory has so many")),
    }
}

/// The bytes of a key: not read if they are more than a key has.
///
/// # Safety
///
/// As [`bytes`].
#[inline]
pub(crate) unsafe fn key_bytes<'b>(at: *const c_void, length: usize) -> Result<&'b [u8], Failure> {
    if length > KEY_MAX && length <= isize::MAX as usize {
        return Err(too_long("key", length, KEY_MAX));
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(at, length) }
}

/// The bytes of a value: not read if they are more than a value has.
///
/// # Safety
///
/// As [`bytes`].
#[inline]
pub(crate) unsafe fn value_bytes<'b>(
    at: *const c_void,
    length: usize,
) -> Result<&'b [u8], Failure> {
    if length > VALUE_MAX && length <= isize::MAX as usize {
        return Err(too_long("value", length, VALUE_MAX));
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(at, length) }
}

#[cold]
pub(crate) fn too_long(what: &str, length: usize, limit: usize) -> Failure {
    Failure::Other(LW_TOO_LONG, format!("a {what} of {length} bytes: at most {limit}"))
}

/// A text argument that must be there.
///
/// # Safety
///
/// It is null, or ends with a zero.
pub(crate) unsafe fn text_of<'t>(at: *const c_char, what: &str) -> Result<&'t str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { raw_text(at, what)? };
    core::str::from_utf8(text).map_err(|_| misuse(format!("the {what} is not UTF-8")))
}

/// A path, or another text that need not be UTF-8.
///
/// # Safety
///
/// It is null, or ends with a zero.
pub(crate) unsafe fn raw_text<'t>(at: *const c_char, what: &str) -> Result<&'t [u8], Failure> {
    if at.is_null() {
        return Err(misuse(format!("the {what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(at) }.to_bytes())
}

/// A path.
///
/// # Safety
///
/// It is null, or ends with a zero.
pub(crate) unsafe fn path_of<'t>(at: *const c_char) -> Result<&'t std::path::Path, Failure> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the caller's promise.
    let text = unsafe { raw_text(at, "path")? };
    Ok(std::path::Path::new(std::ffi::OsStr::from_bytes(text)))
}

/// A place for a result: set to a value at once, so that it has one whatever happens.
///
/// # Safety
///
/// It is null, or a place for a value.
pub(crate) unsafe fn place<'p, T>(at: *mut T, first: T, what: &str) -> Result<&'p mut T, Failure> {
    if at.is_null() || !at.is_aligned() {
        return Err(misuse(format!("the place for the {what} is NULL or misaligned")));
    }
    // SAFETY: the caller's promise.
    unsafe { at.write(first) };
    // SAFETY: the caller's promise; it has a value.
    Ok(unsafe { &mut *at })
}

/// A struct that begins with its size, as the program has it that was compiled with an earlier or
/// a later header.
pub(crate) trait Sized_: Copy {
    /// The values of fields that the caller does not know.
    const INIT: Self;
    const NAME: &'static str;

    /// Its field that has no meaning yet.
    fn reserved(&self) -> u32 {
        0
    }
}

/// Reads a struct of options: NULL is all defaults.
///
/// # Safety
///
/// It is null, or begins with its size in bytes, and so many can be read.
pub(crate) unsafe fn options_of<T: Sized_>(at: *const T) -> Result<T, Failure> {
    let mut options = T::INIT;
    if at.is_null() {
        return Ok(options);
    }
    let (own, least) = (size_of::<T>(), size_of::<usize>());
    // SAFETY: the caller's promise.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if size < least || size > 4096 {
        return Err(misuse(format!(
            "{} has size {size}: initialise it with {}_INIT",
            T::NAME,
            T::NAME.to_uppercase()
        )));
    }
    // SAFETY: the caller's promise.
    let given = unsafe { core::slice::from_raw_parts(at.cast::<u8>(), size) };
    let known = size.min(own);
    // SAFETY: plain data of the same layout, up to the length of the shorter one.
    unsafe { core::ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut options).cast(), known) };
    let unknown = given.get(own..).unwrap_or_default();
    if unknown.iter().any(|byte| *byte != 0) || options.reserved() != 0 {
        return Err(misuse(format!("{} has an option of a later version of the library", T::NAME)));
    }
    Ok(options)
}

/// The answer to a search.
#[inline]
pub(crate) fn found(there: bool) -> Answer {
    Ok(if there { LW_OK } else { LW_NOT_FOUND })
}

/// The answer to an insertion.
pub(crate) fn inserted(done: Result<(), Error>) -> Answer {
    match done {
        Ok(()) => Ok(LW_OK),
        Err(Error::Exists { .. }) => Ok(LW_EXISTS),
        Err(why) => Err(why.into()),
    }
}

/// A call that panics, used to test that.
///
/// # Safety
///
/// `error` is null, or a place for a pointer.
#[cfg(feature = "own-tests")]
pub(crate) unsafe fn panics(error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call(error, || panic!("number {}", 7)) }
}
