//! What `latchwork locks` says.

use std::process::{Command, Output};

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_latchwork");

pub(crate) fn locks(args: &[&str]) -> Output {
    Command::new(PROGRAM).arg("locks").args(args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The output of a command that must succeed.
pub(crate) fn done(args: &[&str]) -> String {
    let output = locks(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The same, as JSON, by line.
pub(crate) fn rows(args: &[&str]) -> Vec<Value> {
    let said = done(&[args, &["--json"]].concat());
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
