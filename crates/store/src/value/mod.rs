//! Values: types that are stored under keys.
//!
//! The encoding of a value need not preserve an order, so it has no type code.
//!
//! | type | bytes |
//! |---|---|
//! | an integer, a float | little-endian, in its full width |
//! | text, bytes | as they are |
//! | `bool` | 0 or 1 |
//! | `()` | none |
//! | `Option` | 0; or 1, followed by the value |
//! | a tuple | its parts, concatenated; before a part of [variable width](Value::WIDTH), except |
//! | | the last, its length in 4 bytes, little-endian |

mod formats;
pub(crate) mod parts;

use core::fmt;

use latchwork_pool::Cause;

use crate::Type;

pub use formats::TypeName;
#[cfg(feature = "json")]
pub use formats::json::Json;
#[cfg(feature = "zerocopy")]
pub use formats::plain::Plain;
#[cfg(feature = "postcard")]
pub use formats::postcard::Postcard;

/// Maximum length of a value in bytes: 1 GiB.
pub const VALUE_MAX: usize = 1 << 30;

/// Why bytes are not a value of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueError {
    /// The number of bytes is not that of the type.
    Length {
        /// The number of bytes found.
        found: usize,
        /// The number of bytes of the type.
        wanted: usize,
    },
    /// The text is not UTF-8.
    Utf8,
    /// A byte is neither `false` nor `true`.
    Bool,
    /// An error of the type's own decoder, created by [`ValueError::other`].
    Other(Cause),
    /// The enum has no variant with this number.
    Variant {
        /// The number.
        found: u8,
    },
    /// The first byte of an `Option` is neither that of `None` nor that of `Some`.
    Option {
        /// The byte.
        found: u8,
    },
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found, wanted } => {
                write!(f, "a value of {found} bytes, and its type has {wanted}")
            }
            Self::Utf8 => f.write_str("a text that is not UTF-8"),
            Self::Other(why) => why.fmt(f),
            Self::Variant { found } => write!(f, "the value's type has no variant {found}"),
            Self::Bool => f.write_str("a boolean that is neither 0 nor 1"),
            Self::Option { found } => {
                write!(f, "an option that begins with {found}, which is neither 0 nor 1")
            }
        }
    }
}

impl core::error::Error for ValueError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Other(why) => Some(why.as_error()),
            _ => None,
        }
    }
}

impl ValueError {
    /// Wraps the error of a decoder, or a text. The error is the
    /// [`source`](core::error::Error::source) of this one. Two such errors are equal if their texts
    /// are equal.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::ValueError;
    ///
    /// let why = ValueError::other("seven".parse::<u64>().unwrap_err());
    /// assert_eq!(why.to_string(), "invalid digit found in string");
    /// let source = core::error::Error::source(&why).unwrap();
    /// assert!(source.is::<core::num::ParseIntError>());
    /// ```
    pub fn other(why: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> Self {
        Self::Other(Cause::new(why))
    }
}

/// A type of values.
///
/// `&str`, `String`, `&[u8]`, `Vec<u8>`, `[u8; N]`, the integers, `f32`, `f64`, `bool`, `()`,
/// `Option` of these, and tuples of up to six of them, nested or not.
///
/// # Examples
///
/// ```
/// use latchwork_store::Value;
///
/// let mut bytes = Vec::new();
/// i64::encode(&-2, &mut bytes);
/// assert_eq!(bytes.len(), 8);
/// assert_eq!(i64::decode(&bytes), Ok(-2));
/// assert!(i64::decode(&bytes[1..]).is_err());
///
/// type Person = (&'static str, Option<u16>, bool);
/// bytes.clear();
/// Person::encode(&("ann", None, true), &mut bytes);
/// assert_eq!(bytes, b"\x03\0\0\0ann\x01\0\0\0\0\x01");
/// assert_eq!(Person::decode(&bytes), Ok(("ann".to_owned(), None, true)));
/// ```
pub trait Value {
    /// The value as the caller passes it; it may borrow.
    type Of<'v>;

    /// The value as calls return it.
    type Owned;

    /// The description of the type, which the catalog records for each table. See [`Type`].
    const TYPE: &'static Type;

    /// The length of each encoded value in bytes; `None` if it varies. In a tuple, a part without a
    /// width is preceded by its length, so the encoding depends on this constant.
    const WIDTH: Option<usize> = None;

    /// Appends the bytes of the value. O(length).
    fn encode(value: &Self::Of<'_>, to: &mut Vec<u8>);

    /// Decodes a value. O(length).
    ///
    /// # Errors
    ///
    /// [`ValueError`].
    fn decode(bytes: &[u8]) -> Result<Self::Owned, ValueError>;

    /// Borrows a returned value, to pass it again.
    fn lend(owned: &Self::Owned) -> Self::Of<'_>;
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], ValueError> {
    bytes.try_into().map_err(|_| ValueError::Length { found: bytes.len(), wanted: N })
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Value for $type {
            type Of<'v> = Self;
            type Owned = Self;
            const TYPE: &'static Type = &Type::Name(stringify!($type));
            const WIDTH: Option<usize> = Some(size_of::<Self>());

            fn encode(value: &Self, to: &mut Vec<u8>) {
                to.extend_from_slice(&value.to_le_bytes());
            }

            fn decode(bytes: &[u8]) -> Result<Self, ValueError> {
                Ok(Self::from_le_bytes(array(bytes)?))
            }

            fn lend(owned: &Self) -> Self {
                *owned
            }
        }
    )*};
}
number!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

macro_rules! text {
    ($($type:ty, $name:literal, $of:ty, $owned:ty, $decode:expr;)*) => {$(
        impl Value for $type {
            type Of<'v> = &'v $of;
            type Owned = $owned;
            const TYPE: &'static Type = &Type::Name($name);

            fn encode(value: &Self::Of<'_>, to: &mut Vec<u8>) {
                to.extend_from_slice(value.as_ref());
            }

            fn decode(bytes: &[u8]) -> Result<Self::Owned, ValueError> {
                $decode(bytes)
            }

            fn lend(owned: &Self::Owned) -> Self::Of<'_> {
                owned
            }
        }
    )*};
}

fn utf8(bytes: &[u8]) -> Result<String, ValueError> {
    core::str::from_utf8(bytes).map(str::to_owned).map_err(|_| ValueError::Utf8)
}

text! {
    &str, "str", str, String, utf8;
    String, "str", str, String, utf8;
    &[u8], "bytes", [u8], Vec<u8>, |bytes: &[u8]| Ok(bytes.to_vec());
    Vec<u8>, "bytes", [u8], Vec<u8>, |bytes: &[u8]| Ok(bytes.to_vec());
}

impl<const N: usize> Value for [u8; N] {
    type Of<'v> = Self;
    type Owned = Self;
    const TYPE: &'static Type = &Type::Bytes(N);
    const WIDTH: Option<usize> = Some(N);

    fn encode(value: &Self, to: &mut Vec<u8>) {
        to.extend_from_slice(value);
    }

    fn decode(bytes: &[u8]) -> Result<Self, ValueError> {
        array(bytes)
    }

    fn lend(owned: &Self) -> Self {
        *owned
    }
}

impl Value for bool {
    type Of<'v> = Self;
    type Owned = Self;
    const TYPE: &'static Type = &Type::Name("bool");
    const WIDTH: Option<usize> = Some(1);

    fn encode(value: &Self, to: &mut Vec<u8>) {
        to.push(u8::from(*value));
    }

    fn decode(bytes: &[u8]) -> Result<Self, ValueError> {
        match array::<1>(bytes)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(ValueError::Bool),
        }
    }

    fn lend(owned: &Self) -> Self {
        *owned
    }
}

impl Value for () {
    type Of<'v> = ();
    type Owned = ();
    const TYPE: &'static Type = &Type::UNIT;
    const WIDTH: Option<usize> = Some(0);

    fn encode((): &(), _: &mut Vec<u8>) {}

    fn decode(bytes: &[u8]) -> Result<(), ValueError> {
        array::<0>(bytes).map(|_| ())
    }

    fn lend((): &()) {}
}
