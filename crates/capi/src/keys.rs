//! Typed keys: parts in the encoding that all languages share.

use core::ffi::{c_int, c_void};

use latchwork_store::{AnyKey, Key, KeyPart, Uuid};

use crate::buf::{Buf, lw_buf};
use crate::call::{bytes, call, key_bytes, place};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::{Failure, misuse};

/// The type of a key's part: an `lw_part_kind` in `lw_part.kind`, and which member of `of` has it.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum lw_part_kind {
    /// Nothing: `None` of an option.
    LW_PART_NULL = 0,
    /// Bytes: `data` and `len`.
    LW_PART_BYTES = 1,
    /// Text in UTF-8: `data` and `len`.
    LW_PART_TEXT = 2,
    /// Here a tuple inside the key begins.
    LW_PART_BEGIN = 3,
    /// Here the tuple that was begun last ends.
    LW_PART_END = 4,
    /// An integer, of any integer type: `of.i64`.
    LW_PART_I64 = 5,
    /// An integer, of any integer type: `of.u64`. It is encoded as the same number as an `i64` is.
    LW_PART_U64 = 6,
    /// An integer of 128 bits: `of.wide`, little-endian.
    LW_PART_I128 = 7,
    /// An integer of 128 bits without a sign: `of.wide`, little-endian.
    LW_PART_U128 = 8,
    /// `of.f32`.
    LW_PART_F32 = 9,
    /// `of.f64`.
    LW_PART_F64 = 10,
    /// `of.u64`: 0 is false, another number true.
    LW_PART_BOOL = 11,
    /// `of.wide`: the 16 bytes of a UUID.
    LW_PART_UUID = 12,
}

/// The number that a part of a key is.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub union lw_part_of {
    /// Of `LW_PART_I64`.
    pub i64: i64,
    /// Of `LW_PART_U64` and `LW_PART_BOOL`.
    pub u64: u64,
    /// Of `LW_PART_F32`.
    pub f32: f32,
    /// Of `LW_PART_F64`.
    pub f64: f64,
    /// Of `LW_PART_I128`, `LW_PART_U128` and `LW_PART_UUID`.
    pub wide: [u8; 16],
}

/// A part of a key. The functions `lw_part_text`, `lw_part_u64`, .. of this header make one.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct lw_part {
    /// An `lw_part_kind`.
    pub kind: u32,
    /// 0: for later versions.
    pub reserved: u32,
    /// The number, of kinds that are one.
    pub of: lw_part_of,
    /// The bytes of `LW_PART_BYTES` and `LW_PART_TEXT`.
    pub data: *const c_void,
    /// How many bytes.
    pub len: usize,
}

use lw_part_kind::*;

/// With this byte a nested tuple begins, and with zero it ends: see the page of the store's format.
const NESTED: u8 = 0x05;
/// How deep tuples may lie in each other.
const DEPTH: usize = 128;

fn append(part: &lw_part, depth: &mut usize, to: &mut Vec<u8>) -> Result<(), Failure> {
    let nested = *depth > 0;
    // SAFETY: all members are plain numbers, and any bits are valid.
    let (i64, u64, f32, f64, wide) =
        unsafe { (part.of.i64, part.of.u64, part.of.f32, part.of.f64, part.of.wide) };
    // SAFETY: the caller of the C function says that they can be read.
    let data = || unsafe { key_bytes(part.data, part.len) };
    if part.reserved != 0 {
        return Err(misuse("a part of a key has an option of a later version of the library"));
    }
    match part.kind {
        it if it == LW_PART_NULL as u32 => <Option<bool> as Key>::append(&None, nested, to),
        it if it == LW_PART_BYTES as u32 => <&[u8]>::append(&data()?, nested, to),
        it if it == LW_PART_TEXT as u32 => {
            let text = core::str::from_utf8(data()?);
            let why = |_| Failure::Other(LW_FORMAT, "a text part is not UTF-8".to_owned());
            <&str>::append(&text.map_err(why)?, nested, to);
        }
        it if it == LW_PART_BEGIN as u32 && *depth < DEPTH => {
            *depth += 1;
            to.push(NESTED);
        }
        it if it == LW_PART_END as u32 && nested => {
            *depth -= 1;
            to.push(0);
        }
        it if it == LW_PART_I64 as u32 => i64::append(&i64, nested, to),
        it if it == LW_PART_U64 as u32 => u64::append(&u64, nested, to),
        it if it == LW_PART_I128 as u32 => {
            i128::append(&i128::from_le_bytes(wide), nested, to);
        }
        it if it == LW_PART_U128 as u32 => {
            u128::append(&u128::from_le_bytes(wide), nested, to);
        }
        it if it == LW_PART_F32 as u32 => f32::append(&f32, nested, to),
        it if it == LW_PART_F64 as u32 => f64::append(&f64, nested, to),
        it if it == LW_PART_BOOL as u32 => bool::append(&(u64 != 0), nested, to),
        it if it == LW_PART_UUID as u32 => Uuid::append(&Uuid(wide), nested, to),
        other => {
            return Err(misuse(format!("kind {other} of a part of a key does not exist here")));
        }
    }
    Ok(())
}

/// Encodes a key of several parts, in place of what `key` has. One part alone is the key of a table
/// of that type ("u64"), several are that of a tuple ("(str,u64)"). The order of the encoded bytes
/// is that of the parts. O(length).
///
/// # Errors
///
/// `LW_TOO_LONG` for more than 1,890 bytes; `LW_FORMAT` for text that is not UTF-8; `LW_MISUSE`.
///
/// # Safety
///
/// `parts` has `count` parts, whose bytes can be read; the buffer is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_key_encode(
    parts: *const lw_part,
    count: usize,
    key: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mut key = Buf::new(key)?;
            let length = count.saturating_mul(size_of::<lw_part>());
            bytes(parts.cast(), length)?;
            if !parts.is_aligned() {
                return Err(misuse("the parts are misaligned"));
            }
            let parts = if count == 0 { &[] } else { core::slice::from_raw_parts(parts, count) };
            let (mut encoded, mut depth) = (Vec::with_capacity(64), 0);
            for part in parts {
                append(part, &mut depth, &mut encoded)?;
                key_bytes(encoded.as_ptr().cast(), encoded.len())?;
            }
            if depth > 0 {
                return Err(misuse("a tuple inside the key is not ended: LW_PART_END"));
            }
            key.set(&encoded)?;
            Ok(LW_OK)
        })
    }
}

/// The parts of a key, with the place of their text in place of its address.
fn flatten(parts: &[KeyPart], text: &mut Vec<u8>, to: &mut Vec<lw_part>) {
    for part in parts {
        let (kind, of, from) = (part_kind(part), number(part), text.len());
        match part {
            KeyPart::Bytes(bytes) => text.extend_from_slice(bytes),
            KeyPart::Text(chars) => text.extend_from_slice(chars.as_bytes()),
            _ => {}
        }
        let data = core::ptr::without_provenance(from);
        to.push(lw_part { kind: kind as u32, reserved: 0, of, data, len: text.len() - from });
        if let KeyPart::Tuple(parts) = part {
            flatten(parts, text, to);
            let data = core::ptr::null();
            to.push(lw_part { kind: LW_PART_END as u32, reserved: 0, of, data, len: 0 });
        }
    }
}

fn part_kind(part: &KeyPart) -> lw_part_kind {
    match part {
        KeyPart::Bytes(_) => LW_PART_BYTES,
        KeyPart::Text(_) => LW_PART_TEXT,
        KeyPart::Tuple(_) => LW_PART_BEGIN,
        KeyPart::Integer(number) if i64::try_from(*number).is_ok() => LW_PART_I64,
        KeyPart::Integer(number) if u64::try_from(*number).is_ok() => LW_PART_U64,
        KeyPart::Integer(_) => LW_PART_I128,
        KeyPart::Large(_) => LW_PART_U128,
        KeyPart::F32(_) => LW_PART_F32,
        KeyPart::F64(_) => LW_PART_F64,
        KeyPart::Bool(_) => LW_PART_BOOL,
        KeyPart::Uuid(_) => LW_PART_UUID,
        _ => LW_PART_NULL,
    }
}

fn number(part: &KeyPart) -> lw_part_of {
    let mut of = lw_part_of { wide: [0; 16] };
    match part {
        KeyPart::Integer(number) => of.wide = number.to_le_bytes(),
        KeyPart::Large(number) => of.wide = number.to_le_bytes(),
        KeyPart::F32(number) => of.f32 = *number,
        KeyPart::F64(number) => of.f64 = *number,
        KeyPart::Bool(is) => of.u64 = u64::from(*is),
        KeyPart::Uuid(Uuid(bytes)) => of.wide = *bytes,
        _ => {}
    }
    of
}

/// Decodes a key into its parts; `parts` has room for `most`; `*count` is how many the key
/// has. Integers come back as `LW_PART_I64` if they fit, else as `LW_PART_U64`, `LW_PART_I128` or
/// `LW_PART_U128`. Bytes and text lie in `text`, until that is used again. O(length).
///
/// # Errors
///
/// `LW_TOO_LONG` if the key has more than `most` parts: `*count` says how many, and `parts` has the
/// first ones. `LW_FORMAT` if the bytes are no encoded key.
///
/// # Safety
///
/// The bytes of the key can be read; `parts` is a place for `most` parts; the buffer is
/// initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_key_decode(
    key: *const c_void,
    key_len: usize,
    parts: *mut lw_part,
    most: usize,
    count: *mut usize,
    text: *mut lw_buf,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let count = place(count, 0, "number of parts")?;
            let (key, mut text) = (key_bytes(key, key_len)?, Buf::new(text)?);
            let length = most.saturating_mul(size_of::<lw_part>());
            if length > isize::MAX as usize
                || (most > 0 && (parts.is_null() || !parts.is_aligned()))
            {
                return Err(misuse("the array for parts is NULL, misaligned, or too large"));
            }
            let format = |why| Failure::Other(LW_FORMAT, format!("no encoded key: {why}"));
            let decoded = AnyKey::decode(key).map_err(format)?;
            let (mut bytes, mut found) = (Vec::new(), Vec::new());
            flatten(&decoded.0, &mut bytes, &mut found);
            text.set(&bytes)?;
            *count = found.len();
            for (at, part) in found.iter().take(most).enumerate() {
                let data = text.address(part.data.addr());
                parts.add(at).write(lw_part { data, ..*part });
            }
            match found.len() > most {
                true => {
                    let text =
                        format!("the key has {} parts, there is room for {most}", found.len());
                    Err(Failure::Other(LW_TOO_LONG, text))
                }
                false => Ok(LW_OK),
            }
        })
    }
}
