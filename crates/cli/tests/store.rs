//! `store` for a shell: each command a process of its own, some of them at once.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs, thread};

use serde_json::Value;

/// A folder for stores, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("latchwork-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The store in it, which is not there at first.
    fn store(&self) -> String {
        self.0.join("shop").to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn store(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork")).arg("store").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The output and exit code of a command.
fn said(args: &[&str]) -> (i32, String) {
    let output = store(args);
    let code = output.status.code().unwrap();
    assert!(code != 2, "{args:?}: {}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{args:?}: {}", text(&output.stderr));
    (code, text(&output.stdout))
}

fn done(args: &[&str]) -> String {
    let (code, out) = said(args);
    assert_eq!(code, 0, "{args:?}");
    out
}

fn rows(args: &[&str]) -> Vec<Value> {
    done(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A limit on the length of files is an error that says so, wherever it is met, and no signal.
#[test]
fn a_limit_on_files_does_not_end_a_command() {
    let folder = Folder::new("limit");
    let at = folder.store();
    for blocks in [0, 1, 8] {
        let limited = format!("ulimit -f {blocks}; exec \"$0\" store put \"$1\" pear 3");
        let program = env!("CARGO_BIN_EXE_latchwork");
        let output = Command::new("sh").args(["-c", &limited, program, &at]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{blocks} blocks: {said}");
        assert!(said.contains("RLIMIT_FSIZE"), "{blocks} blocks: {said}");
    }
    done(&["put", &at, "pear", "3"]);
}

#[test]
fn a_put_value_is_read_until_it_is_removed() {
    let folder = Folder::new("put");
    let s = &folder.store();
    assert_eq!(done(&["put", s, "pear", "3"]), "");
    assert_eq!(done(&["get", s, "pear"]), "3\n");
    assert_eq!(said(&["get", s, "apple"]), (1, String::new()));
    done(&["put", s, "pear", "-4"]);
    assert_eq!(done(&["get", s, "pear"]), "-4\n");
    done(&["put", s, "fig", "1"]);
    done(&["put", s, "--table", "cities", "Bergen", "wet"]);
    assert_eq!(done(&["scan", s]), "fig\t1\npear\t-4\n");
    assert_eq!(done(&["scan", s, "g"]), "pear\t-4\n");
    assert_eq!(done(&["scan", s, "a", "pear"]), "fig\t1\n");
    assert_eq!(done(&["scan", s, "pear", "fig"]), "");
    assert_eq!(done(&["scan", s, "--reverse", "--limit", "1"]), "pear\t-4\n");
    assert_eq!(done(&["scan", s, "--table", "cities"]), "Bergen\twet\n");
    let none = store(&["scan", s, "--table", "rivers"]);
    assert_eq!((none.status.code(), text(&none.stdout)), (Some(1), String::new()));
    assert!(text(&none.stderr).contains("there is no table rivers"), "{}", text(&none.stderr));
    assert_eq!(said(&["del", s, "pear"]), (0, String::new()));
    assert_eq!(said(&["del", s, "pear"]), (1, String::new()));
    let none = store(&["del", s, "pear", "--table", "rivers"]);
    assert_eq!((none.status.code(), text(&none.stdout)), (Some(1), String::new()));
    assert_eq!(said(&["get", s, "pear"]), (1, String::new()));
    let stat = &rows(&["stat", s, "--json"])[0];
    assert_eq!(
        stat["tables"],
        serde_json::json!(["cities", "default"]),
        "no table of what was not"
    );
    assert_eq!(stat["open"], false);
    assert!(done(&["stat", s]).contains("table      cities"));
    assert!(done(&["verify", s]).starts_with("sound, "));
    assert_eq!(rows(&["verify", s, "--json"])[0]["sound"], true);
    assert!(done(&["checkpoint", s]).starts_with("checkpoint made"));
    assert_eq!(done(&["scan", s]), "fig\t1\n");
    assert_eq!(done(&["clear", s, "cities"]), "1 record removed\n");
    assert_eq!(rows(&["clear", s, "cities", "--json"])[0]["removed"], 0);
    assert_eq!(rows(&["stat", s, "--json"])[0]["tables"], serde_json::json!(["default"]));
    assert_eq!(
        store(&["clear", &folder.0.join("none").to_string_lossy(), "a"]).status.code(),
        Some(2)
    );
}

#[test]
fn keys_and_values_may_have_odd_characters() {
    let folder = Folder::new("odd");
    let s = &folder.store();
    let odd = ["", " ", "a\tb", "a\nb", "\u{1b}[31m", "\\", "\u{e9}\u{4e00}", "'\"", "--table"];
    for key in odd {
        done(&["put", s, "--", key, &format!("<{key}>")]);
    }
    for key in odd {
        assert_eq!(done(&["get", s, "--", key]), format!("<{key}>\n"));
    }
    // Each in one line and two columns, in the order of their bytes.
    let lines = done(&["scan", s]);
    assert_eq!(lines.lines().count(), odd.len());
    assert!(lines.lines().all(|line| line.matches('\t').count() == 1 && !line.contains('\u{1b}')));
    assert!(lines.contains("a\\nb\t<a\\nb>\n") && lines.contains("\\x1b[31m\t"), "{lines}");
    let mut sorted = odd;
    sorted.sort_unstable();
    let keys: Vec<_> = rows(&["scan", s, "--json"]).iter().map(|row| row["key"].clone()).collect();
    assert_eq!(keys, sorted);
}

#[test]
fn a_value_may_be_binary() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = Folder::new("bytes");
    let s = &folder.store();
    let put = Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["store", "put", s, "k"])
        .arg(OsStr::from_bytes(b"\xff\x01z"))
        .status();
    assert!(put.unwrap().success());
    assert_eq!(store(&["get", s, "k"]).stdout, b"\xff\x01z\n");
    assert_eq!(done(&["scan", s]), "k\t\\xff\\x01z\n");
    assert_eq!(rows(&["get", s, "k", "--json"])[0]["hex"], "ff017a");
    let put = &rows(&["put", s, "l", "1", "--json"])[0];
    assert_eq!((&put["key"], &put["written"]), (&"l".into(), &true.into()));
    let del = ["del", s, "l", "--json"];
    assert_eq!(rows(&del)[0]["removed"], true);
    let (code, line) = said(&del);
    assert_eq!((code, &line[..]), (1, "{\"key\":\"l\",\"removed\":false}\n"));
}

/// Values that no argument can have: with zeros, of a megabyte, from a file and from a pipe.
#[test]
fn a_value_may_come_from_a_file() {
    let folder = Folder::new("file");
    let (s, file) = (&folder.store(), folder.0.join("value"));
    let value: Vec<u8> = (0..1u64 << 20).map(|n| ((n * n) >> 7) as u8).collect();
    fs::write(&file, &value).unwrap();
    let name = file.to_str().unwrap();
    done(&["put", s, "photo", "--file", name]);
    assert!(store(&["get", s, "photo", "--raw"]).stdout == value);
    assert_eq!(store(&["get", s, "photo"]).stdout.len(), value.len() + 1);
    let piped = Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["store", "put", s, "piped", "--file", "-"])
        .stdin(fs::File::open(&file).unwrap())
        .status();
    assert!(piped.unwrap().success());
    assert!(store(&["get", s, "piped", "--raw"]).stdout == value);
    // A file that cannot be read creates no store.
    let (gone, other) = (folder.0.join("gone"), folder.0.join("other"));
    let refused = store(&["put", other.to_str().unwrap(), "a", "--file", gone.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("gone: "), "{}", text(&refused.stderr));
    assert!(!other.exists());
    for wrong in [&["put", s, "a"][..], &["put", s, "a", "b", "--file", name]] {
        assert_eq!(store(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn keys_of_any_type_are_written_as_json() {
    use latchwork_store::{Store, Table};

    let folder = Folder::new("typed");
    let s = &folder.store();
    let orders: Table<(&str, u64), &str> = Table::new("orders");
    let years: Table<i32, &str> = Table::new("years");
    let store = Store::open(s).unwrap();
    store.put(&orders, ("ann", 8), "tea").unwrap();
    store.put(&orders, ("bob", 1), "cake").unwrap();
    store.put(&years, -44, "ides").unwrap();
    drop(store);
    fn with<'w>(words: &[&'w str]) -> Vec<&'w str> {
        [words, &["--table", "orders", "--typed"]].concat()
    }
    assert_eq!(done(&["scan", s, "--table", "orders"]), "(ann, 8)\ttea\n(bob, 1)\tcake\n");
    assert_eq!(done(&["scan", s, "--table", "years"]), "-44\tides\n");
    assert_eq!(done(&with(&["scan", s, "[\"ann\"]", "[\"bob\"]"])), "(ann, 8)\ttea\n");
    assert_eq!(done(&with(&["get", s, "[\"bob\", 1]"])), "cake\n");
    let row = &rows(&with(&["scan", s, "--json", "--reverse"]))[0];
    assert_eq!(row["key"], serde_json::json!(["bob", 1]));
    done(&with(&["put", s, "[\"cid\", 18446744073709551615]", "jam"]));
    assert_eq!(said(&with(&["del", s, "[\"bob\", 1]"])).0, 0);
    assert_eq!(done(&["get", s, "-44", "--table", "years", "--typed"]), "ides\n");
    assert_eq!(done(&["get", s, "-44", "--table", "years"]), "ides\n");
    let store = Store::open(s).unwrap();
    assert_eq!(store.get(&orders, ("cid", u64::MAX)), Ok(Some("jam".to_owned())));
    assert_eq!(store.get(&orders, ("bob", 1)), Ok(None));
    let wrong = store_said(&with(&["get", s, "pear"]));
    assert!(wrong.contains("pear: no key of the table, which has (str,u64) -> str"), "{wrong}");
    // A table without types has keys as they are given.
    let raw: Table<latchwork_store::Raw, latchwork_store::Raw> = Table::new("raw");
    store.put(&raw, b"\x15\x07", b"seven").unwrap();
    drop(store);
    assert_eq!(done(&["get", s, "7", "--table", "raw", "--typed"]), "seven\n");
    assert_eq!(said(&["get", s, "7", "--table", "raw"]).0, 1, "text is another key");
    let wrong = store_said(&["get", s, "pear", "--table", "raw", "--typed"]);
    assert!(wrong.contains("pear: no JSON, which `--typed` wants"), "{wrong}");
}

/// The error output of a command that fails.
fn store_said(args: &[&str]) -> String {
    let output = store(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    text(&output.stderr)
}

#[test]
fn processes_write_concurrently_to_an_open_store() {
    let folder = Folder::new("many");
    let s = &folder.store();
    let other = latchwork_store::Store::open(s).unwrap();
    let table = latchwork_store::Table::<&str, &[u8]>::new("default");
    thread::scope(|scope| {
        for writer in 0..4 {
            scope.spawn(move || {
                for n in 0..8 {
                    done(&["put", s, &format!("{writer}.{n}"), &n.to_string()]);
                    // The same key for all: the last one stays.
                    done(&["put", s, "last", &writer.to_string()]);
                }
            });
        }
    });
    assert_eq!(done(&["scan", s]).lines().count(), 4 * 8 + 1);
    assert!(done(&["verify", s]).starts_with("sound"));
    assert_eq!(other.read(|tx| tx.get(&table, "3.7")).unwrap().as_deref(), Some(&b"7"[..]));
    other.write(|tx| tx.put(&table, "3.7", b"eight")).unwrap();
    assert_eq!(done(&["get", s, "3.7"]), "eight\n");
    let stat = &rows(&["stat", s, "--json"])[0];
    assert_eq!(stat["processes"][0]["pid"], std::process::id(), "{stat}");
    drop(other);
    assert_eq!(rows(&["stat", s, "--json"])[0]["open"], false);
}

#[test]
fn a_folder_that_is_not_a_store_is_an_error() {
    let folder = Folder::new("none");
    let s = &folder.store();
    let refused = |args: &[&str], why: &str| {
        let output = store(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty() && stderr.contains(why), "{args:?}: {stderr}");
    };
    for word in ["scan", "stat", "verify", "checkpoint"] {
        refused(&[word, s], "there is no such store");
    }
    refused(&["get", s, "k"], "there is no such store");
    refused(&["del", s, "k"], "there is no such store");
    assert!(!fs::exists(s).unwrap(), "only `put` makes a store");
    fs::create_dir(s).unwrap();
    fs::write(format!("{s}/diary"), "kept").unwrap();
    refused(&["get", s, "k"], "no store");
    refused(&["put", s, "k", "v"], "diary");
    refused(&["put", &format!("{s}/diary"), "k", "v"], "diary");
    fs::write(format!("{s}/identity"), "another program's\n").unwrap();
    refused(&["get", s, "k"], "identity");
    refused(&["put", s, "k"], "<VALUE>");
}

#[test]
fn help_has_examples() {
    for word in ["put", "get", "del", "scan", "tables", "stat", "verify", "checkpoint"] {
        let help = done(&[word, "--help"]);
        assert!(help.contains("Example"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}
