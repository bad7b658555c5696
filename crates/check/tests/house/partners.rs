//! Orderings name their partners, and the named places exist.

use std::collections::BTreeSet;

use crate::sources::{compare, files, read, root, short};

const ORDERINGS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// The comments of a file that argue an ordering: those in which a line begins with its name.
fn arguments(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let said = line.split_once("//").map(|(_, said)| said.trim_start_matches(['/', '!', ' ']));
        let begins = said.is_some_and(|said| {
            ORDERINGS.iter().any(|name| {
                said.strip_prefix(name).is_some_and(|rest| rest.starts_with([':', ' ', ',']))
            })
        });
        if said.is_none() || begins {
            found.extend(open.take());
        }
        match (said, &mut open) {
            (Some(said), Some(argument)) => *argument = format!("{argument} {said}"),
            (Some(said), None) if begins => open = Some(said.to_owned()),
            _ => {}
        }
    }
    found.extend(open);
    found
}

/// The places in the code that an argument names: the last part of each path in backquotes.
fn named(argument: &str) -> Vec<String> {
    let quoted = argument.split('`').skip(1).step_by(2);
    let paths = quoted.filter_map(|path| {
        let path = path.trim_end_matches("()").trim_end_matches(".rs");
        let last = path.rsplit([':', '.']).next()?;
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (!last.is_empty() && last.chars().all(name) && path.len() > 1).then(|| last.to_owned())
    });
    paths.filter(|name| !name.starts_with(|c: char| c.is_ascii_digit())).collect()
}

/// The identifiers of a file's code.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    code.flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
}

#[test]
fn partners_exist() {
    let control =
        "// Acquire: synchronizes with the Release in `Latch::nobody`,\n// and `x`.\nx();";
    assert_eq!(arguments(control).len(), 1);
    assert_eq!(named(&arguments(control)[0]), ["nobody"], "the check cannot fail");
    let sources = files(&root().join("crates"), ".rs");
    let texts: Vec<_> = sources.iter().map(|path| (path, read(path))).collect();
    let mut known: BTreeSet<&str> = texts.iter().flat_map(|(_, t)| identifiers(t)).collect();
    known.extend(sources.iter().filter_map(|path| path.file_stem()?.to_str()));
    let mut found = BTreeSet::new();
    let mut names = 0;
    for (path, text) in &texts {
        if !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        for name in arguments(text).iter().flat_map(|argument| named(argument)) {
            names += 1;
            if !known.contains(name.as_str()) {
                found.insert(format!("{} {name}", short(path)));
            }
        }
    }
    assert!(names > 100, "{names} partners are named: the comments are not understood");
    println!("{names} names in arguments of orderings");
    compare("partner", &found);
}
