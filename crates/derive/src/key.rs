//! `#[derive(Key)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Error;

use crate::parts::{Content, Parts, Shape, Variant, enum_description};

pub(crate) fn expand(shape: &Shape) -> Result<TokenStream, Error> {
    let Shape { ident, store, content } = shape;
    let body = match content {
        Content::Struct(parts) => match parts.only() {
            Some(only) => newtype(store, only),
            None if parts.types.is_empty() => {
                return Err(Error::new(ident.span(), "a key has at least one field"));
            }
            None => of_struct(store, parts),
        },
        Content::Enum(variants) => of_enum(store, variants),
    };
    Ok(quote! {
        #[automatically_derived]
        impl #store::Key for #ident {
            type Of<'k> = &'k Self;
            type Owned = Self;
            #body

            fn lend(owned: &Self) -> &Self {
                owned
            }
        }
    })
}

/// A struct encoded as its only field.
fn newtype(store: &syn::Path, only: &syn::Type) -> TokenStream {
    let of = quote!(<#only as #store::Key>);
    quote! {
        const TYPE: &'static #store::Type = #of::TYPE;

        fn append(key: &&Self, nested: bool, to: &mut ::std::vec::Vec<u8>) {
            #of::append(&#of::lend(&key.0), nested, to);
        }

        fn take(from: &mut &[u8], nested: bool) -> ::core::result::Result<Self, #store::KeyError> {
            #of::take(from, nested).map(Self)
        }

        fn encode(key: &&Self, to: &mut ::std::vec::Vec<u8>) {
            #of::encode(&#of::lend(&key.0), to);
        }

        fn decode(bytes: &[u8]) -> ::core::result::Result<Self, #store::KeyError> {
            #of::decode(bytes).map(Self)
        }
    }
}

/// Appends the fields, which are bound to variables.
fn append(store: &syn::Path, parts: &Parts, nested: bool) -> TokenStream {
    let (bound, types) = (parts.bound(), &parts.types);
    quote!(#({
        let part = <#types as #store::Key>::lend(#bound);
        #store::derived::part::<#types>(&part, #nested, to);
    })*)
}

/// Takes the fields in order.
fn take(store: &syn::Path, parts: &Parts, nested: bool) -> TokenStream {
    let (bound, types) = (parts.bound(), &parts.types);
    quote!(#(let #bound = <#types as #store::Key>::take(from, #nested)?;)*)
}

fn of_struct(store: &syn::Path, parts: &Parts) -> TokenStream {
    let key = quote!(#store::Key);
    let (description, braced) = (parts.description(store, &key), parts.braced());
    let append = |nested| {
        let append = append(store, parts, nested);
        quote!(let Self #braced = *key; #append)
    };
    let take = |nested| {
        let take = take(store, parts, nested);
        quote!(#take let key = Self #braced;)
    };
    whole_and_part(store, &description, append, take)
}

fn of_enum(store: &syn::Path, variants: &[Variant]) -> TokenStream {
    let key = quote!(#store::Key);
    let description = enum_description(variants, store, &key);
    let append = |nested: bool| {
        let each = variants.iter().map(|Variant { ident, index, parts, .. }| {
            let (braced, append) = (parts.braced(), append(store, parts, nested));
            quote!(Self::#ident #braced => {
                #store::derived::part::<i64>(&#index, #nested, to);
                #append
            })
        });
        quote!(match *key { #(#each)* })
    };
    let take = |nested: bool| {
        let each = variants.iter().map(|Variant { ident, index, parts, .. }| {
            let (braced, take) = (parts.braced(), take(store, parts, nested));
            quote!(#index => { #take Self::#ident #braced })
        });
        quote! {
            let key = match <i64 as #key>::take(from, #nested)? {
                #(#each)*
                found => return ::core::result::Result::Err(#store::KeyError::Variant { found }),
            };
        }
    };
    whole_and_part(store, &description, append, take)
}

/// A tuple: alone it is encoded as its parts, within another key it is nested.
fn whole_and_part(
    store: &syn::Path,
    description: &TokenStream,
    append: impl Fn(bool) -> TokenStream,
    take: impl Fn(bool) -> TokenStream,
) -> TokenStream {
    let (nested, whole) = (append(true), append(false));
    let (take_nested, take_whole) = (take(true), take(false));
    quote! {
        const TYPE: &'static #store::Type = &#description;

        fn append(key: &&Self, _: bool, to: &mut ::std::vec::Vec<u8>) {
            #store::derived::begin(to);
            #nested
            #store::derived::end(to);
        }

        fn take(from: &mut &[u8], _: bool) -> ::core::result::Result<Self, #store::KeyError> {
            #store::derived::take_begin(from)?;
            #take_nested
            #store::derived::take_end(from)?;
            ::core::result::Result::Ok(key)
        }

        fn encode(key: &&Self, to: &mut ::std::vec::Vec<u8>) {
            #whole
        }

        fn decode(mut bytes: &[u8]) -> ::core::result::Result<Self, #store::KeyError> {
            let from = &mut bytes;
            #take_whole
            #store::derived::over(from)?;
            ::core::result::Result::Ok(key)
        }
    }
}
