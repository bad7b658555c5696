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
    let (_, steps) = text.split_once("step tests").expect("the step");
    let mut run = BTreeSet::new();
    for (list, packages) in [("LONG_OF_CHECK", "CHECK"), ("LONG_OF_REST", "REST")] {
        let find = |line: &str| {
            Some(line.strip_prefix(list)?.strip_prefix("=(")?.strip_suffix(')')?.to_owned())
        };
        let names = text.lines().find_map(find).expect("the list");
        run.extend(names.split(' ').map(str::to_owned));
        let command =
            format!(r#"cargo test --release "${{{packages}[@]}}" "${{{list}[@]/#/--test=}}""#);
        assert!(steps.contains(&command), "CI does not run `{command}`");
    }
    assert_eq!(run, left_out());
    assert!(run.len() > 5, "the sections are found");
}
