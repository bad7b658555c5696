//! Modules of a crate that import each other in a circle cannot be read one after another.
//!
//! A module uses another if a path in it leads there, through re-exports to where a thing is made.
//! That a parent re-exports what its children make is no use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::sources::{compare, files, read, root};

/// A crate's modules: by path (`a::b`, the root is empty), the text without its tests.
pub(crate) type Modules = BTreeMap<String, String>;

pub(crate) fn modules(folder: &Path) -> Modules {
    let mut found = Modules::new();
    for file in files(folder, ".rs") {
        let path = file.strip_prefix(folder).unwrap().with_extension("");
        let mut parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
        if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
            parts.pop();
        }
        let text = read(&file);
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        let code: Vec<_> = code.take_while(|line| !line.contains("#[cfg(test)]")).collect();
        found.insert(parts.join("::"), code.join("\n"));
    }
    found
}

/// The paths of a use's tree.
fn expand(tree: &str, before: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    match tree.split_once('{') {
        Some((start, rest)) => {
            let inner = rest.strip_suffix('}').unwrap_or(rest);
            let (mut depth, mut from) = (0, 0);
            for (at, letter) in inner.char_indices() {
                match letter {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        expand(&inner[from..at], &format!("{before}{}", start.trim()), paths);
                        from = at + 1;
                    }
                    _ => {}
                }
            }
            expand(&inner[from..], &format!("{before}{}", start.trim()), paths);
        }
        None if tree.is_empty() => {}
        None => paths.push(format!("{before}{}", tree.split(" as ").next().unwrap_or(tree))),
    }
}

/// The paths that a module's text has: of its uses and within its code; whether each is
/// re-exported.
fn paths(text: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut rest = text.to_owned();
    for part in text.split(';') {
        let Some(at) = part.rfind("use ") else { continue };
        let head = part[..at].rsplit('\n').next().unwrap_or("").trim();
        if !head.is_empty() && !head.starts_with("pub") {
            continue;
        }
        rest = rest.replace(&part[at..], "");
        // A module that only the documentation links to is not used.
        if part[..at].trim_end().ends_with("#[cfg(doc)]") {
            continue;
        }
        let mut paths = Vec::new();
        expand(&part[at + 4..], "", &mut paths);
        found.extend(paths.into_iter().map(|path| (path, !head.is_empty())));
    }
    for start in ["crate::", "super::"] {
        for (at, _) in rest.match_indices(start) {
            let named = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = rest[at..].find(|c| !named(c)).map_or(rest.len(), |end| at + end);
            found.push((rest[at..end].trim_end_matches(':').to_owned(), false));
        }
    }
    found
}

/// A path from the crate's root on, or nothing if it leads elsewhere.
fn absolute(path: &str, of: &str, modules: &Modules) -> Option<String> {
    let mut parts: Vec<&str> = of.split("::").filter(|part| !part.is_empty()).collect();
    let mut rest: Vec<&str> = path.split("::").map(str::trim).collect();
    match rest[0] {
        "crate" => parts.clear(),
        "self" => {}
        "super" => _ = parts.pop(),
        child => {
            let inner = [of, child].iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>();
            return modules.contains_key(&inner.join("::")).then(|| {
                inner.into_iter().chain(rest.into_iter().skip(1)).collect::<Vec<_>>().join("::")
            });
        }
    }
    rest.remove(0);
    while rest.first() == Some(&"super") {
        rest.remove(0);
        parts.pop();
    }
    parts.extend(rest);
    Some(parts.join("::"))
}

/// The module where the thing at the end of a path is made.
fn home(path: &str, modules: &Modules, depth: usize) -> String {
    let mut module = path;
    while !modules.contains_key(module) {
        module = module.rsplit_once("::").map_or("", |(before, _)| before);
    }
    let rest = path[module.len()..].trim_start_matches("::");
    let Some(name) = rest.split("::").next().filter(|name| !name.is_empty()) else {
        return module.to_owned();
    };
    for (other, public) in paths(&modules[module]) {
        let leads = public && other.rsplit("::").next() == Some(name) && depth < 8;
        if let Some(other) = leads.then(|| absolute(&other, module, modules)).flatten()
            && other != path
        {
            return home(&other, modules, depth + 1);
        }
    }
    module.to_owned()
}

/// The modules that each module uses, by where the used items are defined.
pub(crate) fn uses(modules: &Modules) -> BTreeMap<&str, BTreeSet<String>> {
    let mut uses: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in modules {
        let found = paths(text).into_iter().filter(|(_, public)| !public);
        let homes = found.filter_map(|(path, _)| absolute(&path, module, modules));
        let homes = homes.map(|path| home(&path, modules, 0));
        // Items that the root or a parent defines are above the module.
        let homes = homes.filter(|to| to != module && !to.is_empty());
        uses.insert(module, homes.filter(|to| !module.starts_with(&format!("{to}::"))).collect());
    }
    uses
}

/// Which modules are in a circle with others.
fn circles(modules: &Modules) -> BTreeSet<String> {
    let uses = uses(modules);
    let reaches = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(at) = next.pop() {
            next.extend(uses[at.as_str()].iter().filter(|to| seen.insert((*to).clone())).cloned());
        }
        seen
    };
    modules.keys().filter(|module| reaches(module).contains(*module)).cloned().collect()
}

#[test]
fn modules_import_in_one_direction() {
    let of = |texts: [(&str, &str); 3]| {
        Modules::from(texts.map(|(path, text)| (path.to_owned(), text.to_owned())))
    };
    let round = of([
        ("", "mod a;\nmod b;\npub use b::Thing;\n"),
        ("a", "use crate::Thing;\n"),
        ("b", "fn f() { crate::a::g() }\n"),
    ]);
    assert_eq!(circles(&round).len(), 2, "the check cannot fail");
    let straight = of([
        ("", "mod a;\nmod b;\npub use b::Thing;\n"),
        ("a", "use crate::{Thing, b::Other};\n"),
        ("b", "use std::fmt;\n#[cfg(doc)]\nuse crate::a;\n"),
    ]);
    assert_eq!(circles(&straight).len(), 0);
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        let of = entry.file_name().into_string().unwrap();
        let circles = circles(&modules(&entry.path().join("src")));
        found.extend(circles.iter().map(|module| format!("{of} {module}")));
    }
    compare("circle", &found);
}
