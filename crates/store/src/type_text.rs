//! Types given as text at run time, by programs in other languages.

use crate::names::kept;
use crate::types::Type;

/// Maximum nesting of types.
const DEPTH: usize = 32;

/// Types without parts.
const NAMES: [&str; 16] = [
    "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128", "f32", "f64", "bool",
    "uuid", "str", "bytes",
];

impl Type {
    /// Returns the type with this description, or `None` if the text does not describe a type. Each
    /// type has exactly one description, without spaces. The process keeps each distinct text until
    /// it ends. O(length).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Key, Type};
    ///
    /// let parsed = Type::parse("(str,opt(u64))").unwrap();
    /// assert_eq!(parsed.to_string(), <(&str, Option<u64>) as Key>::TYPE.to_string());
    /// assert!(Type::parse("(str, u64)").is_none(), "a space");
    /// assert!(Type::parse("string").is_none(), "no type of the store");
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        if text == "any" {
            return Some(Self::Any);
        }
        let mut rest = text;
        one(&mut rest, DEPTH)?;
        rest.is_empty().then(|| Self::Described(kept(text)))
    }
}

fn expect(rest: &mut &str, what: &str) -> Option<()> {
    *rest = rest.strip_prefix(what)?;
    Some(())
}

/// Parses the name of a type, a field or a variant; `r#type` is valid.
fn name<'t>(rest: &mut &'t str) -> Option<&'t str> {
    upto(rest, |c| !c.is_alphanumeric() && !matches!(c, '_' | '#'))
}

/// Returns the text before the first of these characters.
fn upto<'t>(rest: &mut &'t str, is_end: impl FnMut(char) -> bool) -> Option<&'t str> {
    let (found, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
    *rest = after;
    (!found.is_empty()).then_some(found)
}

fn number(rest: &mut &str) -> Option<()> {
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    *rest = &digits[end..];
    (end > 0).then_some(())
}

/// Parses one type.
fn one(rest: &mut &str, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match rest.chars().next()? {
        '(' => tuple(rest, depth),
        '{' => fields(rest, depth),
        '<' => variants(rest, depth),
        _ => named(rest, depth),
    }
}

/// `()`, `(str,)`, `(str,u64)`.
fn tuple(rest: &mut &str, depth: usize) -> Option<()> {
    expect(rest, "(")?;
    if expect(rest, ")").is_some() {
        return Some(());
    }
    one(rest, depth)?;
    expect(rest, ",")?;
    if expect(rest, ")").is_some() {
        return Some(());
    }
    loop {
        one(rest, depth)?;
        if expect(rest, ",").is_none() {
            return expect(rest, ")");
        }
    }
}

/// `{name:str,age:u16}`.
fn fields(rest: &mut &str, depth: usize) -> Option<()> {
    expect(rest, "{")?;
    if expect(rest, "}").is_some() {
        return Some(());
    }
    loop {
        name(rest)?;
        expect(rest, ":")?;
        one(rest, depth)?;
        if expect(rest, ",").is_none() {
            return expect(rest, "}");
        }
    }
}

/// `<Red|Green(u64)|Blue{x:u8}|Grey=7>`.
fn variants(rest: &mut &str, depth: usize) -> Option<()> {
    expect(rest, "<")?;
    loop {
        name(rest)?;
        if expect(rest, "=").is_some() {
            number(rest)?;
        }
        if rest.starts_with('{') {
            fields(rest, depth)?;
        } else if expect(rest, "(").is_some() {
            loop {
                one(rest, depth)?;
                if expect(rest, ",").is_none() {
                    break expect(rest, ")")?;
                }
            }
        }
        if expect(rest, "|").is_none() {
            return expect(rest, ">");
        }
    }
}

/// `u64`, `bytes(16)`, `opt(str)`, `own(city)`, `json(order)`, `plain(order,24)`.
fn named(rest: &mut &str, depth: usize) -> Option<()> {
    let of = name(rest)?;
    if expect(rest, "(").is_none() {
        return NAMES.contains(&of).then_some(());
    }
    match of {
        "bytes" => number(rest)?,
        "opt" => one(rest, depth)?,
        // For a format, the brackets contain the program's own name.
        _ => {
            upto(rest, |c| matches!(c, ',' | ')'))?;
            if expect(rest, ",").is_some() {
                number(rest)?;
            }
        }
    }
    expect(rest, ")")
}
