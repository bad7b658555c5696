//! A crate of many files has folders, and each knows only those before it: by what it imports, and
//! by the methods that it calls.
//!
//! A type may be made in a low folder and get its methods in higher ones. So imports alone do not
//! say that a low folder stands by itself: a call of a method that only higher folders define is
//! as much of a look upwards.

use std::collections::{BTreeMap, BTreeSet};

use crate::circles::{Modules, modules, uses};
use crate::sources::{compare, root};

/// Of each crate, its layers from the lowest up, and in each the folders or files of it.
const LAYERS: &[(&str, &[&[&str]])] = &[(
    "lockmgr",
    &[
        &["error", "ids", "mode", "options", "preset", "set"],
        &["meter"],
        &["memory"],
        &["table"],
        &["fastpath"],
        &["range"],
        &["deadlock"],
        &["recovery"],
        &["owner"],
        &["wakeup"],
        &["observe"],
        &["manager", "session", "stored"],
    ],
)];

/// The names of values whose methods are spread over several folders, and their types.
const RECEIVERS: [&str; 7] = ["self", "memory", "latched", "owner", "inner", "session", "parent"];
const TYPES: [&str; 6] = ["Self", "Memory", "Owner", "Latched", "Inner", "Session"];

fn is_named(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The methods that a module defines: functions that take `self`.
fn methods(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (at, start) in text.match_indices(" fn ") {
        let name = &text[at + start.len()..];
        let (name, rest) = name.split_at(name.find(|c| !is_named(c)).unwrap_or(name.len()));
        let arguments = rest.split_once('(').map_or("", |(_, after)| after.trim_start());
        let first = arguments.split([',', ')', ':']).next().unwrap_or("");
        if first.split([' ', '&']).any(|word| word == "self") {
            found.insert(name);
        }
    }
    found
}

/// The methods that a module calls, or names, of what has methods in several folders.
fn calls(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (at, mark) in text.match_indices('.').chain(text.match_indices("::")) {
        let before = text[..at].trim_end().trim_end_matches("()");
        let receiver = &before[before.rfind(|c| !is_named(c)).map_or(0, |end| end + 1)..];
        let after = &text[at + mark.len()..];
        let (name, rest) = after.split_at(after.find(|c| !is_named(c)).unwrap_or(after.len()));
        let called = if mark == "." {
            RECEIVERS.contains(&receiver) && rest.starts_with(['(', ':'])
        } else {
            TYPES.contains(&receiver)
        };
        if called && !name.is_empty() {
            found.insert(name);
        }
    }
    found
}

/// Modules that look upwards, each with the module or method it uses.
fn upwards(modules: &Modules, layers: &[&[&str]]) -> BTreeSet<String> {
    let height = |module: &str| {
        let folder = module.split("::").next().unwrap_or("");
        layers.iter().position(|layer| layer.contains(&folder))
    };
    let mut found = BTreeSet::new();
    let mut lowest: BTreeMap<&str, usize> = BTreeMap::new();
    for (module, text) in modules {
        let Some(layer) = height(module) else {
            if !module.is_empty() {
                found.insert(format!("{module} is in no layer"));
            }
            continue;
        };
        for method in methods(text) {
            let known = lowest.entry(method).or_insert(layer);
            *known = layer.min(*known);
        }
    }
    for (module, paths) in uses(modules) {
        for path in &paths {
            if height(module).zip(height(path)).is_some_and(|(from, to)| from < to) {
                found.insert(format!("{module} imports {path}"));
            }
        }
    }
    for (module, text) in modules {
        for call in calls(text) {
            let above = lowest.get(call).copied();
            if height(module).zip(above).is_some_and(|(from, to)| from < to) {
                found.insert(format!("{module} calls {call}"));
            }
        }
    }
    found
}

#[test]
fn folders_import_only_lower_folders() {
    let control: Modules = [
        ("", "mod low;\nmod high;\npub use high::Thing;\n"),
        ("low::a", "impl Memory {\n    fn f(&self) {\n        self.climb()\n    }\n}\n"),
        ("low::b", "use crate::Thing;\n"),
        ("high", "impl Memory {\n    fn climb(&self) { self.f() }\n}\npub struct Thing;\n"),
        ("attic", ""),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .into();
    let found = upwards(&control, &[&["low"], &["high"]]);
    let expected = ["attic is in no layer", "low::a calls climb", "low::b imports high"];
    assert_eq!(found.iter().collect::<Vec<_>>(), expected, "the check cannot fail");
    let mut found = BTreeSet::new();
    for (of, layers) in LAYERS {
        let modules = modules(&root().join("crates").join(of).join("src"));
        found.extend(upwards(&modules, layers).iter().map(|breach| format!("{of} {breach}")));
    }
    compare("layer", &found);
}
