//! Tuples as keys, and their prefixes.

use super::{Key, KeyError, byte, code};
use crate::Type;

/// Checks a mistake in a custom type that would cause no error otherwise.
const NO_PART: &str = "a part of a key begins with FF: see `Key`";

macro_rules! tuple {
    ($($part:ident $name:ident),+) => {
        impl<$($part: Key),+> Key for ($($part,)+) {
            type Of<'k> = ($($part::Of<'k>,)+);
            type Owned = ($($part::Owned,)+);
            const TYPE: &'static Type = &Type::Tuple(&[$($part::TYPE),+]);

            fn lend(owned: &Self::Owned) -> Self::Of<'_> {
                let ($($name,)+) = owned;
                ($($part::lend($name),)+)
            }

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
                $(
                    let _start = to.len();
                    $part::append($name, false, to);
                    debug_assert_ne!(to.get(_start), Some(&code::ESCAPE), "{NO_PART}");
                )+
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
/// A single part is passed as itself, several parts as a tuple.
pub trait StartsWith<P: Key>: Key {
    /// Appends the common prefix of all keys with these first parts.
    fn encode_prefix(prefix: &P::Of<'_>, to: &mut Vec<u8>) {
        P::encode(prefix, to);
    }
}

macro_rules! starts_with {
    ($first:ident; $($rest:ident),+) => {
        impl<$first: Key, $($rest: Key),+> StartsWith<$first> for ($first, $($rest),+) {
            fn encode_prefix(prefix: &$first::Of<'_>, to: &mut Vec<u8>) {
                $first::append(prefix, false, to);
            }
        }
    };
    ($($first:ident),+; $($rest:ident),+) => {
        impl<$($first: Key,)+ $($rest: Key),+> StartsWith<($($first),+)>
            for ($($first,)+ $($rest),+) {}
    };
}
starts_with!(A; B);
starts_with!(A; B, C);
starts_with!(A, B; C);
starts_with!(A; B, C, D);
starts_with!(A, B; C, D);
starts_with!(A, B, C; D);
starts_with!(A; B, C, D, E);
starts_with!(A, B; C, D, E);
starts_with!(A, B, C; D, E);
starts_with!(A, B, C, D; E);
starts_with!(A; B, C, D, E, F);
starts_with!(A, B; C, D, E, F);
starts_with!(A, B, C; D, E, F);
starts_with!(A, B, C, D; E, F);
starts_with!(A, B, C, D, E; F);

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    struct Wrong;

    impl Key for Wrong {
        type Of<'k> = Self;
        type Owned = Self;
        const TYPE: &'static Type = &Type::Own("wrong");

        fn lend(_: &Self) -> Self {
            Self
        }

        fn append(_: &Self, _: bool, to: &mut Vec<u8>) {
            to.push(0xff);
        }

        fn take(from: &mut &[u8], _: bool) -> Result<Self, KeyError> {
            byte(from).map(|_| Self)
        }
    }

    /// The range of all keys with the same first parts would not contain it.
    #[test]
    #[should_panic(expected = "begins with FF")]
    fn a_part_that_no_prefix_finds_is_told() {
        <(u64, Wrong)>::encode(&(7, Wrong), &mut Vec::new());
    }
}
