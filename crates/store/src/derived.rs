//! Functions that the code of derived keys and values calls.

use crate::key::{Key, KeyError, code};
use crate::value::ValueError;

pub use crate::value::parts::{append, take};

/// Begins a nested tuple.
pub fn begin(to: &mut Vec<u8>) {
    to.push(code::NESTED);
}

/// Ends a nested tuple.
pub fn end(to: &mut Vec<u8>) {
    to.push(0);
}

/// Reads the beginning of a nested tuple.
///
/// # Errors
///
/// [`KeyError`].
pub fn take_begin(from: &mut &[u8]) -> Result<(), KeyError> {
    take_code(from, code::NESTED)
}

/// Reads the end of a nested tuple.
///
/// # Errors
///
/// [`KeyError`].
pub fn take_end(from: &mut &[u8]) -> Result<(), KeyError> {
    take_code(from, 0)
}

fn take_code(from: &mut &[u8], wanted: u8) -> Result<(), KeyError> {
    let (first, rest) = from.split_first().ok_or(KeyError::Short)?;
    if *first != wanted {
        return Err(KeyError::Type { found: *first });
    }
    *from = rest;
    Ok(())
}

/// Appends a part of a tuple.
pub fn part<K: Key>(key: &K::Of<'_>, nested: bool, to: &mut Vec<u8>) {
    let _start = to.len();
    K::append(key, nested, to);
    debug_assert!(
        nested || to.get(_start) != Some(&code::ESCAPE),
        "a part of a key begins with FF: see `Key`"
    );
}

/// Checks that no bytes are left.
///
/// # Errors
///
/// [`KeyError::Long`].
pub fn over(from: &[u8]) -> Result<(), KeyError> {
    if from.is_empty() { Ok(()) } else { Err(KeyError::Long) }
}

/// Returns the width of several parts together.
pub const fn width(parts: &[Option<usize>]) -> Option<usize> {
    let (mut width, mut at) = (0, 0);
    while at < parts.len() {
        match parts[at] {
            Some(part) => width += part,
            None => return None,
        }
        at += 1;
    }
    Some(width)
}

/// Compares the number of bytes with the width of the type.
///
/// # Errors
///
/// [`ValueError::Length`].
pub fn exact(bytes: &[u8], width: Option<usize>) -> Result<(), ValueError> {
    match width {
        Some(wanted) if bytes.len() != wanted => {
            Err(ValueError::Length { found: bytes.len(), wanted })
        }
        _ => Ok(()),
    }
}

/// Reads the number of a variant.
///
/// # Errors
///
/// [`ValueError::Length`].
pub fn variant(bytes: &[u8]) -> Result<(u8, &[u8]), ValueError> {
    let (number, rest) = bytes.split_first().ok_or(ValueError::Length { found: 0, wanted: 1 })?;
    Ok((*number, rest))
}
