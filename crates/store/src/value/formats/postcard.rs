//! Values in the format of the crate postcard.

use core::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TypeName;
use crate::{Type, Value, ValueError};

/// Values of a serde type, in the format of postcard 1.x. Requires the feature `postcard`.
///
/// The format is compact and not self-describing: integers have a variable length, and fields have
/// no names. The description of the type is `postcard(name)`.
///
/// # Panics
///
/// Encoding a value panics if serde refuses it, for example a sequence whose length is not known in
/// advance.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Postcard, Table, TypeName};
///
/// #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
/// struct Order {
///     what: String,
///     count: u32,
/// }
///
/// impl TypeName for Order {
///     const NAME: &'static str = "order";
/// }
///
/// const ORDERS: Table<u64, Postcard<Order>> = Table::new("orders");
/// let order = Order { what: "tea".to_owned(), count: 2 };
/// let bytes = ORDERS.value(&&order);
/// assert_eq!(bytes, b"\x03tea\x02");
/// assert_eq!(ORDERS.value_of(&bytes)?, order);
/// assert!(ORDERS.value_of(&bytes[1..]).is_err());
/// # Ok::<(), latchwork_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Postcard<T>(PhantomData<fn(T)>);

impl<T: Serialize + DeserializeOwned + TypeName + 'static> Value for Postcard<T> {
    type Of<'v> = &'v T;
    type Owned = T;
    const TYPE: &'static Type = &Type::Format("postcard", T::NAME);

    fn encode(value: &&T, to: &mut Vec<u8>) {
        let begun = core::mem::take(to);
        *to = postcard::to_extend(value, begun).expect("serde takes the value");
    }

    fn decode(bytes: &[u8]) -> Result<T, ValueError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => {
                let (found, wanted) = (bytes.len(), bytes.len() - rest.len());
                Err(ValueError::Length { found, wanted })
            }
            Err(why) => Err(ValueError::other(why)),
        }
    }

    fn lend(owned: &T) -> &T {
        owned
    }
}
