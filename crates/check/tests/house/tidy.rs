//! The house rules that a machine can hold.

use std::collections::BTreeSet;
use std::fs;

use crate::sources::{files, read, root};

/// Which crate of ours may use which; `check` may use any and none may use it.
const HOUSE: &[(&str, &[&str])] = &[
    ("machine", &[]),
    ("latch", &["machine"]),
    ("classic", &["machine"]),
    ("profile", &["machine"]),
    ("region", &["machine"]),
    ("sim", &["machine"]),
    ("disk", &["machine"]),
    ("lockmgr", &["machine", "region"]),
    ("pool", &["machine", "latch", "region", "disk"]),
    ("log", &["machine", "latch", "region", "disk"]),
    ("tree", &["machine", "pool"]),
    ("derive", &[]),
    ("store", &["machine", "region", "lockmgr", "disk", "log", "pool", "tree"]),
    ("remote", &["store"]),
    ("interpose", &["machine", "latch", "profile"]),
    ("rivals", &[]),
    (
        "bench",
        &[
            "machine", "latch", "classic", "sim", "region", "disk", "pool", "log", "lockmgr",
            "store", "rivals",
        ],
    ),
    (
        "cli",
        &[
            "machine",
            "bench",
            "sim",
            "profile",
            "interpose",
            "region",
            "disk",
            "pool",
            "lockmgr",
            "remote",
            "store",
        ],
    ),
    ("capi", &["machine", "region", "log", "lockmgr", "store"]),
    (
        "latchwork",
        &[
            "machine", "latch", "region", "derive", "disk", "pool", "lockmgr", "log", "remote",
            "store", "tree",
        ],
    ),
    (
        "check",
        &[
            "lockmgr", "machine", "classic", "latch", "region", "sim", "bench", "disk", "pool",
            "log", "tree", "derive", "store",
        ],
    ),
];

/// The keys of a manifest's `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|key| !key.is_empty() && !key.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn floors(manifests: &[(String, String)]) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, manifest) in manifests {
        let Some((_, allowed)) = HOUSE.iter().find(|(room, _)| room == name) else {
            broken.push(format!("{name} is in no floor"));
            continue;
        };
        for dependency in dependencies(manifest) {
            let ours = dependency.strip_prefix("latchwork-");
            if ours.is_some_and(|ours| !allowed.contains(&ours)) {
                broken.push(format!("{name} may not use {dependency}"));
            }
            if dependency == "loom" && name != "check" {
                broken.push(format!("{name} knows loom"));
            }
        }
    }
    broken
}

#[test]
fn the_floors_hold() {
    let manifests: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let manifest = read(&entry.path().join("Cargo.toml"));
            (entry.file_name().into_string().unwrap(), manifest)
        })
        .collect();
    assert_eq!(manifests.len(), HOUSE.len(), "a crate is missing from the house, or from the disk");
    assert_eq!(floors(&manifests), Vec::<String>::new());
    let wrong = "[dependencies]\nlatchwork-check.workspace = true\nloom = \"0.7\"\n";
    assert_eq!(floors(&[("machine".into(), wrong.into())]).len(), 2, "the check cannot fail");
}

#[test]
fn every_manifest_takes_the_workspace_lints() {
    for manifest in files(&root().join("crates"), "Cargo.toml") {
        assert!(read(&manifest).contains("[lints]\nworkspace = true"), "{}", manifest.display());
    }
}

/// Lines that name an ordering without a comment that argues it, near by and above.
fn unargued(text: &str) -> Vec<usize> {
    let lines: Vec<_> = text.lines().collect();
    let names = ["Acquire", "Release", "AcqRel", "SeqCst"];
    let code = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let start = line.trim_start();
        if start.starts_with("use ")
            || start.starts_with("pub use ")
            || line.contains("Ordering::{")
        {
            continue;
        }
        let named = names.iter().find(|name| {
            code(line).split(|c: char| !c.is_alphanumeric()).any(|word| word == **name)
        });
        let Some(named) = named else { continue };
        let argued = lines[at.saturating_sub(12)..=at].iter().any(|line| {
            let said = line.split_once("//").map_or("", |(_, said)| said);
            let parts = ["Acquire", "Release"];
            said.contains(named) || (*named == "AcqRel" && parts.iter().all(|p| text.contains(p)))
        });
        if !argued {
            found.push(at + 1);
        }
    }
    found
}

#[test]
fn orderings_are_argued() {
    assert_eq!(unargued("let x = y.load(Acquire);"), [1], "the check cannot fail");
    let mut broken = Vec::new();
    for folder in [
        "crates/classic/src",
        "crates/disk/src",
        "crates/latch/src",
        "crates/lockmgr/src",
        "crates/log/src",
        "crates/machine/src",
        "crates/pool/src",
        "crates/region/src",
    ] {
        for path in files(&root().join(folder), ".rs") {
            let lines = unargued(&read(&path));
            broken.extend(lines.iter().map(|line| format!("{}:{line}", path.display())));
        }
    }
    assert!(broken.is_empty(), "no argument for the ordering at {broken:#?}");
}

#[test]
fn latches_know_no_platform() {
    let folders = ["crates/classic/src", "crates/latch/src"];
    for path in folders.iter().flat_map(|folder| files(&root().join(folder), ".rs")) {
        let text = read(&path);
        for word in
            ["cfg(", "std::sync::atomic::Atomic", "core::sync::atomic::Atomic", "libc::", "rustix"]
        {
            assert!(!text.contains(word), "{} says {word}", path.display());
        }
    }
}

#[test]
fn no_file_is_dead() {
    for source in files(&root().join("crates"), ".rs") {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let folder = source.parent().unwrap();
        let roots = ["lib", "main", "build", "mod"];
        let top = folder.file_name().unwrap();
        if roots.contains(&name) || top == "tests" || top == "examples" || top == "benches" {
            continue;
        }
        let said = files(folder.parent().unwrap(), ".rs").iter().any(|other| {
            other != &source && {
                let text = read(other);
                text.contains(&format!("mod {name};")) || text.contains(&format!("{name}.rs\""))
            }
        });
        assert!(said, "{} is in no module", source.display());
    }
}

/// The paths that a page's links name, but for those on the web and within the page.
fn links(text: &str) -> BTreeSet<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|link| link.split('#').next().unwrap_or("").to_owned())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .collect()
}

#[test]
fn links_are_valid() {
    for page in files(&root(), ".md") {
        for link in links(&read(&page)) {
            let target = page.parent().unwrap().join(&link);
            assert!(target.exists(), "{} links to {link}", page.display());
        }
    }
}

#[test]
fn the_readme_says_what_ci_runs() {
    let (readme, ci) = (read(&root().join("README.md")), read(&root().join(".ci/run")));
    let commands: Vec<_> = readme.lines().filter(|line| line.starts_with("cargo ")).collect();
    assert!(commands.len() >= 2, "the README has its two commands");
    let test = commands.iter().find(|c| c.starts_with("cargo test")).expect("one is the tests");
    assert!(ci.lines().any(|line| line.trim() == *test), "CI does not run `{test}`");
}
