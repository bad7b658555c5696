//! One record at a time, each call a transaction of its own.

use core::ffi::{c_int, c_void};

use crate::buf::{Buf, full, lw_buf};
use crate::call::{Answer, call, found, inserted, key_bytes, value_bytes};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::{Failure, misuse};
use crate::handle::{shared, used};
use crate::store::lw_store;
use crate::table::{Bytes, lw_table};

/// A function that is called with the bytes of a value: they live until it returns. It must return:
/// it must not throw an exception or jump (`longjmp`) out of the call that it is in.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub type lw_value_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, value: *const c_void, length: usize)>;

/// The function of a caller that may not be NULL.
pub(crate) fn function<F>(given: Option<F>) -> Result<F, Failure> {
    given.ok_or_else(|| misuse("the function is NULL"))
}

/// The arguments of a call on one record: the object that reads or writes it, the table, and the
/// key.
///
/// # Safety
///
/// The table is null or a handle, and the bytes of the key can be read.
#[inline(always)]
pub(crate) unsafe fn on<'a, W>(
    with: Result<W, Failure>,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
) -> Result<(W, &'a Bytes, &'a [u8]), Failure> {
    // SAFETY: the caller's promises.
    unsafe { Ok((with?, shared(table)?, key_bytes(key, key_len)?)) }
}

/// The answer to a read into a buffer: whether the value that was found has room there.
#[inline]
pub(crate) fn copied(found: Option<bool>) -> Answer {
    match found {
        Some(true) => Ok(LW_OK),
        None => Ok(LW_NOT_FOUND),
        Some(false) => Err(full()),
    }
}

/// A function of the caller's, to be called with the bytes of a value.
///
/// # Safety
///
/// It can be called with this context.
pub(crate) unsafe fn lending(
    each: lw_value_fn,
    context: *mut c_void,
) -> Result<impl FnMut(&[u8]), Failure> {
    let each = function(each)?;
    // SAFETY: the caller's promise.
    Ok(move |bytes: &[u8]| unsafe { each(context, bytes.as_ptr().cast(), bytes.len()) })
}

/// Reads a record at a snapshot of now, into a buffer. Never blocks, and takes no lock. O(log n).
///
/// # Errors
///
/// `LW_NOT_FOUND` if there is no such record; `LW_TABLE_TYPE`, `LW_TOO_LONG`, `LW_THREADS`,
/// `LW_TOO_OLD`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// Store and table are alive; the bytes of the key can be read; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_get(
    store: *mut lw_store,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    value: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (store, table, key) = on(used(store), table, key, key_len)?;
            let mut value = Buf::new(value)?;
            copied(store.store.read(|tx| tx.get_with(table, key, |bytes| value.copy(bytes)))?)
        })
    }
}

/// Reads a record at a snapshot of now without a copy for the caller: calls `each` with its bytes,
/// if the record exists. `each` may make other calls, also with the same store.
///
/// # Errors
///
/// Those of `lw_get`.
///
/// # Safety
///
/// Store and table are alive; the bytes of the key can be read; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_get_with(
    store: *mut lw_store,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    each: lw_value_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (store, table, key) = on(used(store), table, key, key_len)?;
            let with = lending(each, context)?;
            found(store.store.read(|tx| tx.get_with(table, key, with))?.is_some())
        })
    }
}

/// Writes a record, new or not, as a transaction of its own, which is run again until it succeeds,
/// for 10 seconds at most. As durable as the store's mode says when it returns.
///
/// # Errors
///
/// `LW_DEADLINE`, `LW_SELF`, `LW_TABLE_TYPE`, `LW_TOO_LONG`, `LW_THREADS`, `LW_READ_ONLY`,
/// `LW_NO_SPACE`, `LW_COMMIT_UNKNOWN`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// Store and table are alive; the bytes of key and value can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_put(
    store: *mut lw_store,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (store, table, key) = on(used(store), table, key, key_len)?;
            store.store.put(table, key, value_bytes(value, value_len)?)?;
            Ok(LW_OK)
        })
    }
}

/// Writes a record that must not exist yet, as `lw_put` does.
///
/// # Errors
///
/// `LW_EXISTS` if there is such a record, which stays; those of `lw_put`.
///
/// # Safety
///
/// Store and table are alive; the bytes of key and value can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_insert(
    store: *mut lw_store,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (store, table, key) = on(used(store), table, key, key_len)?;
            let value = value_bytes(value, value_len)?;
            inserted(store.store.write(|tx| tx.insert(table, key, value)))
        })
    }
}

/// Removes a record, as a transaction of its own.
///
/// # Errors
///
/// `LW_NOT_FOUND` if there was no such record; those of `lw_put`.
///
/// # Safety
///
/// Store and table are alive; the bytes of the key can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_remove(
    store: *mut lw_store,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (store, table, key) = on(used(store), table, key, key_len)?;
            found(store.store.remove(table, key)?)
        })
    }
}
