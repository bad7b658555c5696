//! Text and bytes as parts of keys.

use super::{Key, KeyError, byte, code};
use crate::Type;

/// The number of bytes that are escaped at a time.
const SHORT: usize = 32;

/// Appends bytes between a code and a terminator; zero bytes are escaped.
fn append(bytes: &[u8], kind: u8, to: &mut Vec<u8>) {
    to.reserve(bytes.len() + 2);
    to.push(kind);
    match bytes.contains(&0) {
        true => bytes.chunks(SHORT).for_each(|some| escape(some, to)),
        false => to.extend_from_slice(bytes),
    }
    to.push(0);
}

/// Appends up to [`SHORT`] bytes, with an escape after each zero. Each byte costs the same: number
/// keys contain zeros at unpredictable places, so a branch on each byte would be mispredicted.
fn escape(bytes: &[u8], to: &mut Vec<u8>) {
    // Every byte may need two. `LAST` lets the compiler omit the bounds check.
    const LAST: usize = 2 * SHORT - 1;
    let (mut escaped, mut end) = ([0; 2 * SHORT], 0);
    for byte in bytes {
        escaped[end & LAST] = *byte;
        escaped[(end + 1) & LAST] = code::ESCAPE;
        end += 1 + usize::from(*byte == 0);
    }
    to.extend_from_slice(&escaped[..end]);
}

fn take(from: &mut &[u8], kind: u8) -> Result<Vec<u8>, KeyError> {
    match byte(from)? {
        found if found == kind => {}
        found => return Err(KeyError::Type { found }),
    }
    let mut bytes = Vec::new();
    loop {
        let end = from.iter().position(|byte| *byte == 0).ok_or(KeyError::Short)?;
        let (part, rest) = from.split_at(end);
        bytes.extend_from_slice(part);
        match rest {
            [0, code::ESCAPE, rest @ ..] => {
                bytes.push(0);
                *from = rest;
            }
            [_, rest @ ..] => {
                *from = rest;
                return Ok(bytes);
            }
            [] => return Err(KeyError::Short),
        }
    }
}

fn take_text(from: &mut &[u8]) -> Result<String, KeyError> {
    String::from_utf8(take(from, code::TEXT)?).map_err(|_| KeyError::Utf8)
}

macro_rules! text {
    ($($type:ty, $name:literal, $kind:expr, $of:ty, $owned:ty, $take:expr;)*) => {$(
        impl Key for $type {
            type Of<'k> = &'k $of;
            type Owned = $owned;
            const TYPE: &'static Type = &Type::Name($name);

            fn lend(owned: &Self::Owned) -> Self::Of<'_> {
                owned
            }

            fn append(key: &Self::Of<'_>, _: bool, to: &mut Vec<u8>) {
                append(key.as_ref(), $kind, to);
            }

            fn take(from: &mut &[u8], _: bool) -> Result<Self::Owned, KeyError> {
                $take(from)
            }
        }
    )*};
}
text! {
    &str, "str", code::TEXT, str, String, take_text;
    String, "str", code::TEXT, str, String, take_text;
    &[u8], "bytes", code::BYTES, [u8], Vec<u8>, |from| take(from, code::BYTES);
    Vec<u8>, "bytes", code::BYTES, [u8], Vec<u8>, |from| take(from, code::BYTES);
}

impl<const N: usize> Key for [u8; N] {
    type Of<'k> = Self;
    type Owned = Self;
    const TYPE: &'static Type = &Type::Bytes(N);

    fn lend(owned: &Self) -> Self {
        *owned
    }

    fn append(key: &Self, _: bool, to: &mut Vec<u8>) {
        append(key, code::BYTES, to);
    }

    fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
        let bytes = take(from, code::BYTES)?;
        bytes
            .try_into()
            .map_err(|bytes: Vec<u8>| KeyError::Length { found: bytes.len(), wanted: N })
    }
}
