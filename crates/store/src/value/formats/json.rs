//! Values as JSON text.

use core::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TypeName;
use crate::{Type, Value, ValueError};

/// Values of a serde type, as JSON text. Requires the feature `json`.
///
/// The description of the type is `json(name)`; the command line prints and reads the text.
///
/// # Panics
///
/// Encoding a value panics if serde refuses it, for example a map whose keys are not strings.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Json, Table, TypeName};
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
/// const ORDERS: Table<u64, Json<Order>> = Table::new("orders");
/// let order = Order { what: "tea".to_owned(), count: 2 };
/// let bytes = ORDERS.value(&&order);
/// assert_eq!(bytes, br#"{"what":"tea","count":2}"#);
/// assert_eq!(ORDERS.value_of(&bytes)?, order);
/// assert!(ORDERS.value_of(b"{}").is_err_and(|why| why.to_string().contains("missing field")));
/// # Ok::<(), latchwork_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Json<T>(PhantomData<fn(T)>);

impl<T: Serialize + DeserializeOwned + TypeName + 'static> Value for Json<T> {
    type Of<'v> = &'v T;
    type Owned = T;
    const TYPE: &'static Type = &Type::Format("json", T::NAME);

    fn encode(value: &&T, to: &mut Vec<u8>) {
        serde_json::to_writer(to, value).expect("serde takes the value");
    }

    fn decode(bytes: &[u8]) -> Result<T, ValueError> {
        serde_json::from_slice(bytes).map_err(ValueError::other)
    }

    fn lend(owned: &T) -> &T {
        owned
    }
}
