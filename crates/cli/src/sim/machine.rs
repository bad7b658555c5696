//! Machines by name, by file, and the host.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use latchwork_sim::{SHIPPED, Spec, SpecError};

use crate::output;

/// The name of the host's own machine.
pub(super) const HERE: &str = "here";

/// An invalid argument: printed to stderr, exit code 2.
#[derive(Debug)]
pub(super) struct Misuse(pub(super) String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the machine that `name` means.
pub(super) fn named(name: &str) -> anyhow::Result<Result<Spec, Misuse>> {
    let text = match text(name)? {
        Ok(text) => text,
        Err(misuse) => return Ok(Err(misuse)),
    };
    let place = text.path.map_or_else(|| name.to_owned(), |path| path.display().to_string());
    Ok(Spec::parse(&text.text).map_err(|error| Misuse(told(&place, &text.text, &error))))
}

/// A machine's description, and its file unless it is built in.
pub(super) struct Text {
    pub(super) text: String,
    pub(super) path: Option<PathBuf>,
}

/// Returns the description of the machine that `name` means.
pub(super) fn text(name: &str) -> anyhow::Result<Result<Text, Misuse>> {
    if name.contains('/') || name.ends_with(".toml") {
        let path = PathBuf::from(name);
        let text = fs::read_to_string(&path);
        let text = text.map_err(|error| Misuse(format!("{name}: {error}")));
        return Ok(text.map(|text| Text { text, path: Some(path) }));
    }
    if let Some((_, text)) = SHIPPED.iter().find(|(known, _)| *known == name) {
        return Ok(Ok(Text { text: (*text).to_owned(), path: None }));
    }
    if name != HERE {
        let known: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        let none = format!("no machine {name:?}; there are {known}, {HERE}, and .toml files");
        return Err(output::Absent(none).into());
    }
    if let Some(text) = kept()? {
        return Ok(Ok(text));
    }
    output::complain("measuring this host; `latchwork sim probe -o here.toml` keeps the figures");
    let text = latchwork_sim::probe::probe()?.toml();
    Ok(Ok(Text { text, path: None }))
}

/// Returns the result of an earlier probe of this host.
pub(super) fn kept() -> anyhow::Result<Option<Text>> {
    let home = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let config = home("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| home("HOME").map(|home| Path::new(&home).join(".config")));
    let places = [Some(PathBuf::from("here.toml")), config.map(|c| c.join("latchwork/here.toml"))];
    for path in places.into_iter().flatten() {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some(Text { text, path: Some(path) })),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(anyhow::anyhow!("{}: {error}", path.display())),
        }
    }
    Ok(None)
}

/// Formats an error of a description as `file:line: key: message`.
pub(super) fn told(place: &str, text: &str, error: &SpecError) -> String {
    match error {
        SpecError::Syntax { line, message } => {
            // The message may begin with the line's key; here it is the missing one.
            let bare = match message.split_once(": ") {
                Some((key, rest)) if !key.contains([' ', '`']) => rest,
                _ => message,
            };
            match key(text, *line, bare) {
                Some(key) => format!("{place}:{line}: {key}: {bare}"),
                None => format!("{place}:{line}: {message}"),
            }
        }
        SpecError::Value { line: 0, key, message } => format!("{place}: {key}: {message}"),
        SpecError::Value { line, key, message } => format!("{place}:{line}: {key}: {message}"),
        // The file's own name is not looked up, so this is the name of the machine that it extends.
        SpecError::Unknown(_) => {
            let like = |line: &str| line.trim_start().starts_with("like");
            let line = text.lines().position(like).map_or(0, |at| at + 1);
            format!("{place}:{line}: like: {error}")
        }
        _ => format!("{place}: {error}"),
    }
}

/// The key of an error at a line, with its section.
fn key(text: &str, line: usize, message: &str) -> Option<String> {
    let above: Vec<&str> = text.lines().take(line).map(str::trim).collect();
    let header = |line: &&&str| line.starts_with('[') && line.ends_with(']') && !line.contains('=');
    let section = above.iter().rev().find(header);
    let section = section.map_or("", |line| line.trim_matches(['[', ']', ' ']));
    let full = |key: &str| match section {
        "" => key.to_owned(),
        section => format!("{section}.{key}"),
    };
    let named = |start: &str| message.strip_prefix(start)?.split('`').next();
    if let Some(missing) = named("missing field `") {
        // Errors of the whole file refer to its first line.
        return Some(if line == 1 { missing.to_owned() } else { full(missing) });
    }
    let (key, _) = above.last()?.split_once('=')?;
    Some(full(key.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        told("m.toml", text, &Spec::parse(text).unwrap_err())
    }

    #[test]
    fn an_error_in_a_file_names_line_and_key() {
        let (_, good) = SHIPPED[0];
        let replaced = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            wrong(&good.replacen(from, to, 1))
        };
        let line = |start: &str| good.lines().position(|l| l.starts_with(start)).unwrap() + 1;
        let told = replaced("ghz = 2.13", "ghz = \"fast\"");
        assert!(told.starts_with(&format!("m.toml:{}: ghz: ", line("ghz"))), "{told}");
        let told = replaced("ghz = 2.13", "");
        assert!(told.contains(": ghz: missing field"), "{told}");
        let told = replaced("cores = 10", "cores = 10\ncolour = 1");
        assert!(
            told.starts_with(&format!("m.toml:{}: topology.colour: ", line("cores") + 1)),
            "{told}"
        );
        let told = replaced("hold = 6", "hold = -6");
        assert!(told.starts_with(&format!("m.toml:{}: coherence.hold: ", line("hold"))), "{told}");
        let told = replaced("near_bias = 0.33", "near_bias = 3");
        assert!(
            told.starts_with(&format!("m.toml:{}: coherence.near_bias: ", line("near"))),
            "{told}"
        );
        let told = replaced("ghz = 2.13", "ghz = 2.13\nlike = \"pdp-11\"");
        assert!(
            told.starts_with(&format!("m.toml:{}: like: no machine", line("ghz") + 1)),
            "{told}"
        );
    }
}
