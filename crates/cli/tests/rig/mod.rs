//! Programs to run, and latchwork to run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn latchwork() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.env_remove("LD_PRELOAD").env_remove("LATCHWORK_LIBRARY");
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    latchwork().args(args).output().unwrap()
}

/// A folder of this test's own.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("program-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Compiles a program; none if there is no compiler for that.
pub(crate) fn compile(folder: &Path, name: &str, text: &str, flags: &[&str]) -> Option<String> {
    let (source, to) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    let done = cc.args(["-g", "-pthread", "-o"]).arg(&to).arg(&source).args(flags).output();
    done.unwrap().status.success().then(|| to.to_str().unwrap().to_owned())
}
