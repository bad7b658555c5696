//! Values that say their type: CBOR (RFC 8949), from and to objects of Python.
//!
//! | Python | CBOR |
//! |---|---|
//! | `None`, `bool`, `int` of 64 bits, `float`, `bytes`, `str`, `list`, `dict` | as it has them |
//! | a larger `int` | tags 2 and 3 (bignum) |
//! | `datetime` with an offset | tag 0, the text of RFC 3339 |
//! | `datetime` without | tag 19543, the same text without an offset; 19546 with `fold=1` |
//! | `date` | tag 1004 (RFC 8943) |
//! | `UUID` | tag 37 |
//! | `tuple` | tag 19544, an array |
//! | `set`, `frozenset` | tag 258, an array; tag 19545 |
//!
//! Objects of subclasses, `bytearray` and time zones with rules are refused, because they would
//! come back as other types.
//!
//! Nothing that is decoded runs code of a class, so values of another program are safe to read.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple, PyType,
};

use crate::errors::{type_error, value_error};
use crate::keys::{base, new_uuid, text, uuid_of};
use crate::values::fits;

const DEPTH: usize = 128;
const RFC3339: u64 = 0;
const BIG: u64 = 2;
const BIG_NEGATIVE: u64 = 3;
const UUID: u64 = 37;
const SET: u64 = 258;
const DATE: u64 = 1004;
const LOCAL: u64 = 19543;
const TUPLE: u64 = 19544;
const FROZEN: u64 = 19545;
const FOLDED: u64 = 19546;

static DATETIME: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static TIMEZONE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static DATE_CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn head(major: u8, number: u64, to: &mut Vec<u8>) {
    let major = major << 5;
    match number {
        0..24 => to.push(major | number as u8),
        24..0x100 => to.extend_from_slice(&[major | 24, number as u8]),
        0x100..0x1_0000 => {
            to.push(major | 25);
            to.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            to.push(major | 26);
            to.extend_from_slice(&(number as u32).to_be_bytes());
        }
        _ => {
            to.push(major | 27);
            to.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Appends an integer.
pub(crate) fn put_integer(number: i128, to: &mut Vec<u8>) {
    let negative = number < 0;
    let magnitude = if negative { !number as u128 } else { number as u128 };
    match u64::try_from(magnitude) {
        Ok(small) => head(u8::from(negative), small, to),
        Err(_) => {
            let bytes = magnitude.to_be_bytes();
            let from = magnitude.leading_zeros() as usize / 8;
            put_big(negative, &bytes[from..], to);
        }
    }
}

fn put_big(negative: bool, magnitude: &[u8], to: &mut Vec<u8>) {
    head(6, if negative { BIG_NEGATIVE } else { BIG }, to);
    head(2, magnitude.len() as u64, to);
    to.extend_from_slice(magnitude);
}

/// Appends a float.
pub(crate) fn put_float(number: f64, to: &mut Vec<u8>) {
    to.push(0xfb);
    to.extend_from_slice(&number.to_be_bytes());
}

/// Appends an object.
#[inline]
pub(crate) fn encode(object: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    encode_at(object, 0, to)
}

fn encode_at(object: &Bound<'_, PyAny>, depth: usize, to: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        fits(object.py(), bytes.as_bytes().len().saturating_add(to.len()))?;
        head(2, bytes.as_bytes().len() as u64, to);
        to.extend_from_slice(bytes.as_bytes());
    } else if let Ok(string) = object.cast_exact::<PyString>() {
        let text = text(string)?;
        fits(object.py(), text.len().saturating_add(to.len()))?;
        head(3, text.len() as u64, to);
        to.extend_from_slice(text.as_bytes());
    } else if let Ok(number) = object.cast_exact::<PyInt>() {
        put_int(number, to)?;
    } else if object.is_none() {
        to.push(0xf6);
    } else if let Ok(is) = object.cast_exact::<PyBool>() {
        to.push(if is.is_true() { 0xf5 } else { 0xf4 });
    } else if let Ok(number) = object.cast_exact::<PyFloat>() {
        put_float(number.value(), to);
    } else {
        encode_other(object, depth, to)?;
    }
    Ok(())
}

fn put_int(number: &Bound<'_, PyInt>, to: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(small) = number.extract::<i64>() {
        put_integer(small.into(), to);
        return Ok(());
    }
    let py = number.py();
    let negative = number.lt(0)?;
    let magnitude = if negative {
        number.call_method0(intern!(py, "__invert__"))?
    } else {
        number.clone().into_any()
    };
    let bits: usize = magnitude.call_method0(intern!(py, "bit_length"))?.extract()?;
    let bytes = magnitude.call_method1(intern!(py, "to_bytes"), (bits.div_ceil(8), "big"))?;
    let bytes = bytes.cast_into::<PyBytes>()?;
    match bytes.as_bytes().len() {
        0..=8 => {
            let mut all = [0; 8];
            all[8 - bytes.as_bytes().len()..].copy_from_slice(bytes.as_bytes());
            head(u8::from(negative), u64::from_be_bytes(all), to);
        }
        _ => put_big(negative, bytes.as_bytes(), to),
    }
    Ok(())
}

fn encode_all<'py>(
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    depth: usize,
    to: &mut Vec<u8>,
) -> PyResult<()> {
    items.into_iter().try_for_each(|item| encode_at(&item, depth + 1, to))
}

#[inline(never)]
fn encode_other(object: &Bound<'_, PyAny>, depth: usize, to: &mut Vec<u8>) -> PyResult<()> {
    if depth >= DEPTH {
        return Err(value_error("a value with more than 128 lists or dicts inside each other"));
    }
    if let Ok(list) = object.cast_exact::<PyList>() {
        // A copy: encoding runs no code of the program, but another thread may change the list.
        let items = list.to_tuple();
        head(4, items.len() as u64, to);
        encode_all(items.iter(), depth, to)
    } else if let Ok(dict) = object.cast_exact::<PyDict>() {
        let items = dict.copy()?;
        head(5, items.len() as u64, to);
        items.iter().try_for_each(|(key, value)| {
            encode_at(&key, depth + 1, to)?;
            encode_at(&value, depth + 1, to)
        })
    } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        head(6, TUPLE, to);
        head(4, tuple.len() as u64, to);
        encode_all(tuple.iter(), depth, to)
    } else if let Ok(set) = object.cast_exact::<PySet>() {
        let items: Vec<_> = set.iter().collect();
        head(6, SET, to);
        head(4, items.len() as u64, to);
        encode_all(items.into_iter(), depth, to)
    } else if let Ok(set) = object.cast_exact::<PyFrozenSet>() {
        head(6, FROZEN, to);
        head(4, set.len() as u64, to);
        encode_all(set.iter(), depth, to)
    } else {
        encode_class(object, to)
    }
}

fn put_tagged_text(tag: u64, object: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    let said = object.call_method0(intern!(object.py(), "isoformat"))?.cast_into::<PyString>()?;
    let said = text(&said)?;
    head(6, tag, to);
    head(3, said.len() as u64, to);
    to.extend_from_slice(said.as_bytes());
    Ok(())
}

fn encode_class(object: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    let py = object.py();
    let of = object.get_type();
    let name = of.name()?;
    match &*name.to_cow()? {
        "datetime" if of.is(DATETIME.import(py, "datetime", "datetime")?) => {
            let offset = object.call_method0(intern!(py, "utcoffset"))?;
            let zone = object.getattr(intern!(py, "tzinfo"))?;
            if !zone.is_none() && !zone.get_type().is(TIMEZONE.import(py, "datetime", "timezone")?)
            {
                return Err(type_error(format!(
                    "a datetime with the time zone {zone} of type {} cannot be stored, because only \
                     the offset would come back: convert it with value.astimezone(timezone.utc) and \
                     store the name of the zone as a value of its own",
                    zone.get_type().name()?
                )));
            }
            let tag = match offset.is_none() {
                false => RFC3339,
                true if object.getattr(intern!(py, "fold"))?.is_truthy()? => FOLDED,
                true => LOCAL,
            };
            put_tagged_text(tag, object, to)
        }
        "date" if of.is(DATE_CLASS.import(py, "datetime", "date")?) => {
            put_tagged_text(DATE, object, to)
        }
        _ => match uuid_of(object)? {
            Some(uuid) => {
                head(6, UUID, to);
                head(2, 16, to);
                to.extend_from_slice(&uuid);
                Ok(())
            }
            None => Err(type_error(format!(
                "a value of type {name} cannot be stored: values are None, bool, int, float, str, \
                 bytes, datetime, date, UUID, and lists, tuples, sets and dicts of these; for others \
                 name the table with a codec{}",
                base(object)
            ))),
        },
    }
}

fn bad() -> PyErr {
    value_error("the bytes of a value are no CBOR that this module writes")
}

/// An object from its bytes.
#[inline]
pub(crate) fn decode<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut from = bytes;
    let object = take(py, &mut from, 0)?;
    if from.is_empty() { Ok(object) } else { Err(bad()) }
}

fn split<'f>(from: &mut &'f [u8], count: usize) -> PyResult<&'f [u8]> {
    let (taken, rest) = from.split_at_checked(count).ok_or_else(bad)?;
    *from = rest;
    Ok(taken)
}

fn take_head(from: &mut &[u8]) -> PyResult<(u8, u8, u64)> {
    let first = split(from, 1)?[0];
    let (major, short) = (first >> 5, first & 31);
    let wide = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
    let number = match short {
        0..24 => u64::from(short),
        24..=27 => wide(split(from, 1 << (short - 24))?),
        _ => return Err(bad()),
    };
    Ok((major, short, number))
}

fn take<'py>(py: Python<'py>, from: &mut &[u8], depth: usize) -> PyResult<Bound<'py, PyAny>> {
    let (major, short, number) = take_head(from)?;
    let count = usize::try_from(number).unwrap_or(usize::MAX);
    Ok(match major {
        0 => number.into_pyobject(py)?.into_any(),
        1 => (-1 - i128::from(number)).into_pyobject(py)?.into_any(),
        2 => PyBytes::new(py, split(from, count)?).into_any(),
        3 => PyString::from_bytes(py, split(from, count)?)?.into_any(),
        7 => match short {
            20 => PyBool::new(py, false).to_owned().into_any(),
            21 => PyBool::new(py, true).to_owned().into_any(),
            22 => py.None().into_bound(py),
            26 => PyFloat::new(py, f32::from_bits(number as u32).into()).into_any(),
            27 => PyFloat::new(py, f64::from_bits(number)).into_any(),
            _ => return Err(bad()),
        },
        _ if depth >= DEPTH => return Err(bad()),
        4 => PyList::new(py, take_all(py, from, count, depth)?)?.into_any(),
        5 => {
            let dict = PyDict::new(py);
            for _ in 0..count {
                let key = take(py, from, depth + 1)?;
                dict.set_item(key, take(py, from, depth + 1)?)?;
            }
            dict.into_any()
        }
        _ => take_tagged(py, number, from, depth)?,
    })
}

fn take_all<'py>(
    py: Python<'py>,
    from: &mut &[u8],
    count: usize,
    depth: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    // Each item takes at least one byte, so a larger count is not believed.
    let mut all = Vec::with_capacity(count.min(from.len()));
    for _ in 0..count {
        all.push(take(py, from, depth + 1)?);
    }
    Ok(all)
}

fn take_tagged<'py>(
    py: Python<'py>,
    tag: u64,
    from: &mut &[u8],
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let (major, _, number) = take_head(from)?;
    let count = usize::try_from(number).unwrap_or(usize::MAX);
    Ok(match (tag, major) {
        (BIG | BIG_NEGATIVE, 2) => {
            let bytes = PyBytes::new(py, split(from, count)?);
            let int = py.get_type::<PyInt>();
            let number = int.call_method1(intern!(py, "from_bytes"), (bytes, "big"))?;
            if tag == BIG { number } else { number.call_method0(intern!(py, "__invert__"))? }
        }
        (RFC3339 | LOCAL, 3) => {
            // Python before 3.11 does not read the letter that RFC 3339 has for no offset.
            let said = PyString::from_bytes(py, split(from, count)?)?;
            let said = said.call_method1(intern!(py, "replace"), ("Z", "+00:00"))?;
            let class = DATETIME.import(py, "datetime", "datetime")?;
            class.call_method1(intern!(py, "fromisoformat"), (said,))?
        }
        (FOLDED, 3) => {
            let said = PyString::from_bytes(py, split(from, count)?)?;
            let class = DATETIME.import(py, "datetime", "datetime")?;
            let plain = class.call_method1(intern!(py, "fromisoformat"), (said,))?;
            let named = PyDict::new(py);
            named.set_item("fold", 1)?;
            plain.call_method(intern!(py, "replace"), (), Some(&named))?
        }
        (DATE, 3) => {
            let said = PyString::from_bytes(py, split(from, count)?)?;
            let class = DATE_CLASS.import(py, "datetime", "date")?;
            class.call_method1(intern!(py, "fromisoformat"), (said,))?
        }
        (UUID, 2) if count == 16 => new_uuid(py, split(from, count)?)?,
        (TUPLE, 4) => PyTuple::new(py, take_all(py, from, count, depth)?)?.into_any(),
        (SET, 4) => PySet::new(py, take_all(py, from, count, depth)?)?.into_any(),
        (FROZEN, 4) => PyFrozenSet::new(py, take_all(py, from, count, depth)?)?.into_any(),
        _ => return Err(bad()),
    })
}

/// A number as it lies in a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Integer(i128),
    Float(f64),
}

/// Names the type of a value that `number_of` refuses, for an error.
pub(crate) fn name_of(bytes: &[u8]) -> &'static str {
    match bytes.first() {
        Some(0xf6) => "None",
        Some(0xf4 | 0xf5) => "a bool",
        Some(0xc2 | 0xc3) => "an int of more than 128 bits",
        Some(byte) => match byte >> 5 {
            2 => "bytes",
            3 => "a str",
            4 => "a list",
            5 => "a dict",
            _ => "no number",
        },
        None => "no number",
    }
}

/// A number from the bytes of a value; none if that is no number of 128 bits.
pub(crate) fn number_of(bytes: &[u8]) -> Option<Number> {
    let mut from = bytes;
    let (major, short, number) = take_head(&mut from).ok()?;
    let found = match (major, short) {
        (0, _) => Number::Integer(number.into()),
        (1, _) => Number::Integer(-1 - i128::from(number)),
        (7, 26) => Number::Float(f32::from_bits(number as u32).into()),
        (7, 27) => Number::Float(f64::from_bits(number)),
        (6, _) if number == BIG || number == BIG_NEGATIVE => {
            let (major, _, count) = take_head(&mut from).ok()?;
            let digits = from.get(..usize::try_from(count).ok()?)?;
            if major != 2 || digits.len() > 16 {
                return None;
            }
            from = &from[digits.len()..];
            let wide = digits.iter().fold(0u128, |all, byte| all << 8 | u128::from(*byte));
            let wide = i128::try_from(wide).ok()?;
            Number::Integer(if number == BIG { wide } else { !wide })
        }
        _ => return None,
    };
    from.is_empty().then_some(found)
}
