//! Lengths: of functions and of comments, which are laws, and of files, which are a reason to look.

use std::collections::BTreeSet;

use crate::sources::{compare, files, read, root, short};

/// Lines of a file that are a reason to look, of a function that are too many; columns of a line.
const FILE: usize = 500;
const FUNCTION: usize = 70;
const COLUMNS: usize = 100;

/// Functions that are too long, by name, with their lines. Sources are formatted, so a function
/// ends at the next brace in the column where it began.
fn long_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let words = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern"];
        let begins = |word: &str| words.contains(&word) || word.starts_with(['"', '(']);
        if !before.split_whitespace().all(begins) {
            continue;
        }
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let end = lines[at..].iter().position(|line| {
            let rest = line.strip_prefix(indent);
            rest == Some("}") || rest.is_some_and(|r| !r.starts_with(' ') && r.ends_with(';'))
        });
        let length = end.unwrap_or(0) + 1;
        if !name.is_empty() && length > FUNCTION {
            found.push((name, length));
        }
    }
    found
}

/// Whether a line is too wide because of its comment: the formatter minds the code.
fn wide_comment(line: &str) -> bool {
    let bare = line.trim_start();
    let comment = bare.starts_with("//") || line.contains(" // ");
    comment && line.chars().count() > COLUMNS && !line.contains("://")
}

#[test]
fn functions_are_short() {
    let long =
        format!("    pub fn a() {{\n{}    }}\n\nfn b() {{\n}}\n", "        ();\n".repeat(80));
    assert_eq!(long_functions(&long), [("a".to_owned(), 82)], "the check cannot fail");
    let mut found = BTreeSet::new();
    for path in files(&root().join("crates"), ".rs") {
        let long = long_functions(&read(&path));
        found.extend(long.iter().map(|(name, _)| format!("{} {name}", short(&path))));
    }
    compare("function", &found);
}

#[test]
fn comments_fit() {
    assert!(wide_comment(&format!("    // {}", "a ".repeat(50))), "the check cannot fail");
    assert!(!wide_comment(&format!("    // {}", "a ".repeat(45))));
    let mut found = BTreeSet::new();
    for path in files(&root(), ".rs") {
        if read(&path).lines().any(wide_comment) {
            found.insert(short(&path));
        }
    }
    compare("comment", &found);
}

#[test]
fn long_files_are_listed() {
    for path in files(&root().join("crates"), ".rs") {
        let lines = read(&path).lines().count();
        if lines > FILE {
            println!("look: {} has {lines} lines. Is it one idea?", short(&path));
        }
    }
}

#[test]
fn files_are_finished() {
    // Split, so that this file does not accuse itself.
    let banned = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
    for path in files(&root().join("crates"), ".rs") {
        for word in banned {
            assert!(!read(&path).contains(word), "{} says {word}", path.display());
        }
    }
}
