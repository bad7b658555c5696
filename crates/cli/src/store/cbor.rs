//! Conversion of CBOR values (RFC 8949), which Python programs write, from and to JSON.
//!
//! | CBOR | JSON |
//! |---|---|
//! | null, booleans, numbers, text, arrays | the same |
//! | a map whose keys are text | an object |
//! | another map | `{"map": [[key, value], ..]}` |
//! | bytes | `{"hex": ".."}` |
//! | an integer of more than 64 bits | `{"integer": ".."}`, in hex beyond 128 bits |
//! | tags 0, 19543, 19546: a date and a time | `{"datetime": ".."}` |
//! | tag 1004: a date | `{"date": ".."}` |
//! | tag 37: a UUID | `{"uuid": ".."}` |
//! | tags 19544, 258, 19545 | `{"tuple": [..]}`, `{"set": [..]}`, `{"frozenset": [..]}` |
//! | another tag | `{"tag": number, "value": ..}` |
//!
//! From JSON, only the first two rows, bytes and integers are accepted.

use anyhow::{Context, bail};
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};
use serde_json::{Map, Value, json};

use super::{keys, scalars};

/// The depth of nested values: a damaged file must not exhaust the stack.
const DEPTH: usize = 128;

/// Converts the bytes of a value to JSON; none if they are no CBOR.
pub(super) fn decode(bytes: &[u8]) -> Option<Value> {
    let mut from = Decoder::new(bytes);
    let value = take(&mut from, 0)?;
    (from.position() == bytes.len()).then_some(value)
}

fn take(from: &mut Decoder<'_>, depth: usize) -> Option<Value> {
    if depth > DEPTH {
        return None;
    }
    Some(match from.datatype().ok()? {
        Type::Null | Type::Undefined => {
            from.skip().ok()?;
            Value::Null
        }
        Type::Bool => json!(from.bool().ok()?),
        Type::F16 | Type::F32 | Type::F64 => {
            let number = from.f64().ok()?;
            scalars::float_json(number, "f64", number.to_string())
        }
        Type::Bytes => json!({"hex": keys::hex(from.bytes().ok()?)}),
        Type::String => json!(from.str().ok()?),
        Type::Array => Value::Array(take_all(from, depth)?),
        Type::Map => take_map(from, depth)?,
        Type::Tag => take_tagged(from, depth)?,
        _ => {
            let number: i128 = from.int().ok()?.into();
            scalars::integer_json(number, number < 0)
        }
    })
}

fn take_all(from: &mut Decoder<'_>, depth: usize) -> Option<Vec<Value>> {
    let count = from.array().ok()??;
    (0..count).map(|_| take(from, depth + 1)).collect()
}

fn take_map(from: &mut Decoder<'_>, depth: usize) -> Option<Value> {
    let count = from.map().ok()??;
    let pair = |_| Some((take(from, depth + 1)?, take(from, depth + 1)?));
    let pairs = (0..count).map(pair).collect::<Option<Vec<_>>>()?;
    let named = pairs.iter().map(|(key, value)| Some((key.as_str()?.to_owned(), value.clone())));
    Some(match named.collect::<Option<Map<_, _>>>() {
        Some(named) if named.len() == pairs.len() => Value::Object(named),
        _ => json!({"map": pairs}),
    })
}

fn take_tagged(from: &mut Decoder<'_>, depth: usize) -> Option<Value> {
    let tag = from.tag().ok()?.as_u64();
    let name = match tag {
        2 | 3 => return from.bytes().ok().map(|bytes| large(bytes, tag == 3)),
        37 => return from.bytes().ok().map(|bytes| json!({"uuid": keys::hex(bytes)})),
        0 | 19543 | 19546 => "datetime",
        1004 => "date",
        19544 => "tuple",
        258 => "set",
        19545 => "frozenset",
        _ => return Some(json!({"tag": tag, "value": take(from, depth + 1)?})),
    };
    Some(json!({name: take(from, depth + 1)?}))
}

/// A large integer: its digits, or those of its magnitude in hex.
fn large(bytes: &[u8], negative: bool) -> Value {
    let wide = bytes
        .iter()
        .try_fold(0u128, |all, byte| all.checked_mul(256).map(|all| all + u128::from(*byte)));
    let text = match wide.and_then(|wide| i128::try_from(wide).ok()) {
        Some(number) if negative => (!number).to_string(),
        Some(number) => number.to_string(),
        None if negative => format!("-1-0x{}", keys::hex(bytes)),
        None => format!("0x{}", keys::hex(bytes)),
    };
    json!({"integer": text})
}

/// Appends the value of this JSON.
pub(super) fn encode(value: &Value, to: &mut Vec<u8>) -> anyhow::Result<()> {
    put(value, &mut Encoder::new(to))
}

fn put(value: &Value, to: &mut Encoder<&mut Vec<u8>>) -> anyhow::Result<()> {
    match value {
        Value::Null => to.null()?.ok(),
        Value::Bool(is) => to.bool(*is)?.ok(),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => to.i64(number)?.ok(),
            (_, Some(number), _) => to.u64(number)?.ok(),
            (_, _, Some(number)) => to.f64(number)?.ok(),
            _ => bail!("{number}: a number of more than 64 bits"),
        },
        Value::String(text) => to.str(text)?.ok(),
        Value::Array(values) => {
            to.array(values.len() as u64)?;
            return values.iter().try_for_each(|value| put(value, to));
        }
        Value::Object(named) => {
            let one = named.iter().next().filter(|_| named.len() == 1);
            match one.map(|(name, value)| (&name[..], value)) {
                Some(("hex", Value::String(digits))) => to.bytes(&keys::bytes(digits)?)?.ok(),
                Some(("integer", Value::String(digits))) => {
                    let wrong = || format!("{digits}: no integer of 64 bits");
                    to.i64(digits.parse().with_context(wrong)?)?.ok()
                }
                _ => {
                    to.map(named.len() as u64)?;
                    return named.iter().try_for_each(|(name, value)| {
                        to.str(name)?;
                        put(value, to)
                    });
                }
            }
        }
    }
    .context("CBOR is written to memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_printed() {
        for value in [
            json!(null),
            json!([true, 1, -1, 0.5, "a", {"b": {"hex": "00ff"}}]),
            json!(u64::MAX),
            json!({"a": 1, "b": [[], {}]}),
        ] {
            let mut bytes = Vec::new();
            encode(&value, &mut bytes).unwrap();
            assert_eq!(decode(&bytes), Some(value));
        }
    }

    #[test]
    fn values_of_python_are_printed() {
        let of = |bytes: &[u8], value| assert_eq!(decode(bytes), Some(value), "{bytes:02x?}");
        of(b"\xc2\x49\x01\0\0\0\0\0\0\0\0", json!({"integer": "18446744073709551616"}));
        of(b"\xc3\x49\x01\0\0\0\0\0\0\0\0", json!({"integer": "-18446744073709551617"}));
        of(b"\xd9\x4c\x58\x82\x01\x02", json!({"tuple": [1, 2]}));
        of(b"\xd9\x03\xec\x6a2026-11-30", json!({"date": "2026-11-30"}));
        of(b"\xa1\x01\x02", json!({"map": [[1, 2]]}));
        of(b"\xfb\x7f\xf0\0\0\0\0\0\0", json!({"f64": "inf"}));
    }

    #[test]
    fn damaged_bytes_are_no_value() {
        for bytes in
            [&b""[..], b"\x82\x01", b"\x01\x01", b"\xff", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert_eq!(decode(bytes), None, "{bytes:02x?}");
        }
        assert_eq!(decode(&[0x81; 100_000]), None);
    }
}
