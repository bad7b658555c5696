//! Each command that is given a name of what does not exist says so, and does nothing.

use std::process::Command;
use std::{env, fs};

use latchwork_store::{Store, Table};

const FRUIT: Table<&str, u64> = Table::new("fruit");

/// The exit code if a name means nothing, and the exit code of misuse, for example of a word that
/// is not in the list that the help prints.
const ABSENT: i32 = 1;
const MISUSED: i32 = 2;

#[test]
fn a_name_that_means_nothing_is_refused() {
    let folder = env::temp_dir().join(format!("latchwork-absent-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let store = Store::open(&folder).unwrap();
    store.put(&FRUIT, "pear", 3).unwrap();
    store.checkpoint().unwrap();
    let s = folder.to_str().unwrap();
    let said = fs::read_to_string(folder.join("region")).unwrap();
    let region = &format!("{}/region", said.lines().nth(1).unwrap());
    let cases: &[(&[&str], i32, &str)] = &[
        (&["store", "clear", s, "nosuch"], ABSENT, "no table nosuch"),
        (&["store", "dump", s, "nosuch"], ABSENT, "no table nosuch"),
        (&["store", "log", s, "--table", "nosuch"], ABSENT, "no table nosuch"),
        (&["store", "log", s, "--tree", "77777"], ABSENT, "tree 77777"),
        (&["store", "log", s, "--slot", "501"], ABSENT, "slot 501"),
        (&["store", "log", s, "--kind", "nosuch"], MISUSED, "nosuch"),
        (&["store", "prepared", s, "--commit", "nosuch"], ABSENT, "nosuch"),
        (&["store", "prepared", s, "--roll-back", "nosuch"], ABSENT, "nosuch"),
        (&["locks", "kill", region, "99.9"], ABSENT, "no owner 99.9"),
        (&["locks", "list", region, "--owner", "99.9"], ABSENT, "no owner 99.9"),
        (&["locks", "who", region, "nosuch"], ABSENT, "nosuch"),
        (&["pool", "page", region, "77777"], ABSENT, "no page 77777"),
        (&["pool", "page", region, "0", "--of", "9"], ABSENT, "no file 9"),
        (&["profile", "--watch", "1"], ABSENT, "process 1 "),
        (&["man", "nosuch"], ABSENT, "nosuch"),
        (&["man", "store", "nosuch"], ABSENT, "nosuch"),
        (&["completions", "nosuch"], MISUSED, "nosuch"),
        (&["sim", "run", "--machine", "nosuch"], ABSENT, "nosuch"),
        (&["sim", "explain", "--machine", "nosuch"], ABSENT, "nosuch"),
        (&["sim", "machines", "nosuch"], ABSENT, "nosuch"),
        (&["sim", "run", "--workload", "nosuch"], MISUSED, "nosuch"),
        (&["sim", "run", "--latch", "nosuch"], MISUSED, "nosuch"),
        (&["bench", "latch", "--only", "nosuch"], MISUSED, "nosuch"),
        (&["bench", "latch", "--latch", "nosuch"], MISUSED, "nosuch"),
        (&["bench", "lock", "--only", "nosuch"], MISUSED, "nosuch"),
        (&["bench", "pool", "--only", "nosuch"], MISUSED, "nosuch"),
        (&["bench", "store", "--only", "nosuch"], MISUSED, "nosuch"),
        (&["bench", "store", "--store", "nosuch"], MISUSED, "nosuch"),
        (&["run", "/no/such/program"], 127, "/no/such/program"),
        (&["run", "--latch", "nosuch", "true"], 125, "nosuch"),
        (&["bank", "--dir", "/no/such/folder"], MISUSED, "/no/such/folder"),
    ];
    for (args, code, why) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_latchwork")).args(*args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {stderr}");
        assert!(stderr.contains(why), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: {:?}", output.stdout);
    }
    // The control for each command: a name that exists is not refused.
    for args in [
        &["store", "log", s, "--table", "fruit"][..],
        &["store", "dump", s, "fruit"],
        &["store", "clear", s, "fruit"],
        &["store", "clear", s, "fruit"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_latchwork")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    drop(store);
    fs::remove_dir_all(&folder).unwrap();
}
