//! Ranges of keys.

use core::ffi::c_void;
use core::ops::Bound;

use latchwork_store::KEY_MAX;

use crate::call::{Sized_, key_bytes, options_of};
use crate::codes::lw_code::*;
use crate::failure::{Failure, misuse};

/// The range begins behind `from`.
pub const LW_FROM_EXCLUDED: u32 = 1;
/// The range ends with `to`, and not before it.
pub const LW_TO_INCLUDED: u32 = 2;
/// From the last record of the range to the first.
pub const LW_REVERSE: u32 = 4;
/// All keys that begin with the bytes of `from`; `to` is NULL.
pub const LW_PREFIX: u32 = 8;
/// All keys that begin with the parts of `from`, which `lw_key_encode` has made; `to` is NULL. A
/// text part "ann" does not match "anna", as it would by bytes if it is not ended.
pub const LW_PREFIX_PARTS: u32 = 16;

/// A range of keys, in the order of their bytes. Initialise it with `LW_RANGE_INIT`: that is all
/// keys. The bytes are read by the call that gets the range, and not afterwards.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_range {
    /// The size of this struct.
    pub size: usize,
    /// Where it begins; NULL is at the first key.
    pub from: *const c_void,
    /// Bytes of `from`.
    pub from_len: usize,
    /// Before which key it ends; NULL is behind the last key.
    pub to: *const c_void,
    /// Bytes of `to`.
    pub to_len: usize,
    /// `LW_FROM_EXCLUDED`, `LW_TO_INCLUDED`, `LW_REVERSE`, `LW_PREFIX`, `LW_PREFIX_PARTS`, or 0.
    pub flags: u32,
    /// 0: for later versions.
    pub reserved: u32,
    /// After how many records a scan or a cursor ends; 0 is no limit.
    pub limit: u64,
}

impl Sized_ for lw_range {
    const INIT: Self = Self {
        size: size_of::<Self>(),
        from: core::ptr::null(),
        from_len: 0,
        to: core::ptr::null(),
        to_len: 0,
        flags: 0,
        reserved: 0,
        limit: 0,
    };
    const NAME: &'static str = "lw_range";

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// The ends of a range.
pub(crate) type Ends<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// A range that the library owns.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) from: Bound<Vec<u8>>,
    pub(crate) to: Bound<Vec<u8>>,
    pub(crate) back: bool,
    /// None if there is no limit.
    pub(crate) limit: Option<u64>,
}

impl Range {
    /// # Safety
    ///
    /// It is null or was initialised, and its bytes can be read.
    pub(crate) unsafe fn new(at: *const lw_range) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let range = unsafe { options_of(at)? };
        let all = LW_FROM_EXCLUDED | LW_TO_INCLUDED | LW_REVERSE | LW_PREFIX | LW_PREFIX_PARTS;
        if range.flags & !all != 0 {
            let text = format!("flags {:#x} of a range: not all of them exist", range.flags);
            return Err(Failure::Other(LW_OPTIONS, text));
        }
        let has = |flag| range.flags & flag != 0;
        // SAFETY: the caller's promise.
        let from = unsafe { end(range.from, range.from_len)? };
        // SAFETY: the caller's promise.
        let to = unsafe { end(range.to, range.to_len)? };
        let (from, to) = if has(LW_PREFIX) || has(LW_PREFIX_PARTS) {
            let (Some(from), None) = (from, to) else {
                return Err(misuse("a prefix is `from`, and `to` is NULL"));
            };
            let to = if has(LW_PREFIX) { behind(&from) } else { behind_parts(from.clone()) };
            (Bound::Included(from), to)
        } else {
            let from = from.map_or(Bound::Unbounded, |key| match has(LW_FROM_EXCLUDED) {
                true => Bound::Excluded(key),
                false => Bound::Included(key),
            });
            let to = to.map_or(Bound::Unbounded, |key| match has(LW_TO_INCLUDED) {
                true => Bound::Included(key),
                false => Bound::Excluded(key),
            });
            (from, to)
        };
        let limit = (range.limit != 0).then_some(range.limit);
        Ok(Self { from, to, back: has(LW_REVERSE), limit })
    }

    pub(crate) fn ends(&self) -> Ends<'_> {
        (self.from.as_ref().map(Vec::as_slice), self.to.as_ref().map(Vec::as_slice))
    }
}

unsafe fn end(at: *const c_void, length: usize) -> Result<Option<Vec<u8>>, Failure> {
    if at.is_null() && length == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { key_bytes(at, length)? }.to_vec()))
}

/// Behind all keys that begin with these bytes.
fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return Bound::Excluded(end);
        }
        end.pop();
    }
    Bound::Unbounded
}

/// Behind all keys that begin with these parts: no part begins with FF. No key is longer than one
/// of the greatest length.
fn behind_parts(prefix: Vec<u8>) -> Bound<Vec<u8>> {
    match prefix.len() {
        KEY_MAX => Bound::Included(prefix),
        _ => Bound::Excluded([&prefix[..], &[0xff]].concat()),
    }
}
