//! `run` and `profile` with programs that can be run, and with invalid ones.

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use rig::{compile, folder, latchwork, run};

#[track_caller]
fn refused(output: &Output, code: i32, says: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(says) && stderr.starts_with("latchwork: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_exit_code_of_the_program_is_passed_on() {
    for word in ["run", "profile"] {
        for code in [0, 1, 2, 7, 125, 255] {
            let output = run(&[word, "--", "sh", "-c", &format!("exit {code}")]);
            assert_eq!(output.status.code(), Some(code), "{word}");
        }
    }
}

#[test]
fn a_signal_is_passed_on() {
    // `run` has become the program; `profile` stays, and reports the signal as a shell does.
    assert_eq!(run(&["run", "sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    assert_eq!(run(&["profile", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    let child = latchwork().args(["profile", "sleep", "60"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(128 + 15));
}

#[test]
fn programs_that_cannot_be_run_are_an_error() {
    let folder = folder("refused");
    let plain = folder.join("plain");
    fs::write(&plain, "no program").unwrap();
    let plain = plain.to_str().unwrap();
    for word in ["run", "profile"] {
        refused(&run(&[word, "no-such-program-here"]), 127, "not found in PATH");
        refused(&run(&[word, "/no/such/program"]), 127, "not found");
        refused(&run(&[word, plain]), 126, "not executable");
        refused(&run(&[word, "/"]), 126, "not executable");
        refused(&run(&[word, "--latch", "mcs", "true"]), 125, "shfl, shfl-spin, lw, glibc");
    }
    fs::set_permissions(plain, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&run(&["run", plain]), 126, "not a program");
    fs::write(plain, "#!/no/such/interpreter\n").unwrap();
    refused(&run(&["run", plain]), 127, "/no/such/interpreter");
    let mut foreign = vec![0; 64];
    foreign[..6].copy_from_slice(b"\x7fELF\x01\x01");
    fs::write(plain, foreign).unwrap();
    refused(&run(&["run", plain]), 125, "another machine");
}

#[test]
fn programs_without_preloading_are_refused() {
    let folder = folder("static");
    let text = "int main(void) { return 0; }";
    if let Some(program) = compile(&folder, "still", text, &["-static"]) {
        refused(&run(&["run", &program]), 125, "statically linked");
    }
    for (flag, name) in [("thread", "ThreadSanitizer"), ("address", "AddressSanitizer")] {
        match compile(&folder, flag, text, &[&format!("-fsanitize={flag}")]) {
            Some(program) => {
                refused(&run(&["run", &program]), 125, name);
                refused(&run(&["profile", "--", &program]), 125, name);
            }
            None => println!("SKIPPED: no compiler for {name}"),
        }
    }
    // The loader of another C library, which need not be here to be recognised.
    let musl = compile(&folder, "musl", text, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    refused(&run(&["run", &musl.unwrap()]), 125, "musl");
    // SAFETY: it only tells.
    if unsafe { libc::geteuid() } == 0 {
        let program = compile(&folder, "other", text, &[]).unwrap();
        std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        refused(&run(&["run", &program]), 125, "setuid");
    }
}

#[test]
fn misuse() {
    assert_eq!(run(&["run"]).status.code(), Some(125));
    assert_eq!(run(&["profile"]).status.code(), Some(125));
    assert_eq!(run(&["profile", "--no-such-option", "true"]).status.code(), Some(125));
    assert_eq!(run(&["no-such-word"]).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let output = latchwork().args(["run", "true"]).env("LATCHWORK_LIBRARY", "/no/lib.so").output();
    refused(&output.unwrap(), 125, "/no/lib.so");
    assert_eq!(run(&["profile", "--watch", "1"]).status.code(), Some(1));
}

#[test]
fn stdout_has_only_the_programs_output() {
    for word in ["run", "profile"] {
        assert_eq!(run(&[word, "echo", "-n", "a"]).stdout, b"a");
    }
    assert_eq!(run(&["run", "sh", "-c", "echo $LD_PRELOAD | grep -c latchwork"]).stdout, b"1\n");
    let mut command = latchwork();
    command.args(["run", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", "libc.so.6");
    let output = command.output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    assert!(
        list.starts_with("libc.so.6:/") && list.ends_with("latchwork_interpose.so\n"),
        "{list}"
    );
}

#[test]
fn the_program_itself_is_not_interposed() {
    let mut nm = Command::new("nm");
    nm.args(["--defined-only", env!("CARGO_BIN_EXE_latchwork")]);
    let names = String::from_utf8(nm.output().unwrap().stdout).unwrap();
    assert!(!names.lines().any(|line| line.ends_with(" pthread_mutex_lock")));
}

#[test]
fn completions_and_a_page() {
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]).stdout;
        assert!(String::from_utf8(text).unwrap().contains("profile"));
    }
    // One page a command: with all pages in one, `man` finds the first alone.
    for (words, name) in
        [(&["man"][..], "latchwork"), (&["man", "bench", "latch"], "latchwork-bench-latch")]
    {
        let page = String::from_utf8(run(words).stdout).unwrap();
        let heads: Vec<_> = page.lines().filter(|line| line.starts_with(".TH ")).collect();
        assert_eq!(heads.len(), 1, "{heads:?}");
        assert!(heads[0].starts_with(&format!(".TH {name} 1")), "{heads:?}");
    }
    let pages = folder("man");
    assert!(run(&["man", "--folder", pages.to_str().unwrap()]).status.success());
    assert!(pages.join("latchwork-sim-explain.1").exists());
    assert_eq!(run(&["man", "nothing"]).status.code(), Some(1));
}
