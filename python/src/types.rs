//! The types of a table's keys and values, read from the text that the catalog has of them.

use std::fmt;

use latchwork_store::{Raw, Table, Type};
use pyo3::PyResult;

use crate::errors::value_error;

/// The keys of a table that Python made: parts of any types.
pub(crate) const PARTS: &str = "parts";
/// The values of a table that Python made: CBOR (RFC 8949).
pub(crate) const CBOR: &str = "cbor";

/// The depth of nested types: a damaged file must not exhaust the stack.
const DEPTH: usize = 32;

/// A type of keys or values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keys of any parts.
    Parts,
    /// Values that say their type.
    Cbor,
    Integer {
        signed: bool,
        bits: u32,
    },
    F32,
    F64,
    Bool,
    Text,
    Uuid,
    /// Bytes, of a certain number.
    Bytes(Option<usize>),
    Option(Box<Kind>),
    Tuple(Vec<Kind>),
    /// JSON text.
    Json,
    /// A type of a program's own, or a type that this module does not know.
    Own,
}

/// Takes a text from the front.
fn eat(from: &mut &str, what: &str) -> bool {
    let rest = from.strip_prefix(what);
    rest.inspect(|rest| *from = rest).is_some()
}

impl Kind {
    pub(crate) fn parse(text: &str) -> Self {
        let mut rest = text;
        Self::take(&mut rest, 0).filter(|_| rest.is_empty()).unwrap_or(Self::Own)
    }

    fn take(from: &mut &str, depth: usize) -> Option<Self> {
        if depth > DEPTH {
            return None;
        }
        if eat(from, "(") {
            let mut parts = Vec::new();
            while !eat(from, ")") {
                parts.push(Self::take(from, depth + 1)?);
                if !eat(from, ",") && !from.starts_with(')') {
                    return None;
                }
            }
            return Some(Self::Tuple(parts));
        }
        let end = from.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(from.len());
        let (word, rest) = from.split_at(end);
        *from = rest;
        let bits = |text: &str| match text {
            "8" | "16" | "32" | "64" | "128" => text.parse().ok(),
            _ => None,
        };
        if let Some(bits) = word.strip_prefix(['u', 'i']).and_then(bits) {
            return Some(Self::Integer { signed: word.starts_with('i'), bits });
        }
        Some(match word {
            PARTS => Self::Parts,
            CBOR => Self::Cbor,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "bool" => Self::Bool,
            "str" => Self::Text,
            "uuid" => Self::Uuid,
            "bytes" if eat(from, "(") => {
                let (count, rest) = from.split_once(')')?;
                *from = rest;
                Self::Bytes(Some(count.parse().ok()?))
            }
            "bytes" => Self::Bytes(None),
            "opt" => {
                let of = eat(from, "(").then(|| Self::take(from, depth + 1))??;
                eat(from, ")").then(|| Self::Option(Box::new(of)))?
            }
            "json" if eat(from, "(") => {
                let (_, rest) = from.split_once(')')?;
                *from = rest;
                Self::Json
            }
            _ => return None,
        })
    }

    /// Whether a key or a value may have this type.
    fn is_of(&self, keys: bool) -> bool {
        match self {
            Self::Own => false,
            Self::Parts => keys,
            Self::Cbor | Self::Json => !keys,
            Self::Option(of) => of.is_of(keys),
            Self::Tuple(parts) => parts.iter().all(|part| part.is_of(keys)),
            _ => true,
        }
    }

    /// The type that a program names for keys or values.
    pub(crate) fn named(text: &str, keys: bool) -> PyResult<Self> {
        let kind = Self::parse(text);
        match kind.is_of(keys) {
            true => Ok(kind),
            false if keys => Err(value_error(format!(
                "{text:?} is no type of keys: write \"str\", \"bytes\", \"bytes(16)\", \"u64\", \"i32\", \
                 \"f64\", \"bool\", \"uuid\", \"opt(u64)\", or a tuple of these as \"(str,u64)\""
            ))),
            false => Err(value_error(format!(
                "{text:?} is no type of values: write \"cbor\", \"bytes\", \"str\", \"u64\", \"i32\", \
                 \"f64\", \"bool\", \"uuid\", \"json\", \"opt(u64)\", a tuple of these as \"(str,u64)\", \
                 or pass a Codec"
            ))),
        }
    }

    /// How many bytes each value has, if that is the same for all.
    pub(crate) fn width(&self) -> Option<usize> {
        match self {
            Self::Integer { bits, .. } => Some(*bits as usize / 8),
            Self::F32 => Some(4),
            Self::F64 => Some(8),
            Self::Bool => Some(1),
            Self::Uuid => Some(16),
            Self::Bytes(count) => *count,
            Self::Tuple(parts) => parts.iter().map(Self::width).sum(),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parts => f.write_str(PARTS),
            Self::Cbor => f.write_str(CBOR),
            Self::Integer { signed, bits } => {
                write!(f, "{}{bits}", if *signed { "i" } else { "u" })
            }
            Self::F32 => f.write_str("f32"),
            Self::F64 => f.write_str("f64"),
            Self::Bool => f.write_str("bool"),
            Self::Text => f.write_str("str"),
            Self::Uuid => f.write_str("uuid"),
            Self::Bytes(None) => f.write_str("bytes"),
            Self::Bytes(Some(count)) => write!(f, "bytes({count})"),
            Self::Option(of) => write!(f, "opt({of})"),
            Self::Tuple(parts) => {
                f.write_str("(")?;
                for (place, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if place == 0 { "" } else { "," })?;
                }
                f.write_str(if parts.len() == 1 { ",)" } else { ")" })
            }
            Self::Json => f.write_str("json"),
            Self::Own => f.write_str("a type of the program's own"),
        }
    }
}

/// The description of a type for the catalog. Each text is kept until the process ends, once: as
/// the store does with the names of tables.
pub(crate) fn described(text: &str) -> Type {
    Type::Described(Table::<Raw, Raw>::named(text).name())
}
