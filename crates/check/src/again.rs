//! Starts the present test program again, to run one of its tests alone: as a child that shares a
//! region, and that its parent may kill.

use std::process::Command;

/// A command that runs the test `name` of `module` (as `module_path!()` gives it), and nothing
/// else.
///
/// # Panics
///
/// If the system does not say where the present program lies.
pub fn again(module: &str, name: &str) -> Command {
    // The first part of a module's path is the program.
    let test = match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{name}"),
        None => name.to_owned(),
    };
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.args(["--exact", &test, "--test-threads=1", "--nocapture"]);
    command
}
