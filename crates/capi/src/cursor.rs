//! Cursors: a range record by record, forwards and backwards, of a snapshot or of a transaction.
//!
//! ```text
//! at      where the next fetch begins: Start, Gap(key) before a key, On(key), End
//! rows    what was read ahead, in the order of the direction; `next` is the first not yet given
//! ```
//!
//! A cursor reads ahead: 16 records, then four times as many, up to 1,024 or 256 KiB. That of a
//! transaction drops what it has read ahead when the transaction writes, and reads it again.

use core::ffi::{c_int, c_void};
use core::ops::Bound;

use crate::call::{Answer, call, key_bytes, place};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::{Failure, misuse};
use crate::handle::{self, Alone, alone, kinds, shared};
use crate::range::{Ends, Range, lw_range};
use crate::scan::Reads;
use crate::snapshot::lw_snapshot;
use crate::table::{Bytes, lw_table};
use crate::txn::lw_txn;

/// A place in a range of a table. One thread uses it at a time. It ends with its snapshot or
/// transaction: then its calls return `LW_MISUSE`, and it must still be freed.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_cursor(());

/// A record that a cursor gives out. The bytes belong to the cursor, and live until its next call.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_row {
    /// The key.
    pub key: *const c_void,
    /// Bytes of the key.
    pub key_len: usize,
    /// The value.
    pub value: *const c_void,
    /// Bytes of the value.
    pub value_len: usize,
}

impl lw_row {
    const NONE: Self =
        Self { key: core::ptr::null(), key_len: 0, value: core::ptr::null(), value_len: 0 };
}

/// A snapshot or a transaction that a cursor reads.
enum Source {
    /// A snapshot, and the generation of its handle.
    Snapshot(*mut lw_snapshot, u64),
    /// A transaction, the generation of its handle, and its attempt.
    Txn(*mut lw_txn, u64, u64),
}

// SAFETY: handles last for ever, and `alone` says whether they may be used.
unsafe impl Send for Source {}

/// The same, in use by a call.
enum Borrowed<'h> {
    Snapshot(Alone<'h, lw_snapshot>),
    Txn(Alone<'h, lw_txn>),
}

impl Source {
    /// Takes the object, if the cursor was opened on it and it has not ended since.
    ///
    /// # Safety
    ///
    /// It is a handle.
    unsafe fn lend<'h>(&self) -> Result<Borrowed<'h>, Failure> {
        match *self {
            Self::Snapshot(snapshot, generation) => {
                // SAFETY: the caller's promise.
                let snapshot = unsafe { alone(snapshot)? };
                match snapshot.generation() == generation {
                    true => Ok(Borrowed::Snapshot(snapshot)),
                    false => Err(ended()),
                }
            }
            Self::Txn(tx, generation, attempt) => {
                // SAFETY: the caller's promise.
                let mut tx = unsafe { alone(tx)? };
                match tx.generation() == generation && tx.get().attempt == attempt {
                    true => Ok(Borrowed::Txn(tx)),
                    false => Err(ended()),
                }
            }
        }
    }
}

/// Where a cursor is.
enum At {
    Start,
    /// Before this key, if it exists.
    Gap(Vec<u8>),
    On(Vec<u8>),
    End,
}

/// The contents of an `lw_cursor`.
pub(crate) struct Cursor {
    source: Source,
    table: Bytes,
    range: Range,
    at: At,
    /// The direction of what was read ahead, against that of the range.
    back: bool,
    ahead: Ahead,
    /// How many records it may still give out.
    left: u64,
}

kinds! {
    lw_cursor => Cursor, 6, false;
}

/// Records that were read ahead.
#[derive(Default)]
struct Ahead {
    bytes: Vec<u8>,
    /// Where each record begins, where its value begins, where it ends.
    rows: Vec<(usize, usize, usize)>,
    next: usize,
    /// Whether there are no more behind them.
    last: bool,
    /// How many to read next.
    most: usize,
    /// `Txn::writes` when they were read.
    writes: u64,
}

/// An end of a range.
type Limit = Bound<Vec<u8>>;

/// How many records are read ahead at first, and at most.
const FEW: usize = 16;
const MANY: usize = 1024;
const BYTES: usize = 256 << 10;

impl Ahead {
    fn key(&self, row: usize) -> &[u8] {
        let (from, to, _) = self.rows[row];
        &self.bytes[from..to]
    }

    fn row(&self, row: usize) -> lw_row {
        let (key, value, end) = self.rows[row];
        let at = |at: usize| self.bytes.as_ptr().wrapping_add(at).cast::<c_void>();
        let (key_len, value_len) = (value - key, end - value);
        lw_row { key: at(key), key_len, value: at(value), value_len }
    }

    /// Adds a copy of a record.
    #[inline]
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let from = self.bytes.len();
        self.bytes.reserve(key.len() + value.len());
        let at = self.bytes.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: there is room for both behind what it has, and they are not of it.
        unsafe {
            core::ptr::copy_nonoverlapping(key.as_ptr(), at, key.len());
            core::ptr::copy_nonoverlapping(value.as_ptr(), at.add(key.len()), value.len());
            self.bytes.set_len(from + key.len() + value.len());
        }
        self.rows.push((from, from + key.len(), self.bytes.len()));
    }

    fn is_empty(&self) -> bool {
        self.next >= self.rows.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        (self.next, self.last) = (0, false);
    }
}

impl Cursor {
    fn new(source: Source, table: Bytes, range: Range) -> Self {
        let left = range.limit.unwrap_or(u64::MAX);
        let ahead = Ahead { most: FEW, ..Ahead::default() };
        let at = if range.back { At::End } else { At::Start };
        Self { source, table, range, at, back: false, ahead, left }
    }

    /// Whether records are read from the last to the first.
    fn backwards(&self, back: bool) -> bool {
        self.range.back != back
    }

    /// Takes the place of the record that was given out last, and forgets what was read ahead.
    fn settle(&mut self) {
        if let Some(last) = self.ahead.next.checked_sub(1) {
            self.at = At::On(self.ahead.key(last).to_vec());
        }
        self.ahead.clear();
        self.ahead.most = FEW;
    }

    fn go(&mut self, at: At) {
        self.ahead.clear();
        self.ahead.most = FEW;
        self.at = at;
    }

    /// Moves the cursor. The limit counts again from there.
    ///
    /// # Safety
    ///
    /// Its source is a handle.
    unsafe fn place(&mut self, at: At) -> Answer {
        // SAFETY: the caller's promise.
        unsafe { self.source.lend()? };
        self.go(at);
        self.left = self.range.limit.unwrap_or(u64::MAX);
        Ok(LW_OK)
    }

    /// Has at least one record ready in a direction, unless there is none.
    ///
    /// # Safety
    ///
    /// Its source is a handle.
    unsafe fn ready(&mut self, back: bool, wanted: usize) -> Result<(), Failure> {
        if back != self.back {
            self.settle();
            self.back = back;
        }
        // SAFETY: the caller's promise.
        match unsafe { self.source.lend()? } {
            Borrowed::Snapshot(mut snapshot) => self.fill(&mut &*snapshot.get(), 0, wanted),
            Borrowed::Txn(mut tx) => {
                let tx = tx.get();
                if tx.writes != self.ahead.writes {
                    self.settle();
                }
                let writes = tx.writes;
                tx.tx.with(|tx| Ok(self.fill(tx, writes, wanted)))?
            }
        }
    }

    fn fill(&mut self, reads: &mut impl Reads, writes: u64, wanted: usize) -> Result<(), Failure> {
        if !self.ahead.is_empty() || self.ahead.last {
            return Ok(());
        }
        let left = usize::try_from(self.left).unwrap_or(usize::MAX).max(1);
        let most = self.ahead.most.max(wanted.min(MANY)).min(left);
        self.settle();
        (self.ahead.writes, self.ahead.most) = (writes, (4 * most).min(MANY));
        let backwards = self.backwards(self.back);
        let Some((from, to)) = self.rest(backwards) else {
            self.ahead.last = true;
            return Ok(());
        };
        let ahead = &mut self.ahead;
        let ends: Ends<'_> = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let mut is_full = false;
        let read = reads.some(&self.table, ends, backwards, Some(most), &mut |key, value| {
            ahead.push(key, value);
            is_full = ahead.rows.len() >= most || ahead.bytes.len() >= BYTES;
            Ok(!is_full)
        });
        match read {
            Ok(whole) => self.ahead.last = whole && !is_full,
            Err(why) => {
                // Records read before the error are not given out: the call fails.
                self.ahead.clear();
                return Err(why.into());
            }
        }
        Ok(())
    }

    /// The rest of the range from where it is; none if that is empty.
    fn rest(&self, backwards: bool) -> Option<(Limit, Limit)> {
        let (from, to) = (self.range.from.clone(), self.range.to.clone());
        match (&self.at, backwards) {
            (At::End, false) | (At::Start, true) => None,
            (At::Start, false) | (At::End, true) => Some((from, to)),
            (At::On(key), false) => Some((later(from, Bound::Excluded(key.clone())), to)),
            (At::Gap(key), false) => Some((later(from, Bound::Included(key.clone())), to)),
            (At::On(key) | At::Gap(key), true) => {
                Some((from, earlier(to, Bound::Excluded(key.clone()))))
            }
        }
    }

    /// Gives out records: as many as were asked for and are ready.
    fn give(&mut self, rows: &mut [lw_row]) -> usize {
        let ready = self.ahead.rows.len() - self.ahead.next;
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let count = rows.len().min(ready).min(left);
        for row in &mut rows[..count] {
            *row = self.ahead.row(self.ahead.next);
            self.ahead.next += 1;
        }
        if self.range.limit.is_some() {
            self.left -= count as u64;
        }
        if count == 0 {
            // Past the last one, or before the first.
            let at = if self.backwards(self.back) { At::Start } else { At::End };
            if left > 0 {
                self.go(at);
            }
        }
        count
    }
}

#[cold]
fn ended() -> Failure {
    misuse("the snapshot or the transaction of the cursor has ended, or was restarted")
}

/// The bound that lets in less from below.
fn later(one: Limit, other: Limit) -> Limit {
    let place = |bound: &Limit| match bound {
        Bound::Unbounded => None,
        Bound::Included(key) => Some((key.clone(), false)),
        Bound::Excluded(key) => Some((key.clone(), true)),
    };
    if place(&one) >= place(&other) { one } else { other }
}

/// The bound that lets in less from above.
fn earlier(one: Limit, other: Limit) -> Limit {
    let place = |bound: &Limit| match bound {
        Bound::Unbounded => (true, Vec::new(), false),
        Bound::Included(key) => (false, key.clone(), true),
        Bound::Excluded(key) => (false, key.clone(), false),
    };
    if place(&one) <= place(&other) { one } else { other }
}

/// Opens a cursor on a range of a snapshot. `range` may be NULL: all records. With `LW_REVERSE` its
/// `next` moves backwards. It stands before the first record. O(1).
///
/// # Errors
///
/// `LW_TOO_LONG`, `LW_OPTIONS`, `LW_MISUSE`.
///
/// # Safety
///
/// Snapshot and table are alive; the range was initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_snapshot_cursor(
    snapshot: *mut lw_snapshot,
    table: *const lw_table,
    range: *const lw_range,
    cursor: *mut *mut lw_cursor,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let cursor = place(cursor, core::ptr::null_mut(), "cursor")?;
            let (table, range) = (*shared(table)?, Range::new(range)?);
            let source = Source::Snapshot(snapshot, alone(snapshot)?.generation());
            *cursor = handle::new(Cursor::new(source, table, range));
            Ok(LW_OK)
        })
    }
}

/// Opens a cursor on a range of a transaction, which sees what the transaction has written, also
/// after the cursor was opened. The records that it gives out, and the gaps between them, are
/// locked against other writers, and also the records that it reads ahead. Otherwise as
/// `lw_snapshot_cursor`.
///
/// # Errors
///
/// `LW_TOO_LONG`, `LW_OPTIONS`, `LW_MISUSE`.
///
/// # Safety
///
/// Transaction and table are alive; the range was initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_txn_cursor(
    tx: *mut lw_txn,
    table: *const lw_table,
    range: *const lw_range,
    cursor: *mut *mut lw_cursor,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let cursor = place(cursor, core::ptr::null_mut(), "cursor")?;
            let (table, range) = (*shared(table)?, Range::new(range)?);
            let mut txn = alone(tx)?;
            let source = Source::Txn(tx, txn.generation(), txn.get().attempt);
            *cursor = handle::new(Cursor::new(source, table, range));
            Ok(LW_OK)
        })
    }
}

/// Frees a cursor. NULL is allowed.
///
/// # Errors
///
/// `LW_BUSY`, `LW_MISUSE`.
///
/// # Safety
///
/// The cursor is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_cursor_free(cursor: *mut lw_cursor) -> c_int {
    // SAFETY: the caller's promise; no place for an error.
    unsafe { call(core::ptr::null_mut(), || handle::free(cursor)) }
}

/// Moves to the next record, and gives it out. Amortised O(1).
///
/// # Errors
///
/// `LW_NOT_FOUND` behind the last record, or when the limit of the range is reached: then `*row` is
/// empty. Those of `lw_snapshot_get` or `lw_txn_get`.
///
/// # Safety
///
/// The cursor is alive; `row` is a place for a row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_cursor_next(
    cursor: *mut lw_cursor,
    row: *mut lw_row,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(error, || one(cursor, row, false)) }
}

/// Moves to the record before, and gives it out: the opposite direction of `lw_cursor_next`.
///
/// # Errors
///
/// Those of `lw_cursor_next`.
///
/// # Safety
///
/// The cursor is alive; `row` is a place for a row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_cursor_prev(
    cursor: *mut lw_cursor,
    row: *mut lw_row,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(error, || one(cursor, row, true)) }
}

unsafe fn one(cursor: *mut lw_cursor, row: *mut lw_row, back: bool) -> Answer {
    // SAFETY: the caller's promises.
    unsafe {
        let row = place(row, lw_row::NONE, "row")?;
        let mut cursor = alone(cursor)?;
        let cursor = cursor.get();
        cursor.ready(back, 1)?;
        match cursor.give(core::slice::from_mut(row)) {
            0 => Ok(LW_NOT_FOUND),
            _ => Ok(LW_OK),
        }
    }
}

/// Moves forwards by several records, and gives them out in `rows`, an array with room for `most`:
/// at least one and at most `most`, as many as are at hand; `*count` is how many. For a program
/// that reads long ranges, or to whom a call is expensive. All of them live until the next call.
///
/// # Errors
///
/// `LW_NOT_FOUND` if there is none: `*count` is 0. Those of `lw_cursor_next`; `LW_MISUSE` if `most`
/// is 0.
///
/// # Safety
///
/// The cursor is alive; `rows` is a place for `most` rows, `count` for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_cursor_next_some(
    cursor: *mut lw_cursor,
    rows: *mut lw_row,
    most: usize,
    count: *mut usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let count = place(count, 0, "number of rows")?;
            let fits =
                most.checked_mul(size_of::<lw_row>()).is_some_and(|it| it < isize::MAX as usize);
            if rows.is_null() || !rows.is_aligned() || most == 0 || !fits {
                return Err(misuse("an array for rows is NULL, misaligned, empty, or too large"));
            }
            let mut cursor = alone(cursor)?;
            let cursor = cursor.get();
            cursor.ready(false, most)?;
            // Not more than there can be: the array is not written behind what is given out.
            let rows = core::slice::from_raw_parts_mut(rows, most.min(cursor.ahead.rows.len()));
            *count = cursor.give(rows);
            if *count == 0 { Ok(LW_NOT_FOUND) } else { Ok(LW_OK) }
        })
    }
}

/// Places a cursor before the first record whose key is not less than this one: `lw_cursor_next`
/// returns that record, `lw_cursor_prev` the last record whose key is less. With `LW_REVERSE` it
/// is the other way round: `lw_cursor_next` returns the last record below the key, which need not
/// exist. The limit of the range counts again from its beginning. O(1); the next call searches.
///
/// # Errors
///
/// `LW_TOO_LONG`, `LW_MISUSE`.
///
/// # Safety
///
/// The cursor is alive; the bytes of the key can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_cursor_seek(
    cursor: *mut lw_cursor,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mut cursor = alone(cursor)?;
            cursor.get().place(At::Gap(key_bytes(key, key_len)?.to_vec()))
        })
    }
}

/// Places a cursor at an end of its range: before the first record that `lw_cursor_next` gives out
/// if `at_end` is 0, else behind the last one, for `lw_cursor_prev`. The limit counts again. O(1).
///
/// # Errors
///
/// `LW_MISUSE`.
///
/// # Safety
///
/// The cursor is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_cursor_rewind(
    cursor: *mut lw_cursor,
    at_end: c_int,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mut cursor = alone(cursor)?;
            let cursor = cursor.get();
            let back = cursor.backwards(at_end != 0);
            cursor.place(if back { At::End } else { At::Start })
        })
    }
}
