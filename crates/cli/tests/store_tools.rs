//! `store`'s tools: each command a process of its own.

use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use serde_json::Value;

/// Longer than anything here takes; past it, it hangs.
const MANY_SECONDS: Duration = Duration::from_secs(30);

/// A folder for stores, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("latchwork-tools-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
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

fn done(args: &[&str]) -> String {
    let output = store(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn row(args: &[&str]) -> Value {
    serde_json::from_str(&done(args)).unwrap()
}

fn refused(args: &[&str], why: &str) {
    let output = store(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty() && stderr.contains(why), "{args:?}: {stderr}");
}

fn filled(folder: &Folder) -> String {
    let s = folder.at("shop");
    done(&["put", &s, "pear", "3"]);
    done(&["put", &s, "a\tb\n", "\\"]);
    done(&["put", &s, "--table", "cities", "Bergen", "wet"]);
    s
}

#[test]
fn a_dump_is_loaded_into_another_store() {
    let folder = Folder::new("dump");
    let (s, other, file) = (&filled(&folder), &folder.at("copy"), &folder.at("shop.dump"));
    let dump = done(&["dump", s]);
    assert!(dump.starts_with("latchwork dump 2\npage 8192\nat "), "{dump}");
    assert!(dump.contains("\ntable cities\n\\x02Bergen\\x00\twet\nrecords 1\n"), "{dump}");
    assert!(dump.contains("\n\\x02a\\x09b\\x0a\\x00\t\\\\\n"), "{dump}");
    let said = row(&["dump", s, "--to", file, "--json"]);
    assert_eq!((&said["tables"], &said["records"]), (&2.into(), &3.into()), "{said}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2, "no other file is left");
    let mode = || fs::metadata(file).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    done(&["dump", s, "--to", file]);
    assert_eq!(mode(), 0o600, "the permissions are kept");
    assert_eq!(row(&["load", other, file, "--json"])["records"], 3);
    assert_eq!(done(&["scan", other]), done(&["scan", s]));
    refused(&["load", other, file], "merge");
    assert_eq!(done(&["load", other, file, "--merge"]), "3 records in 2 tables loaded\n");
    // Through a pipe.
    let piped = &folder.at("piped");
    let mut load = Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["store", "load", piped])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    load.stdin.take().unwrap().write_all(dump.as_bytes()).unwrap();
    assert!(load.wait().unwrap().success());
    assert_eq!(done(&["scan", piped, "--table", "cities"]), "Bergen\twet\n");
    // One table.
    let one = done(&["dump", s, "cities"]);
    assert!(one.contains("\nend 1 1 crc32c "), "{one}");
    assert_eq!(store(&["dump", s, "rivers"]).status.code(), Some(1));
    let odd = &folder.at("odd.dump");
    fs::write(odd, dump.replacen("page 8192", "page 12345", 1)).unwrap();
    let mut load = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    let load = load.args(["store", "load", &folder.at("odd")]).stdin(fs::File::open(odd).unwrap());
    let load = load.output().unwrap();
    assert!(text(&load.stderr).contains("the dump says pages of 12345 bytes: "), "{load:?}");
}

#[test]
fn a_killed_dump_leaves_nothing() {
    let folder = Folder::new("killed-dump");
    let (s, file) = (&filled(&folder), &folder.at("shop.dump"));
    let long = folder.at("long");
    fs::write(&long, vec![b'x'; 4 << 20]).unwrap();
    for key in 0..8 {
        done(&["put", s, &key.to_string(), "--file", &long]);
    }
    let mut killed = 0;
    for round in 0..20 {
        let mut dump = Command::new(env!("CARGO_BIN_EXE_latchwork"))
            .args(["store", "dump", s, "--to", file])
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(5 * round));
        dump.kill().unwrap();
        killed += u32::from(!dump.wait().unwrap().success());
        for found in fs::read_dir(&folder.0).unwrap() {
            let name = found.unwrap().file_name();
            assert!(!name.to_string_lossy().starts_with('.'), "{name:?}");
        }
    }
    assert!(killed > 0);
    // The file is complete or absent.
    if fs::exists(file).unwrap() {
        done(&["load", &folder.at("copy"), file]);
    }
}

#[test]
fn a_damaged_dump_creates_no_store() {
    let folder = Folder::new("damaged");
    let (s, other, file) = (&filled(&folder), &folder.at("copy"), &folder.at("shop.dump"));
    let dump = done(&["dump", s]);
    let with = |bytes: String, why: &str| {
        fs::write(file, bytes).unwrap();
        refused(&["load", other, file], why);
        assert!(!fs::exists(other).unwrap(), "{why}: a store was made");
    };
    with(dump.replace("\twet", "\tdry"), "checksum");
    with(dump[..dump.len() - 1].to_owned(), "cut off");
    with(dump.replace("records 1", "records 2"), "line 8");
    with(dump.replace("dump 2", "dump 9"), "format 9");
    with("pear\t3\n".to_owned(), "no dump");
    with(dump.replace("page 8192", "page 1"), "checksum");
    refused(&["load", other, &folder.at("none")], "none");
    refused(&["dump", &folder.at("none")], "there is no such store");
    refused(&["dump", s, "--to", &folder.at("no/folder")], "folder");
    refused(&["dump", s, "--json"], "--to");
}

#[test]
fn a_copy_is_restored() {
    let folder = Folder::new("backup");
    let (s, copy, again) = (&filled(&folder), &folder.at("copy"), &folder.at("again"));
    assert!(row(&["backup", s, copy, "--json"])["pages"].as_u64() > Some(2));
    done(&["put", s, "pear", "4"]);
    assert!(done(&["restore", copy, again]).ends_with(" copied, and sound\n"));
    assert_eq!(done(&["get", again, "pear"]), "3\n");
    refused(&["backup", s, copy], "choose another");
    refused(&["restore", copy, again], "choose another");
    refused(&["restore", &folder.at("none"), &folder.at("x")], "no store");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 3);
}

fn rows(args: &[&str]) -> Vec<Value> {
    done(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_log_and_pages_are_shown() {
    let folder = Folder::new("log");
    let s = &filled(&folder);
    let inserts = rows(&["log", s, "--kind", "insert", "--json"]);
    assert!(inserts.iter().any(|row| row["after_hex"] == "33"), "{inserts:?}");
    assert!(inserts.iter().all(|row| row["kind"] == "insert"));
    refused(&["log", s, "--kind", "inserts"], "possible values: insert, replace");
    let known = |row: &Value| {
        row["kind"] != "other" && done(&["log", "--help"]).contains(row["kind"].as_str().unwrap())
    };
    assert!(rows(&["log", s, "--json"]).iter().all(known));
    let first = inserts[0]["at"].to_string();
    assert_eq!(rows(&["log", s, "--from", &first, "--limit", "1", "--json"])[0], inserts[0]);
    assert_eq!(done(&["log", s, "--from", &first, "--to", &first]), "");
    let cities = rows(&["log", s, "--table", "cities", "--kind", "insert", "--json"]);
    assert_eq!((cities.len(), &cities[0]["after_hex"]), (1, &"776574".into()));
    assert!(done(&["log", s]).contains(" commit ") || done(&["log", s]).contains("C.. "));
    assert_eq!(store(&["log", s, "--table", "rivers"]).status.code(), Some(1));
    let mut pages = rows(&["pages", s, "--json"]);
    let last = pages.pop().unwrap();
    assert_eq!((&last["file_pages"], &last["free_pages"]), (&4.into(), &0.into()));
    assert!(done(&["pages", s]).contains("0 of 4 pages are free"));
    let part = |name: &str| last[name].as_i64().unwrap();
    let parts = ["tables", "free", "other", "reserved", "holes", "list"];
    let sum: i64 = parts.iter().map(|name| part(&format!("{name}_bytes"))).sum();
    let data = fs::metadata(folder.at("shop/data")).unwrap();
    assert_eq!((part("on_disk_bytes"), sum), (data.blocks() as i64 * 512, sum));
    assert_eq!(sum, part("on_disk_bytes"), "{last}");
    assert_eq!(part("file_bytes"), data.len() as i64);
    let names: Vec<_> = pages.iter().map(|row| row["table"].clone()).collect();
    assert_eq!(names, ["", "(long values)", "cities", "default"]);
    assert_eq!((&pages[3]["records"], &pages[3]["depth"]), (&2.into(), &1.into()));
    assert!(done(&["pages", s]).contains("(catalog)"));
    // A store that cannot be opened.
    let control = folder.at("shop/log/control");
    fs::write(&control, vec![0; 8192]).unwrap();
    refused(&["stat", s], "corrupt");
    refused(&["log", s], "corrupt");
    let again = &folder.at("again");
    let salvaged = store(&["salvage", s, again]);
    assert_eq!(salvaged.status.code(), Some(1), "{}", text(&salvaged.stderr));
    assert!(text(&salvaged.stdout).contains("corrupt"));
    assert_eq!(done(&["get", again, "pear"]), "3\n");
    let compacted = row(&["compact", again, &folder.at("small"), "--json"]);
    let blocks = |name: &str| fs::metadata(folder.at(name)).unwrap().blocks() * 512;
    assert_eq!(compacted["records"], 3);
    assert_eq!(compacted["before"], blocks("again/data"));
    assert_eq!(compacted["after"], blocks("small/data"));
    assert!(compacted["folder_after"].as_u64() > compacted["after"].as_u64());
    let reclaimed = row(&["compact", again, "--in-place", "--json"]);
    assert_eq!(reclaimed["after"], blocks("again/data"), "{reclaimed}");
    assert!(done(&["compact", again, "--in-place"]).contains(" pages are free\n"));
    refused(&["compact", again], "required");
    refused(&["compact", again, &folder.at("other"), "--in-place"], "cannot be used with");
    assert_eq!(done(&["scan", &folder.at("small")]), done(&["scan", again]));
    assert_eq!(done(&["scan", &folder.at("small")]), done(&["scan", again]));
}

/// A metric of the text format: its type, and its values by what is in front of them.
type Found = std::collections::BTreeMap<String, (String, Vec<(String, f64)>)>;

/// Reads the text format, and panics where it is not kept to: each value is below the lines of its
/// metric, which has one line of help and one of its type, and no value comes twice.
fn read_metrics(text: &str) -> Found {
    let (mut found, mut name, mut helped) = (Found::new(), String::new(), String::new());
    let is_word = |word: &str| {
        word.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
            && !word.starts_with(|char: char| char.is_ascii_digit())
    };
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').unwrap().0.to_owned();
            assert!(!found.contains_key(&helped), "{line}: twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (of, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind) && of == helped, "{line}");
            assert_eq!(kind == "counter", of.ends_with("_total"), "{line}");
            assert!(is_word(of) && of.starts_with("latchwork_"), "{line}");
            of.clone_into(&mut name);
            found.insert(name.clone(), (kind.to_owned(), Vec::new()));
        } else {
            let (of, value) = line.rsplit_once(' ').unwrap();
            let (bare, labels) = of.split_once('{').unwrap_or((of, "}"));
            let suffix = bare.strip_prefix(&name).unwrap_or_else(|| panic!("{line}: of {name}"));
            let entry = found.get_mut(&name).unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].contains(&suffix);
            assert!(
                if entry.0 == "histogram" { of_histogram } else { suffix.is_empty() },
                "{line}"
            );
            let labels = labels.strip_suffix('}').unwrap();
            if let Some((label, value)) = labels.split_once('=') {
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                assert!(
                    is_word(label) && value.is_some_and(|value| !value.contains('"')),
                    "{line}"
                );
            }
            assert!(entry.1.iter().all(|(other, _)| other != of), "{line}: twice");
            entry.1.push((of.to_owned(), value.parse().unwrap()));
        }
    }
    found
}

#[test]
fn metrics_are_text_that_prometheus_reads() {
    let folder = Folder::new("metrics");
    let s = &filled(&folder);
    let text = done(&["metrics", s]);
    let found = read_metrics(&text);
    assert!(found.len() > 30, "{text}");
    for (name, (kind, values)) in &found {
        assert!(!values.is_empty(), "{name} has no value");
        if kind == "histogram" {
            let of = |suffix| values.iter().filter(move |(of, _)| of.contains(suffix));
            let buckets: Vec<_> = of("_bucket{le=").map(|(_, value)| *value).collect();
            assert!(buckets.is_sorted(), "{name}: {values:?}");
            assert!(values.iter().any(|(of, _)| of.ends_with("{le=\"+Inf\"}")), "{values:?}");
            assert_eq!(buckets.last(), of("_count").next().map(|(_, value)| value), "{name}");
        }
    }
    assert_eq!(found["latchwork_processes"].1[0].1, 1.0);
    let lines = rows(&["metrics", s, "--json"]);
    assert_eq!(lines.len(), found.values().map(|(_, values)| values.len()).sum::<usize>());
    assert!(lines.iter().any(|row| row["reason"] == "deadlock"), "{lines:?}");
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).spawn();
    let Ok(mut promtool) = promtool else {
        println!("SKIPPED: promtool is not installed");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success());
}

/// Damage is reported for each table, even if the store cannot be opened, with advice.
#[test]
fn each_damaged_table_is_reported() {
    let folder = Folder::new("damaged");
    let (s, copy) = (&filled(&folder), &folder.at("copy"));
    // The copy's log has no full page from which it could be rebuilt.
    done(&["backup", s, copy]);
    let sound = row(&["verify", copy, "--json"]);
    assert_eq!((&sound["sound"], &sound["faults"]), (&true.into(), &Value::Array(Vec::new())));
    let data = fs::File::options().write(true).open(folder.at("copy/data")).unwrap();
    let verify = |args: &[&str]| {
        let output = store(&[&["verify", copy][..], args].concat());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    for page in [2, 3] {
        data.write_all_at(b"damage", page * 8192 + 4000).unwrap();
    }
    let said = verify(&[]);
    for (line, table) in said.lines().zip(["cities", "default"]) {
        assert!(line.starts_with(&format!("NOT SOUND: table {table}: page ")), "{said}");
        assert!(line.ends_with(" of `data` does not fit its checksum"), "{said}");
    }
    assert_eq!(said.lines().count(), 2, "{said}");
    let found: Value = serde_json::from_str(&verify(&["--json"])).unwrap();
    assert_eq!((&found["sound"], &found["faults"][1]["table"]), (&false.into(), &"default".into()));
    let get = store(&["get", copy, "pear"]);
    let why = text(&get.stderr);
    assert_eq!(get.status.code(), Some(2), "{why}");
    assert!(why.contains(&format!("{copy}: ")) && why.contains("`salvage` read"), "{why}");
    data.write_all_at(b"damage", 4000).unwrap();
    assert!(verify(&[]).starts_with("NOT SOUND: "));
    let found: Value = serde_json::from_str(&verify(&["--json"])).unwrap();
    assert_eq!((&found["sound"], &found["pages"]), (&false.into(), &Value::Null));
}

#[test]
fn activity_is_shown_once() {
    let folder = Folder::new("top");
    let s = &filled(&folder);
    let top = row(&["top", s, "--interval", "0.02", "--json"]);
    assert_eq!((&top["snapshots"], &top["writing"]), (&0.into(), &0.into()), "{top}");
    assert!(done(&["top", s, "--interval", "0.02", "--once"]).starts_with("commits "));
    let sync = store(&["sync-test", folder.0.to_str().unwrap(), "--ms", "20", "--json"]);
    assert!(matches!(sync.status.code(), Some(0 | 1)), "{}", text(&sync.stderr));
    let first: Value = serde_json::from_str(text(&sync.stdout).lines().next().unwrap()).unwrap();
    assert_eq!((&first["way"], &first["bytes"]), (&"fdatasync".into(), &4096.into()));
    refused(&["sync-test", &folder.at("none")], "none");
    let shm = store(&["sync-test", "/dev/shm", "--ms", "5"]);
    assert_eq!(shm.status.code(), Some(1));
    assert!(text(&shm.stdout).contains("it is memory"));
    assert_eq!(row(&["forget-memory", s, "--json"])["bytes"], 0);
    done(&["forget-memory", "--list"]);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn measuring_a_disk_leaves_no_file_however_it_ends() {
    let folder = Folder::new("sync-test");
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.args(["store", "sync-test", folder.0.to_str().unwrap(), "--ms", "60000"]);
    let mut measurer = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (descriptors, end) = (format!("/proc/{}/fd", measurer.id()), Instant::now() + MANY_SECONDS);
    let is_nameless = |path: PathBuf| {
        path.starts_with(&folder.0) && path.to_string_lossy().ends_with(" (deleted)")
    };
    let has_begun = || {
        let files = fs::read_dir(&descriptors).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(is_nameless)
    };
    while !has_begun() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    measurer.kill().unwrap();
    measurer.wait().unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

/// One process prepares, others list and decide.
#[test]
fn prepared_ones_are_listed_and_decided() {
    use latchwork_store::{Store, Table};

    const FRUIT: Table<&str, u64> = Table::new("fruit");
    let folder = Folder::new("prepared");
    let s = folder.at("shop");
    let other = Store::open(&s).unwrap();
    for (gid, key) in [(&b"to the\nmoon"[..], "pear"), (b"back", "plum")] {
        let mut tx = other.begin().unwrap();
        tx.put(&FRUIT, key, 3).unwrap();
        tx.prepare(gid).unwrap();
    }
    drop(other);
    let all = rows(&["prepared", &s, "--json"]);
    assert_eq!(
        (all.len(), &all[0]["gid"], &all[1]["gid"]),
        (2, &"to the\\nmoon".into(), &"back".into())
    );
    assert!(all[0]["keeps"].as_u64() > all[1]["keeps"].as_u64() && all[1]["age_s"].is_u64());
    assert!(done(&["prepared", &s]).starts_with("to the\\nmoon\t"));
    let stat = row(&["stat", &s, "--json"]);
    assert_eq!((&stat["prepared"], &stat["prepared_since"]), (&2.into(), &all[0]["since"]));
    assert!(done(&["stat", &s]).contains("prepared   2, which keep the log from"));
    refused(&["compact", &s, &folder.at("small")], "is prepared, and not decided");
    assert_eq!(store(&["prepared", &s, "--commit", "moon"]).status.code(), Some(1));
    assert_eq!(done(&["prepared", &s, "--commit", "to the\\nmoon"]), "to the\\nmoon\tcommitted\n");
    assert_eq!(row(&["prepared", &s, "--roll-back", "back", "--json"])["end"], "rolled back");
    assert!(rows(&["prepared", &s, "--json"]).is_empty());
    let store = Store::open(&s).unwrap();
    assert_eq!((store.get(&FRUIT, "pear"), store.get(&FRUIT, "plum")), (Ok(Some(3)), Ok(None)));
}

#[test]
fn stat_shows_where_the_memory_is() {
    let folder = Folder::new("beside");
    let mut options = latchwork_store::Options::default();
    options.sizes.cache = 1 << 20;
    for (place, beside) in [
        (latchwork_store::MemoryPlace::Folder, true),
        (latchwork_store::MemoryPlace::Memory, false),
    ] {
        let s = &folder.at(if beside { "one" } else { "two" });
        options.place = place;
        let store = latchwork_store::Store::open_with(s, &options).unwrap();
        assert_eq!(row(&["stat", s, "--json"])["memory_beside"], beside);
        assert_eq!(done(&["stat", s]).contains("beside the data"), beside);
        drop(store);
    }
}

#[test]
fn help_has_examples() {
    let words =
        ["clear", "dump", "load", "backup", "restore", "log", "pages", "salvage", "compact", "top"];
    for word in words.into_iter().chain([
        "sync-test",
        "forget-memory",
        "prepared",
        "locks",
        "processes",
        "metrics",
    ]) {
        let help = done(&[word, "--help"]);
        assert!(help.contains("Example"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

/// Ctrl-C ends a long command in an orderly way: the store is closed, and all records loaded so far
/// are stored.
#[test]
fn a_signal_closes_the_store() {
    let folder = Folder::new("signal");
    let (one, two) = (folder.at("one"), folder.at("two"));
    done(&["put", &one, "pear", "3"]);
    let dump = done(&["dump", &one]);
    let (begin, _) = dump.split_once("pear").unwrap();
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
        command.args(["store", "load", &two]).stdin(Stdio::piped()).stderr(Stdio::piped());
        // A shell has what it runs in the background ignore some signals, and so do their children.
        let heeds = move || {
            // SAFETY: it may be called in the child of a fork, and keeps no memory of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: it does nothing but that call.
        unsafe { command.pre_exec(heeds) };
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(begin.as_bytes()).unwrap();
        let begun = Instant::now();
        while !PathBuf::from(&two).join("region").exists() {
            assert!(begun.elapsed() < MANY_SECONDS, "it opens the store");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: a process that this one started, and has not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains("interrupted"), "{stderr}");
        assert_eq!(row(&["stat", &two, "--json"])["memory"], Value::Null, "it is closed");
        drop(pipe);
    }
}
