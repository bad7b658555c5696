//! What `demo` says of a few bytes.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn both_take_turns_and_the_outputs_are_compared() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.env_remove("LD_PRELOAD").env_remove("LATCHWORK_LIBRARY");
    // Files of a killed demo are removed, and none are left.
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(scratch.join("latchwork-demo-99999999-0")).unwrap();
    let args = ["demo", "--size", "1", "--runs", "2"];
    let output = command.args(args).env("TMPDIR", &scratch).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
    assert!(text.contains("medians of 2 runs each, spread "), "{text}");
    assert!(text.contains("outputs are the same"), "{text}");
    assert!(text.contains("latches taken") || text.contains("latch taken"), "{text}");
}
