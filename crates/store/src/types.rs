//! Descriptions of the types of keys and values.
//!
//! A type describes itself by a constant, so that the types of a table can be compared without
//! running code. The catalog records the description as text. It must not change between versions
//! of the program, and it differs from Rust's name of the type.
//!
//! | text | type |
//! |---|---|
//! | `u8` .. `u128`, `i8` .. `i128`, `f32`, `f64`, `bool`, `uuid` | that type |
//! | `str` | `&str`, `String` |
//! | `bytes`, `bytes(16)` | `&[u8]`, `Vec<u8>`; `[u8; 16]` |
//! | `opt(u16)` | `Option<u16>` |
//! | `()`, `(str,u64)`, `(u64,)` | a tuple, a tuple struct |
//! | `{name:str,age:u16}` | a struct |
//! | `<Red\|Green(u64)\|Blue{x:u8}>`, `<A=3\|B>` | an enum; numbers are given if not consecutive |
//! | `own(city)` | a type with its own encoding |
//! | `postcard(order)`, `json(order)`, `plain(order,24)` | values of other crates' formats |
//! | `any` | any type, for tools |

use core::fmt;

/// A description of the type of a key or a value.
///
/// Rust types with the same encoding and the same meaning have equal descriptions: `&str` and
/// `String` are both `str`.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Key, Value};
///
/// assert_eq!(<(&str, u64) as Key>::TYPE.to_string(), "(str,u64)");
/// assert_eq!(<Option<[u8; 4]> as Value>::TYPE.to_string(), "opt(bytes(4))");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Type {
    /// Matches every type: [`Raw`](crate::Raw) and [`AnyKey`](crate::AnyKey).
    Any,
    /// A type of this crate, by its name.
    Name(&'static str),
    /// A byte string of this length.
    Bytes(usize),
    /// An option.
    Option(&'static Type),
    /// A tuple or a tuple struct.
    Tuple(&'static [&'static Type]),
    /// A struct: its fields in order.
    Struct(&'static [(&'static str, &'static Type)]),
    /// An enum: the number and the name of each variant, and its fields, a tuple or a struct.
    Enum(&'static [(i64, &'static str, &'static Type)]),
    /// A type with its own encoding. The program chooses the name, and changes it together with the
    /// encoding.
    Own(&'static str),
    /// A value in a format of another crate: the format, and the program's name for the type.
    Format(&'static str, &'static str),
    /// A value of this length in a format of another crate: the format, and the program's name for
    /// the type.
    Sized(&'static str, &'static str, usize),
    /// A type that is known only by its description, in the syntax above, from a program in another
    /// language. See [`Type::parse`].
    Described(&'static str),
}

impl Type {
    /// The type of an empty tuple.
    pub(crate) const UNIT: Self = Self::Tuple(&[]);

    /// Returns whether it is [`Any`](Self::Any).
    pub const fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    /// Adds the description to a hash. Types with different descriptions have different hashes.
    pub(crate) const fn hash(&self, hash: u64) -> u64 {
        match self {
            Self::Any => number(hash, 1),
            Self::Name(name) => text(number(hash, 2), name),
            Self::Bytes(count) => number(number(hash, 3), *count as u64),
            Self::Option(of) => of.hash(number(hash, 4)),
            Self::Tuple(parts) => {
                let (mut hash, mut at) = (number(number(hash, 5), parts.len() as u64), 0);
                while at < parts.len() {
                    hash = parts[at].hash(hash);
                    at += 1;
                }
                hash
            }
            Self::Struct(fields) => {
                let (mut hash, mut at) = (number(number(hash, 6), fields.len() as u64), 0);
                while at < fields.len() {
                    hash = fields[at].1.hash(text(hash, fields[at].0));
                    at += 1;
                }
                hash
            }
            Self::Enum(variants) => {
                let (mut hash, mut at) = (number(number(hash, 7), variants.len() as u64), 0);
                while at < variants.len() {
                    let (index, name, of) = variants[at];
                    hash = of.hash(text(number(hash, index as u64), name));
                    at += 1;
                }
                hash
            }
            Self::Own(name) => text(number(hash, 8), name),
            Self::Format(format, name) => text(text(number(hash, 9), format), name),
            Self::Sized(format, name, bytes) => {
                number(text(text(number(hash, 10), format), name), *bytes as u64)
            }
            Self::Described(as_text) => text(number(hash, 11), as_text),
        }
    }
}

/// The initial hash: the offset basis of FNV-1a with 64 bits.
pub(crate) const HASH: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds a byte to a hash, as FNV-1a does.
const fn byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

/// Adds a number to a hash.
pub(crate) const fn number(mut hash: u64, number: u64) -> u64 {
    let (bytes, mut at) = (number.to_le_bytes(), 0);
    while at < bytes.len() {
        hash = byte(hash, bytes[at]);
        at += 1;
    }
    hash
}

/// Adds a text and its length to a hash.
pub(crate) const fn text(hash: u64, text: &str) -> u64 {
    let (bytes, mut hash, mut at) = (text.as_bytes(), number(hash, text.len() as u64), 0);
    while at < bytes.len() {
        hash = byte(hash, bytes[at]);
        at += 1;
    }
    hash
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    between: &str,
    parts: &[T],
    mut each: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            f.write_str(between)?;
        }
        each(f, part)?;
    }
    Ok(())
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Name(name) => f.write_str(name),
            Self::Bytes(count) => write!(f, "bytes({count})"),
            Self::Option(of) => write!(f, "opt({of})"),
            Self::Tuple([one]) => write!(f, "({one},)"),
            Self::Tuple(parts) => {
                f.write_str("(")?;
                list(f, ",", parts, |f, part| part.fmt(f))?;
                f.write_str(")")
            }
            Self::Struct(fields) => {
                f.write_str("{")?;
                list(f, ",", fields, |f, (name, of)| write!(f, "{name}:{of}"))?;
                f.write_str("}")
            }
            Self::Enum(variants) => {
                let mut next = 0;
                f.write_str("<")?;
                list(f, "|", variants, |f, (index, name, of)| {
                    f.write_str(name)?;
                    if *index != next {
                        write!(f, "={index}")?;
                    }
                    next = index.wrapping_add(1);
                    match of {
                        Self::Tuple([]) => Ok(()),
                        Self::Tuple([one]) => write!(f, "({one})"),
                        _ => of.fmt(f),
                    }
                })?;
                f.write_str(">")
            }
            Self::Own(name) => write!(f, "own({name})"),
            Self::Format(format, name) => write!(f, "{format}({name})"),
            Self::Sized(format, name, bytes) => write!(f, "{format}({name},{bytes})"),
            Self::Described(text) => f.write_str(text),
        }
    }
}
