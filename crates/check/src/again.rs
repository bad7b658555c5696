//! Runs one test of the current test program in a new process: a child that shares a region and
//! that its parent may kill.

use std::process::Command;

/// A command that runs only the test `name` of `module` (the value of `module_path!()`).
///
/// # Panics
///
/// If the system does not report the path of the program.
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
