//! Transactions in two phases, for work that spans several stores or systems.

use core::ffi::{c_int, c_void};
use std::time::UNIX_EPOCH;

use latchwork_store::GID_MAX;

use crate::call::{bytes, call, too_long};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::Failure;
use crate::handle::used;
use crate::record::function;
use crate::store::lw_store;
use crate::txn::{ended, lw_txn};

/// The id of a prepared transaction.
///
/// # Safety
///
/// The bytes can be read.
unsafe fn id<'i>(at: *const c_void, length: usize) -> Result<&'i [u8], Failure> {
    if (GID_MAX + 1..=isize::MAX as usize).contains(&length) {
        return Err(too_long("transaction id", length, GID_MAX));
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(at, length) }
}

/// Prepares a transaction: the first of two phases. The object is freed, whatever this returns.
/// From then on the transaction is neither committed nor rolled back, and holds its locks, over any
/// death and a crash of the machine, until some process decides with `lw_commit_prepared` or
/// `lw_roll_back_prepared`. The id has 1 to 128 bytes. As durable as the mode says on return.
///
/// # Errors
///
/// `LW_PREPARED` if an undecided transaction has this id; `LW_TOO_LONG`; those of `lw_commit`: then
/// it was rolled back. `LW_PREPARE_UNKNOWN`: it is prepared, and a crash of the machine may take
/// that back.
///
/// # Safety
///
/// The transaction is alive; the bytes of the id can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_prepare(
    tx: *mut lw_txn,
    gid: *const c_void,
    gid_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let tx = ended(tx)?.tx;
            tx.prepare(id(gid, gid_len)?)?;
            Ok(LW_OK)
        })
    }
}

/// Commits a prepared transaction, of this process or another one.
///
/// # Errors
///
/// `LW_NOT_PREPARED`; `LW_COMMIT_UNKNOWN`, `LW_THREADS`, `LW_READ_ONLY`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; the bytes of the id can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_commit_prepared(
    store: *mut lw_store,
    gid: *const c_void,
    gid_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            used(store)?.store.commit_prepared(id(gid, gid_len)?)?;
            Ok(LW_OK)
        })
    }
}

/// Rolls a prepared transaction back, of this process or another one.
///
/// # Errors
///
/// `LW_NOT_PREPARED`; `LW_THREADS`, `LW_READ_ONLY`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; the bytes of the id can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_roll_back_prepared(
    store: *mut lw_store,
    gid: *const c_void,
    gid_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            used(store)?.store.roll_back_prepared(id(gid, gid_len)?)?;
            Ok(LW_OK)
        })
    }
}

/// A function that is called with each prepared transaction: its id, and when it was prepared, in
/// milliseconds since 1970. It returns 0 to continue; any other number ends the call, which returns
/// it. It must not throw an exception or jump (`longjmp`) out of the call that it is in.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub type lw_prepared_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        gid: *const c_void,
        gid_len: usize,
        when_ms: u64,
    ) -> c_int,
>;

/// Calls `each` for all transactions that are prepared and not decided, oldest first.
///
/// # Errors
///
/// `LW_IO`, `LW_THREADS`; what `each` returns.
///
/// # Safety
///
/// The store is alive; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_prepared(
    store: *mut lw_store,
    each: lw_prepared_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (store, each) = (used(store)?, function(each)?);
            let mut all = store.store.prepared()?;
            all.sort_by_key(|one| one.at);
            for one in all {
                let when = one.when.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
                let when = u64::try_from(when).unwrap_or(u64::MAX);
                match each(context, one.gid.as_ptr().cast(), one.gid.len(), when) {
                    0 => {}
                    said => return Err(Failure::Callers(said)),
                }
            }
            Ok(LW_OK)
        })
    }
}
