//! Range scans of snapshots and transactions: the records one by one.

use core::ffi::{c_int, c_void};

use latchwork_store::{EachRecord, Error, KeptSnapshot, WriteTxn};

use crate::call::Answer;
use crate::codes::lw_code::*;
use crate::failure::Failure;
use crate::range::{Ends, Range};
use crate::table::Bytes;

/// A function that is called with each record of a range: the bytes live until it returns. It
/// returns 0 to continue; any other number ends the scan and is returned by the call. It must not
/// throw an exception or jump (`longjmp`) out of the call that it is in.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub type lw_record_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        value: *const c_void,
        value_len: usize,
    ) -> c_int,
>;

/// A source of records: a snapshot or a transaction.
pub(crate) trait Reads {
    /// Calls `each` for the records of a range until it returns `false`; for about `most` of them
    /// if no more of the range shall be held. Returns whether the range has no more records than
    /// those, if `each` has not returned `false`.
    fn some(
        &mut self,
        table: &Bytes,
        ends: Ends<'_>,
        back: bool,
        most: Option<usize>,
        each: &mut EachRecord<'_>,
    ) -> Result<bool, Error>;
}

impl Reads for &KeptSnapshot {
    fn some(
        &mut self,
        table: &Bytes,
        ends: Ends<'_>,
        back: bool,
        _: Option<usize>,
        each: &mut EachRecord<'_>,
    ) -> Result<bool, Error> {
        match back {
            false => self.scan(table, ends, each)?,
            true => self.scan_back(table, ends, each)?,
        }
        Ok(true)
    }
}

impl Reads for WriteTxn<'_, '_> {
    fn some(
        &mut self,
        table: &Bytes,
        ends: Ends<'_>,
        back: bool,
        most: Option<usize>,
        each: &mut EachRecord<'_>,
    ) -> Result<bool, Error> {
        if let Some(most) = most {
            return self.scan_some(table, ends, back, most, each);
        }
        match back {
            false => self.scan(table, ends, each)?,
            true => self.scan_back(table, ends, each)?,
        }
        Ok(true)
    }
}

/// Calls a function of the caller's for the records of a range.
pub(crate) fn scan(
    reads: &mut impl Reads,
    table: &Bytes,
    range: &Range,
    each: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize) -> c_int,
    context: *mut c_void,
) -> Answer {
    let (mut left, mut said) = (range.limit.unwrap_or(u64::MAX), 0);
    // With a limit the rest of the range is not held.
    let most = range.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    reads.some(table, range.ends(), range.back, most, &mut |key, value| {
        if left == 0 {
            return Ok(false);
        }
        left -= 1;
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: the caller of the C function says that it can be called.
        said = unsafe { each(context, key, key_len, value.as_ptr().cast(), value.len()) };
        Ok(said == 0 && left > 0)
    })?;
    if said == 0 { Ok(LW_OK) } else { Err(Failure::Callers(said)) }
}

/// Counts the records of a range.
pub(crate) fn count(reads: &mut impl Reads, table: &Bytes, range: &Range) -> Result<u64, Failure> {
    let (limit, mut count) = (range.limit.unwrap_or(u64::MAX), 0);
    let most = range.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    reads.some(table, range.ends(), range.back, most, &mut |_, _| {
        count += 1;
        Ok(count < limit)
    })?;
    Ok(count)
}
