//! Derives `Key` and `Value` of `latchwork-store` for structs and enums.
//!
//! | type | key | value |
//! |---|---|---|
//! | struct with one field and no names | as the field | as the field |
//! | any other struct | the tuple of its fields, in their order | the same |
//! | enum | the tuple of the variant's number and its fields | one byte, and the tuple of its fields |
//!
//! A variant's number is its discriminant: the one that is written, else that of the variant before
//! it plus 1, else 0. So the order of derived keys is the order of a derived `Ord`, as long as the
//! order of each field's type is the order of its `Ord`.
//!
//! The names of fields and variants are part of the type that the store records. The attribute
//! `#[latchwork(name = "old")]` keeps a recorded name when the field or the variant is renamed.
//! Adding, removing, reordering or retyping a field is a change of the schema.
//!
//! Types with generic parameters, unions and enums without variants are refused. The fields of a
//! derived type own what they have: `String` and `Vec<u8>`, not `&str`.

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
