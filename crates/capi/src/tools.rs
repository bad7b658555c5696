//! Sequences, and looking at a store as a whole.

use core::ffi::{c_char, c_int};

use latchwork_store::{NAME_MAX, Sequence, restore};
use serde_json::{Map, Value, json};

use crate::buf::{Buf, lw_buf};
use crate::call::{call, path_of, place, text_of, too_long};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::Failure;
use crate::handle::used;
use crate::store::lw_store;

/// Returns the version of the library, such as "0.1.0". The text is static. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn lw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Gives out the next number of a sequence, which no other caller gets, in any process. A thread
/// claims `batch` numbers at a time (0 is 64), by a short transaction of its own, so most calls
/// touch no shared memory. There are gaps: a number is given out whether the caller's transaction
/// commits or not. A sequence begins with 1.
///
/// # Errors
///
/// Those of `lw_put`; `LW_FAILED` at the end of the sequence.
///
/// # Safety
///
/// The store is alive; the name ends with a zero; `number` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_sequence_next(
    store: *mut lw_store,
    name: *const c_char,
    batch: u64,
    number: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let number = place(number, 0, "number")?;
            let (store, name) = (used(store)?, text_of(name, "name of a sequence")?);
            if name.len() > NAME_MAX {
                return Err(too_long("sequence name", name.len(), NAME_MAX));
            }
            let mut sequence = Sequence::named(name);
            if batch > 0 {
                sequence = sequence.batch(batch);
            }
            *number = store.store.next_number(&sequence)?;
            Ok(LW_OK)
        })
    }
}

fn put_json(to: *mut lw_buf, value: &Value) -> Result<(), Failure> {
    let mut text = value.to_string();
    text.push('\0');
    // SAFETY: the caller of the C function says that it is initialised.
    let mut to = unsafe { Buf::new(to)? };
    to.set(text.as_bytes())?;
    to.cut(1);
    Ok(())
}

/// Writes a list of the tables as JSON: an array of objects with `name`, `key`, `value` (types as
/// text, or null), `version` and `migrating`. A zero follows the text, and is not counted in
/// `len`.
///
/// # Errors
///
/// `LW_THREADS`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_tables(
    store: *mut lw_store,
    out: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let tables = used(store)?.store.table_infos()?;
            let tables = tables.into_iter().map(|table| {
                json!({
                    "name": table.name, "key": table.key, "value": table.value,
                    "version": table.version, "migrating": table.migrating,
                })
            });
            put_json(out, &tables.collect())?;
            Ok(LW_OK)
        })
    }
}

/// Writes counts and sizes of the store, of all processes, as JSON: an object whose names are those
/// of `docs/metrics.md`. A metric with a label is an object of its own. A zero follows the text,
/// and is not counted in `len`.
///
/// # Errors
///
/// `LW_THREADS`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_stats(
    store: *mut lw_store,
    out: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let metrics = used(store)?.store.metrics()?;
            let mut all = Map::new();
            for metric in metrics.iter() {
                for sample in &metric.samples {
                    let name = format!("{}{}", metric.name, sample.suffix);
                    match &sample.label {
                        None => {
                            all.insert(name, json!(sample.value));
                        }
                        Some((_, label)) => {
                            let of = all.entry(name).or_insert_with(|| json!({}));
                            of[label.as_str()] = json!(sample.value);
                        }
                    }
                }
            }
            put_json(out, &Value::Object(all))?;
            Ok(LW_OK)
        })
    }
}

/// Looks at every page of every table. Other processes may write at the same time. `*pages` is how
/// many pages are used; `faults` receives a JSON array with an object for each table that is
/// damaged: `table` (null for a part of the store itself) and `why`. `pages` and `faults` may be
/// NULL. O(size of the store).
///
/// # Errors
///
/// `LW_DAMAGED` if there is a fault; `LW_THREADS`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; `pages` is NULL or a place for a number; the buffer is NULL or initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_verify(
    store: *mut lw_store,
    pages: *mut u64,
    faults: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let opened = used(store)?;
            let found = opened.store.faults()?;
            if !faults.is_null() {
                let list = found
                    .iter()
                    .map(|fault| json!({ "table": fault.table, "why": fault.to_string() }));
                put_json(faults, &list.collect())?;
            }
            if let Some(fault) = found.into_iter().next() {
                return Err(fault.why.into());
            }
            let checked = opened.store.verify()?;
            if !pages.is_null() {
                *pages = checked;
            }
            Ok(LW_OK)
        })
    }
}

/// Copies the store into a folder that does not exist yet, while others write. The copy has all
/// that was committed when this was called; it is a store, which opens as one does after a crash.
///
/// # Errors
///
/// `LW_OPEN` if there is something at the path; `LW_NO_SPACE`, `LW_DAMAGED`, `LW_IO`: then nothing
/// exists there.
///
/// # Safety
///
/// The store is alive; `path` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_backup(
    store: *mut lw_store,
    path: *const c_char,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            used(store)?.store.backup(path_of(path)?, &mut |_| {})?;
            Ok(LW_OK)
        })
    }
}

/// Makes a store in a folder that does not exist yet, of a copy that `lw_backup` has made, or of
/// another store that no process has open.
///
/// # Errors
///
/// `LW_OPEN` if there is something at `to`; `LW_NO_STORE`, `LW_IN_USE`, `LW_DAMAGED`,
/// `LW_NO_SPACE`, `LW_IO`: then nothing is at `to`.
///
/// # Safety
///
/// Both paths end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_restore(
    from: *const c_char,
    to: *const c_char,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            restore(path_of(from)?, path_of(to)?, &mut |_| {})?;
            Ok(LW_OK)
        })
    }
}

/// Looks for processes and threads that have died, and rolls back what they have left; `*ended` is
/// how many. Calls that meet a lock of a dead process do this by themselves.
///
/// # Errors
///
/// `LW_READ_ONLY`, `LW_NO_SPACE`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; `ended` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_sweep(
    store: *mut lw_store,
    ended: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let count = used(store)?.store.sweep()?;
            if !ended.is_null() {
                *ended = count as u64;
            }
            Ok(LW_OK)
        })
    }
}
