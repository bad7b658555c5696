//! What `locks` says about a region that a demo makes, alive and dead.

mod said;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use said::{PROGRAM, done, locks, rows, text};
use serde_json::Value;

fn path(name: &str) -> PathBuf {
    env::temp_dir().join(format!("latchwork-locks-{name}-{}", std::process::id()))
}

/// A demo that is ready: all its owners hold or wait.
struct Demo {
    child: Child,
    file: PathBuf,
}

impl Demo {
    fn start(name: &str) -> Self {
        let file = path(name);
        let _ = fs::remove_file(&file);
        let mut command = Command::new(PROGRAM);
        command.args(["locks", "demo", "--seconds", "600"]).arg(&file);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        let demo = Self { child, file };
        // Waits for the slowest owner to begin.
        while rows(&["list", demo.file(), "--waiting"]).len() < 5 {
            std::thread::yield_now();
        }
        demo
    }

    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }

    fn owner(&self, label: &str) -> String {
        let rows = rows(&["list", self.file()]);
        let row = rows.iter().find(|row| row["label"] == label).unwrap();
        row["owner"].as_str().unwrap().to_owned()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

#[test]
fn holders_and_waiters_are_shown() {
    let demo = Demo::start("shown");
    let before = rows(&["stat", demo.file()]);
    for word in ["stat", "list", "graph", "deadlocks", "top", "verify"] {
        let said = done(&[word, demo.file()]);
        assert!(!said.contains('\u{1b}'), "{said}");
        for line in said.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
    let who = rows(&["who", demo.file(), "accounts/1"]);
    let of = |label: &str| who.iter().find(|row| row["label"] == label).unwrap();
    assert_eq!(
        (&of("transfer 1")["held"], &of("transfer 1")["wanted"]),
        (&"X".into(), &Value::Null)
    );
    assert_eq!(of("audit")["wanted"], "S");
    assert_eq!(of("transfer 2")["pid"], demo.child.id());
    assert!(of("transfer 2")["waited_ns"].as_u64() > Some(0));
    assert_eq!(locks(&["who", demo.file(), "nothing"]).status.code(), Some(1));
    let list = rows(&["list", demo.file()]);
    assert!(list.iter().any(|row| row["object"] == "catalogue" && row["weak"] == true));
    let top = rows(&["top", demo.file()]);
    assert_eq!((&top[0]["object"], &top[0]["waiting"]), (&"accounts/1".into(), &3.into()));
    // Looking takes no slot: the only process is the demo's.
    let after = rows(&["stat", demo.file()]);
    assert_eq!(after[0]["processes"], before[0]["processes"]);
    assert_eq!(after[0]["processes"].as_array().unwrap().len(), 1);
    assert_eq!(after[0]["modes"], "granular");
}

#[test]
fn the_graph_has_the_edges_of_the_region() {
    let demo = Demo::start("graph");
    let mut edges: Vec<_> = rows(&["graph", demo.file()])
        .iter()
        .map(|edge| {
            let name = |end: &str| edge[end]["label"].as_str().unwrap().to_owned();
            assert_eq!(edge["cycle"], false);
            (name("waiter"), name("blocker"), edge["hard"].as_bool().unwrap())
        })
        .collect();
    edges.sort();
    let expected = [
        ("audit", "transfer 1", true),
        ("audit", "transfer 2", false),
        ("backup", "transfer 1", true),
        ("backup", "transfer 2", true),
        ("backup", "transfer 3", true),
        ("editor", "report", true),
        ("transfer 2", "transfer 1", true),
        ("transfer 3", "audit", false),
        ("transfer 3", "transfer 1", true),
        ("transfer 3", "transfer 2", false),
    ];
    let expected = expected.map(|(a, b, hard)| (a.to_owned(), b.to_owned(), hard));
    assert_eq!(edges, expected);
    let dot = done(&["graph", demo.file(), "--dot"]);
    assert_eq!(dot.matches(" -> ").count(), expected.len());
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n"));
}

#[test]
fn the_first_conflict_is_kept() {
    let mut demo = Demo::start("clash");
    let told = |deadlocks: &[Value]| {
        assert_eq!(deadlocks.len(), 1);
        let cycle = deadlocks[0]["cycle"].as_array().unwrap();
        let mut labels: Vec<_> = cycle.iter().map(|w| w["label"].as_str().unwrap()).collect();
        labels.sort_unstable();
        assert_eq!(labels, ["order", "refund"]);
        assert_eq!(deadlocks[0]["finder_pid"], demo.child.id());
    };
    told(&rows(&["deadlocks", demo.file()]));
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    assert_eq!(rows(&["deadlocks", demo.file()])[0]["number"], 1);
}

#[test]
fn a_killed_owner_no_longer_waits() {
    let demo = Demo::start("kill");
    let editor = demo.owner("editor");
    assert!(done(&["kill", demo.file(), &editor]).contains("rates/EUR"));
    // It starts again as another owner.
    while locks(&["list", demo.file(), "--owner", &editor]).status.success() {
        std::thread::yield_now();
    }
    let again = locks(&["kill", demo.file(), &editor]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains(&format!("no owner {editor}")));
    assert_eq!(rows(&["verify", demo.file()])[0]["sound"], true);
}

#[test]
fn locks_of_dead_owners_are_shown_and_kept() {
    let mut demo = Demo::start("dead");
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    let bytes = fs::read(&demo.file).unwrap();
    let list = rows(&["list", demo.file()]);
    assert!(list.len() >= 14 && list.iter().all(|row| row["alive"] == false), "{list:?}");
    assert!(done(&["graph", demo.file()]).contains("and it is dead"));
    let stat = rows(&["stat", demo.file()]);
    assert_eq!(stat[0]["threads"], stat[0]["dead_threads"]);
    assert_eq!(rows(&["verify", demo.file()])[0]["cells_counted"], true);
    assert!(bytes == fs::read(&demo.file).unwrap(), "looking has changed the file");
}

#[test]
fn inconsistencies_are_reported() {
    let mut demo = Demo::start("unsound");
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    assert!(done(&["verify", demo.file()]).starts_with("sound"));
    // The name of an object, which its hash belongs to.
    let mut bytes = fs::read(&demo.file).unwrap();
    let at = bytes.windows(10).rposition(|window| window == b"accounts/2").unwrap();
    bytes[at + 9] = b'7';
    fs::write(&demo.file, bytes).unwrap();
    let output = locks(&["verify", demo.file()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("NOT SOUND"));
}

#[test]
fn a_file_that_is_not_a_region_is_named() {
    let (file, missing) = (path("foreign"), path("missing"));
    let mut demo = Demo::start("cut");
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    let whole = fs::read(&demo.file).unwrap();
    let mut corrupt = whole.clone();
    corrupt[30] ^= 1;
    let cases: [(&[u8], &str); 4] = [
        (&[b'x'; 5000], "magic"),
        (b"", "truncated"),
        (&whole[..whole.len() / 2], "truncated"),
        (&corrupt, "corrupt"),
    ];
    for word in ["stat", "list", "graph", "deadlocks", "top", "verify"] {
        for (bytes, why) in cases {
            fs::write(&file, bytes).unwrap();
            let output = locks(&[word, file.to_str().unwrap()]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{word}: {said}");
            assert!(said.contains(why) && said.contains("latchwork-locks-foreign"), "{said}");
            assert!(output.stdout.is_empty());
        }
        let output = locks(&[word, missing.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("no such file"));
    }
    let exists = locks(&["demo", file.to_str().unwrap()]);
    assert_eq!(exists.status.code(), Some(2));
    assert!(text(&exists.stderr).contains("exists") && file.exists());
    fs::remove_file(&file).unwrap();
}

#[test]
fn misuse_is_an_error() {
    for args in [
        &["kill", "x", "12"][..],
        &["who", "x"],
        &["who", "x", "\\q"],
        &["graph", "x", "--dot", "--json"],
        &["top", "x", "--interval", "0"],
        &["demo", "x", "--seconds", "0"],
        &[],
    ] {
        assert_eq!(locks(args).status.code(), Some(2), "{args:?}");
    }
    for word in ["stat", "list", "who", "graph", "deadlocks", "top", "kill", "verify", "demo"] {
        assert!(done(&[word, "--help"]).contains("Example"), "{word}");
    }
}

#[test]
fn a_stopped_demo_leaves_nothing() {
    let mut demo = Demo::start("stop");
    let pid = demo.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(demo.child.wait().unwrap().success());
    assert!(!demo.file.exists());
}
