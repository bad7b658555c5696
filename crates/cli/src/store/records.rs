//! A table whose keys and values are parsed and printed by its types.

use anyhow::{Context, bail, ensure};
use latchwork_store::{AnyKey, Key, KeyPart, Raw, Store, Table, TableInfo, Uuid};
use serde_json::{Value, json};

use super::keys;
use super::scalars;
use super::types::{self, Type, Variant};

/// A table of a store.
pub(super) struct Records {
    pub(super) table: Table<Raw, Raw>,
    /// Whether the store has it.
    pub(super) there: bool,
    types: Option<(Type, Type)>,
    /// The types as the store describes them.
    pub(super) said: String,
    keys_are_json: bool,
}

/// Parses an argument as JSON.
fn parsed(argument: &str) -> anyhow::Result<Value> {
    serde_json::from_str(argument).with_context(|| format!("{argument}: no JSON"))
}

/// The JSON of an argument, by its type: text and most others are written as they are.
fn plain(of: &Type, argument: &str) -> anyhow::Result<Value> {
    match of {
        Type::Text | Type::Uuid | Type::F32 | Type::F64 => Ok(json!(argument)),
        Type::Integer { .. } => Ok(json!(argument)),
        Type::Bytes(_) | Type::Own => match argument.strip_prefix("0x") {
            Some(digits) => Ok(json!({"hex": digits})),
            None => Ok(json!(argument)),
        },
        _ => parsed(argument),
    }
}

/// The part of a key from JSON, by its type.
fn part(of: &Type, value: &Value) -> anyhow::Result<KeyPart> {
    Ok(match of {
        Type::Integer { signed, bytes } => {
            let bits = scalars::integer(value, *signed, *bytes)?;
            match *signed || bits >= 0 {
                true => KeyPart::Integer(bits),
                false => KeyPart::Large(bits as u128),
            }
        }
        Type::F32 => match value.get("f32_bits") {
            Some(_) => keys::part(value)?,
            None => KeyPart::F32(scalars::float(value)? as f32),
        },
        Type::F64 => match value.get("f64_bits") {
            Some(_) => keys::part(value)?,
            None => KeyPart::F64(scalars::float(value)?),
        },
        Type::Bool => {
            KeyPart::Bool(value.as_bool().with_context(|| format!("{value}: no boolean"))?)
        }
        Type::Text => {
            KeyPart::Text(value.as_str().with_context(|| format!("{value}: no text"))?.to_owned())
        }
        Type::Uuid => {
            let digits = value.as_str().or(value.get("uuid").and_then(Value::as_str));
            let digits = digits.with_context(|| format!("{value}: no UUID"))?;
            let bytes = keys::bytes(&digits.replace('-', ""))?;
            KeyPart::Uuid(Uuid(bytes.try_into().ok().context("a UUID has 32 digits")?))
        }
        Type::Bytes(count) => KeyPart::Bytes(scalars::bytes(value, *count)?),
        Type::Option(_) if value.is_null() => KeyPart::Null,
        Type::Option(of) => part(of, value)?,
        Type::Tuple(_) | Type::Struct(_) | Type::Enum(_) => {
            KeyPart::Tuple(parts(of, value, false)?)
        }
        Type::Json | Type::Own | Type::Cbor | Type::Parts => keys::part(value)?,
    })
}

/// The parts of a tuple key; the first parts suffice if it may be `open`.
fn parts(of: &Type, value: &Value, open: bool) -> anyhow::Result<Vec<KeyPart>> {
    if let Type::Enum(variants) = of {
        let (variant, values) = types::variant(variants, value)?;
        let mut all = vec![KeyPart::Integer(variant.index.into())];
        all.extend(zipped(&variant.of.parts().unwrap_or_default(), &values, false)?);
        return Ok(all);
    }
    let Some(of_parts) = of.parts() else { return Ok(vec![part(of, value)?]) };
    zipped(&of_parts, &of.split(value)?, open)
}

fn zipped(of: &[&Type], values: &[&Value], open: bool) -> anyhow::Result<Vec<KeyPart>> {
    let fits = values.len() == of.len() || open && values.len() < of.len();
    ensure!(fits, "{} parts, and the key has {}", values.len(), of.len());
    of.iter().zip(values).map(|(of, value)| part(of, value)).collect()
}

/// A part of a key as JSON, by its type; without the type if it does not match.
fn part_json(of: &Type, part: &KeyPart) -> Value {
    match (of, part) {
        (Type::Option(of), part) if *part != KeyPart::Null => part_json(of, part),
        (Type::Tuple(_) | Type::Struct(_) | Type::Enum(_), KeyPart::Tuple(parts)) => {
            parts_json(of, parts).unwrap_or_else(|| keys::part_told(part))
        }
        _ => keys::part_told(part),
    }
}

fn parts_json(of: &Type, parts: &[KeyPart]) -> Option<Value> {
    let all = |of: &[&Type], parts: &[KeyPart]| {
        let same = of.len() == parts.len();
        same.then(|| of.iter().zip(parts).map(|(of, part)| part_json(of, part)).collect())
    };
    if let Type::Enum(variants) = of {
        let (KeyPart::Integer(index), parts) = parts.split_first()? else { return None };
        let is_it = |one: &&Variant| i128::from(one.index) == *index;
        let variant = variants.iter().find(is_it)?;
        return Some(types::variant_json(variant, all(&variant.of.parts()?, parts)?));
    }
    match of.parts() {
        Some(of_parts) => Some(of.join(all(&of_parts, parts)?)),
        None => parts.first().filter(|_| parts.len() == 1).map(|part| part_json(of, part)),
    }
}

/// Whether a type has names that keys as text would not show.
fn has_names(of: &Type) -> bool {
    match of {
        Type::Struct(_) | Type::Enum(_) => true,
        Type::Option(of) => has_names(of),
        Type::Tuple(parts) => parts.iter().any(has_names),
        _ => false,
    }
}

impl Records {
    /// Finds a table of this name.
    pub(super) fn find(store: &Store, name: &str, how: &keys::How) -> anyhow::Result<Self> {
        let info = store.table_infos()?.into_iter().find(|info| info.name == name);
        let types = info.as_ref().and_then(|TableInfo { key, value, .. }| {
            Some((Type::parse(key.as_ref()?), Type::parse(value.as_ref()?)))
        });
        let said = match &info {
            Some(TableInfo { key: Some(key), value: Some(value), .. }) => {
                format!("{key} -> {value}")
            }
            _ => String::new(),
        };
        let (table, there, keys_are_json) = (Table::named(name), info.is_some(), how.typed);
        Ok(Self { table, there, types, said, keys_are_json })
    }

    /// Returns the bytes of a key; the first parts suffice for a bound.
    pub(super) fn key(&self, argument: &str, open: bool) -> anyhow::Result<Vec<u8>> {
        let json = || match self.keys_are_json {
            true => parsed(argument).map(Some),
            false => Ok(None),
        };
        let parts = match &self.types {
            // In a program's own format.
            Some((Type::Own, _)) if !self.keys_are_json => {
                let wrong = || format!("{argument}: keys have a program's own format: give 0x..");
                return keys::bytes(argument.strip_prefix("0x").with_context(wrong)?);
            }
            None | Some((Type::Parts, _)) => {
                keys::How { typed: self.keys_are_json }.read(argument)?.0
            }
            Some((of, _)) => {
                let wrong = || format!("{argument}: no key of the table, which has {}", self.said);
                let read = || {
                    let value = match json()? {
                        Some(value) => value,
                        None => plain(of, argument)?,
                    };
                    parts(of, &value, open)
                };
                read().with_context(wrong)?
            }
        };
        let mut bytes = Vec::new();
        AnyKey::encode(&&parts[..], &mut bytes);
        Ok(bytes)
    }

    /// Returns the bytes of a value in an argument or a file.
    pub(super) fn value(&self, given: &[u8], from_file: bool) -> anyhow::Result<Vec<u8>> {
        let Some((_, of)) = &self.types else { return Ok(given.to_vec()) };
        let read = || match of {
            Type::Bytes(None) => Ok(given.to_vec()),
            Type::Own if from_file => Ok(given.to_vec()),
            Type::Own => bail!("values have a program's own format: give the bytes with --file"),
            _ => {
                let text = std::str::from_utf8(given).context("no text")?;
                let text = match of {
                    Type::Text => text,
                    _ => text.trim(),
                };
                let (value, mut bytes) = (plain(of, text)?, Vec::new());
                types::encode(of, &value, &mut bytes)?;
                Ok(bytes)
            }
        };
        let shown = || given.get(..40).unwrap_or(given).escape_ascii();
        read()
            .with_context(|| format!("{}: no value of the table, which has {}", shown(), self.said))
    }

    /// Formats a key as JSON.
    pub(super) fn key_json(&self, bytes: &[u8]) -> Value {
        let Ok(AnyKey(parts)) = AnyKey::decode(bytes) else {
            return json!({"hex": keys::hex(bytes)});
        };
        let typed = self.types.as_ref().and_then(|(of, _)| parts_json(of, &parts));
        typed.unwrap_or_else(|| keys::told(&AnyKey(parts)))
    }

    /// Formats a key for display.
    pub(super) fn key_text(&self, bytes: &[u8]) -> String {
        match (&self.types, AnyKey::decode(bytes)) {
            (Some((of, _)), _) if has_names(of) => self.key_json(bytes).to_string(),
            (_, Ok(key)) => key.to_string(),
            (_, Err(_)) => format!("0x{}", keys::hex(bytes)),
        }
    }

    /// Formats a value for display: its bytes, if they are text or of no other type.
    pub(super) fn value_text(&self, bytes: &[u8]) -> Vec<u8> {
        match self.types.as_ref().map(|(_, of)| of) {
            None | Some(Type::Text | Type::Bytes(_) | Type::Own | Type::Json) => bytes.to_vec(),
            Some(of) => {
                let value = types::decode(of, bytes);
                match (&value, of.is_plain()) {
                    // A number that JSON cannot represent.
                    (Some(Value::Object(named)), true) => {
                        let text = named.values().next().and_then(Value::as_str);
                        text.unwrap_or_default().as_bytes().to_vec()
                    }
                    (Some(value), _) => value.to_string().into_bytes(),
                    (None, _) => bytes.to_vec(),
                }
            }
        }
    }

    /// Formats a record as JSON: `key`, and `value` or `hex`.
    pub(super) fn json(&self, key: &[u8], value: &[u8]) -> Value {
        let key = self.key_json(key);
        let typed = match self.types.as_ref().map(|(_, of)| of) {
            None | Some(Type::Bytes(_) | Type::Own) => None,
            Some(of) => types::decode(of, value),
        };
        match (typed, std::str::from_utf8(value)) {
            (Some(value), _) => json!({"key": key, "value": value}),
            (None, Ok(text)) => json!({"key": key, "value": text}),
            (None, Err(_)) => json!({"key": key, "hex": keys::hex(value)}),
        }
    }
}
