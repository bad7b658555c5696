//! Derives `Key` and `Value` of `latchwork-store` for structs and enums.
//!
//! | type | key | value |
//! |---|---|---|
//! | struct with one field and no names | as the field | as the field |
//! | any other struct | the tuple of its fields, in their order | the same |
//! | enum | the tuple of the variant's number and its fields | one byte, and such a tuple |
//!
//! A variant's number is its discriminant: the written number, else the number of the variant
//! before plus 1, else 0. So the order of derived keys is the order of a derived `Ord`, as long as
//! the order of each field's type is the order of its `Ord`.
//!
//! The names of fields and variants are part of the type that the store records. The attribute
//! `#[latchwork(name = "old")]` keeps a recorded name when the field or the variant is renamed.
//! Adding, removing, reordering or retyping a field is a change of the schema.
//!
//! Types with generic parameters, unions and enums without variants are refused. The fields of a
//! derived type own their contents: `String` and `Vec<u8>`, not `&str`.
//!
//! ```
//! use latchwork_derive::{Key, Value};
//! use latchwork_store::{Key, Table, Value};
//!
//! /// Ordered by country, and then by city.
//! #[derive(Key, PartialEq, Eq, PartialOrd, Ord)]
//! #[latchwork(crate = latchwork_store)]
//! struct Place {
//!     country: String,
//!     city: u32,
//! }
//!
//! #[derive(Value, Debug, PartialEq)]
//! #[latchwork(crate = latchwork_store)]
//! enum Weather {
//!     Dry,
//!     Rain { millimetres: f32 },
//! }
//!
//! const WEATHER: Table<Place, Weather> = Table::new("weather");
//! let bergen = Place { country: "NO".to_owned(), city: 7 };
//! let oslo = Place { country: "NO".to_owned(), city: 8 };
//! assert!(bergen < oslo && WEATHER.key(&&bergen)? < WEATHER.key(&&oslo)?);
//! let rain = Weather::Rain { millimetres: 40.0 };
//! assert_eq!(WEATHER.value_of(&WEATHER.value(&&rain))?, rain);
//! assert_eq!(<Place as Key>::TYPE.to_string(), "{country:str,city:u32}");
//! assert_eq!(<Weather as Value>::TYPE.to_string(), "<Dry|Rain{millimetres:f32}>");
//! # Ok::<(), latchwork_store::Error>(())
//! ```
//!
//! ```compile_fail
//! #[derive(latchwork_derive::Key)]
//! #[latchwork(crate = latchwork_store)]
//! struct Place<'a>(&'a str);
//! ```
//!
//! ```compile_fail
//! // A field that is given back as another type than it has.
//! #[derive(latchwork_derive::Value)]
//! #[latchwork(crate = latchwork_store)]
//! struct Place { name: &'static str, row: u8 }
//! ```

mod key;
mod parts;
mod value;

use proc_macro::TokenStream;

use crate::parts::Shape;

/// Derives a key: see the crate.
///
/// The attribute `#[latchwork(crate = path)]` names the store's crate where it is not
/// `::latchwork::store`.
#[proc_macro_derive(Key, attributes(latchwork))]
pub fn derive_key(item: TokenStream) -> TokenStream {
    Shape::parse(item.into()).and_then(|shape| key::expand(&shape)).unwrap_or_else(said).into()
}

/// Derives a value: see the crate.
///
/// The attribute `#[latchwork(crate = path)]` names the store's crate where it is not
/// `::latchwork::store`.
#[proc_macro_derive(Value, attributes(latchwork))]
pub fn derive_value(item: TokenStream) -> TokenStream {
    Shape::parse(item.into()).and_then(|shape| value::expand(&shape)).unwrap_or_else(said).into()
}

fn said(why: syn::Error) -> proc_macro2::TokenStream {
    why.to_compile_error()
}
