//! `#[derive(Value)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Error;

use crate::parts::{Content, Parts, Shape, Variant, enum_description};

pub(crate) fn expand(shape: &Shape) -> Result<TokenStream, Error> {
    let Shape { ident, store, content } = shape;
    let body = match content {
        Content::Struct(parts) => match parts.only() {
            Some(only) => newtype(store, only),
            None => of_struct(store, parts),
        },
        Content::Enum(variants) => of_enum(store, variants)?,
    };
    Ok(quote! {
        #[automatically_derived]
        impl #store::Value for #ident {
            type Of<'v> = &'v Self;
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
    let of = quote!(<#only as #store::Value>);
    quote! {
        const TYPE: &'static #store::Type = #of::TYPE;
        const WIDTH: ::core::option::Option<usize> = #of::WIDTH;

        fn encode(value: &&Self, to: &mut ::std::vec::Vec<u8>) {
            #of::encode(&#of::lend(&value.0), to);
        }

        fn decode(bytes: &[u8]) -> ::core::result::Result<Self, #store::ValueError> {
            #of::decode(bytes).map(Self)
        }
    }
}

/// The total width of the fields.
fn width(store: &syn::Path, parts: &Parts) -> TokenStream {
    let types = &parts.types;
    quote!(#store::derived::width(&[#(<#types as #store::Value>::WIDTH),*]))
}

/// Appends the fields, which are bound to variables: each except the last with its length, if that
/// is not fixed.
fn append(store: &syn::Path, parts: &Parts) -> TokenStream {
    let bound = parts.bound();
    let Some((last, types)) = parts.types.split_last() else { return TokenStream::new() };
    let (end, bound) = (&bound[types.len()], &bound[..types.len()]);
    quote! {
        #(#store::derived::append::<#types>(&<#types as #store::Value>::lend(#bound), to);)*
        <#last as #store::Value>::encode(&<#last as #store::Value>::lend(#end), to);
    }
}

/// Takes the fields.
fn take(store: &syn::Path, parts: &Parts) -> TokenStream {
    let (bound, width) = (parts.bound(), width(store, parts));
    let exact = quote!(#store::derived::exact(from, #width)?;);
    let Some((last, types)) = parts.types.split_last() else { return exact };
    let (end, bound) = (&bound[types.len()], &bound[..types.len()]);
    quote! {
        #exact
        #(let #bound = #store::derived::take::<#types>(&mut from)?;)*
        let #end = <#last as #store::Value>::decode(from)?;
    }
}

fn of_struct(store: &syn::Path, parts: &Parts) -> TokenStream {
    let description = parts.description(store, &quote!(#store::Value));
    let (braced, width) = (parts.braced(), width(store, parts));
    let (append, take) = (append(store, parts), take(store, parts));
    quote! {
        const TYPE: &'static #store::Type = &#description;
        const WIDTH: ::core::option::Option<usize> = #width;

        #[allow(unused_variables)]
        fn encode(value: &&Self, to: &mut ::std::vec::Vec<u8>) {
            let Self #braced = *value;
            #append
        }

        #[allow(unused_mut)]
        fn decode(mut from: &[u8]) -> ::core::result::Result<Self, #store::ValueError> {
            #take
            ::core::result::Result::Ok(Self #braced)
        }
    }
}

fn of_enum(store: &syn::Path, variants: &[Variant]) -> Result<TokenStream, Error> {
    let numbers = variants.iter().map(|Variant { ident, index, .. }| {
        let what = "the number of a value's variant is one byte: 0 to 255";
        u8::try_from(*index).map_err(|_| Error::new(ident.span(), what))
    });
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let description = enum_description(variants, store, &quote!(#store::Value));
    let encode = variants.iter().zip(&numbers).map(|(Variant { ident, parts, .. }, number)| {
        let (braced, append) = (parts.braced(), append(store, parts));
        quote!(Self::#ident #braced => { to.push(#number); #append })
    });
    let decode = variants.iter().zip(&numbers).map(|(Variant { ident, parts, .. }, number)| {
        let (braced, take) = (parts.braced(), take(store, parts));
        quote!(#number => { #take Self::#ident #braced })
    });
    let plain = variants.iter().all(|variant| variant.parts.types.is_empty());
    let width = match plain {
        true => quote!(::core::option::Option::Some(1)),
        false => quote!(::core::option::Option::None),
    };
    Ok(quote! {
        const TYPE: &'static #store::Type = &#description;
        const WIDTH: ::core::option::Option<usize> = #width;

        fn encode(value: &&Self, to: &mut ::std::vec::Vec<u8>) {
            match *value { #(#encode)* }
        }

        #[allow(unused_mut)]
        fn decode(bytes: &[u8]) -> ::core::result::Result<Self, #store::ValueError> {
            let (number, mut from) = #store::derived::variant(bytes)?;
            ::core::result::Result::Ok(match number {
                #(#decode)*
                found => return ::core::result::Result::Err(#store::ValueError::Variant { found }),
            })
        }
    })
}
