//! Integers, floats and booleans as parts of keys.

use super::{Key, KeyError, array, byte, code};

/// A magnitude's bytes without leading zeros.
fn significant(magnitude: u64) -> usize {
    8 - magnitude.leading_zeros() as usize / 8
}

fn append_positive(number: u64, to: &mut Vec<u8>) {
    let length = significant(number);
    to.push(code::ZERO + length as u8);
    to.extend_from_slice(&number.to_be_bytes()[8 - length..]);
}

fn append_negative(magnitude: u64, to: &mut Vec<u8>) {
    let length = significant(magnitude);
    to.push(code::ZERO - length as u8);
    to.extend_from_slice(&(!magnitude).to_be_bytes()[8 - length..]);
}

/// An integer of at most 64 bits and a sign.
fn take_integer(from: &mut &[u8]) -> Result<i128, KeyError> {
    let found = byte(from)?;
    let (length, negative) = match found {
        0x0c..=0x13 => (usize::from(code::ZERO - found), true),
        0x14..=0x1c => (usize::from(found - code::ZERO), false),
        _ => return Err(KeyError::Type { found }),
    };
    let (bytes, rest) = from.split_at_checked(length).ok_or(KeyError::Short)?;
    *from = rest;
    let mut magnitude = 0u64;
    for byte in bytes {
        let byte = if negative { !byte } else { *byte };
        magnitude = (magnitude << 8) | u64::from(byte);
    }
    if significant(magnitude) != length {
        return Err(KeyError::Unusual);
    }
    let number = i128::from(magnitude);
    Ok(if negative { -number } else { number })
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Key for $type {
            type Of<'k> = Self;
            type Owned = Self;

            #[allow(unused_comparisons, reason = "of the types without a sign")]
            fn append(key: &Self, _: bool, to: &mut Vec<u8>) {
                if *key < 0 {
                    append_negative((i128::from(*key)).unsigned_abs() as u64, to);
                } else {
                    append_positive(*key as u64, to);
                }
            }

            fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
                Self::try_from(take_integer(from)?).map_err(|_| KeyError::Range)
            }
        }
    )*};
}
integer!(u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! float {
    ($type:ty, $bits:ty, $code:path) => {
        impl Key for $type {
            type Of<'k> = Self;
            type Owned = Self;

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
