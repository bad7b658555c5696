//! How a program that is being profiled is found by others, and what is left when it has ended.

#[path = "rig/hot.rs"]
mod hot;
mod rig;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hot::HOT;
use rig::{compile, folder, latchwork, run};

/// Runs latchwork with a separate folder for profiles.
fn apart(profiles: &Path, args: &[&str]) -> Output {
    latchwork().env("LATCHWORK_FOLDER", profiles).args(args).output().unwrap()
}

#[test]
fn a_watcher_finds_the_program_without_an_id_and_behind_wrappers() {
    let folder = folder("found");
    let profiles = folder.join("profiles");
    fs::create_dir(&profiles).unwrap();
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let none = apart(&profiles, &["profile", "--watch", "--once"]);
    assert_eq!(none.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&none.stderr).contains("is being profiled"));
    let start = |name: &str| {
        let report = folder.join(name);
        let args = ["profile", "-o", report.to_str().unwrap(), "--", &program, "60"];
        latchwork().env("LATCHWORK_FOLDER", &profiles).args(args).spawn().unwrap()
    };
    let seen = |args: &[&str]| {
        let mut text = String::new();
        for _ in 0..300 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let output = apart(&profiles, &[&["profile", "--once", "--watch"], args].concat());
            text = String::from_utf8(output.stdout).unwrap();
            if text.contains("taken 800 times") {
                return;
            }
        }
        panic!("{args:?}: {text}");
    };
    let mut first = start("first");
    seen(&[]);
    seen(&[&first.id().to_string()]);
    let mut second = start("second");
    seen(&[&second.id().to_string()]);
    let many = apart(&profiles, &["profile", "--watch", "--once"]);
    let said = String::from_utf8(many.stderr).unwrap();
    assert!(said.contains("say which: ") && said.matches("(hot)").count() == 2, "{said}");
    for child in [&mut first, &mut second] {
        let kill = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(kill.success() && child.wait().is_ok());
    }
}

#[test]
fn a_folder_without_a_profile_is_an_error() {
    let folder = folder("empty");
    let output = run(&["profile", "--watch", folder.to_str().unwrap(), "--once"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no profile in "), "{output:?}");
}

#[test]
fn files_of_a_killed_latchwork_are_removed() {
    let profiles = folder("swept");
    // SAFETY: it only tells.
    let user = unsafe { libc::geteuid() };
    let made_with = |name: &str, file: Option<&str>, old: bool| {
        let path = profiles.join(format!("latchwork-{user}-{name}.0"));
        fs::create_dir(&path).unwrap();
        if let Some(file) = file {
            fs::write(path.join(file), "").unwrap();
        }
        let folder = fs::File::open(&path).unwrap();
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        if old {
            folder.set_modified(then).unwrap();
        }
        (path, folder)
    };
    let made = |name: &str, old: bool| made_with(name, None, old);
    let (dead, _) = made("1000000001", true);
    let (left, _) = made_with("1000000005", Some("1000000006.0"), true);
    // A folder or file whose name is not one of latchwork's belongs to the user.
    let (kept, _) = made_with("saved", None, true);
    let (mine, _) = made_with("1000000004", Some("letter.txt"), true);
    let (young, _) = made("1000000002", false);
    let (held, lock) = made("1000000003", true);
    lock.lock().unwrap();
    assert!(apart(&profiles, &["profile", "true"]).status.success());
    let there = |paths: &[&PathBuf]| paths.iter().filter(|path| path.exists()).count();
    assert_eq!((there(&[&dead, &left]), there(&[&young, &held, &kept, &mine])), (0, 4));
    // The run's own folder was removed as well.
    assert_eq!(fs::read_dir(&profiles).unwrap().count(), 4);
}

#[test]
fn a_watcher_ends_when_its_reader_has_exited() {
    let folder = folder("gone");
    let profiles = folder.join("profiles");
    fs::create_dir(&profiles).unwrap();
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let start = |args: &[&str]| {
        let mut command = latchwork();
        command.env("LATCHWORK_FOLDER", &profiles).args(args).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let report = folder.join("report");
    let mut program = start(&["profile", "-o", report.to_str().unwrap(), "--", &program, "600"]);
    let until = Instant::now() + Duration::from_secs(60);
    while apart(&profiles, &["profile", "--watch", "--once", "--json"]).stdout.is_empty() {
        assert!(Instant::now() < until, "the program does not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut watcher = start(&["profile", "--watch", "--json", "--interval", "0.05"]);
    let mut line = String::new();
    BufReader::new(watcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    let until = Instant::now() + Duration::from_secs(30);
    while watcher.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = watcher.try_wait().unwrap();
    let _ = watcher.kill();
    let kill = Command::new("kill").arg(program.id().to_string()).status().unwrap();
    assert!(kill.success() && program.wait().is_ok() && watcher.wait().is_ok());
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn a_second_terminal_watches() {
    let folder = folder("watch");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let report = folder.join("report");
    let args = ["profile", "-o", report.to_str().unwrap(), "--", &program, "3"];
    let mut child = latchwork().args(args).spawn().unwrap();
    let mut seen = String::new();
    for _ in 0..25 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let Ok(process) = fs::read_to_string(children) else { continue };
        let Some(process) = process.split_whitespace().next() else { continue };
        let output = run(&["profile", "--watch", process, "--once"]);
        seen = String::from_utf8(output.stdout).unwrap();
        if seen.contains("taken 800 times") {
            break;
        }
    }
    assert!(seen.contains("hot_spot hot.c:8") && seen.contains("taken 800 times"), "{seen}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
