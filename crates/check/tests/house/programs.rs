//! Test programs that `cargo test` leaves out are run by `.ci/run`.

use crate::sources::{read, root};

/// The programs whose section in `Cargo.toml` says `test = false`.
fn left_out() -> Vec<String> {
    let text = read(&root().join("crates/check/Cargo.toml"));
    let sections = text.split("[[test]]").skip(1);
    let left_out = sections.filter(|section| section.contains("test = false"));
    let name =
        |section: &str| Some(section.split_once("name = \"")?.1.split_once('"')?.0.to_owned());
    left_out.map(|section| name(section).expect("a section has a name")).collect()
}

#[test]
fn every_program_that_cargo_test_leaves_out_is_run_by_ci() {
    let text = read(&root().join(".ci/run"));
    let long = text.lines().find_map(|line| line.strip_prefix("LONG=(")?.strip_suffix(')'));
    let run: Vec<_> = long.expect("the list LONG").split(' ').map(str::to_owned).collect();
    assert_eq!(run, left_out());
    let (_, steps) = text.split_once("step tests").expect("the step");
    assert!(steps.contains(r#"cargo test --workspace --release "${LONG[@]/#/--test=}""#));
}
