//! Transactions that read and write, as objects.

use core::ffi::{c_char, c_int, c_void};
use core::time::Duration;

use latchwork_store::{Error, Level, Savepoint, Store, Transaction, TxnOptions, WriteTxn};

use crate::buf::{Buf, lw_buf};
use crate::call::{Answer, Sized_, call, found, inserted, options_of, place, text_of, value_bytes};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::{Failure, misuse};
use crate::handle::{self, Alone, alone, kinds, shared, used};
use crate::range::{Range, lw_range};
use crate::record::{copied, function, lending, lw_value_fn, on};
use crate::scan::{count, lw_record_fn, scan};
use crate::store::{lw_store, mode_of};
use crate::table::{Bytes, lw_table};

/// A transaction that reads and writes: serializable, with locks that it holds until it ends. It
/// may move between threads; one thread uses it at a time, and a second use at the same time
/// returns `LW_MISUSE`. If its process dies, it is rolled back, and other processes continue.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_txn(());

/// The contents of an `lw_txn`.
pub(crate) struct Txn {
    pub(crate) tx: Transaction,
    /// The savepoints that have not ended, with their numbers, in order.
    savepoints: Vec<(u64, Savepoint)>,
    /// The number of the next savepoint.
    next: u64,
    /// How often something was written or undone: a cursor must not use older records that it has
    /// read ahead.
    pub(crate) writes: u64,
    /// How often it was begun again: a cursor of an earlier attempt has ended.
    pub(crate) attempt: u64,
    /// Whether it belongs to a retry loop, which ends it.
    pub(crate) lent: bool,
}

kinds! {
    lw_txn => Txn, 5, false;
}

impl Txn {
    pub(crate) fn new(tx: Transaction, lent: bool) -> Self {
        Self { tx, savepoints: Vec::new(), next: 1, writes: 0, attempt: 0, lent }
    }

    /// Begins it again, with this much time.
    pub(crate) fn restart(&mut self, time: Option<Duration>) -> Result<(), Error> {
        self.savepoints.clear();
        self.attempt += 1;
        self.writes += 1;
        match time {
            Some(time) => self.tx.restart_within(time),
            None => self.tx.restart(),
        }
    }

    fn write<R>(
        &mut self,
        work: impl FnOnce(&mut WriteTxn<'_, '_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.writes += 1;
        self.tx.with(work)
    }
}

/// Reads may change before the transaction ends, and no range is held: less waiting, and histories
/// that no serial order has.
pub const LW_READ_COMMITTED: u32 = 1;
/// The transaction waits for no lock: a call that would have to wait returns `LW_TIMEOUT`.
pub const LW_NO_WAIT: u32 = 2;

/// How a transaction runs. Initialise it with `LW_TXN_OPTIONS_INIT`.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_txn_options {
    /// The size of this struct.
    pub size: usize,
    /// `LW_READ_COMMITTED`, `LW_NO_WAIT`, or 0.
    pub flags: u32,
    /// When the commit returns: an `lw_mode`.
    pub mode: u32,
    /// The period of `LW_MODE_PERIODIC`, in milliseconds.
    pub period_ms: u32,
    /// 0: for later versions.
    pub reserved: u32,
    /// For how many milliseconds it waits for locks, and is run again by a retry loop; 0 is 10,000,
    /// and for `lw_begin` no limit. UINT64_MAX is no limit.
    pub time_ms: u64,
    /// A text for people, which errors and tools show; 32 bytes at most are kept. NULL is none. The
    /// process keeps each text until it ends: do not make new ones all the time.
    pub label: *const c_char,
}

impl Sized_ for lw_txn_options {
    const INIT: Self = Self {
        size: size_of::<Self>(),
        flags: 0,
        mode: 0,
        period_ms: 0,
        reserved: 0,
        time_ms: 0,
        label: core::ptr::null(),
    };
    const NAME: &'static str = "lw_txn_options";

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// A time that is no limit: 100 years.
const ALWAYS: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The options of a transaction; and whether they say how long it waits.
///
/// # Safety
///
/// They are null or were initialised.
pub(crate) unsafe fn patience(at: *const lw_txn_options) -> Result<(TxnOptions, bool), Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { options_of(at)? };
    let mut patience = TxnOptions::default();
    if given.flags & !(LW_READ_COMMITTED | LW_NO_WAIT) != 0 {
        let text = format!("flags {:#x} of a transaction do not exist", given.flags);
        return Err(Failure::Other(LW_OPTIONS, text));
    }
    if given.flags & LW_READ_COMMITTED != 0 {
        patience.level = Level::ReadCommitted;
    }
    patience.mode = mode_of(given.mode, given.period_ms)?;
    match given.time_ms {
        0 => {}
        ms => patience.time = Duration::from_millis(ms).min(ALWAYS),
    }
    let no_wait = given.flags & LW_NO_WAIT != 0;
    if no_wait {
        patience.time = Duration::ZERO;
    }
    if !given.label.is_null() {
        // SAFETY: the caller's promise.
        let label = unsafe { text_of(given.label, "label")? };
        // A name of a table is kept once for all equal ones, and a label is another name.
        patience.label = Bytes::named(&label[..label.floor_char_boundary(32)]).name();
    }
    Ok((patience, no_wait || given.time_ms != 0))
}

/// Begins a transaction, which the caller ends with `lw_commit`, `lw_roll_back` or `lw_txn_free`.
/// `options` may be NULL. No one runs it again: after an error that `lw_is_retryable` the caller
/// calls `lw_txn_restart`, or rolls it back. `lw_write` and `lw_attempts_new` do that by
/// themselves. It takes a thread slot until it ends.
///
/// # Errors
///
/// `LW_THREADS`, `LW_READ_ONLY`, `LW_OPTIONS`, `LW_NO_SPACE`, `LW_IO`.
///
/// # Safety
///
/// The store is alive; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_begin(
    store: *mut lw_store,
    options: *const lw_txn_options,
    tx: *mut *mut lw_txn,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let tx = place(tx, core::ptr::null_mut(), "transaction")?;
            let (patience, has_time) = patience(options)?;
            *tx = handle::new(Txn::new(begin(&used(store)?.store, &patience, has_time)?, false));
            Ok(LW_OK)
        })
    }
}

fn begin(store: &Store, patience: &TxnOptions, has_time: bool) -> Result<Transaction, Error> {
    match has_time {
        true => store.begin_with(patience),
        false => store.begin_with(&TxnOptions { time: Duration::MAX, ..*patience }),
    }
}

/// Takes the transaction of a caller that means to end it.
unsafe fn own<'t>(tx: *mut lw_txn) -> Result<Alone<'t, lw_txn>, Failure> {
    // SAFETY: the caller's promise.
    let mut alone = unsafe { alone(tx)? };
    match alone.get().lent {
        false => Ok(alone),
        true => Err(misuse("the transaction belongs to a retry loop, which ends it")),
    }
}

/// Ends a transaction of the caller's, and returns it.
///
/// # Safety
///
/// It is null or a handle.
pub(crate) unsafe fn ended(tx: *mut lw_txn) -> Result<Txn, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { own(tx)? }.end())
}

/// Commits a transaction, and frees the object, whatever this returns. As durable as the mode says
/// when it returns.
///
/// # Errors
///
/// `LW_CONFLICT`, `LW_TIMEOUT`, `LW_TOO_OLD`, `LW_NO_SPACE`, `LW_IO` and the codes of a call before
/// that ended the transaction: it was rolled back. `LW_COMMIT_UNKNOWN`: it is committed, and a
/// crash of the machine may take that back. `LW_READS_UNKNOWN`.
///
/// If the process dies in the call, all of the transaction is committed, or nothing.
///
/// # Safety
///
/// The transaction is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_commit(tx: *mut lw_txn, error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            ended(tx)?.tx.commit()?;
            Ok(LW_OK)
        })
    }
}

/// Rolls a transaction back, and frees the object, whatever this returns. In `LW_MODE_FULL` it then
/// waits until all that the transaction may have read is durable, so that a program may act on it.
///
/// # Errors
///
/// `LW_READS_UNKNOWN`, `LW_IO`: it is rolled back, or will be by a sweep.
///
/// # Safety
///
/// The transaction is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_roll_back(tx: *mut lw_txn, error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            ended(tx)?.tx.roll_back()?;
            Ok(LW_OK)
        })
    }
}

/// Rolls a transaction back without waiting for the disk, and frees the object. NULL is allowed.
///
/// # Errors
///
/// `LW_BUSY`; `LW_MISUSE`, also for a transaction of a retry loop: it is not changed.
///
/// # Safety
///
/// The transaction is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_free(tx: *mut lw_txn) -> c_int {
    // SAFETY: the caller's promise; no place for an error.
    unsafe {
        call(core::ptr::null_mut(), || {
            handle::or_given_up(tx, |tx| ended(tx))?;
            Ok(LW_OK)
        })
    }
}

/// Rolls a transaction back and begins it again, as old as it was, so that it is not the victim of
/// each deadlock. Cursors and savepoints of it have ended.
///
/// # Errors
///
/// `LW_IO`, `LW_THREADS`: then it can only be freed.
///
/// # Safety
///
/// The transaction is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_restart(tx: *mut lw_txn, error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            own(tx)?.get().restart(None)?;
            Ok(LW_OK)
        })
    }
}

/// Reads a record into a buffer, and locks it against writers until the transaction ends. O(log n).
///
/// # Errors
///
/// `LW_NOT_FOUND`; `LW_CONFLICT`, `LW_TIMEOUT`, `LW_TOO_OLD`, `LW_SELF`, `LW_KILLED`,
/// `LW_TABLE_TYPE`, `LW_MIGRATING`, `LW_TOO_LONG`, `LW_LOCKS_FULL`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of the key can be read; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_get(
    tx: *mut lw_txn,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    value: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            let mut value = Buf::new(value)?;
            copied(tx.get().tx.with(|tx| tx.get_with(table, key, |bytes| value.copy(bytes)))?)
        })
    }
}

/// Reads a record that the transaction means to write: no other transaction can read it in this way
/// until this one ends. Two transactions that both call `lw_txn_get` and then write would wait for
/// each other.
///
/// # Errors
///
/// Those of `lw_txn_get`.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of the key can be read; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_get_for_update(
    tx: *mut lw_txn,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    value: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            let mut value = Buf::new(value)?;
            let with = |bytes: &[u8]| value.copy(bytes);
            copied(tx.get().tx.with(|tx| tx.get_for_update_with(table, key, with))?)
        })
    }
}

/// Reads a record as `lw_txn_get`, without a copy for the caller: calls `each` with its bytes, if
/// the record exists. `each` must not use the same transaction.
///
/// # Errors
///
/// Those of `lw_txn_get`.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of the key can be read; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_get_with(
    tx: *mut lw_txn,
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
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            let with = lending(each, context)?;
            found(tx.get().tx.with(|tx| tx.get_with(table, key, with))?.is_some())
        })
    }
}

/// Writes a record, new or not. Other transactions see it when this one has committed. O(log n).
///
/// # Errors
///
/// Those of `lw_txn_get`, and `LW_NO_SPACE`.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of key and value can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_put(
    tx: *mut lw_txn,
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
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            let value = value_bytes(value, value_len)?;
            tx.get().write(|tx| tx.put(table, key, value))?;
            Ok(LW_OK)
        })
    }
}

/// Writes a record as the last thing before the commit: both are one record of the log. Any other
/// call before the commit is allowed, and costs what this saves.
///
/// # Errors
///
/// Those of `lw_txn_put`, some of them from the commit.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of key and value can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_put_final(
    tx: *mut lw_txn,
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
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            let value = value_bytes(value, value_len)?;
            tx.get().write(|tx| tx.put_final(table, key, value))?;
            Ok(LW_OK)
        })
    }
}

/// Writes a record that must not exist yet. O(log n).
///
/// # Errors
///
/// `LW_EXISTS` if it exists: it stays, and the transaction continues. Those of `lw_txn_put`.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of key and value can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_insert(
    tx: *mut lw_txn,
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
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            let value = value_bytes(value, value_len)?;
            inserted(tx.get().write(|tx| tx.insert(table, key, value)))
        })
    }
}

/// Removes a record. O(log n).
///
/// # Errors
///
/// `LW_NOT_FOUND` if there was no such record; those of `lw_txn_put`.
///
/// # Safety
///
/// Transaction and table are alive; the bytes of the key can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_remove(
    tx: *mut lw_txn,
    table: *const lw_table,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut tx, table, key) = on(alone(tx), table, key, key_len)?;
            found(tx.get().write(|tx| tx.remove(table, key))?)
        })
    }
}

/// Removes all records of a range; `*records` is how many there were. `range` may be NULL: all
/// records. Its limit and `LW_REVERSE` must not be set. O(records), and memory for their keys.
///
/// # Errors
///
/// Those of `lw_txn_put`.
///
/// # Safety
///
/// Transaction and table are alive; the range was initialised; `records` is NULL or a place for a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_remove_range(
    tx: *mut lw_txn,
    table: *const lw_table,
    range: *const lw_range,
    records: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut tx, table, range) = (alone(tx)?, shared(table)?, Range::new(range)?);
            if range.back || range.limit.is_some() {
                return Err(misuse("a range that is removed has no limit and no direction"));
            }
            let removed = tx.get().write(|tx| tx.remove_range(table, range.ends()))?;
            if !records.is_null() {
                *records = removed;
            }
            Ok(LW_OK)
        })
    }
}

/// Calls `each` for the records of a range, as `lw_snapshot_scan` does, and with what the
/// transaction itself has written. The range is locked against writers, as far as its limit.
/// `each` must not use the same transaction: collect, and write afterwards, or use a cursor.
///
/// # Errors
///
/// Those of `lw_txn_get`; what `each` returns.
///
/// # Safety
///
/// Transaction and table are alive; the range was initialised; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_scan(
    tx: *mut lw_txn,
    table: *const lw_table,
    range: *const lw_range,
    each: lw_record_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut tx, table) = (alone(tx)?, shared(table)?);
            let (range, each) = (Range::new(range)?, function(each)?);
            with(&mut tx.get().tx, |tx| scan(tx, table, &range, each, context))
        })
    }
}

/// Does something with a transaction that fails with more than errors of the store.
fn with<R>(
    tx: &mut Transaction,
    work: impl FnOnce(&mut WriteTxn<'_, '_>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    tx.with(|tx| Ok(work(tx)))?
}

/// Counts the records of a range, and locks it against writers. `range` may be NULL. O(records).
///
/// # Errors
///
/// Those of `lw_txn_get`.
///
/// # Safety
///
/// Transaction and table are alive; the range was initialised; `records` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_count(
    tx: *mut lw_txn,
    table: *const lw_table,
    range: *const lw_range,
    records: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let records = place(records, 0, "number of records")?;
            let (mut tx, table, range) = (alone(tx)?, shared(table)?, Range::new(range)?);
            *records = with(&mut tx.get().tx, |tx| count(tx, table, &range))?;
            Ok(LW_OK)
        })
    }
}

/// Removes the first record of a table, and returns it: the head of a queue. Transactions that take
/// from a queue wait for each other. O(log n).
///
/// # Errors
///
/// `LW_NOT_FOUND` if the table is empty; those of `lw_txn_put`.
///
/// # Safety
///
/// Transaction and table are alive; the buffers are initialised, and two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_pop_first(
    tx: *mut lw_txn,
    table: *const lw_table,
    key: *mut lw_buf,
    value: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(error, || take_end(tx, table, key, value, |tx, table| tx.pop_first(table))) }
}

/// Removes the last record of a table, and returns it. O(log n).
///
/// # Errors
///
/// `LW_NOT_FOUND` if the table is empty; those of `lw_txn_put`.
///
/// # Safety
///
/// Transaction and table are alive; the buffers are initialised, and two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_pop_last(
    tx: *mut lw_txn,
    table: *const lw_table,
    key: *mut lw_buf,
    value: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(error, || take_end(tx, table, key, value, |tx, table| tx.pop_last(table))) }
}

type Record = (Vec<u8>, Vec<u8>);

unsafe fn take_end(
    tx: *mut lw_txn,
    table: *const lw_table,
    key: *mut lw_buf,
    value: *mut lw_buf,
    take: impl FnOnce(&mut WriteTxn<'_, '_>, &Bytes) -> Result<Option<Record>, Error>,
) -> Answer {
    if core::ptr::eq(key, value) && !key.is_null() {
        return Err(misuse("key and value are the same lw_buf"));
    }
    // SAFETY: the caller's promises.
    unsafe {
        let (mut tx, table) = (alone(tx)?, shared(table)?);
        let (mut key, mut value) = (Buf::new(key)?, Buf::new(value)?);
        let Some((k, v)) = tx.get().write(|tx| take(tx, table))? else {
            return Ok(LW_NOT_FOUND);
        };
        key.set(&k)?;
        value.set(&v)?;
        Ok(LW_OK)
    }
}

/// Notes where the transaction is: `*savepoint` is a number for `lw_txn_roll_back_to`.
///
/// # Errors
///
/// Those of `lw_txn_put`.
///
/// # Safety
///
/// The transaction is alive; `savepoint` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_savepoint(
    tx: *mut lw_txn,
    savepoint: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let savepoint = place(savepoint, 0, "savepoint")?;
            let mut tx = alone(tx)?;
            let tx = tx.get();
            let made = tx.write(|tx| tx.savepoint())?;
            *savepoint = tx.next;
            tx.savepoints.push((tx.next, made));
            tx.next += 1;
            Ok(LW_OK)
        })
    }
}

/// Undoes what the transaction has written since a savepoint. Its locks stay, and so does the
/// savepoint; savepoints that were made after it have ended. O(records undone).
///
/// # Errors
///
/// `LW_SAVEPOINT` if it has ended, or is of another transaction; `LW_NO_SPACE`, `LW_IO`.
///
/// # Safety
///
/// The transaction is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_roll_back_to(
    tx: *mut lw_txn,
    savepoint: u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mut tx = alone(tx)?;
            let tx = tx.get();
            let at = tx.savepoints.binary_search_by_key(&savepoint, |(number, _)| *number);
            let at = at.map_err(|_| Failure::Store(Error::Savepoint))?;
            let to = tx.savepoints[at].1;
            tx.write(|tx| tx.roll_back_to(to))?;
            tx.savepoints.truncate(at + 1);
            Ok(LW_OK)
        })
    }
}
