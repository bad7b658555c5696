//! Values that are the bytes of a zerocopy type.

use core::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::TypeName;
use crate::{Type, Value, ValueError};

/// Values that are the bytes of a `zerocopy` type. Requires the feature `zerocopy`.
///
/// Nothing is parsed: [`get_with`](crate::ReadTxn::get_with) and [`view`](Self::view) read a value
/// in place. The description of the type is `plain(name,bytes)`. Numbers are in the byte order of
/// the machine unless the type specifies one: use `zerocopy::little_endian` for stores that are
/// moved between machines.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Plain, Store, Table, TypeName};
/// use zerocopy::little_endian::{F64, U32};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
/// #[repr(C)]
/// struct Point {
///     id: U32,
///     x: F64,
/// }
///
/// impl TypeName for Point {
///     const NAME: &'static str = "point";
/// }
///
/// const POINTS: Table<u64, Plain<Point>> = Table::new("points");
///
/// # let path = std::env::temp_dir().join(format!("store-plain-{}", std::process::id()));
/// let store = Store::open(&path)?;
/// store.put(&POINTS, 7, &Point { id: U32::new(1), x: F64::new(0.5) })?;
/// let x = store.read(|tx| {
///     let x = |bytes: &[u8]| Plain::<Point>::view(bytes, |point| point.x.get());
///     tx.get_with(&POINTS, 7, x)
/// })?;
/// assert_eq!(x, Some(Ok(0.5)));
/// # drop(store);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), latchwork_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Plain<T>(PhantomData<fn(T)>);

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + TypeName + 'static> Plain<T> {
    /// Calls `with` with the value of these bytes: in place if they are aligned for the type,
    /// otherwise with a copy.
    ///
    /// # Errors
    ///
    /// [`ValueError::Length`].
    pub fn view<R>(bytes: &[u8], with: impl FnOnce(&T) -> R) -> Result<R, ValueError> {
        match T::ref_from_bytes(bytes) {
            Ok(value) => Ok(with(value)),
            Err(_) => Ok(with(&Self::decode(bytes)?)),
        }
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + TypeName + 'static> Value for Plain<T> {
    type Of<'v> = &'v T;
    type Owned = T;
    const TYPE: &'static Type = &Type::Sized("plain", T::NAME, size_of::<T>());
    const WIDTH: Option<usize> = Some(size_of::<T>());

    fn encode(value: &&T, to: &mut Vec<u8>) {
        to.extend_from_slice(value.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<T, ValueError> {
        let (found, wanted) = (bytes.len(), size_of::<T>());
        T::read_from_bytes(bytes).map_err(|_| ValueError::Length { found, wanted })
    }

    fn lend(owned: &T) -> &T {
        owned
    }
}
