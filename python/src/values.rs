//! Values: bytes of the type that the catalog has, from and to objects of Python.

use std::borrow::Cow;

use latchwork_store::{Error, VALUE_MAX};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

use crate::cbor::{self, Number};
use crate::errors::{overflow, raise, table_type, type_error, value_error};
use crate::keys::{self, new_uuid, text, uuid_of};
use crate::types::Kind;

/// How the values of a table are written and read.
pub(crate) enum Codec {
    Kind(Kind),
    /// Functions of the program, to bytes and from bytes.
    Custom {
        dumps: Py<PyAny>,
        loads: Py<PyAny>,
    },
}

/// Refuses a value that no store takes before it is copied.
pub(crate) fn fits(py: Python<'_>, length: usize) -> PyResult<()> {
    match length > VALUE_MAX {
        true => Err(raise(py, Error::ValueTooLong { length })),
        false => Ok(()),
    }
}

fn wrong(kind: &Kind, value: &Bound<'_, PyAny>) -> PyErr {
    let of = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let base = keys::base(value);
    type_error(format!("a value of type {of} in a table whose values are of type {kind}{base}"))
}

impl Codec {
    /// The bytes of a value.
    #[inline]
    pub(crate) fn encode<'v>(&self, value: &'v Bound<'_, PyAny>) -> PyResult<Cow<'v, [u8]>> {
        match self {
            Self::Kind(Kind::Bytes(None)) => match value.cast_exact::<PyBytes>() {
                Ok(bytes) => {
                    fits(value.py(), bytes.as_bytes().len())?;
                    Ok(Cow::Borrowed(bytes.as_bytes()))
                }
                Err(_) => Err(wrong(&Kind::Bytes(None), value)),
            },
            Self::Kind(kind) => {
                let mut to = Vec::with_capacity(32);
                encode(kind, value, &mut to)?;
                Ok(Cow::Owned(to))
            }
            Self::Custom { dumps, .. } => {
                let made = dumps.bind(value.py()).call1((value,))?;
                if let Ok(bytes) = made.cast::<PyBytes>() {
                    return Ok(Cow::Owned(bytes.as_bytes().to_vec()));
                }
                let made = made.cast::<PyString>();
                let made = made.map_err(|_| type_error("a codec's dumps returns bytes or str"))?;
                Ok(Cow::Owned(text(made)?.into_owned().into_bytes()))
            }
        }
    }

    /// A value from its bytes.
    #[inline]
    pub(crate) fn decode<'py>(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Kind(Kind::Cbor) => cbor::decode(py, bytes),
            Self::Kind(Kind::Bytes(None)) => Ok(PyBytes::new(py, bytes).into_any()),
            Self::Kind(kind) => decode(py, kind, bytes),
            Self::Custom { loads, .. } => loads.bind(py).call1((PyBytes::new(py, bytes),)),
        }
    }

    /// Whether reading a value runs code of the program.
    pub(crate) fn is_custom(&self) -> bool {
        matches!(self, Self::Custom { .. })
    }

    /// Converts the amount of `add`.
    pub(crate) fn amount(&self, amount: &Bound<'_, PyAny>) -> PyResult<Number> {
        let numbers =
            |kind: &Kind| matches!(kind, Kind::Cbor | Kind::Integer { .. } | Kind::F32 | Kind::F64);
        match self {
            Self::Kind(kind) if numbers(kind) => {}
            Self::Kind(kind) => {
                let text = format!("`add` is for numbers, and the values of the table are {kind}");
                return Err(type_error(text));
            }
            Self::Custom { .. } => {
                return Err(type_error("`add` is for numbers, and not for values of a codec"));
            }
        }
        if let Ok(number) = amount.cast_exact::<PyInt>() {
            let number = number.extract::<i128>();
            let number =
                number.map_err(|_| overflow("the amount of `add` has more than 128 bits"))?;
            return Ok(Number::Integer(number));
        }
        match amount.cast_exact::<PyFloat>() {
            Ok(number) => Ok(Number::Float(number.value())),
            Err(_) => Err(type_error(format!(
                "the amount of `add` is an int or a float, and not {}{}",
                amount.get_type().name()?,
                keys::base(amount)
            ))),
        }
    }

    /// The sum of a value and an amount, in the bytes of the type. It runs without the interpreter.
    pub(crate) fn add(
        &self,
        old: Option<&[u8]>,
        amount: Number,
        to: &mut Vec<u8>,
    ) -> Result<Number, Refusal> {
        let Self::Kind(kind) = self else { return Err(Refusal::Type("no number".to_owned())) };
        let zero = match amount {
            Number::Integer(_) => Number::Integer(0),
            Number::Float(_) => Number::Float(0.0),
        };
        let old = match old {
            Some(bytes) => number_of(kind, bytes).ok_or_else(|| {
                let is = if *kind == Kind::Cbor { cbor::name_of(bytes) } else { "no number" };
                let text = format!("the value is {is}, to which `add` cannot add: use `change`");
                Refusal::Type(text)
            })?,
            None => zero,
        };
        let float = |number| match number {
            Number::Integer(number) => number as f64,
            Number::Float(number) => number,
        };
        let sum = match (old, amount) {
            (Number::Integer(old), Number::Integer(more)) => {
                let sum = old.checked_add(more);
                let sum = sum.ok_or(Refusal::Overflow("the sum has more than 128 bits"))?;
                Number::Integer(sum)
            }
            (old, more) => Number::Float(float(old) + float(more)),
        };
        to.clear();
        match (kind, sum) {
            (Kind::Cbor, Number::Integer(sum)) => cbor::put_integer(sum, to),
            (Kind::Cbor, Number::Float(sum)) => cbor::put_float(sum, to),
            (Kind::F64, sum) => to.extend_from_slice(&float(sum).to_le_bytes()),
            (Kind::F32, sum) => to.extend_from_slice(&(float(sum) as f32).to_le_bytes()),
            (Kind::Integer { signed, bits }, Number::Integer(sum)) => {
                let unused = 128 - bits;
                let again = match signed {
                    true => sum << unused >> unused,
                    false => ((sum as u128) << unused >> unused) as i128,
                };
                if again != sum || !signed && sum < 0 {
                    let text = "the sum does not fit into the type of the values";
                    return Err(Refusal::Overflow(text));
                }
                to.extend_from_slice(&sum.to_le_bytes()[..*bits as usize / 8]);
            }
            _ => {
                let text = format!("a float cannot be added to a value of type {kind}");
                return Err(Refusal::Type(text));
            }
        }
        Ok(sum)
    }
}

/// Why a call cannot be done with what the table has. It is found without the interpreter.
pub(crate) enum Refusal {
    Type(String),
    Overflow(&'static str),
}

impl Refusal {
    pub(crate) fn raise(self) -> PyErr {
        match self {
            Self::Type(text) => type_error(text),
            Self::Overflow(text) => overflow(text),
        }
    }
}

/// An object of Python for a number.
pub(crate) fn number<'py>(py: Python<'py>, number: Number) -> PyResult<Bound<'py, PyAny>> {
    Ok(match number {
        Number::Integer(number) => match i64::try_from(number) {
            Ok(small) => small.into_pyobject(py)?.into_any(),
            Err(_) => number.into_pyobject(py)?.into_any(),
        },
        Number::Float(number) => PyFloat::new(py, number).into_any(),
    })
}

fn number_of(kind: &Kind, bytes: &[u8]) -> Option<Number> {
    match kind {
        Kind::Cbor => cbor::number_of(bytes),
        Kind::F64 => Some(Number::Float(f64::from_le_bytes(bytes.try_into().ok()?))),
        Kind::F32 => Some(Number::Float(f32::from_le_bytes(bytes.try_into().ok()?).into())),
        Kind::Integer { signed, bits } => integer_of(bytes, *signed, *bits).map(Number::Integer),
        _ => None,
    }
}

/// An integer from its bytes; of a `u128` its bits.
fn integer_of(bytes: &[u8], signed: bool, bits: u32) -> Option<i128> {
    if bytes.len() != bits as usize / 8 {
        return None;
    }
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    let (number, unused) = (i128::from_le_bytes(all), 128 - bits);
    Some(if signed { number << unused >> unused } else { number })
}

fn encode(kind: &Kind, value: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    match kind {
        Kind::Cbor => cbor::encode(value, to)?,
        Kind::Bytes(count) => {
            let bytes = value.cast_exact::<PyBytes>().map_err(|_| wrong(kind, value))?.as_bytes();
            if count.is_some_and(|count| count != bytes.len()) {
                return Err(wrong(kind, value));
            }
            to.extend_from_slice(bytes);
        }
        Kind::Text => {
            let string = value.cast_exact::<PyString>().map_err(|_| wrong(kind, value))?;
            to.extend_from_slice(text(string)?.as_bytes());
        }
        Kind::Integer { signed, bits } => {
            let number = keys::integer(value, *signed, *bits)?;
            to.extend_from_slice(&number.to_le_bytes()[..*bits as usize / 8]);
        }
        Kind::F64 => to.extend_from_slice(&keys::float(kind, value)?.to_le_bytes()),
        Kind::F32 => to.extend_from_slice(&(keys::float(kind, value)? as f32).to_le_bytes()),
        Kind::Bool => {
            to.push(value.cast::<PyBool>().map_err(|_| wrong(kind, value))?.is_true().into());
        }
        Kind::Uuid => {
            to.extend_from_slice(&uuid_of(value)?.ok_or_else(|| wrong(kind, value))?);
        }
        Kind::Option(_) if value.is_none() => to.push(0),
        Kind::Option(of) => {
            to.push(1);
            encode(of, value, to)?;
        }
        Kind::Tuple(kinds) if kinds.is_empty() && value.is_none() => {}
        Kind::Tuple(kinds) => {
            let parts = value.cast::<PyTuple>().map_err(|_| wrong(kind, value))?;
            if parts.len() != kinds.len() {
                return Err(wrong(kind, value));
            }
            for (place, (kind, part)) in kinds.iter().zip(parts).enumerate() {
                let start = to.len();
                let counted = place + 1 < kinds.len() && kind.width().is_none();
                if counted {
                    to.extend_from_slice(&[0; 4]);
                }
                encode(kind, &part, to)?;
                if counted {
                    let length = u32::try_from(to.len() - start - 4);
                    let length = length.map_err(|_| value_error("a part of more than 4 GiB"))?;
                    to[start..start + 4].copy_from_slice(&length.to_le_bytes());
                }
            }
        }
        Kind::Parts | Kind::Json | Kind::Own => return Err(wrong(kind, value)),
    }
    Ok(())
}

fn bad(py: Python<'_>, kind: &Kind) -> PyErr {
    table_type(py, "", format!("the bytes of a value are none of type {kind}"))
}

fn decode<'py>(py: Python<'py>, kind: &Kind, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let bad = || bad(py, kind);
    Ok(match kind {
        Kind::Cbor => cbor::decode(py, bytes)?,
        Kind::Bytes(_) | Kind::Own | Kind::Parts | Kind::Json => PyBytes::new(py, bytes).into_any(),
        Kind::Text => PyString::from_bytes(py, bytes)?.into_any(),
        Kind::Integer { signed: false, bits: 128 } => {
            let number = integer_of(bytes, false, 128).ok_or_else(bad)?;
            (number as u128).into_pyobject(py)?.into_any()
        }
        Kind::Integer { .. } | Kind::F32 | Kind::F64 => {
            number(py, number_of(kind, bytes).ok_or_else(bad)?)?
        }
        Kind::Bool => match bytes {
            [is @ (0 | 1)] => PyBool::new(py, *is == 1).to_owned().into_any(),
            _ => return Err(bad()),
        },
        Kind::Uuid if bytes.len() == 16 => new_uuid(py, bytes)?,
        Kind::Uuid => return Err(bad()),
        Kind::Option(of) => match bytes {
            [0] => py.None().into_bound(py),
            [1, rest @ ..] => decode(py, of, rest)?,
            _ => return Err(bad()),
        },
        Kind::Tuple(kinds) if kinds.is_empty() && bytes.is_empty() => py.None().into_bound(py),
        Kind::Tuple(kinds) => {
            let (mut from, mut parts) = (bytes, Vec::new());
            for (place, kind) in kinds.iter().enumerate() {
                let length = match kind.width() {
                    _ if place + 1 == kinds.len() => from.len(),
                    Some(width) => width,
                    None => {
                        let (length, rest) = from.split_first_chunk::<4>().ok_or_else(bad)?;
                        from = rest;
                        u32::from_le_bytes(*length) as usize
                    }
                };
                let (part, rest) = from.split_at_checked(length).ok_or_else(bad)?;
                from = rest;
                parts.push(decode(py, kind, part)?);
            }
            match from.is_empty() {
                true => PyTuple::new(py, parts)?.into_any(),
                false => return Err(bad()),
            }
        }
    })
}
