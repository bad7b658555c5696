//! Tuples as keys, and what they begin with.

use super::{Key, KeyError, byte, code};

macro_rules! tuple {
    ($($part:ident $name:ident),+) => {
        impl<$($part: Key),+> Key for ($($part,)+) {
            type Of<'k> = ($($part::Of<'k>,)+);
            type Owned = ($($part::Owned,)+);

            fn append(key: &Self::Of<'_>, _: bool, to: &mut Vec<u8>) {
                let ($($name,)+) = key;
                to.push(code::NESTED);
                $($part::append($name, true, to);)+
                to.push(0);
            }

            fn take(from: &mut &[u8], _: bool) -> Result<Self::Owned, KeyError> {
                match byte(from)? {
                    code::NESTED => {}
                    found => return Err(KeyError::Type { found }),
                }
                let key = ($($part::take(from, true)?,)+);
                match byte(from)? {
                    0 => Ok(key),
                    found => Err(KeyError::Type { found }),
                }
            }

            fn encode(key: &Self::Of<'_>, to: &mut Vec<u8>) {
                let ($($name,)+) = key;
                $($part::append($name, false, to);)+
            }

            fn decode(mut bytes: &[u8]) -> Result<Self::Owned, KeyError> {
                let from = &mut bytes;
                let key = ($($part::take(from, false)?,)+);
                if from.is_empty() { Ok(key) } else { Err(KeyError::Long) }
            }
        }
    };
}
tuple!(A a);
tuple!(A a, B b);
tuple!(A a, B b, C c);
tuple!(A a, B b, C c, D d);
tuple!(A a, B b, C c, D d, E e);
tuple!(A a, B b, C c, D d, E e, F f);

/// A key whose first parts are a `P`.
///
/// A lone part is given as itself, several as a tuple.
pub trait StartsWith<P: Key>: Key {
    /// Appends the bytes that all keys with these first parts begin with.
    fn encode_prefix(prefix: &P::Of<'_>, to: &mut Vec<u8>) {
        P::encode(prefix, to);
    }
}

impl<A: Key, B: Key> StartsWith<A> for (A, B) {
    fn encode_prefix(prefix: &A::Of<'_>, to: &mut Vec<u8>) {
        A::append(prefix, false, to);
    }
}
impl<A: Key, B: Key, C: Key> StartsWith<A> for (A, B, C) {
    fn encode_prefix(prefix: &A::Of<'_>, to: &mut Vec<u8>) {
        A::append(prefix, false, to);
    }
}
impl<A: Key, B: Key, C: Key> StartsWith<(A, B)> for (A, B, C) {}
impl<A: Key, B: Key, C: Key, D: Key> StartsWith<(A, B)> for (A, B, C, D) {}
impl<A: Key, B: Key, C: Key, D: Key> StartsWith<(A, B, C)> for (A, B, C, D) {}
