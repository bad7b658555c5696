//! The sources that the rules look at, and the list of what breaks a rule since before it was one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file below `folder` whose name ends in `ending`.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A file's path from the root on.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The lines of `allowed.txt` for a rule: files that break it. The list may only become shorter.
fn allowed(rule: &str) -> BTreeSet<String> {
    let list = read(&root().join("crates/check/tests/house/allowed.txt"));
    let lines = list.lines().filter_map(|line| line.strip_prefix(rule)?.strip_prefix(' '));
    lines.map(str::to_owned).collect()
}

/// Compares the findings with the allowed ones: there must be no new ones, and no outdated lines.
pub(crate) fn compare(rule: &str, found: &BTreeSet<String>) {
    let allowed = allowed(rule);
    let lines = |set: Vec<&String>| -> Vec<String> {
        set.into_iter().map(|line| format!("{rule} {line}")).collect()
    };
    let new = lines(found.difference(&allowed).collect());
    let gone = lines(allowed.difference(found).collect());
    assert!(new.is_empty(), "these break a rule of {}: {new:#?}", module_path!());
    assert!(gone.is_empty(), "strike these from house/allowed.txt, they are no more: {gone:#?}");
}

/// The words of a text in lower case, including the parts of identifiers.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|part| !part.is_empty());
    parts.flat_map(|part| {
        let mut words = Vec::<String>::new();
        let mut lower_before = false;
        for letter in part.chars() {
            if words.is_empty() || (letter.is_uppercase() && lower_before) {
                words.push(String::new());
            }
            words.last_mut().expect("pushed above").push(letter.to_ascii_lowercase());
            lower_before = letter.is_lowercase();
        }
        words
    })
}
