//! Keys: the store's tuple encoding of values of Python.
//!
//! A tuple of two parts or more is its parts, one behind the other, as a key of Rust of several
//! parts. A tuple of one part or none is a tuple inside of the key, so that it comes back as it
//! was. In a table with recorded types a tuple is what the type says.

use latchwork_store::{Key, Uuid};
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyString, PyTuple, PyType};

use crate::errors::{overflow, type_error, value_error};
use crate::types::Kind;

/// How deep tuples may lie in each other, as in the store.
const DEPTH: usize = 128;

static UUID: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The class `uuid.UUID`.
pub(crate) fn uuid_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    UUID.import(py, "uuid", "UUID")
}

/// The bytes of a UUID, if the object is one. The module is not imported for that.
pub(crate) fn uuid_of(object: &Bound<'_, PyAny>) -> PyResult<Option<[u8; 16]>> {
    if object.get_type().name()?.to_cow()? != "UUID"
        || !object.is_instance(uuid_class(object.py())?)?
    {
        return Ok(None);
    }
    let bytes = object.getattr("bytes")?.cast_into::<PyBytes>()?;
    let bytes = bytes.as_bytes().try_into();
    bytes.map(Some).map_err(|_| value_error("a UUID without 16 bytes"))
}

/// A UUID of these bytes.
pub(crate) fn new_uuid<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let named = pyo3::types::PyDict::new(py);
    named.set_item("bytes", PyBytes::new(py, bytes))?;
    uuid_class(py)?.call((), Some(&named))
}

/// The text of a string: one with surrogates has none.
pub(crate) fn text<'a>(string: &'a Bound<'_, PyString>) -> PyResult<std::borrow::Cow<'a, str>> {
    string.to_cow().map_err(|why| match why.is_instance_of::<PyUnicodeEncodeError>(string.py()) {
        true => value_error("a string with surrogates is no text: encode it to bytes"),
        false => why,
    })
}

/// Appends the bytes of a key.
#[inline]
pub(crate) fn encode(kind: &Kind, key: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    match kind {
        Kind::Parts => match key.cast::<PyTuple>() {
            Ok(parts) if parts.len() >= 2 => encode_parts(parts, 0, to),
            _ => encode_part(key, 0, to),
        },
        Kind::Tuple(kinds) => {
            let parts = key.cast::<PyTuple>().map_err(|_| wrong(kind, key))?;
            if parts.len() != kinds.len() {
                return Err(wrong(kind, key));
            }
            kinds.iter().zip(parts).try_for_each(|(kind, part)| encode_as(kind, &part, false, to))
        }
        kind => encode_as(kind, key, false, to),
    }
}

/// Appends the bytes with which keys begin that begin with these parts.
pub(crate) fn encode_prefix(
    kind: &Kind,
    parts: &Bound<'_, PyTuple>,
    to: &mut Vec<u8>,
) -> PyResult<()> {
    match kind {
        Kind::Parts => encode_parts(parts, 0, to),
        Kind::Tuple(kinds) if parts.len() <= kinds.len() => {
            let mut pairs = kinds.iter().zip(parts);
            pairs.try_for_each(|(kind, part)| encode_as(kind, &part, false, to))
        }
        _ => Err(type_error("a prefix is of keys that are tuples, and has no more parts")),
    }
}

fn encode_parts(parts: &Bound<'_, PyTuple>, depth: usize, to: &mut Vec<u8>) -> PyResult<()> {
    parts.iter().try_for_each(|part| encode_part(&part, depth, to))
}

fn encode_part(part: &Bound<'_, PyAny>, depth: usize, to: &mut Vec<u8>) -> PyResult<()> {
    let nested = depth > 0;
    if let Ok(string) = part.cast_exact::<PyString>() {
        <&str>::append(&&*text(string)?, nested, to);
    } else if let Ok(bytes) = part.cast_exact::<PyBytes>() {
        <&[u8]>::append(&bytes.as_bytes(), nested, to);
    } else if let Ok(number) = part.cast_exact::<PyInt>() {
        append_integer(number, nested, to)?;
    } else if let Ok(tuple) = part.cast_exact::<PyTuple>() {
        if depth >= DEPTH {
            return Err(value_error("a key with more than 128 tuples inside each other"));
        }
        to.push(5);
        encode_parts(tuple, depth + 1, to)?;
        to.push(0);
    } else if part.is_none() {
        <Option<bool> as Key>::append(&None, nested, to);
    } else if let Ok(is) = part.cast_exact::<PyBool>() {
        bool::append(&is.is_true(), nested, to);
    } else if let Ok(number) = part.cast_exact::<PyFloat>() {
        f64::append(&not_nan(number.value())?, nested, to);
    } else if let Some(uuid) = uuid_of(part)? {
        Uuid::append(&Uuid(uuid), nested, to);
    } else {
        return Err(type_error(format!(
            "a key is str, bytes, int, float, bool, None, UUID or a tuple of these, and not {}{}",
            part.get_type().name()?,
            base(part)
        )));
    }
    Ok(())
}

/// Names the class to convert an object of a subclass to. The object itself is refused, because it
/// would come back as an object of the base class.
pub(crate) fn base(object: &Bound<'_, PyAny>) -> String {
    let base = match () {
        () if object.is_instance_of::<PyBool>() => return String::new(),
        () if object.is_instance_of::<PyString>() => "str",
        () if object.is_instance_of::<PyInt>() => "int",
        () if object.is_instance_of::<PyFloat>() => "float",
        () if object.is_instance_of::<PyBytes>() => "bytes",
        () if object.is_instance_of::<PyByteArray>() => "bytes",
        () if object.is_instance_of::<PyTuple>() => "tuple",
        () => return String::new(),
    };
    match object.get_type().name().is_ok_and(|name| name == base) {
        true => String::new(),
        false => format!(": convert it with {base}(..)"),
    }
}

/// A float, or an int that a float holds as it is.
pub(crate) fn float(kind: &Kind, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Ok(number.value());
    }
    let int = object.cast_exact::<PyInt>().map_err(|_| wrong(kind, object))?;
    let float: f64 = int.extract()?;
    match int.as_any().eq(float)? {
        true => Ok(float),
        false => Err(value_error("an int that no float holds without rounding")),
    }
}

fn not_nan(number: f64) -> PyResult<f64> {
    match number.is_nan() {
        true => Err(value_error("NaN is no key: it is not equal to itself")),
        false => Ok(number),
    }
}

fn append_integer(number: &Bound<'_, PyInt>, nested: bool, to: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(number) = number.extract::<i64>() {
        i64::append(&number, nested, to);
    } else if let Ok(number) = number.extract::<i128>() {
        i128::append(&number, nested, to);
    } else if let Ok(number) = number.extract::<u128>() {
        u128::append(&number, nested, to);
    } else {
        return Err(overflow("an integer of more than 128 bits is no key"));
    }
    Ok(())
}

fn wrong(kind: &Kind, key: &Bound<'_, PyAny>) -> PyErr {
    let of = key.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let base = base(key);
    type_error(format!("a key of type {of} in a table whose keys are of type {kind}{base}"))
}

/// Whether a number fits into an integer of so many bits.
pub(crate) fn integer(object: &Bound<'_, PyAny>, signed: bool, bits: u32) -> PyResult<i128> {
    let name = || format!("{}{bits}", if signed { "i" } else { "u" });
    let number = object.cast_exact::<PyInt>().map_err(|_| {
        let of = object.get_type().name().map(|of| of.to_string()).unwrap_or_default();
        type_error(format!("an object of type {of} is no int, for {}{}", name(), base(object)))
    })?;
    let too_large = || overflow(format!("an int that does not fit into {}", name()));
    let unused = 128 - bits;
    match signed {
        true => {
            let number: i128 = number.extract().map_err(|_| too_large())?;
            (number << unused >> unused == number).then_some(number).ok_or_else(too_large)
        }
        false => {
            let number: u128 = number.extract().map_err(|_| too_large())?;
            let fits = number << unused >> unused == number;
            fits.then_some(number as i128).ok_or_else(too_large)
        }
    }
}

/// Appends a part of a type that the catalog has.
fn encode_as(kind: &Kind, part: &Bound<'_, PyAny>, nested: bool, to: &mut Vec<u8>) -> PyResult<()> {
    match kind {
        Kind::Text => {
            let string = part.cast_exact::<PyString>().map_err(|_| wrong(kind, part))?;
            <&str>::append(&&*text(string)?, nested, to);
        }
        Kind::Bytes(count) => {
            let bytes = part.cast_exact::<PyBytes>().map_err(|_| wrong(kind, part))?.as_bytes();
            match count {
                None => <&[u8]>::append(&bytes, nested, to),
                Some(count) if *count == bytes.len() => <&[u8]>::append(&bytes, nested, to),
                Some(_) => return Err(wrong(kind, part)),
            }
        }
        Kind::Integer { signed: false, bits: 128 } => {
            u128::append(&(integer(part, false, 128)? as u128), nested, to);
        }
        Kind::Integer { signed, bits } => i128::append(&integer(part, *signed, *bits)?, nested, to),
        Kind::Bool => {
            let is = part.cast::<PyBool>().map_err(|_| wrong(kind, part))?.is_true();
            bool::append(&is, nested, to);
        }
        Kind::F64 => f64::append(&not_nan(float(kind, part)?)?, nested, to),
        Kind::F32 => f32::append(&(not_nan(float(kind, part)?)? as f32), nested, to),
        Kind::Uuid => {
            let uuid = uuid_of(part)?.ok_or_else(|| wrong(kind, part))?;
            Uuid::append(&Uuid(uuid), nested, to);
        }
        Kind::Option(_) if part.is_none() => <Option<bool> as Key>::append(&None, nested, to),
        Kind::Option(of) => encode_as(of, part, nested, to)?,
        Kind::Tuple(kinds) => {
            let parts = part.cast::<PyTuple>().map_err(|_| wrong(kind, part))?;
            if parts.len() != kinds.len() {
                return Err(wrong(kind, part));
            }
            to.push(5);
            let mut pairs = kinds.iter().zip(parts);
            pairs.try_for_each(|(kind, part)| encode_as(kind, &part, true, to))?;
            to.push(0);
        }
        Kind::Parts | Kind::Cbor | Kind::Json | Kind::Own => return Err(wrong(kind, part)),
    }
    Ok(())
}

/// A key from its bytes, which say its types.
#[inline]
pub(crate) fn decode<'py>(
    py: Python<'py>,
    kind: &Kind,
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let mut from = bytes;
    let first = match from {
        [] => return Ok(PyTuple::empty(py).into_any()),
        _ => take(py, &mut from, 0)?,
    };
    let is_tuple = matches!(kind, Kind::Tuple(_));
    if from.is_empty() && !is_tuple {
        return Ok(first);
    }
    let mut parts = vec![first];
    while !from.is_empty() {
        parts.push(take(py, &mut from, 0)?);
    }
    Ok(PyTuple::new(py, parts)?.into_any())
}

fn bad(py: Python<'_>) -> PyErr {
    crate::errors::table_type(py, "", "the bytes of a key are no tuple encoding".to_owned())
}

/// Whether a nested tuple ends here: a zero that is no `None`.
fn is_end(from: &[u8]) -> bool {
    from.first() == Some(&0) && from.get(1) != Some(&0xff)
}

fn take<'py>(py: Python<'py>, from: &mut &[u8], depth: usize) -> PyResult<Bound<'py, PyAny>> {
    let nested = depth > 0;
    let bad = |_| bad(py);
    let code = *from.first().ok_or_else(|| bad(latchwork_store::KeyError::Short))?;
    Ok(match code {
        0x02 => match plain(from) {
            Some(bytes) => PyString::from_bytes(py, bytes)?.into_any(),
            None => PyString::new(py, &String::take(from, nested).map_err(bad)?).into_any(),
        },
        0x01 => match plain(from) {
            Some(bytes) => PyBytes::new(py, bytes).into_any(),
            None => {
                PyBytes::new(py, &<Vec<u8> as Key>::take(from, nested).map_err(bad)?).into_any()
            }
        },
        0x0c..=0x1c => {
            let mut rest = *from;
            match i64::take(&mut rest, nested) {
                Ok(number) => {
                    *from = rest;
                    number.into_pyobject(py)?.into_any()
                }
                Err(_) => i128::take(from, nested).map_err(bad)?.into_pyobject(py)?.into_any(),
            }
        }
        0x0b => i128::take(from, nested).map_err(bad)?.into_pyobject(py)?.into_any(),
        0x1d => {
            let mut rest = *from;
            match i128::take(&mut rest, nested) {
                Ok(number) => {
                    *from = rest;
                    number.into_pyobject(py)?.into_any()
                }
                Err(_) => u128::take(from, nested).map_err(bad)?.into_pyobject(py)?.into_any(),
            }
        }
        0x05 if depth < DEPTH => {
            *from = &from[1..];
            let mut parts = Vec::new();
            while !is_end(from) {
                parts.push(take(py, from, depth + 1)?);
            }
            *from = &from[1..];
            PyTuple::new(py, parts)?.into_any()
        }
        0x00 => {
            <Option<bool> as Key>::take(from, nested).map_err(bad)?;
            py.None().into_bound(py)
        }
        0x20 => PyFloat::new(py, f32::take(from, nested).map_err(bad)?.into()).into_any(),
        0x21 => PyFloat::new(py, f64::take(from, nested).map_err(bad)?).into_any(),
        0x26 | 0x27 => {
            PyBool::new(py, bool::take(from, nested).map_err(bad)?).to_owned().into_any()
        }
        0x30 => new_uuid(py, &Uuid::take(from, nested).map_err(bad)?.0)?,
        found => return Err(bad(latchwork_store::KeyError::Type { found })),
    })
}

/// The bytes of a text or of bytes without a zero, which are not copied; none if there is one.
#[inline]
fn plain<'f>(from: &mut &'f [u8]) -> Option<&'f [u8]> {
    let of = &from[1..];
    let end = of.iter().position(|byte| *byte == 0)?;
    if of.get(end + 1) == Some(&0xff) {
        return None;
    }
    *from = &of[end + 1..];
    Some(&of[..end])
}
