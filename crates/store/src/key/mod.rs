//! Keys: types whose order is the order of their encoded bytes.
//!
//! The encoding is that of FoundationDB's tuple layer (`design/tuple.md` in apple/foundationdb),
//! which many languages share. A key of several parts is a tuple. The bytes of its parts are
//! concatenated, so that all keys with the same first parts are neighbours.
//!
//! | code | type | then |
//! |---|---|---|
//! | 00 | `None` | nothing; 00 FF inside a nested tuple |
//! | 01 | bytes | with 00 written as 00 FF, followed by 00 |
//! | 02 | text | as bytes, in UTF-8 |
//! | 05 | a tuple inside a tuple | its parts, followed by 00 |
//! | 0B | an integer below zero, of 9..16 bytes | its length's and magnitude's one's complement |
//! | 0C..13 | an integer below zero, of 8..1 bytes | its magnitude's one's complement, big-endian |
//! | 14 | 0 | nothing |
//! | 15..1C | an integer above zero, of 1..8 bytes | its bytes, big-endian |
//! | 1D | an integer above zero, of 9..16 bytes | its length, and its bytes, big-endian |
//! | 20, 21 | `f32`, `f64` | big-endian, sign bit flipped; all bits flipped if negative |
//! | 26, 27 | `false`, `true` | nothing |
//! | 30 | a UUID | its 16 bytes |
//!
//! The bytes of an integer do not depend on its type, nor do those of byte strings. The catalog
//! records the type: a table of `u32` keys can be opened as one of `u64` only after a migration.
//! Floats are in the order of `total_cmp`: -0.0 and 0.0 are two keys, in this order, and NaNs are
//! at both ends, by their sign. Decoding accepts exactly what encoding writes, so two keys are
//! equal if and only if their bytes are. (For an `Option` in an `Option`, `None` and `Some(None)`
//! are one key.)

mod any;
mod number;
mod text;
mod tuple;

use core::fmt;

use crate::Type;

pub use any::{AnyKey, KeyPart};
pub use tuple::StartsWith;

/// Maximum length of an encoded key in bytes: four such keys fit on a page of 8 KiB. In a store
/// with pages of 4 KiB the limit is 930 ([`Error::KeyTooLong`](crate::Error::KeyTooLong)).
pub const KEY_MAX: usize = 1890;

/// The code of a part's type.
pub(crate) mod code {
    pub(crate) const NULL: u8 = 0x00;
    pub(crate) const BYTES: u8 = 0x01;
    pub(crate) const TEXT: u8 = 0x02;
    pub(crate) const NESTED: u8 = 0x05;
    /// An integer below zero that is longer than 8 bytes.
    pub(crate) const BELOW: u8 = 0x0b;
    pub(crate) const ZERO: u8 = 0x14;
    /// An integer above zero that is longer than 8 bytes.
    pub(crate) const ABOVE: u8 = 0x1d;
    pub(crate) const F32: u8 = 0x20;
    pub(crate) const F64: u8 = 0x21;
    pub(crate) const FALSE: u8 = 0x26;
    pub(crate) const TRUE: u8 = 0x27;
    pub(crate) const UUID: u8 = 0x30;
    /// Follows a zero byte that is data and not a terminator.
    pub(crate) const ESCAPE: u8 = 0xff;
}

/// Why bytes are not a key of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The bytes end in the middle of a part.
    Short,
    /// A part has the code of another type.
    Type {
        /// The code.
        found: u8,
    },
    /// The integer does not fit into the type.
    Range,
    /// The text is not UTF-8.
    Utf8,
    /// An integer is not in its shortest form.
    Unusual,
    /// The number of bytes is not that of the type.
    Length {
        /// The number of bytes found.
        found: usize,
        /// The number of bytes of the type.
        wanted: usize,
    },
    /// Bytes follow the key.
    Long,
    /// The enum has no variant with this number.
    Variant {
        /// The number.
        found: i64,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("the key ends in the middle of a part"),
            Self::Type { found } => {
                write!(f, "a part of the key has another type's code {found:02x}")
            }
            Self::Range => f.write_str("an integer of the key does not fit into its type"),
            Self::Utf8 => f.write_str("a text of the key is not UTF-8"),
            Self::Unusual => f.write_str("an integer of the key is written in too many bytes"),
            Self::Length { found, wanted } => {
                write!(f, "a part of the key has {found} bytes, and its type has {wanted}")
            }
            Self::Long => f.write_str("bytes follow the key"),
            Self::Variant { found } => write!(f, "the key's type has no variant {found}"),
        }
    }
}

impl core::error::Error for KeyError {}

/// A type of keys.
///
/// These are `&str`, `&[u8]`, `String`, `Vec<u8>`, `[u8; N]`, the integers of up to 128 bits,
/// `f32`, `f64`, `bool`, [`Uuid`], `Option` of these, where `None` comes first, and tuples of up to
/// six of them, nested or not. The type of a table names `&'static str`, and its keys may be any
/// `&str`.
///
/// # Implementing
///
/// Use `#[derive(Key)]` of the facade where possible. A custom type should encode itself as a type
/// that is already a key, as in the example. A type with its own encoding describes itself as
/// [`Type::Own`] with a name that changes together with the encoding. It must follow these rules,
/// which the store does not check:
///
/// - The order of the bytes is the order of the keys, and equal keys have equal bytes.
/// - `take` consumes exactly what `append` wrote, whatever part of a key follows.
/// - The first byte is neither 00, which is `None` and the end of a tuple inside a tuple, nor FF,
///   which ends the range of all keys with the same first parts: [`prefix`](crate::ReadTxn::prefix)
///   and [`values`](crate::ReadTxn::values) would not find a record whose next part begins with FF.
///   With debug assertions, such a part panics.
/// - `nested` is true inside a tuple inside a tuple, which ends with 00. A type with parts passes
///   it on to them; a type without parts writes the same bytes in both cases.
///
/// # Examples
///
/// ```
/// use latchwork_store::Key;
///
/// let mut bytes = Vec::new();
/// <(&str, u64)>::encode(&("ann", 8), &mut bytes);
/// assert_eq!(bytes, b"\x02ann\x00\x15\x08");
/// assert_eq!(<(&str, u64)>::decode(&bytes), Ok(("ann".to_owned(), 8)));
///
/// // The bytes have the order of the keys.
/// let bytes = |key: &(Option<i128>, [u8; 2])| {
///     let mut bytes = Vec::new();
///     <(Option<i128>, [u8; 2])>::encode(key, &mut bytes);
///     bytes
/// };
/// assert!(bytes(&(None, [9, 9])) < bytes(&(Some(i128::MIN), [0, 0])));
/// assert!(bytes(&(Some(-1), [0, 1])) < bytes(&(Some(i128::MAX), [0, 0])));
/// ```
///
/// A custom type:
///
/// ```
/// use latchwork_store::{Key, KeyError, Type};
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Customer(u64);
///
/// impl Key for Customer {
///     type Of<'k> = Self;
///     type Owned = Self;
///     const TYPE: &'static Type = u64::TYPE;
///
///     fn append(key: &Self, nested: bool, to: &mut Vec<u8>) {
///         u64::append(&key.0, nested, to);
///     }
///
///     fn take(from: &mut &[u8], nested: bool) -> Result<Self, KeyError> {
///         u64::take(from, nested).map(Self)
///     }
///
///     fn lend(owned: &Self) -> Self {
///         *owned
///     }
/// }
///
/// let mut bytes = Vec::new();
/// <(Customer, &str)>::encode(&(Customer(7), "ann"), &mut bytes);
/// assert_eq!(<(Customer, &str)>::decode(&bytes), Ok((Customer(7), "ann".to_owned())));
/// ```
pub trait Key {
    /// The key as the caller passes it; it may borrow.
    type Of<'k>;

    /// The key as calls return it.
    type Owned;

    /// The description of the type, which the catalog records for each table. See [`Type`].
    const TYPE: &'static Type;

    /// Appends the key as one part, inside a nested tuple or not. O(length).
    fn append(key: &Self::Of<'_>, nested: bool, to: &mut Vec<u8>);

    /// Consumes one part from the front.
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    fn take(from: &mut &[u8], nested: bool) -> Result<Self::Owned, KeyError>;

    /// Borrows a returned key, to pass it again.
    fn lend(owned: &Self::Owned) -> Self::Of<'_>;

    /// Appends the bytes of the whole key. O(length).
    fn encode(key: &Self::Of<'_>, to: &mut Vec<u8>) {
        Self::append(key, false, to);
    }

    /// Decodes a whole key. O(length).
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    fn decode(mut bytes: &[u8]) -> Result<Self::Owned, KeyError> {
        let key = Self::take(&mut bytes, false)?;
        if bytes.is_empty() { Ok(key) } else { Err(KeyError::Long) }
    }
}

/// Consumes the next byte.
fn byte(from: &mut &[u8]) -> Result<u8, KeyError> {
    let (first, rest) = from.split_first().ok_or(KeyError::Short)?;
    *from = rest;
    Ok(*first)
}

/// Consumes a number of bytes.
fn array<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], KeyError> {
    let (first, rest) = from.split_first_chunk().ok_or(KeyError::Short)?;
    *from = rest;
    Ok(*first)
}

/// A universally unique identifier, ordered by its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Key for Uuid {
    type Of<'k> = Self;
    type Owned = Self;
    const TYPE: &'static Type = &Type::Name("uuid");

    fn lend(owned: &Self) -> Self {
        *owned
    }

    fn append(key: &Self, _: bool, to: &mut Vec<u8>) {
        to.push(code::UUID);
        to.extend_from_slice(&key.0);
    }

    fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
        match byte(from)? {
            code::UUID => Ok(Self(array(from)?)),
            found => Err(KeyError::Type { found }),
        }
    }
}

impl<K: Key> Key for Option<K> {
    type Of<'k> = Option<K::Of<'k>>;
    type Owned = Option<K::Owned>;
    const TYPE: &'static Type = &Type::Option(K::TYPE);

    fn lend(owned: &Self::Owned) -> Self::Of<'_> {
        owned.as_ref().map(K::lend)
    }

    fn append(key: &Self::Of<'_>, nested: bool, to: &mut Vec<u8>) {
        match key {
            Some(key) => K::append(key, nested, to),
            None => {
                to.push(code::NULL);
                if nested {
                    to.push(code::ESCAPE);
                }
            }
        }
    }

    fn take(from: &mut &[u8], nested: bool) -> Result<Self::Owned, KeyError> {
        if from.first() != Some(&code::NULL) {
            return K::take(from, nested).map(Some);
        }
        byte(from)?;
        if nested {
            match byte(from)? {
                code::ESCAPE => {}
                found => return Err(KeyError::Type { found }),
            }
        }
        Ok(None)
    }
}
