//! Each ordering weakened, each wake-up dropped: loom must object.
//!
//! A mutation is a block of `key: value` lines in `mutations/*.txt`, blocks apart by a blank line:
//!
//! ```text
//! name: the unlocking store is relaxed
//! file: crates/latch/src/shfl.rs
//! after: pub unsafe fn unlock(
//! find: self.held.store(next, Release)
//! replace: self.held.store(next, Relaxed)
//! test: latch_loom shfl::loom_mutex_three_threads
//! ```
//!
//! `find` is replaced once, at its first occurrence after `after` (or in the file, where it must be
//! unique). `test` names a test program of this crate and a filter; at least one matching test must
//! fail or exceed the time limit. The crates are mutated in a copy, without the crates that those
//! tests do not need. Unmutated, every named test must pass.
//!
//! Each mutation takes a build, so the everyday run takes a sample, of a latch and of the region,
//! and `cargo test --release -p latchwork-check --test mutations -- --ignored` takes them all.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// One weakening of one place.
#[derive(Debug, Default)]
struct Mutation {
    name: String,
    file: String,
    after: String,
    find: String,
    replace: String,
    test: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn mutations() -> Vec<Mutation> {
    let folder = root().join("crates/check/mutations");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files.iter().flat_map(|file| parse(&fs::read_to_string(file).unwrap())).collect()
}

fn parse(text: &str) -> Vec<Mutation> {
    text.split("\n\n")
        .filter(|block| block.lines().any(|line| !line.starts_with('#') && !line.is_empty()))
        .map(|block| {
            let mut mutation = Mutation::default();
            for line in block.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
                let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
                let field = match key {
                    "name" => &mut mutation.name,
                    "file" => &mut mutation.file,
                    "after" => &mut mutation.after,
                    "find" => &mut mutation.find,
                    "replace" => &mut mutation.replace,
                    "test" => &mut mutation.test,
                    _ => panic!("unknown key {key}"),
                };
                *field = value.trim().to_owned();
            }
            mutation
        })
        .collect()
}

impl Mutation {
    /// The first word of its test program's name: `store` of `store_loom`.
    fn kind(&self) -> &str {
        self.test.split(['_', ' ']).next().unwrap()
    }

    /// The file's text with the mutation in it.
    fn apply(&self, text: &str) -> Result<String, String> {
        let from = match self.after.as_str() {
            "" => 0,
            after => text.find(after).ok_or(format!("{}: no {after:?}", self.name))?,
        };
        let at =
            text[from..].find(&self.find).ok_or(format!("{}: no {:?}", self.name, self.find))?;
        let (at, end) = (from + at, from + at + self.find.len());
        if self.after.is_empty() && text[end..].contains(&self.find) {
            return Err(format!("{}: {:?} stands more than once", self.name, self.find));
        }
        Ok(format!("{}{}{}", &text[..at], self.replace, &text[end..]))
    }
}

/// A copy of the crates that are mutated, as a workspace of its own.
struct Copy {
    folder: PathBuf,
}

/// Crates that every test of this one needs.
const NEEDED: [&str; 3] = ["machine", "latch", "check"];

const STORE: [&str; 7] = ["region", "lockmgr", "disk", "log", "pool", "tree", "store"];

/// The crates that a kind of test program needs. Other crates would be built each time.
const KINDS: [(&str, &[&str]); 8] = [
    ("latch", &[]),
    ("sim", &["classic", "sim"]),
    ("region", &["region"]),
    ("lockmgr", &["region", "lockmgr"]),
    ("log", &["region", "disk", "log"]),
    ("pool", &["region", "disk", "pool"]),
    ("tree", &STORE),
    ("store", &STORE),
];

impl Copy {
    fn new(name: &str, with: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(folder.join("crates"));
        for name in NEEDED.iter().chain(with) {
            let file = Path::new("crates").join(name);
            copy(&root().join(&file), &folder.join(&file));
        }
        fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        let manifest: String = fs::read_to_string(root().join("Cargo.toml"))
            .unwrap()
            .lines()
            .filter(|line| !line.starts_with("default-members"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        let check = folder.join("crates/check");
        let others = strike(&check.join("Cargo.toml"), |line| {
            let ours = line.strip_prefix("latchwork-")?.split(['.', ' ']).next()?;
            let there = NEEDED.contains(&ours) || with.contains(&ours);
            (!there).then(|| format!("latchwork_{}::", ours.replace('-', "_")))
        });
        strike(&check.join("src/lib.rs"), |line| {
            let part = line.strip_prefix("pub mod ")?.strip_suffix(';')?;
            let text = fs::read_to_string(check.join(format!("src/{part}.rs"))).unwrap();
            others.iter().any(|other| text.contains(other)).then_some(())
        });
        Self { folder }
    }

    /// Runs the tests that `test` names, `file filter`.
    fn run(&self, test: &str) -> Output {
        let (file, filter) = test.split_once(' ').unwrap_or((test, ""));
        // A lock that is lost may be waited for for ever.
        Command::new("timeout")
            .args(["600", env!("CARGO")])
            .args(["test", "--release", "--offline", "--quiet", "-p", "latchwork-check", "--test"])
            .args([file, filter, "--", "--test-threads", "2"])
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutated"))
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "1")
            .output()
            .unwrap()
    }
}

/// Takes those lines out of a file, and returns what `which` says of them.
fn strike<T>(file: &Path, which: impl Fn(&str) -> Option<T>) -> Vec<T> {
    let text = fs::read_to_string(file).unwrap();
    let (mut kept, mut struck) = (String::new(), Vec::new());
    for line in text.lines() {
        match which(line) {
            Some(said) => struck.push(said),
            None => kept.extend([line, "\n"]),
        }
    }
    fs::write(file, kept).unwrap();
    struck
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn passed(output: &Output) -> bool {
    output.status.success()
        && String::from_utf8_lossy(&output.stdout)
            .lines()
            .any(|line| line.contains("test result: ok.") && !line.contains("ok. 0 passed"))
}

/// Runs each mutation, and first what it mutates; returns what survived.
fn survivors(name: &str, mutations: &[Mutation]) -> Vec<String> {
    let mut survivors = Vec::new();
    for (kind, with) in KINDS {
        let ours: Vec<_> = mutations.iter().filter(|m| m.kind() == kind).collect();
        if !ours.is_empty() {
            survivors.extend(survivors_in(&Copy::new(&format!("{name}-{kind}"), with), &ours));
        }
    }
    println!("{} of {} caught", mutations.len() - survivors.len(), mutations.len());
    survivors
}

fn survivors_in(copy: &Copy, mutations: &[&Mutation]) -> Vec<String> {
    for test in mutations.iter().map(|m| m.test.as_str()).collect::<BTreeSet<_>>() {
        let output = copy.run(test);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(passed(&output), "{test} fails before anything is mutated:\n{text}");
    }
    let mut survivors = Vec::new();
    for mutation in mutations {
        let path = copy.folder.join(&mutation.file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, mutation.apply(&text).unwrap()).unwrap();
        let output = copy.run(&mutation.test);
        fs::write(&path, text).unwrap();
        let built = !String::from_utf8_lossy(&output.stderr).contains("could not compile");
        assert!(built, "{} does not build", mutation.name);
        let result = if passed(&output) { "SURVIVED" } else { "caught" };
        println!("{result}: {} ({})", mutation.name, mutation.test);
        if passed(&output) {
            survivors.push(mutation.name.clone());
        }
    }
    survivors
}

#[test]
fn every_mutation_still_applies() {
    let mutations = mutations();
    assert!(mutations.len() > 20, "{} mutations", mutations.len());
    for mutation in &mutations {
        let text = fs::read_to_string(root().join(&mutation.file)).unwrap();
        let mutated = mutation.apply(&text).unwrap();
        assert_ne!(mutated, text, "{}", mutation.name);
        assert!(!mutation.test.is_empty(), "{}: no test", mutation.name);
        let with = KINDS.iter().find(|(kind, _)| *kind == mutation.kind()).map(|(_, with)| with);
        let with =
            with.unwrap_or_else(|| panic!("{}: {} is of no kind", mutation.name, mutation.test));
        let of = mutation.file.split('/').nth(1).unwrap();
        let copied = NEEDED.contains(&of) || with.contains(&of);
        assert!(copied, "{}: {} does without crates/{of}", mutation.name, mutation.test);
    }
}

/// One mutation of a latch and one of the region: mutations of the store take a build of the whole
/// stack. The control is a mutation without effect, which must not be caught.
#[test]
fn a_sample_is_caught_and_a_comment_is_not() {
    let one = |kind| mutations().into_iter().filter(|m| m.kind() == kind).nth(3).unwrap();
    let mut sample = vec![one("latch"), one("region")];
    sample.push(Mutation {
        name: "a comment".into(),
        file: "crates/latch/src/shfl.rs".into(),
        find: "//! # State".into(),
        replace: "//! # The state".into(),
        test: "latch_loom shfl::loom_mutex_two_threads".into(),
        ..Mutation::default()
    });
    assert_eq!(survivors("sample", &sample), ["a comment"]);
}

#[test]
#[ignore = "a build for each mutation: an hour"]
fn all_are_caught() {
    // With `LATCHWORK_MUTATIONS=crates/region` those of the files whose paths begin so, with
    // `LATCHWORK_MUTATIONS=sim` those whose test does.
    let of = std::env::var("LATCHWORK_MUTATIONS").unwrap_or_default();
    let is_chosen = |m: &Mutation| m.file.starts_with(&of) || m.test.starts_with(&of);
    let chosen: Vec<_> = mutations().into_iter().filter(is_chosen).collect();
    let survivors = survivors("all", &chosen);
    assert!(survivors.is_empty(), "{survivors:#?}");
}
