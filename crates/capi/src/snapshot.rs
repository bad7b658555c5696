//! Snapshots: the state between two transactions, for as long as the caller keeps it.

use core::ffi::{c_int, c_void};

use latchwork_store::KeptSnapshot;

use crate::buf::{Buf, lw_buf};
use crate::call::{call, found, place};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::handle::{self, alone, kinds, shared, used};
use crate::range::{Range, lw_range};
use crate::record::{copied, function, lending, lw_value_fn, on};
use crate::scan::{count, lw_record_fn, scan};
use crate::store::lw_store;
use crate::table::lw_table;

/// The state of all tables at one moment. It holds no lock, and no writer waits for it; but the log
/// is kept from its position on, or some day its calls return `LW_TOO_OLD`. It may move between
/// threads; one thread uses it at a time.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_snapshot(());

kinds! {
    lw_snapshot => KeptSnapshot, 4, false;
}

/// Takes a snapshot of now. It takes a thread slot until it is freed. O(thread slots in use).
///
/// # Errors
///
/// `LW_THREADS`, `LW_IO`.
///
/// # Safety
///
/// The store is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_new(
    store: *mut lw_store,
    snapshot: *mut *mut lw_snapshot,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let snapshot = place(snapshot, core::ptr::null_mut(), "snapshot")?;
            *snapshot = handle::new(used(store)?.store.snapshot()?);
            Ok(LW_OK)
        })
    }
}

/// Frees a snapshot. Cursors of it return `LW_MISUSE` from then on. NULL is allowed.
///
/// # Errors
///
/// `LW_BUSY`, `LW_MISUSE`.
///
/// # Safety
///
/// The snapshot is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_free(snapshot: *mut lw_snapshot) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call(core::ptr::null_mut(), || handle::free(snapshot)) }
}

/// Reads a record of a snapshot into a buffer. O(log n), and a read of the log for each version
/// that is newer than the snapshot.
///
/// # Errors
///
/// `LW_NOT_FOUND`; `LW_TOO_OLD`, `LW_TABLE_TYPE`, `LW_TOO_LONG`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// Snapshot and table are alive; the bytes of the key can be read; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_get(
    snapshot: *mut lw_snapshot,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    value: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut snapshot, table, key) = on(alone(snapshot), table, key, key_len)?;
            let mut value = Buf::new(value)?;
            copied(snapshot.get().get_with(table, key, |bytes| value.copy(bytes))?)
        })
    }
}

/// Reads a record of a snapshot without a copy for the caller: calls `each` with its bytes, if the
/// record exists. `each` must not use the same snapshot.
///
/// # Errors
///
/// Those of `lw_snapshot_get`.
///
/// # Safety
///
/// Snapshot and table are alive; the bytes of the key can be read; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_get_with(
    snapshot: *mut lw_snapshot,
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
            let (mut snapshot, table, key) = on(alone(snapshot), table, key, key_len)?;
            let with = lending(each, context)?;
            found(snapshot.get().get_with(table, key, with)?.is_some())
        })
    }
}

/// Calls `each` for the records of a range, in order or, with `LW_REVERSE`, backwards, until it
/// returns another number than 0, which the call returns then. `range` may be NULL: all records.
/// `each` must not use the same snapshot. O(log n + records).
///
/// # Errors
///
/// Those of `lw_snapshot_get`; what `each` returns.
///
/// # Safety
///
/// Snapshot and table are alive; the range was initialised; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_scan(
    snapshot: *mut lw_snapshot,
    table: *const lw_table,
    range: *const lw_range,
    each: lw_record_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut snapshot, table) = (alone(snapshot)?, shared(table)?);
            let (range, each) = (Range::new(range)?, function(each)?);
            scan(&mut &*snapshot.get(), table, &range, each, context)
        })
    }
}

/// Counts the records of a range: it reads them. `range` may be NULL: all records. O(records).
///
/// # Errors
///
/// Those of `lw_snapshot_get`.
///
/// # Safety
///
/// Snapshot and table are alive; the range was initialised; `records` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_count(
    snapshot: *mut lw_snapshot,
    table: *const lw_table,
    range: *const lw_range,
    records: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let records = place(records, 0, "number of records")?;
            let (mut snapshot, table) = (alone(snapshot)?, shared(table)?);
            *records = count(&mut &*snapshot.get(), table, &Range::new(range)?)?;
            Ok(LW_OK)
        })
    }
}
