//! What `demo` says of a few bytes.

use std::process::Command;

#[test]
fn both_take_turns_and_the_outputs_are_compared() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.env_remove("LD_PRELOAD").env_remove("LATCHWORK_LIBRARY");
    let output = command.args(["demo", "--size", "1", "--runs", "2"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("medians of 2 runs each, spread "), "{text}");
    assert!(text.contains("outputs are the same"), "{text}");
    assert!(text.contains("latches taken") || text.contains("latch taken"), "{text}");
}
