//! A type as the macros parse it: its fields, its variants and their names in the store.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Expr, ExprLit, ExprUnary, Fields, Lit, UnOp};

/// The fields of a struct or a variant.
pub(crate) struct Parts {
    /// Whether the fields have names, or the type has none and no parentheses.
    kind: Kind,
    /// The names of the fields in Rust.
    members: Vec<syn::Member>,
    /// The names of the fields in the store; empty without names.
    names: Vec<String>,
    pub(crate) types: Vec<syn::Type>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unit,
    Tuple,
    Named,
}

/// A variant of an enum.
pub(crate) struct Variant {
    pub(crate) ident: Ident,
    name: String,
    pub(crate) index: i64,
    pub(crate) parts: Parts,
}

/// The contents of a type.
pub(crate) enum Content {
    Struct(Parts),
    Enum(Vec<Variant>),
}

/// A type that was passed to a macro.
pub(crate) struct Shape {
    pub(crate) ident: Ident,
    /// The path of the store's crate.
    pub(crate) store: syn::Path,
    pub(crate) content: Content,
}

/// The content of an attribute of this crate.
#[derive(Default)]
struct Said {
    store: Option<syn::Path>,
    name: Option<String>,
}

fn said(attributes: &[Attribute], on_type: bool) -> Result<Said, Error> {
    let mut said = Said::default();
    for attribute in attributes.iter().filter(|one| one.path().is_ident("latchwork")) {
        attribute.parse_nested_meta(|meta| {
            if on_type && meta.path.is_ident("crate") {
                said.store = Some(meta.value()?.parse()?);
                return Ok(());
            }
            if !on_type && meta.path.is_ident("name") {
                let name: syn::LitStr = meta.value()?.parse()?;
                let plain = |c: char| c.is_alphanumeric() || c == '_';
                if name.value().is_empty() || !name.value().chars().all(plain) {
                    return Err(Error::new(name.span(), "a name has letters, digits and `_`"));
                }
                said.name = Some(name.value());
                return Ok(());
            }
            let known = if on_type { "`crate = path`" } else { "`name = \"..\"`" };
            Err(meta.error(format!("expected {known}")))
        })?;
    }
    Ok(said)
}

/// The name of an identifier without the mark of a raw one.
fn plain(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}

/// The first duplicate name.
fn once<'n>(names: impl Iterator<Item = &'n String>, at: Span) -> Result<(), Error> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::new(at, format!("two fields or variants have the name {name}")));
        }
    }
    Ok(())
}

impl Parts {
    fn of(fields: Fields) -> Result<Self, Error> {
        let kind = match fields {
            Fields::Unit => Kind::Unit,
            Fields::Unnamed(_) => Kind::Tuple,
            Fields::Named(_) => Kind::Named,
        };
        let at = fields.span();
        let mut parts = Self { kind, members: Vec::new(), names: Vec::new(), types: Vec::new() };
        for (index, field) in fields.into_iter().enumerate() {
            let said = said(&field.attrs, false)?;
            match field.ident {
                Some(ident) => {
                    parts.names.push(said.name.unwrap_or_else(|| plain(&ident)));
                    parts.members.push(ident.into());
                }
                None if said.name.is_some() => {
                    return Err(Error::new(field.ty.span(), "this field has no name"));
                }
                None => parts.members.push(index.into()),
            }
            parts.types.push(field.ty);
        }
        once(parts.names.iter(), at)?;
        Ok(parts)
    }

    /// The type of the only field, if the type is encoded as that field.
    pub(crate) fn only(&self) -> Option<&syn::Type> {
        match (self.kind, &self.types[..]) {
            (Kind::Tuple, [one]) => Some(one),
            _ => None,
        }
    }

    /// Variables for the fields.
    pub(crate) fn bound(&self) -> Vec<Ident> {
        (0..self.types.len()).map(|index| format_ident!("part_{index}")).collect()
    }

    /// The fields with values in these variables, as a pattern and an expression.
    pub(crate) fn braced(&self) -> TokenStream {
        let (members, bound) = (&self.members, self.bound());
        quote!({ #(#members: #bound),* })
    }

    /// The description of the fields.
    pub(crate) fn description(&self, store: &syn::Path, of: &TokenStream) -> TokenStream {
        let (names, types) = (&self.names, &self.types);
        match self.kind {
            Kind::Named => {
                quote!(#store::Type::Struct(&[#((#names, <#types as #of>::TYPE)),*]))
            }
            _ => quote!(#store::Type::Tuple(&[#(<#types as #of>::TYPE),*])),
        }
    }
}

/// The number that an expression is, if it is a literal.
fn literal(expression: &Expr) -> Option<i64> {
    match expression {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => literal(expr)?.checked_neg(),
        Expr::Group(group) => literal(&group.expr),
        Expr::Paren(paren) => literal(&paren.expr),
        _ => None,
    }
}

impl Shape {
    pub(crate) fn parse(item: TokenStream) -> Result<Self, Error> {
        let DeriveInput { attrs, ident, generics, data, .. } = syn::parse2(item)?;
        if !generics.params.is_empty() {
            let what = "a key or a value has no generic parameters: the store records its type. \
                        Derive it for a type without them, which owns its fields";
            return Err(Error::new(generics.span(), what));
        }
        let said = said(&attrs, true)?;
        let content = match data {
            Data::Struct(data) => Content::Struct(Parts::of(data.fields)?),
            Data::Enum(data) => Content::Enum(variants(data.variants, ident.span())?),
            Data::Union(_) => {
                return Err(Error::new(ident.span(), "a union is neither a key nor a value"));
            }
        };
        let store = said.store.unwrap_or_else(|| syn::parse_quote!(::latchwork::store));
        Ok(Self { ident, store, content })
    }
}

fn variants(all: impl IntoIterator<Item = syn::Variant>, at: Span) -> Result<Vec<Variant>, Error> {
    let (mut found, mut next) = (Vec::new(), Some(0_i64));
    for variant in all {
        let span = variant.ident.span();
        if let Some((_, number)) = &variant.discriminant {
            let what = "a number of a variant is written in digits, and fits into 64 bits";
            next = Some(literal(number).ok_or_else(|| Error::new(number.span(), what))?);
        }
        let index =
            next.ok_or_else(|| Error::new(span, "the number of this variant is too large"))?;
        next = index.checked_add(1);
        if found.iter().any(|known: &Variant| known.index == index) {
            return Err(Error::new(span, format!("two variants have the number {index}")));
        }
        let name = said(&variant.attrs, false)?.name.unwrap_or_else(|| plain(&variant.ident));
        let (ident, parts) = (variant.ident, Parts::of(variant.fields)?);
        found.push(Variant { ident, name, index, parts });
    }
    once(found.iter().map(|variant| &variant.name), at)?;
    if found.is_empty() {
        return Err(Error::new(at, "an enum without variants has no keys and no values"));
    }
    Ok(found)
}

/// The description of an enum.
pub(crate) fn enum_description(
    variants: &[Variant],
    store: &syn::Path,
    of: &TokenStream,
) -> TokenStream {
    let each = variants.iter().map(|Variant { name, index, parts, .. }| {
        let parts = parts.description(store, of);
        quote!((#index, #name, &#parts))
    });
    quote!(#store::Type::Enum(&[#(#each),*]))
}

#[cfg(test)]
mod tests {
    use super::Shape;
    use crate::{key, value};

    fn refused(item: &str, of_key: bool) -> String {
        let done = Shape::parse(item.parse().unwrap()).and_then(|shape| match of_key {
            true => key::expand(&shape),
            false => value::expand(&shape),
        });
        done.expect_err("it is not refused").to_string()
    }

    #[test]
    fn types_without_keys_and_values_are_refused() {
        for (item, why) in [
            ("struct A<T>(T);", "no generic parameters"),
            ("struct A<'a> { name: &'a str }", "no generic parameters"),
            ("union A { one: u8, two: i8 }", "a union is neither"),
            ("enum A {}", "an enum without variants"),
            ("enum A { One = 1, Two = 0, Three }", "two variants have the number 1"),
            ("enum A { One = SOME }", "a number of a variant is written in digits"),
            ("struct A { #[latchwork(name = \"b\")] a: u8, b: u8 }", "have the name b"),
            ("struct A { #[latchwork(name = \"a,b\")] a: u8 }", "letters, digits"),
            ("struct A { #[latchwork(nome = \"b\")] a: u8 }", "expected `name = \"..\"`"),
            ("#[latchwork(name = \"b\")] struct A { a: u8 }", "expected `crate = path`"),
            ("struct A(#[latchwork(name = \"b\")] u8, u8);", "has no name"),
        ] {
            for of_key in [true, false] {
                let said = refused(item, of_key);
                assert!(said.contains(why), "{item}: {said}");
            }
        }
        assert!(refused("struct A;", true).contains("at least one field"));
        assert!(refused("enum A { One = 256 }", false).contains("0 to 255"));
        assert!(refused("enum A { One = -1 }", false).contains("0 to 255"));
    }
}
