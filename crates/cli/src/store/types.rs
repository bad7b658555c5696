//! The recorded types of a table, and their values in arguments and output.
//!
//! | type | as an argument, and in output | with --json |
//! |---|---|---|
//! | an integer, a float, `bool` | as in JSON | the same; a large integer as {"integer": ".."} |
//! | `str` | the text | a string |
//! | `bytes`, and types of programs' own formats | the bytes | a string, or {"hex": ".."} |
//! | `opt` | `null`, or the value | the same |
//! | a tuple | JSON: an array | the same |
//! | a struct | JSON: an object | the same |
//! | an enum | JSON: `"Red"`, `{"Green": 7}` | the same |
//! | `parts`, keys of Python | as keys of a table without types | the same |
//! | `cbor`, values of Python | JSON; others are objects with one name (`cbor.rs`) | the same |

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use super::cbor;
use super::scalars::{bytes, bytes_json, float, float_json, integer, integer_json};

/// The depth of nested types: a damaged file must not exhaust the stack.
const DEPTH: usize = 64;

/// A type, as [`latchwork_store::Type`] describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Integer {
        signed: bool,
        bytes: usize,
    },
    F32,
    F64,
    Bool,
    Text,
    Uuid,
    /// Bytes, of a fixed number if given.
    Bytes(Option<usize>),
    Option(Box<Type>),
    Tuple(Vec<Type>),
    Struct(Vec<(String, Type)>),
    Enum(Vec<Variant>),
    /// JSON text.
    Json,
    /// CBOR.
    Cbor,
    /// Keys of any parts.
    Parts,
    /// A program's own format.
    Own,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) index: i64,
    pub(super) name: String,
    pub(super) of: Type,
}

/// Removes a text from the front.
fn eat(from: &mut &str, what: &str) -> bool {
    let rest = from.strip_prefix(what);
    rest.inspect(|rest| *from = rest).is_some()
}

/// Removes a name from the front.
fn word<'t>(from: &mut &'t str) -> Option<&'t str> {
    let end = from.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(from.len());
    let (word, rest) = from.split_at(end);
    *from = rest;
    (!word.is_empty()).then_some(word)
}

fn list<T>(
    from: &mut &str,
    (between, end): (&str, &str),
    mut one: impl FnMut(&mut &str) -> Option<T>,
) -> Option<Vec<T>> {
    let mut all = Vec::new();
    while !eat(from, end) {
        all.push(one(from)?);
        if !eat(from, between) && !from.starts_with(end) {
            return None;
        }
    }
    Some(all)
}

impl Type {
    /// Parses a description. An unknown type is a program's own.
    pub(super) fn parse(text: &str) -> Self {
        let mut rest = text;
        Self::take(&mut rest, 0).filter(|_| rest.is_empty()).unwrap_or(Self::Own)
    }

    fn take(from: &mut &str, depth: usize) -> Option<Self> {
        if depth > DEPTH {
            return None;
        }
        let field = |from: &mut &str| {
            let name = word(from)?.to_owned();
            eat(from, ":").then(|| Self::take(from, depth + 1).map(|of| (name, of)))?
        };
        if eat(from, "(") {
            return list(from, (",", ")"), |from| Self::take(from, depth + 1)).map(Self::Tuple);
        }
        if eat(from, "{") {
            return list(from, (",", "}"), field).map(Self::Struct);
        }
        if eat(from, "<") {
            let mut next = 0_i64;
            let variants = list(from, ("|", ">"), |from| {
                let name = word(from)?.to_owned();
                if eat(from, "=") {
                    let sign = if eat(from, "-") { "-" } else { "" };
                    next = format!("{sign}{}", word(from)?).parse().ok()?;
                }
                let index = next;
                next = next.wrapping_add(1);
                let of = match from.starts_with(['(', '{']) {
                    true => Self::take(from, depth + 1)?,
                    false => Self::Tuple(Vec::new()),
                };
                Some(Variant { index, name, of })
            });
            return variants.map(Self::Enum);
        }
        Self::named(word(from)?, from, depth)
    }

    fn named(name: &str, from: &mut &str, depth: usize) -> Option<Self> {
        let integer = |text: &str| match text {
            "8" | "16" | "32" | "64" | "128" => text.parse::<usize>().ok().map(|bits| bits / 8),
            _ => None,
        };
        if let Some(bytes) = name.strip_prefix(['u', 'i']).and_then(integer) {
            return Some(Self::Integer { signed: name.starts_with('i'), bytes });
        }
        Some(match name {
            "f32" => Self::F32,
            "f64" => Self::F64,
            "bool" => Self::Bool,
            "str" => Self::Text,
            "uuid" => Self::Uuid,
            "cbor" => Self::Cbor,
            "parts" => Self::Parts,
            "bytes" if eat(from, "(") => {
                let count = word(from)?.parse().ok()?;
                eat(from, ")").then_some(Self::Bytes(Some(count)))?
            }
            "bytes" => Self::Bytes(None),
            "opt" => {
                let of = eat(from, "(").then(|| Self::take(from, depth + 1))??;
                eat(from, ")").then(|| Self::Option(Box::new(of)))?
            }
            _ => {
                let (_, rest) = from.strip_prefix('(')?.split_once(')')?;
                *from = rest;
                if name == "json" { Self::Json } else { Self::Own }
            }
        })
    }

    /// Returns whether values are written as they are, and not as JSON.
    pub(super) fn is_plain(&self) -> bool {
        use Type::{Cbor, Enum, Option, Struct, Tuple};
        !matches!(self, Option(_) | Tuple(_) | Struct(_) | Enum(_) | Cbor)
    }

    /// The bytes of each value, if all have the same number.
    fn width(&self) -> Option<usize> {
        match self {
            Self::Integer { bytes, .. } => Some(*bytes),
            Self::F32 => Some(4),
            Self::F64 => Some(8),
            Self::Bool => Some(1),
            Self::Uuid => Some(16),
            Self::Bytes(count) => *count,
            Self::Tuple(parts) => parts.iter().map(Self::width).sum(),
            Self::Struct(fields) => fields.iter().map(|(_, of)| of.width()).sum(),
            Self::Enum(variants) => {
                let plain = |one: &Variant| one.of == Self::Tuple(Vec::new());
                variants.iter().all(plain).then_some(1)
            }
            Self::Text | Self::Option(_) | Self::Json | Self::Own | Self::Cbor | Self::Parts => {
                None
            }
        }
    }

    /// Whether it has the value `null`.
    fn has_null(&self) -> bool {
        matches!(self, Self::Option(_) | Self::Json | Self::Cbor)
            || *self == Self::Tuple(Vec::new())
    }

    /// Returns the parts of a tuple or a struct; none for other types.
    pub(super) fn parts(&self) -> Option<Vec<&Type>> {
        match self {
            Self::Tuple(parts) => Some(parts.iter().collect()),
            Self::Struct(fields) => Some(fields.iter().map(|(_, of)| of).collect()),
            _ => None,
        }
    }

    /// Splits the JSON of a tuple or a struct, an array or an object, into its parts, in order.
    pub(super) fn split<'v>(&self, value: &'v Value) -> anyhow::Result<Vec<&'v Value>> {
        match (self, value) {
            (Self::Tuple(parts), Value::Null) if parts.is_empty() => Ok(Vec::new()),
            (Self::Tuple(_) | Self::Struct(_), Value::Array(values)) => Ok(values.iter().collect()),
            (Self::Struct(fields), Value::Object(named)) => {
                let known = |name: &&String| fields.iter().any(|(known, _)| known == *name);
                if let Some(name) = named.keys().find(|name| !known(name)) {
                    bail!("there is no field {name}");
                }
                let value = |(name, _): &(String, _)| {
                    named.get(name).with_context(|| format!("the field {name} is missing"))
                };
                fields.iter().map(value).collect()
            }
            (Self::Struct(_), _) => bail!("{value}: no object"),
            _ => bail!("{value}: no array"),
        }
    }

    /// Joins the JSON of the parts.
    pub(super) fn join(&self, values: Vec<Value>) -> Value {
        match self {
            Self::Struct(fields) => {
                let named = fields.iter().map(|(name, _)| name.clone()).zip(values);
                Value::Object(named.collect::<Map<_, _>>())
            }
            Self::Tuple(parts) if parts.is_empty() => Value::Null,
            _ => Value::Array(values),
        }
    }
}

/// Returns the variant that a JSON value names, and the values of its parts.
pub(super) fn variant<'t, 'v>(
    variants: &'t [Variant],
    value: &'v Value,
) -> anyhow::Result<(&'t Variant, Vec<&'v Value>)> {
    let names = || variants.iter().map(|one| &one.name[..]).collect::<Vec<_>>().join(", ");
    let (name, of) = match value {
        Value::String(name) => (name, &Value::Null),
        Value::Object(named) if named.len() == 1 => {
            named.iter().next().context("an object without names")?
        }
        _ => bail!("{value}: a variant is \"Name\" or {{\"Name\": ..}}, one of {}", names()),
    };
    let found = variants.iter().find(|one| one.name == *name);
    let variant = found.with_context(|| format!("{name}: no variant; there are {}", names()))?;
    let parts = match &variant.of {
        // A single part is written without an array.
        Type::Tuple(parts) if parts.len() == 1 => vec![of],
        parts => parts.split(of)?,
    };
    Ok((variant, parts))
}

/// Returns the JSON of a variant.
pub(super) fn variant_json(variant: &Variant, mut parts: Vec<Value>) -> Value {
    let of = match &variant.of {
        Type::Tuple(of) if of.is_empty() => return json!(variant.name),
        Type::Tuple(of) if of.len() == 1 => parts.pop().unwrap_or_default(),
        of => of.join(parts),
    };
    Value::Object(Map::from_iter([(variant.name.clone(), of)]))
}

/// Appends a value of this type from JSON.
pub(super) fn encode(of: &Type, value: &Value, to: &mut Vec<u8>) -> anyhow::Result<()> {
    match of {
        Type::Integer { signed, bytes } => {
            let bits = integer(value, *signed, *bytes)?;
            to.extend_from_slice(&bits.to_le_bytes()[..*bytes]);
        }
        Type::F32 => {
            let number = float(value)?;
            ensure!(
                !number.is_finite() || (number as f32).is_finite(),
                "{number}: it does not fit into f32"
            );
            to.extend_from_slice(&(number as f32).to_le_bytes());
        }
        Type::F64 => to.extend_from_slice(&float(value)?.to_le_bytes()),
        Type::Bool => {
            to.push(u8::from(value.as_bool().with_context(|| format!("{value}: no boolean"))?));
        }
        Type::Text => {
            let text = value.as_str().with_context(|| format!("{value}: no text"))?;
            to.extend_from_slice(text.as_bytes());
        }
        Type::Uuid => to.extend_from_slice(&bytes(value, Some(16))?),
        Type::Bytes(count) => to.extend_from_slice(&bytes(value, *count)?),
        Type::Own | Type::Parts => to.extend_from_slice(&bytes(value, None)?),
        Type::Cbor => cbor::encode(value, to)?,
        Type::Json => to.extend_from_slice(value.to_string().as_bytes()),
        Type::Option(_) if value.is_null() => to.push(0),
        Type::Option(of) => {
            to.push(1);
            let some = value.get("some").filter(|_| of.has_null());
            encode(of, some.unwrap_or(value), to)?;
        }
        Type::Tuple(_) | Type::Struct(_) => {
            encode_parts(&of.parts().unwrap_or_default(), &of.split(value)?, to)?;
        }
        Type::Enum(variants) => {
            let (variant, parts) = variant(variants, value)?;
            to.push(u8::try_from(variant.index).context("a variant above 255")?);
            encode_parts(&variant.of.parts().unwrap_or_default(), &parts, to)?;
        }
    }
    Ok(())
}

/// Appends the parts of a tuple: each except the last with its length, if that is not fixed.
fn encode_parts(types: &[&Type], values: &[&Value], to: &mut Vec<u8>) -> anyhow::Result<()> {
    ensure!(
        types.len() == values.len(),
        "{} parts, and the type has {}",
        values.len(),
        types.len()
    );
    for (place, (of, value)) in types.iter().zip(values).enumerate() {
        let start = to.len();
        let counted = place + 1 < types.len() && of.width().is_none();
        if counted {
            to.extend_from_slice(&[0; 4]);
        }
        encode(of, value, to)?;
        if counted {
            let length = u32::try_from(to.len() - start - 4).context("a part above 4 GiB")?;
            to[start..start + 4].copy_from_slice(&length.to_le_bytes());
        }
    }
    Ok(())
}

/// Decodes a value to JSON; none if the bytes are no value of this type.
pub(super) fn decode(of: &Type, from: &[u8]) -> Option<Value> {
    if of.width().is_some_and(|width| width != from.len()) {
        return None;
    }
    Some(match of {
        Type::Integer { signed, .. } => {
            let negative = *signed && from.last()? & 0x80 != 0;
            let mut bits = [if negative { 0xff } else { 0 }; 16];
            bits[..from.len()].copy_from_slice(from);
            integer_json(i128::from_le_bytes(bits), *signed)
        }
        Type::F32 => {
            let number = f32::from_le_bytes(from.try_into().ok()?);
            // The shortest digits that represent this number.
            let shown = number.to_string().parse().unwrap_or(f64::from(number));
            float_json(shown, "f32", number.to_string())
        }
        Type::F64 => {
            let number = f64::from_le_bytes(from.try_into().ok()?);
            float_json(number, "f64", number.to_string())
        }
        Type::Bool => match from {
            [0] => json!(false),
            [1] => json!(true),
            _ => return None,
        },
        Type::Text => json!(std::str::from_utf8(from).ok()?),
        Type::Uuid | Type::Bytes(_) | Type::Own | Type::Parts => bytes_json(from),
        Type::Cbor => cbor::decode(from)?,
        Type::Json => serde_json::from_slice(from).ok()?,
        Type::Option(of) => match from {
            [0] => Value::Null,
            [1, rest @ ..] => {
                let value = decode(of, rest)?;
                if of.has_null() { json!({"some": value}) } else { value }
            }
            _ => return None,
        },
        Type::Tuple(_) | Type::Struct(_) => of.join(decode_parts(&of.parts()?, from)?),
        Type::Enum(variants) => {
            let (index, rest) = from.split_first()?;
            let variant = variants.iter().find(|one| one.index == i64::from(*index))?;
            variant_json(variant, decode_parts(&variant.of.parts()?, rest)?)
        }
    })
}

fn decode_parts(types: &[&Type], mut from: &[u8]) -> Option<Vec<Value>> {
    let mut parts = Vec::new();
    for (place, of) in types.iter().enumerate() {
        let length = match of.width() {
            _ if place + 1 == types.len() => from.len(),
            Some(width) => width,
            None => {
                let (length, rest) = from.split_first_chunk::<4>()?;
                from = rest;
                u32::from_le_bytes(*length) as usize
            }
        };
        let (part, rest) = from.split_at_checked(length)?;
        from = rest;
        parts.push(decode(of, part)?);
    }
    from.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read() {
        let text = "{a:<Red|Green=5(u64)|Blue{x:bytes(4),y:(i8,)}|Neg=-2>,b:opt(str),c:()}";
        let Type::Struct(fields) = Type::parse(text) else { panic!("no struct") };
        let Type::Enum(variants) = &fields[0].1 else { panic!("no enum") };
        assert_eq!(variants.iter().map(|one| one.index).collect::<Vec<_>>(), [0, 5, 6, -2]);
        assert_eq!(fields[1].1, Type::Option(Box::new(Type::Text)));
        assert_eq!(Type::parse("json(order)"), Type::Json);
        for own in ["postcard(order)", "own(a)", "hash(00)", "plain(a,7)", "later(3)"] {
            assert_eq!(Type::parse(own), Type::Own);
        }
        for unknown in ["u65", "opt(", "(u8", "{a}", "<>x", "", "u8,"] {
            assert_eq!(Type::parse(unknown), Type::Own, "{unknown}");
        }
        Type::parse(&"opt(".repeat(100_000));
    }

    #[test]
    fn what_is_printed_is_read() {
        let of = |text: &str, value: Value, bytes: &[u8]| {
            let of = Type::parse(text);
            let mut found = Vec::new();
            encode(&of, &value, &mut found).unwrap();
            assert_eq!(found, bytes, "{text}");
            assert_eq!(decode(&of, bytes), Some(value), "{text}");
        };
        of("u64", json!(3), &3u64.to_le_bytes());
        of("i16", json!(-2), &[0xfe, 0xff]);
        of("u128", json!({"integer": u128::MAX.to_string()}), &[0xff; 16]);
        of("i128", json!({"integer": i128::MIN.to_string()}), &i128::MIN.to_le_bytes());
        of("f32", json!(0.1), &0.1f32.to_le_bytes());
        of("f64", json!({"f64": "inf"}), &f64::INFINITY.to_le_bytes());
        of("opt(u8)", json!(null), &[0]);
        of("opt(u8)", json!(7), &[1, 7]);
        of("opt(opt(u8))", json!({"some": null}), &[1, 0]);
        of("bytes", json!({"hex": "00ff"}), &[0, 255]);
        of("(str,u8,str)", json!(["a", 1, "bc"]), b"\x01\0\0\0a\x01bc");
        of("{a:str,b:u8}", json!({"a": "x", "b": 2}), b"\x01\0\0\0x\x02");
        of("<Red|Green(u8)|Blue{x:u8}>", json!("Red"), &[0]);
        of("<Red|Green(u8)|Blue{x:u8}>", json!({"Green": 9}), &[1, 9]);
        of("<Red|Green(u8)|Blue{x:u8}>", json!({"Blue": {"x": 9}}), &[2, 9]);
        of("()", json!(null), &[]);
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for (text, value) in [
            ("u8", json!(256)),
            ("u8", json!(-1)),
            ("i8", json!(128)),
            ("u64", json!("three")),
            ("u64", json!(0.5)),
            ("f32", json!(1e300)),
            ("bool", json!(1)),
            ("bytes(2)", json!("abc")),
            ("(u8,u8)", json!([1])),
            ("{a:u8}", json!({"b": 1})),
            ("{a:u8}", json!({"a": 1, "b": 1})),
            ("<Red>", json!("Blue")),
        ] {
            assert!(encode(&Type::parse(text), &value, &mut Vec::new()).is_err(), "{text} {value}");
        }
        assert_eq!(decode(&Type::parse("u64"), &[0; 7]), None);
        assert_eq!(decode(&Type::parse("(str,u8)"), &[9, 0, 0, 0, 1]), None);
    }
}
