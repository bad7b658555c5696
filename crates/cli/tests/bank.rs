//! The bank: that it comes out right, and that it would not without locks or without undoing.

#[cfg(feature = "postgres")]
#[allow(dead_code)]
#[path = "../../remote/tests/remote/server.rs"]
mod server;

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn bank(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork")).arg("bank").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn summary(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr))
    })
}

/// Few accounts, so that all meet; many killed.
const ROUGH: [&str; 6] = ["--json", "--accounts", "5", "--kills-per-second", "50", "--seconds"];

fn stays_right(more: &[&str], counts: &[&str]) {
    let output = bank(&[&ROUGH[..], more, &["--seed", "7"]].concat());
    let summary = summary(&output);
    println!("{summary}");
    assert_eq!(output.status.code(), Some(0), "{summary} {}", text(&output.stderr));
    assert_eq!((&summary["right"], &summary["sum"]), (&true.into(), &5000.into()));
    assert_eq!((&summary["left"], &summary["seed"]), (&0.into(), &7.into()));
    for count in counts {
        assert!(summary[count].as_u64() > Some(0), "nothing was tested: {count} in {summary}");
    }
}

/// Long enough for all to be killed at once.
#[test]
fn the_sum_is_constant_in_a_store() {
    stays_right(&["5"], &["transfers", "killed", "undone", "deadlocks", "audits"]);
}

/// With a server that crashes and restarts during the run.
#[cfg(feature = "postgres")]
#[test]
fn the_sum_is_constant_on_a_server() {
    let Some(bin) = server::programs() else {
        eprintln!("SKIPPED: no PostgreSQL server in /usr/lib/postgresql; install `postgresql`");
        return;
    };
    let mut server = server::Server::create(&bin, "bank");
    server.start();
    let address = server.fresh("bank");
    let bank = std::thread::spawn(move || {
        bank(&[
            "--json",
            "--accounts",
            "20",
            "--kills-per-second",
            "20",
            "--seconds",
            "6",
            "--seed",
            "7",
            "--database",
            &address,
        ])
    });
    sleep(Duration::from_secs(2));
    server.stop(libc::SIGQUIT);
    server.start();
    let output = bank.join().unwrap();
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{summary} {}", text(&output.stderr));
    assert_eq!((&summary["right"], &summary["sum"]), (&true.into(), &20_000.into()));
    for count in ["transfers", "killed", "deadlocks", "audits"] {
        assert!(summary[count].as_u64() > Some(0), "nothing was tested: {count} in {summary}");
    }
    assert_eq!(server.sql("SELECT count(*) FROM bank.latchwork_records"), "0", "accounts are left");
}

/// More kills than possible: the run still ends, although no process may live long enough to move
/// money.
#[test]
fn too_many_kills_are_reported() {
    let output = bank(&["--json", "--kills-per-second", "1000", "--seconds", "1"]);
    let summary = summary(&output);
    assert!(output.status.code().is_some(), "{summary} {}", text(&output.stderr));
    assert_eq!(summary["sum"], summary["expected"], "{summary}");
    assert!(summary["killed"].as_u64() > Some(0), "{summary}");
}

#[test]
fn the_sum_is_constant_in_a_file() {
    let counts = ["transfers", "killed", "undone", "half", "deadlocks", "audits"];
    stays_right(&["3", "--in-file"], &counts);
}

#[test]
fn without_locks_the_sum_goes_wrong() {
    let output = bank(&[&ROUGH[..], &["20", "--without-locks"]].concat());
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert!(summary["fault"].is_null() && summary["sum"] != summary["expected"], "{summary}");
}

#[test]
fn without_undoing_the_sum_goes_wrong() {
    let output = bank(&[&ROUGH[..], &["30", "--without-undo"]].concat());
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert!(summary["fault"].is_null() && summary["sum"] != summary["expected"], "{summary}");
    assert_eq!((&summary["undone"], &summary["left"]), (&0.into(), &0.into()), "{summary}");
}

#[test]
fn the_text_output_has_lines_and_a_table() {
    let folder = std::env::temp_dir().join(format!("latchwork-bank-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let output = bank(&["--seconds", "2", "--dir", folder.to_str().unwrap()]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    for line in stdout.lines().chain(stderr.lines()) {
        assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
    }
    assert!(stdout.contains("right") && stdout.contains("100000"), "{stdout}");
    assert!(stderr.starts_with("1 s: ") && stderr.contains("; sum 100000"), "{stderr}");
    // Nothing stays; the folder of the files was in this one.
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn misuse_is_an_error() {
    for args in [["--accounts", "1"], ["--processes", "1"], ["--seconds", "0"], ["--member", "1"]] {
        let output = bank(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(bank(&["--dir", "/nonexistent"]).status.code(), Some(2));
    let help = text(&bank(&["--help"]).stdout);
    assert!(help.contains("Examples:") && !help.contains("--member"), "{help}");
}

/// The child processes of a process.
fn children(process: u32) -> Vec<i32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The first steps of a reader of the README.
#[test]
fn processes_that_others_kill_are_replaced() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.args(["bank", "--json", "--seconds", "6", "--kills-per-second", "0"]);
    let bank = command.stdout(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while children(bank.id()).len() < 8 && Instant::now() < until {
        sleep(Duration::from_millis(10));
    }
    // They must be at work: a process that is killed before may not have begun anything.
    sleep(Duration::from_secs(1));
    let killed = children(bank.id());
    for (pid, signal) in killed.iter().zip([libc::SIGKILL, libc::SIGTERM, libc::SIGKILL]) {
        // SAFETY: a child of our own child, which has not waited for it.
        unsafe { libc::kill(*pid, signal) };
    }
    let output = bank.wait_with_output().unwrap();
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{summary}");
    assert_eq!((&summary["right"], &summary["killed"]), (&true.into(), &3.into()), "{summary}");
}

/// The signals of one of the masks in `/proc/PID/status`.
fn mask(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

/// As `nohup` has it, a terminal that closes ends nothing.
#[test]
fn an_ignored_signal_remains_ignored() {
    let bit = |signal: i32| 1u64 << (signal - 1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.args(["bank", "--json", "--seconds", "86400"]).stdout(Stdio::piped());
    let ignore = || {
        // SAFETY: a system call, which a child may make.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: it makes that call and no other.
    unsafe { command.pre_exec(ignore) };
    let bank = command.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    // The handler of this signal is installed last.
    while mask(bank.id(), "SigCgt:") & bit(libc::SIGWINCH) == 0 && Instant::now() < until {
        sleep(Duration::from_millis(10));
    }
    let ignored = mask(bank.id(), "SigIgn:");
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(bank.id() as i32, libc::SIGTERM) };
    let output = bank.wait_with_output().unwrap();
    assert_ne!(ignored & bit(libc::SIGHUP), 0, "{ignored:x}");
    // The other signal is its end, and not that of a program that was killed.
    assert_eq!(summary(&output)["sum"], 100_000);
}
