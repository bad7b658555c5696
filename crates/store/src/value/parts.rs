//! Composite values: options and tuples.

use super::{Value, ValueError};
use crate::Type;

/// Appends a part of a tuple, except the last.
pub fn append<V: Value>(value: &V::Of<'_>, to: &mut Vec<u8>) {
    if V::WIDTH.is_some() {
        return V::encode(value, to);
    }
    let from = to.len() + 4;
    to.extend_from_slice(&[0; 4]);
    V::encode(value, to);
    // A part whose length does not fit makes the whole longer than `VALUE_MAX`, and is never
    // stored.
    let length = u32::try_from(to.len() - from).unwrap_or(u32::MAX);
    to[from - 4..from].copy_from_slice(&length.to_le_bytes());
}

/// Consumes a number of bytes.
fn bytes<'b>(from: &mut &'b [u8], wanted: usize) -> Result<&'b [u8], ValueError> {
    let (first, rest) =
        from.split_at_checked(wanted).ok_or(ValueError::Length { found: from.len(), wanted })?;
    *from = rest;
    Ok(first)
}

/// Consumes a part of a tuple, except the last.
///
/// # Errors
///
/// [`ValueError`].
pub fn take<V: Value>(from: &mut &[u8]) -> Result<V::Owned, ValueError> {
    let length = match V::WIDTH {
        Some(width) => width,
        None => u32::decode(bytes(from, 4)?)? as usize,
    };
    V::decode(bytes(from, length)?)
}

/// Returns the width of two parts together.
const fn sum(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        _ => None,
    }
}

macro_rules! tuple {
    ($($part:ident $name:ident),* => $last:ident $end:ident) => {
        impl<$($part: Value,)* $last: Value> Value for ($($part,)* $last,) {
            type Of<'v> = ($($part::Of<'v>,)* $last::Of<'v>,);
            type Owned = ($($part::Owned,)* $last::Owned,);
            const TYPE: &'static Type = &Type::Tuple(&[$($part::TYPE,)* $last::TYPE]);
            const WIDTH: Option<usize> = {
                let width = $last::WIDTH;
                $(let width = sum($part::WIDTH, width);)*
                width
            };

            fn encode(value: &Self::Of<'_>, to: &mut Vec<u8>) {
                let ($($name,)* $end,) = value;
                $(append::<$part>($name, to);)*
                $last::encode($end, to);
            }

            #[allow(unused_mut, reason = "of one part")]
            fn decode(mut from: &[u8]) -> Result<Self::Owned, ValueError> {
                // The length of the whole, not of a part.
                if let Some(wanted) = Self::WIDTH
                    && from.len() != wanted
                {
                    return Err(ValueError::Length { found: from.len(), wanted });
                }
                $(let $name = take::<$part>(&mut from)?;)*
                Ok(($($name,)* $last::decode(from)?,))
            }

            fn lend(owned: &Self::Owned) -> Self::Of<'_> {
                let ($($name,)* $end,) = owned;
                ($($part::lend($name),)* $last::lend($end),)
            }
        }
    };
}
tuple!(=> A a);
tuple!(A a => B b);
tuple!(A a, B b => C c);
tuple!(A a, B b, C c => D d);
tuple!(A a, B b, C c, D d => E e);
tuple!(A a, B b, C c, D d, E e => F f);

impl<V: Value> Value for Option<V> {
    type Of<'v> = Option<V::Of<'v>>;
    type Owned = Option<V::Owned>;
    const TYPE: &'static Type = &Type::Option(V::TYPE);

    fn encode(value: &Self::Of<'_>, to: &mut Vec<u8>) {
        to.push(u8::from(value.is_some()));
        if let Some(value) = value {
            V::encode(value, to);
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self::Owned, ValueError> {
        match bytes {
            [1, rest @ ..] => V::decode(rest).map(Some),
            [0] => Ok(None),
            [] | [0, ..] => Err(ValueError::Length { found: bytes.len(), wanted: 1 }),
            [found, ..] => Err(ValueError::Option { found: *found }),
        }
    }

    fn lend(owned: &Self::Owned) -> Self::Of<'_> {
        owned.as_ref().map(V::lend)
    }
}
