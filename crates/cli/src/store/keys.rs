//! Keys in arguments and output: text, or JSON for keys of any type.

use anyhow::{Context, bail};
use latchwork_store::{AnyKey, KeyPart, Uuid};
use serde_json::{Map, Value, json};

/// The JSON of each type of key.
const TYPES: &str = r#"A key is read by the type that the table has recorded. With --typed it is JSON:
  "pear", 7, -0.5, true, null      text, an integer, an f64, a boolean, None
  ["ann", 8]                       a tuple; inside of one, a nested tuple
  {"hex": "07ff"}                  bytes
  {"uuid": ".."}                   a UUID: its 32 digits, with dashes or without
  {"integer": ".."}                an integer of more than 64 bits
  {"f32": 0.5}, {"f64": "inf"}     an f32; an f64 that JSON has no number for
  {"f32_bits": ".."}, {"f64_bits": ".."}   one that is not a number: its bits in hex"#;

/// Appends the description of keys to the help of a command.
pub(super) fn with_types(help: &str) -> String {
    format!("{help}\n\n{TYPES}")
}

/// The names that a part of a key may have.
const NAMES: &str = "hex, uuid, integer, f32, f64, f32_bits or f64_bits";

/// How the keys among a command's arguments are written.
#[derive(clap::Args)]
pub(super) struct How {
    /// Keys are JSON of any type, as 7 or '["ann", 8]'
    #[arg(long)]
    pub(super) typed: bool,
}

impl How {
    /// Parses a key.
    pub(super) fn read(&self, argument: &str) -> anyhow::Result<AnyKey> {
        if !self.typed {
            return Ok(AnyKey(vec![KeyPart::Text(argument.to_owned())]));
        }
        let value: Value = serde_json::from_str(argument)
            .with_context(|| format!("{argument}: no JSON, which `--typed` wants"))?;
        let parts = match &value {
            Value::Array(parts) => parts.iter().map(part).collect::<Result<_, _>>(),
            one => part(one).map(|part| vec![part]),
        };
        Ok(AnyKey(parts.with_context(|| format!("{argument}: no key"))?))
    }
}

/// Parses a part of a key from JSON.
pub(super) fn part(value: &Value) -> anyhow::Result<KeyPart> {
    Ok(match value {
        Value::Null => KeyPart::Null,
        Value::Bool(is) => KeyPart::Bool(*is),
        Value::String(text) => KeyPart::Text(text.clone()),
        Value::Array(parts) => KeyPart::Tuple(parts.iter().map(part).collect::<Result<_, _>>()?),
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(number), _) => KeyPart::Integer(number),
            // A number with as many digits is no fraction.
            (None, Some(large)) if large.abs() >= 9e15 => bail!(
                "a number that may be meant in two ways: {{\"integer\": \"..\"}} keeps its digits, \
                 {{\"f64\": \"..\"}} is a fraction"
            ),
            (None, Some(number)) => KeyPart::F64(number),
            (None, None) => bail!("no number that a key can have"),
        },
        Value::Object(named) => of_name(named)?,
    })
}

fn of_name(named: &Map<String, Value>) -> anyhow::Result<KeyPart> {
    let one = named.iter().next().filter(|_| named.len() == 1);
    let (name, value) = one.with_context(|| format!("an object has one name: {NAMES}"))?;
    let text = value.as_str();
    Ok(match (&name[..], text) {
        ("hex", Some(digits)) => KeyPart::Bytes(bytes(digits)?),
        ("uuid", Some(digits)) => {
            let bytes = bytes(&digits.replace('-', ""))?;
            KeyPart::Uuid(Uuid(bytes.try_into().ok().context("a UUID has 32 digits")?))
        }
        ("integer", Some(digits)) => match digits.parse() {
            Ok(number) => KeyPart::Integer(number),
            Err(_) => KeyPart::Large(digits.parse().context("no integer of 128 bits")?),
        },
        ("f64", Some(number)) => KeyPart::F64(number.parse().context("no f64")?),
        ("f32", Some(number)) => KeyPart::F32(number.parse().context("no f32")?),
        ("f32", None) => {
            let number = value.as_f64().context("no f32")? as f32;
            KeyPart::F32(Some(number).filter(|it| it.is_finite()).context("too large for an f32")?)
        }
        ("f64_bits", Some(digits)) => {
            KeyPart::F64(f64::from_bits(u64::from_str_radix(digits, 16).context("no 64 bits")?))
        }
        ("f32_bits", Some(digits)) => {
            KeyPart::F32(f32::from_bits(u32::from_str_radix(digits, 16).context("no 32 bits")?))
        }
        _ => bail!("an object's name is {NAMES}, and its value text"),
    })
}

/// Parses hex digits.
pub(super) fn bytes(digits: &str) -> anyhow::Result<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let text = str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?;
        u8::from_str_radix(text, 16).ok().filter(|_| pair[0] != b'+')
    };
    pairs.map(byte).collect::<Option<_>>().context("hex has two digits for each byte")
}

/// Formats bytes as hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a key for programs, in the format that [`How::read`] reads.
pub(super) fn told(key: &AnyKey) -> Value {
    match &key.0[..] {
        // An array would be the tuple's parts.
        [one] if !matches!(one, KeyPart::Tuple(_)) => part_told(one),
        parts => Value::Array(parts.iter().map(part_told).collect()),
    }
}

/// Formats a part of a key as JSON.
pub(super) fn part_told(part: &KeyPart) -> Value {
    match part {
        KeyPart::Null => Value::Null,
        KeyPart::Bool(is) => json!(is),
        KeyPart::Text(text) => json!(text),
        KeyPart::Tuple(parts) => Value::Array(parts.iter().map(part_told).collect()),
        KeyPart::Integer(number) => match (i64::try_from(*number), u64::try_from(*number)) {
            (Ok(number), _) => json!(number),
            (_, Ok(number)) => json!(number),
            _ => json!({"integer": number.to_string()}),
        },
        KeyPart::F64(number) if number.is_finite() && number.abs() < 9e15 => json!(number),
        KeyPart::F64(number) if number.is_nan() && number.to_bits() != f64::NAN.to_bits() => {
            json!({"f64_bits": format!("{:016x}", number.to_bits())})
        }
        KeyPart::F64(number) => json!({"f64": number.to_string()}),
        KeyPart::F32(number) if number.is_nan() && number.to_bits() != f32::NAN.to_bits() => {
            json!({"f32_bits": format!("{:08x}", number.to_bits())})
        }
        KeyPart::F32(number) => json!({"f32": number.to_string()}),
        KeyPart::Uuid(_) => json!({"uuid": part.to_string()}),
        KeyPart::Bytes(bytes) => {
            json!({"hex": hex(bytes)})
        }
        large => json!({"integer": large.to_string()}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(argument: &str) -> anyhow::Result<AnyKey> {
        How { typed: true }.read(argument)
    }

    #[test]
    fn what_is_told_is_read() {
        let parts = [
            KeyPart::Null,
            KeyPart::Bool(true),
            KeyPart::Text("a\tb".to_owned()),
            KeyPart::Integer(-7),
            KeyPart::Integer(i128::from(u64::MAX)),
            KeyPart::Integer(i128::MIN),
            KeyPart::Large(u128::MAX),
            KeyPart::F32(0.1),
            KeyPart::F64(-0.1),
            KeyPart::F64(3.0),
            KeyPart::F64(1e300),
            KeyPart::F64(f64::NEG_INFINITY),
            KeyPart::Bytes(vec![0, 255]),
            KeyPart::Uuid(Uuid([9; 16])),
            KeyPart::Tuple(vec![KeyPart::Null, KeyPart::Tuple(Vec::new())]),
        ];
        for part in &parts {
            let key = AnyKey(vec![part.clone()]);
            assert_eq!(read(&told(&key).to_string()).unwrap(), key);
        }
        // With as many digits as exist.
        for number in 1..5_000_u64 {
            let bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let parts = [f64::from_bits(bits), (bits >> 11) as f64 / (1_u64 << 53) as f64];
            for part in parts.into_iter().filter(|part| !part.is_nan()) {
                let key = AnyKey(vec![KeyPart::F64(part), KeyPart::F32(part as f32)]);
                assert_eq!(read(&told(&key).to_string()).unwrap(), key);
            }
        }
        // NaN equals no number, and has many representations.
        for bits in [f64::NAN.to_bits(), f64::NAN.to_bits() | 5, (-f64::NAN).to_bits()] {
            let key = AnyKey(vec![KeyPart::F64(f64::from_bits(bits))]);
            let Ok([KeyPart::F64(read)]) =
                <[_; 1]>::try_from(read(&told(&key).to_string()).unwrap().0)
            else {
                panic!("{key:?}");
            };
            assert_eq!(read.to_bits(), bits);
        }
        let key = AnyKey(parts.to_vec());
        assert_eq!(read(&told(&key).to_string()).unwrap(), key);
        assert_eq!(How { typed: false }.read("7").unwrap().0, [KeyPart::Text("7".to_owned())]);
    }

    #[test]
    fn what_is_no_key_is_told() {
        for wrong in [
            "pear",
            "170141183460469231731687303715884105728",
            "{\"hex\": \"abc\"}",
            "{\"hex\": \"+1\"}",
            "{\"uuid\": \"07\"}",
            "{\"integer\": \"x\"}",
            "{\"f32\": 1e300}",
            "{\"f64_bits\": \"-1\"}",
            "{\"hex\": \"00\", \"uuid\": \"\"}",
            "{}",
            "[[{\"when\": 1}]]",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let unknown = format!("{:#}", read("{\"when\": 1}").unwrap_err());
        for name in ["hex", "uuid", "integer", "f32", "f64", "f32_bits", "f64_bits"] {
            assert!(unknown.contains(name) && TYPES.contains(&format!("{{\"{name}\": ")), "{name}");
        }
    }
}
