//! Keys of any table, decoded by the types in their bytes.

use core::fmt;

use super::{KEY_MAX, Key, KeyError, Uuid, byte, code};
use crate::Type;

/// A part of a key, of any type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum KeyPart {
    /// `None`.
    Null,
    /// Bytes.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// A tuple inside a tuple; also a key whose single part is a tuple.
    Tuple(Vec<KeyPart>),
    /// An integer.
    Integer(i128),
    /// An integer that does not fit into [`Integer`](Self::Integer).
    Large(u128),
    /// An `f32`.
    F32(f32),
    /// An `f64`.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// A UUID.
    Uuid(Uuid),
}

/// Maximum nesting of tuples, the same as for JSON, so that bytes of a file cannot exhaust the
/// stack. A key with deeper nesting is encoded as a key that is too long for any store, because it
/// could not be decoded.
const DEPTH: usize = 128;

impl KeyPart {
    fn append_part(&self, depth: usize, to: &mut Vec<u8>) {
        let nested = depth > 0;
        match self {
            Self::Null => <Option<bool> as Key>::append(&None, nested, to),
            Self::Bytes(bytes) => <&[u8]>::append(&&bytes[..], nested, to),
            Self::Text(text) => <&str>::append(&&text[..], nested, to),
            Self::Tuple(_) if depth >= DEPTH => to.resize(to.len() + KEY_MAX + 1, code::NESTED),
            Self::Tuple(parts) => {
                to.push(code::NESTED);
                parts.iter().for_each(|part| part.append_part(depth + 1, to));
                to.push(0);
            }
            Self::Integer(number) => i128::append(number, nested, to),
            Self::Large(number) => u128::append(number, nested, to),
            Self::F32(number) => f32::append(number, nested, to),
            Self::F64(number) => f64::append(number, nested, to),
            Self::Bool(is) => bool::append(is, nested, to),
            Self::Uuid(uuid) => Uuid::append(uuid, nested, to),
        }
    }

    fn take_part(from: &mut &[u8], depth: usize) -> Result<Self, KeyError> {
        let nested = depth > 0;
        let found = *from.first().ok_or(KeyError::Short)?;
        Ok(match found {
            code::NULL => <Option<bool> as Key>::take(from, nested).map(|_| Self::Null)?,
            code::BYTES => Self::Bytes(Vec::take(from, nested)?),
            code::TEXT => Self::Text(String::take(from, nested)?),
            code::NESTED if depth < DEPTH => {
                byte(from)?;
                let mut parts = Vec::new();
                while !is_end(from) {
                    parts.push(Self::take_part(from, depth + 1)?);
                }
                byte(from)?;
                Self::Tuple(parts)
            }
            code::BELOW..=code::ABOVE => {
                let mut as_signed = *from;
                match i128::take(&mut as_signed, nested) {
                    Ok(number) => {
                        *from = as_signed;
                        Self::Integer(number)
                    }
                    Err(KeyError::Range) => Self::Large(u128::take(from, nested)?),
                    Err(why) => return Err(why),
                }
            }
            code::F32 => Self::F32(f32::take(from, nested)?),
            code::F64 => Self::F64(f64::take(from, nested)?),
            code::FALSE | code::TRUE => Self::Bool(bool::take(from, nested)?),
            code::UUID => Self::Uuid(Uuid::take(from, nested)?),
            found => return Err(KeyError::Type { found }),
        })
    }
}

/// Returns whether a nested tuple ends here: a zero that is not a `None`.
fn is_end(from: &[u8]) -> bool {
    from.first() == Some(&0) && from.get(1) != Some(&code::ESCAPE)
}

/// A key of any type, as its parts, for programs that read tables of unknown types. A key with a
/// single part consists of that part; the parts of a tuple follow each other.
///
/// It is a whole key or the last part of one. Decoding consumes all remaining bytes, so a key with
/// further parts after an `AnyKey` can be encoded but not decoded.
///
/// # Examples
///
/// ```
/// use latchwork_store::{AnyKey, Key, KeyPart, Raw, Store, Table};
///
/// const LINES: Table<(&str, u64), &str> = Table::new("lines");
///
/// # let path = std::env::temp_dir().join(format!("store-any-{}", std::process::id()));
/// let store = Store::open(&path)?;
/// store.put(&LINES, ("ann", 8), "a line")?;
/// let any: Table<AnyKey, Raw> = Table::named("lines");
/// let rows = store.read(|tx| tx.range(&any, ..)?.collect::<Result<Vec<_>, _>>())?;
/// assert_eq!(rows[0].0.0, [KeyPart::Text("ann".to_owned()), KeyPart::Integer(8)]);
/// assert_eq!(rows[0].0.to_string(), "(ann, 8)");
/// # drop(store);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), latchwork_store::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AnyKey(pub Vec<KeyPart>);

impl Key for AnyKey {
    type Of<'k> = &'k [KeyPart];
    type Owned = Self;
    const TYPE: &'static Type = &Type::Any;

    fn lend(owned: &Self) -> &[KeyPart] {
        &owned.0
    }

    fn append(key: &Self::Of<'_>, nested: bool, to: &mut Vec<u8>) {
        key.iter().for_each(|part| part.append_part(usize::from(nested), to));
    }

    /// Consumes all parts, up to the end of the enclosing tuple.
    fn take(from: &mut &[u8], nested: bool) -> Result<Self, KeyError> {
        let mut parts = Vec::new();
        let is_over = |from: &[u8]| from.is_empty() || nested && is_end(from);
        while !is_over(from) {
            parts.push(KeyPart::take_part(from, usize::from(nested))?);
        }
        Ok(Self(parts))
    }
}

fn several(parts: &[KeyPart], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("(")?;
    for (place, part) in parts.iter().enumerate() {
        let comma = if place > 0 { ", " } else { "" };
        write!(f, "{comma}{part}")?;
    }
    f.write_str(")")
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("none"),
            Self::Bytes(bytes) => {
                f.write_str("0x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Text(text) => f.write_str(text),
            Self::Tuple(parts) => several(parts, f),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Large(number) => write!(f, "{number}"),
            Self::F32(number) => write!(f, "{number:?}"),
            Self::F64(number) => write!(f, "{number:?}"),
            Self::Bool(is) => write!(f, "{is}"),
            Self::Uuid(Uuid(bytes)) => {
                for (place, byte) in bytes.iter().enumerate() {
                    let dash = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
                    write!(f, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for AnyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [part] => fmt::Display::fmt(part, f),
            parts => several(parts, f),
        }
    }
}
