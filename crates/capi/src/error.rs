//! Errors as objects of the caller's, with text for people.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;

use latchwork_store::Error;

use crate::codes::lw_code::*;
use crate::failure::{Failure, code_of};
use crate::handle::{self, kinds};

/// Gives the caller an object that says why, if there is a place for it; returns the code.
///
/// # Safety
///
/// `error` is null, or a place for a pointer.
#[cold]
pub(crate) unsafe fn report(why: Failure, error: *mut *mut lw_error) -> c_int {
    let code = why.code();
    let object = match why {
        // The caller knows more of it than the library.
        Failure::Callers(_) => core::ptr::null_mut(),
        _ if error.is_null() => core::ptr::null_mut(),
        Failure::Store(why) => object_of(&why),
        Failure::Lock(why) => handle::new(Report::new(code, why.to_string())),
        Failure::Forked => handle::new(Report::new(code, FORKED.to_owned())),
        Failure::Other(_, text) => handle::new(Report::new(code, text)),
    };
    if !error.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *error = object };
    }
    code
}

const FORKED: &str = "the object belongs to the parent of this process (fork): open the store \
                      again with lw_store_reopen, and free this object";

/// Why a call failed, as an object: a code, a text for people, the table and the key concerned, and
/// the error that led to this one. Plain memory: it may be used by any thread, and after a fork.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_error(());

/// The contents of an `lw_error`.
pub(crate) struct Report {
    code: c_int,
    text: CString,
    table: Option<CString>,
    key: Option<Vec<u8>>,
    cause: Cause,
}

/// The error that led to another one.
struct Cause(*mut lw_error);

// SAFETY: the handle is plain memory, and belongs to the error that has it.
unsafe impl Send for Cause {}

impl Drop for Cause {
    fn drop(&mut self) {
        // SAFETY: null, or a handle that nothing else refers to.
        let _ = unsafe { handle::free(self.0) };
    }
}

kinds! {
    lw_error => Report, 1, true;
}

/// The text as C has it: without the bytes that would end it.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes: Vec<u8> = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

impl Report {
    pub(crate) fn new(code: c_int, text: String) -> Self {
        let cause = Cause(core::ptr::null_mut());
        Self { code, text: c_text(text), table: None, key: None, cause }
    }
}

fn object_of(why: &Error) -> *mut lw_error {
    use latchwork_store::Error as E;
    let mut report = Report::new(code_of(why) as c_int, why.to_string());
    match why {
        E::Lock { table, key, .. }
        | E::OwnTransaction { table, key, .. }
        | E::Exists { table, key }
        | E::OutOfOrder { table, key }
        | E::Damaged { table, key, .. } => {
            report.table = Some(c_text(table.as_str()));
            report.key = Some(key.clone());
        }
        E::KeyTooLong { table, .. }
        | E::NameTooLong { table }
        | E::TableExists { table }
        | E::Key { table, .. }
        | E::Value { table, .. }
        | E::TableType { table, .. }
        | E::Migrating { table } => report.table = Some(c_text(table.as_str())),
        E::NotUndone { table, key, why, .. } => {
            report.table = Some(c_text(table.as_str()));
            report.key = Some(key.clone());
            report.cause = Cause(object_of(why));
        }
        E::Deadline { last: why, .. }
        | E::Aborted { why }
        | E::CommitUnknown { why }
        | E::ReadsUnknown { why, .. }
        | E::PrepareUnknown { why, .. } => report.cause = Cause(object_of(why)),
        _ => {}
    }
    handle::new(report)
}

unsafe fn report_of<'e>(error: *const lw_error) -> Option<&'e Report> {
    // SAFETY: the caller of the C function says that it is an error or null.
    unsafe { handle::shared(error) }.ok()
}

/// Returns the code of an error, or `LW_OK` if it is NULL. Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_code(error: *const lw_error) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { report_of(error) }.map_or(LW_OK as c_int, |report| report.code)
}

/// Returns what happened, as text for people: UTF-8, one line. It lives as long as the error. An
/// empty text if the error is NULL. Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_message(error: *const lw_error) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { report_of(error) }.map_or(c"".as_ptr(), |report| report.text.as_ptr())
}

/// Returns the name of the table that the error concerns, or NULL. It lives as long as the error.
/// Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_table(error: *const lw_error) -> *const c_char {
    // SAFETY: the caller's promise.
    let report = unsafe { report_of(error) };
    report.and_then(|report| report.table.as_ref()).map_or(core::ptr::null(), |it| it.as_ptr())
}

/// Returns the bytes of the key that the error concerns, and their number in `*length`; or NULL and
/// 0. They live as long as the error. Never fails.
///
/// # Safety
///
/// The error is NULL or alive; `length` is NULL or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_key(error: *const lw_error, length: *mut usize) -> *const c_void {
    // SAFETY: the caller's promise.
    let key = unsafe { report_of(error) }.and_then(|report| report.key.as_ref());
    if !length.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *length = key.map_or(0, Vec::len) };
    }
    key.map_or(core::ptr::null(), |key| key.as_ptr().cast())
}

/// Returns the error that led to this one, or NULL: why the last attempt failed, or why a commit is
/// not known to be durable. It belongs to this error: it lives as long, and must not be freed.
/// Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_cause(error: *const lw_error) -> *const lw_error {
    // SAFETY: the caller's promise.
    let report = unsafe { report_of(error) };
    report.map_or(core::ptr::null(), |report| report.cause.0.cast_const())
}

/// Frees an error, with its cause. NULL is allowed. Never fails.
///
/// # Safety
///
/// The error is NULL or alive, and no cause of another error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_free(error: *mut lw_error) {
    // SAFETY: the caller's promise.
    let _ = unsafe { handle::free(error) };
}
