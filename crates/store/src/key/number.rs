//! Integers, floats and booleans as parts of keys.

use super::{Key, KeyError, array, byte, code};
use crate::Type;

/// Returns the bytes of a magnitude without leading zeros.
fn significant(magnitude: u128) -> usize {
    16 - magnitude.leading_zeros() as usize / 8
}

#[inline]
fn append_positive(number: u128, to: &mut Vec<u8>) {
    let length = significant(number);
    match length {
        0..=8 => to.push(code::ZERO + length as u8),
        _ => to.extend_from_slice(&[code::ABOVE, length as u8]),
    }
    to.extend_from_slice(&number.to_be_bytes()[16 - length..]);
}

#[inline]
fn append_negative(magnitude: u128, to: &mut Vec<u8>) {
    let length = significant(magnitude);
    match length {
        0..=8 => to.push(code::ZERO - length as u8),
        _ => to.extend_from_slice(&[code::BELOW, !(length as u8)]),
    }
    to.extend_from_slice(&(!magnitude).to_be_bytes()[16 - length..]);
}

/// Returns the magnitude of an integer, and whether it is negative.
fn take_integer(from: &mut &[u8]) -> Result<(u128, bool), KeyError> {
    let found = byte(from)?;
    let (length, negative) = match found {
        0x0c..=0x13 => (usize::from(code::ZERO - found), true),
        0x14..=0x1c => (usize::from(found - code::ZERO), false),
        code::BELOW => (long(!byte(from)?)?, true),
        code::ABOVE => (long(byte(from)?)?, false),
        _ => return Err(KeyError::Type { found }),
    };
    let (bytes, rest) = from.split_at_checked(length).ok_or(KeyError::Short)?;
    *from = rest;
    let mut magnitude = 0u128;
    for byte in bytes {
        let byte = if negative { !byte } else { *byte };
        magnitude = (magnitude << 8) | u128::from(byte);
    }
    if significant(magnitude) != length {
        return Err(KeyError::Unusual);
    }
    Ok((magnitude, negative))
}

/// Encodes the length of an integer of more than 8 bytes.
#[cold]
fn long(length: u8) -> Result<usize, KeyError> {
    match length {
        0..=8 => Err(KeyError::Unusual),
        9..=16 => Ok(usize::from(length)),
        _ => Err(KeyError::Range),
    }
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Key for $type {
            type Of<'k> = Self;
            type Owned = Self;
            const TYPE: &'static Type = &Type::Name(stringify!($type));

            fn lend(owned: &Self) -> Self {
                *owned
            }

            #[allow(unused_comparisons, reason = "of the types without a sign")]
            fn append(key: &Self, _: bool, to: &mut Vec<u8>) {
                if *key < 0 {
                    append_negative((*key as i128).unsigned_abs(), to);
                } else {
                    append_positive(*key as u128, to);
                }
            }

            fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
                let (magnitude, negative) = take_integer(from)?;
                if !negative {
                    return Self::try_from(magnitude).map_err(|_| KeyError::Range);
                }
                let number = 0i128.checked_sub_unsigned(magnitude).ok_or(KeyError::Range)?;
                Self::try_from(number).map_err(|_| KeyError::Range)
            }
        }
    )*};
}
integer!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

macro_rules! float {
    ($type:ty, $bits:ty, $code:path) => {
        impl Key for $type {
            type Of<'k> = Self;
            type Owned = Self;
            const TYPE: &'static Type = &Type::Name(stringify!($type));

            fn lend(owned: &Self) -> Self {
                *owned
            }

            fn append(key: &Self, _: bool, to: &mut Vec<u8>) {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = key.to_bits();
                to.push($code);
                let ordered = if bits & SIGN == 0 { bits | SIGN } else { !bits };
                to.extend_from_slice(&ordered.to_be_bytes());
            }

            fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                match byte(from)? {
                    $code => {}
                    found => return Err(KeyError::Type { found }),
                }
                let ordered = <$bits>::from_be_bytes(array(from)?);
                let bits = if ordered & SIGN == 0 { !ordered } else { ordered ^ SIGN };
                Ok(Self::from_bits(bits))
            }
        }
    };
}
float!(f32, u32, code::F32);
float!(f64, u64, code::F64);

impl Key for bool {
    type Of<'k> = Self;
    type Owned = Self;
    const TYPE: &'static Type = &Type::Name("bool");

    fn lend(owned: &Self) -> Self {
        *owned
    }

    fn append(key: &Self, _: bool, to: &mut Vec<u8>) {
        to.push(if *key { code::TRUE } else { code::FALSE });
    }

    fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
        match byte(from)? {
            code::TRUE => Ok(true),
            code::FALSE => Ok(false),
            found => Err(KeyError::Type { found }),
        }
    }
}
