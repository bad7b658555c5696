//! Integers, floats and bytes as JSON.

use anyhow::{Context, bail, ensure};
use serde_json::{Number, Value, json};

use super::keys;

/// Parses an integer from JSON that fits into its type; returns its bits.
pub(super) fn integer(value: &Value, signed: bool, bytes: usize) -> anyhow::Result<i128> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Object(named) => {
            let text = named.get("integer").and_then(Value::as_str);
            text.with_context(|| format!("{value}: no integer"))?.to_owned()
        }
        _ => bail!("{value}: no integer"),
    };
    let name = format!("{}{}", if signed { "i" } else { "u" }, bytes * 8);
    let wrong = || format!("{text}: no {name}");
    let bits = match signed {
        true => text.parse::<i128>().ok(),
        false => text.parse::<u128>().ok().map(|number| number as i128),
    };
    let bits = bits.with_context(wrong)?;
    let unused = 128 - 8 * bytes as u32;
    let again = match signed {
        true => bits << unused >> unused,
        false => ((bits as u128) << unused >> unused) as i128,
    };
    ensure!(again == bits, "{text}: it does not fit into {name}");
    Ok(bits)
}

/// Formats an integer as JSON, from its bits.
pub(super) fn integer_json(bits: i128, signed: bool) -> Value {
    let small = match signed {
        true => i64::try_from(bits).ok().map(Number::from),
        false => u64::try_from(bits as u128).ok().map(Number::from),
    };
    let text = || if signed { bits.to_string() } else { (bits as u128).to_string() };
    small.map_or_else(|| json!({"integer": text()}), Value::Number)
}

/// Parses a float from JSON: a number, or a text that Rust parses as one.
pub(super) fn float(value: &Value) -> anyhow::Result<f64> {
    let text = match value {
        Value::Object(named) => named.get("f64").or(named.get("f32")).and_then(Value::as_str),
        Value::String(text) => Some(&text[..]),
        _ => None,
    };
    let parsed = text.and_then(|text| text.parse().ok());
    value.as_f64().or(parsed).with_context(|| format!("{value}: no number"))
}

pub(super) fn float_json(number: f64, name: &str, text: String) -> Value {
    let found = Number::from_f64(number).filter(|_| number.is_finite());
    found.map_or_else(|| json!({name: text}), Value::Number)
}

/// Parses bytes from JSON: a text, or hex digits.
pub(super) fn bytes(value: &Value, count: Option<usize>) -> anyhow::Result<Vec<u8>> {
    let found = match value {
        Value::String(text) => text.clone().into_bytes(),
        Value::Object(named) => {
            let digits = named.get("hex").or(named.get("uuid")).and_then(Value::as_str);
            let digits = digits.with_context(|| format!("{value}: no bytes"))?;
            keys::bytes(&digits.replace('-', ""))?
        }
        _ => bail!("{value}: no bytes: write a text, or {{\"hex\": \"..\"}}"),
    };
    if let Some(count) = count.filter(|count| *count != found.len()) {
        bail!("{} bytes, and the type has {count}", found.len());
    }
    Ok(found)
}

/// Formats bytes as JSON.
pub(super) fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"hex": keys::hex(bytes)}),
    }
}
