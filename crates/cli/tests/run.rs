//! What `run` and `profile` do with programs that can be run, and with those that cannot.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn latchwork() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.env_remove("LD_PRELOAD").env_remove("LATCHWORK_LIBRARY");
    command
}

fn run(args: &[&str]) -> Output {
    latchwork().args(args).output().unwrap()
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Compiles a program; none if there is no compiler for that.
fn compile(folder: &Path, name: &str, text: &str, flags: &[&str]) -> Option<String> {
    let (source, to) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    let done = cc.args(["-g", "-pthread", "-o"]).arg(&to).arg(&source).args(flags).output();
    done.unwrap().status.success().then(|| to.to_str().unwrap().to_owned())
}

#[track_caller]
fn refused(output: &Output, code: i32, says: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(says) && stderr.starts_with("latchwork: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_programs_own_code_is_passed_on() {
    for word in ["run", "profile"] {
        for code in [0, 1, 2, 7, 125, 255] {
            let output = run(&[word, "--", "sh", "-c", &format!("exit {code}")]);
            assert_eq!(output.status.code(), Some(code), "{word}");
        }
    }
}

#[test]
fn a_signal_is_passed_on() {
    // `run` is the program itself by then; `profile` stays, and says so as a shell does.
    assert_eq!(run(&["run", "sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    assert_eq!(run(&["profile", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    let child = latchwork().args(["profile", "sleep", "60"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(128 + 15));
}

#[test]
fn what_cannot_be_run() {
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
fn what_the_loader_would_not_preload_us_into() {
    let folder = folder("static");
    let text = "int main(void) { return 0; }";
    if let Some(program) = compile(&folder, "still", text, &["-static"]) {
        refused(&run(&["run", &program]), 125, "statically linked");
    }
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
fn stdout_is_the_programs() {
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

const HOT: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void *hot_spot(void *a) {
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&m);
        usleep(50);
        pthread_mutex_unlock(&m);
    }
    return a;
}
int main(int c, char **v) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, hot_spot, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    if (c > 1) sleep(atoi(v[1]));
    _exit(3);
}
";

#[test]
fn a_profile_names_the_hot_spot_even_after_an_exit_in_haste() {
    let folder = folder("hot");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    for latch in ["shfl", "shfl-spin", "lw", "glibc"] {
        let output = run(&["profile", "--latch", latch, "--", &program]);
        assert_eq!(output.status.code(), Some(3));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("hot_spot hot.c:8") && text.contains("800"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let file = folder.join("report");
    let to = file.to_str().unwrap();
    let output = run(&["profile", "--json", "-o", to, "--", &program]);
    assert!(output.stderr.is_empty(), "{output:?}");
    let rows: Vec<serde_json::Value> = fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap();
    assert_eq!(row("latch")["acquisitions"], 800);
    assert_eq!(row("site")["function"], "hot_spot");
    assert!(row("site")["contended"].as_u64().unwrap() > 0);
    assert!(row("site")["wait_p50_ns"].as_u64() <= row("site")["wait_max_ns"].as_u64());
    assert_eq!(row("process")["exe"], program.as_str());
}

#[test]
fn only_one_program_is_recorded() {
    let folder = folder("only");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let line = format!("{program}; true");
    let output = run(&["profile", "--only", "hot", "--", "sh", "-c", &line]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("hot_spot"));
    let output = run(&["profile", "--only", "sh", "--", "sh", "-c", &line]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 locks seen"));
}

#[test]
fn no_locks_are_said_to_be_none() {
    let output = run(&["profile", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 locks seen"));
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
    assert_eq!(run(&["man", "nothing"]).status.code(), Some(2));
}
