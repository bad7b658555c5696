//! Test programs that `cargo test` leaves out are run by `.ci/run`.

use std::collections::BTreeSet;

use crate::sources::{files, read, root};

/// The programs of all crates whose section in `Cargo.toml` says `test = false`.
fn left_out() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files(&root().join("crates"), "Cargo.toml") {
        for section in read(&path).split("\n[[test]]").skip(1) {
            let section = section.split("\n[").next().unwrap_or_default();
            if section.contains("test = false") {
                let name = section.split('"').nth(1).expect("a section has a name");
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_program_that_cargo_test_leaves_out_is_run_by_ci() {
    let text = read(&root().join(".ci/run"));
    let long = text.lines().find_map(|line| line.strip_prefix("LONG=(")?.strip_suffix(')'));
    let run: BTreeSet<_> = long.expect("the list LONG").split(' ').map(str::to_owned).collect();
    assert_eq!(run, left_out());
    assert!(run.len() > 5, "the sections are found");
    let (_, steps) = text.split_once("step tests").expect("the step");
    assert!(steps.contains(r#"cargo test --workspace --release "${LONG[@]/#/--test=}""#));
}
