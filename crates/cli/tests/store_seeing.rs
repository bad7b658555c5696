//! Commands for an operator of a store, tested with real processes: a process holds a record,
//! another waits for it, a third is stopped or killed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs, io, thread};

use latchwork_machine::Shared;
use latchwork_region::{Options, Region};
use latchwork_store::{ProcessState, Store, Table, TxnOptions, region_file};
use serde_json::Value;

const PEOPLE: Table<&str, &[u8]> = Table::new("people");

/// A folder for a store, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("latchwork-seeing-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn store(&self) -> String {
        self.0.join("shop").to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Processes that were killed leave their memory.
        let _ = latchwork(&["store", "forget-memory", &self.store()]);
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn latchwork(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn done(args: &[&str]) -> String {
    let output = latchwork(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn rows(args: &[&str]) -> Vec<Value> {
    let said = done(&[args, &["--json"]].concat());
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A process that has a store open and executes orders, one a line.
struct Peer {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

/// Begins each line of a peer, because the test harness prints lines of its own.
const SAID: &str = "peer: ";

impl Peer {
    fn start(store: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "peer", "--nocapture", "--test-threads=1"]);
        command.env("LATCHWORK_PEER_OF", store).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, said) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut peer = Self { child, orders, said: BufReader::new(said) };
        assert_eq!(peer.next(), "open");
        peer
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its next line.
    fn next(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the peer has ended");
            if let Some((_, said)) = line.split_once(SAID) {
                return said.trim_end().to_owned();
            }
        }
    }

    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.next()
    }

    /// Its next line, behind what another process does.
    fn next_after(&mut self, other: impl FnOnce() -> String) -> String {
        other();
        self.next()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn leak(text: &str) -> &'static str {
    String::from(text).leak()
}

/// The other process: does nothing in a usual run of the tests.
#[test]
fn peer() {
    let Ok(path) = env::var("LATCHWORK_PEER_OF") else { return };
    let store = Store::open(path).unwrap();
    println!("{SAID}open");
    let mut open = Vec::new();
    let mut kept = Vec::new();
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&'static str> = leak(&line).split(' ').collect();
        match words[..] {
            // Writes a record in a transaction that stays open.
            ["hold", key, label] => {
                let options = TxnOptions { label, ..TxnOptions::default() };
                let mut transaction = store.begin_with(&options).unwrap();
                transaction.put(&PEOPLE, key, b"held").unwrap();
                open.push(transaction);
                println!("{SAID}held");
            }
            // Waits for a record in a transaction of another thread.
            ["wait", key, label] => {
                let store = store.clone();
                thread::spawn(move || {
                    let time = Duration::from_secs(20);
                    let options = TxnOptions { label, time, ..TxnOptions::default() };
                    let mut runs = 0;
                    let ended = store.write_with(&options, |tx| {
                        runs += 1;
                        tx.put(&PEOPLE, key, b"waited")
                    });
                    println!("{SAID}ended after {runs}: {:?}", ended.map_err(|e| e.to_string()));
                });
                println!("{SAID}begun");
            }
            // Reads all records from one key to another, in a transaction that stays open.
            ["read", from, to, label] => {
                let options = TxnOptions { label, ..TxnOptions::default() };
                let mut transaction = store.begin_with(&options).unwrap();
                transaction.range(&PEOPLE, from..to).unwrap().count();
                open.push(transaction);
                println!("{SAID}read");
            }
            ["prepare", key, gid] => {
                let mut transaction = store.begin().unwrap();
                transaction.put(&PEOPLE, key, b"prepared").unwrap();
                transaction.prepare(gid.as_bytes()).unwrap();
                println!("{SAID}prepared");
            }
            // Writes for ever.
            ["busy", key] => {
                let store = store.clone();
                thread::spawn(move || {
                    loop {
                        store.put(&PEOPLE, key, b"busy").unwrap();
                    }
                });
                println!("{SAID}busy");
            }
            ["snapshot"] => {
                kept.push(store.snapshot().unwrap());
                println!("{SAID}taken");
            }
            ["commit"] => {
                let ended = open.pop().unwrap().commit();
                println!("{SAID}{:?}", ended.map_err(|e| e.to_string()));
            }
            _ => panic!("{line}"),
        }
    }
}

/// The region file of a store that is open.
fn region(store: &str) -> String {
    rows(&["store", "stat", store])[0]["memory"].as_str().unwrap().to_owned()
}

/// The owner with this label, once it waits.
fn waiting(region: &str, label: &str) -> String {
    loop {
        let found = rows(&["locks", "list", region, "--waiting"]);
        if let Some(row) = found.iter().find(|row| row["label"] == label) {
            return row["owner"].as_str().unwrap().to_owned();
        }
    }
}

/// After what `locks kill` did, the locks of a process that is killed are still released.
fn is_not_poisoned(store: &str) {
    let mut killed = Peer::start(store);
    killed.order("hold zoe killed");
    drop(killed);
    done(&["store", "put", store, "--table", "people", "zoe", "here"]);
}

#[test]
fn killing_an_owner_that_does_not_exist_changes_nothing() {
    let folder = Folder::new("none");
    let store = &folder.store();
    let _peer = Peer::start(store);
    let region = &region(store);
    let before = fs::read(region).unwrap();
    let output = latchwork(&["locks", "kill", region, "99.9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no owner 99.9"), "{}", text(&output.stderr));
    assert!(fs::read(region).unwrap() == before, "the region has changed");
    is_not_poisoned(store);
}

#[test]
fn a_killed_transaction_is_not_retried() {
    let folder = Folder::new("kill");
    let store = &folder.store();
    let mut peer = Peer::start(store);
    let region = &region(store);
    peer.order("hold ann holder");
    peer.order("wait ann waiter");
    let waiter = waiting(region, "waiter");
    done(&["locks", "kill", region, &waiter]);
    let ended = peer.next();
    assert!(ended.starts_with("ended after 1: Err"), "{ended}");
    assert!(ended.contains("ended by an operator"), "{ended}");
    // An owner that requests no other lock learns of it at its commit.
    let list = rows(&["locks", "list", region]);
    let holder = list.iter().find(|row| row["label"] == "holder").unwrap()["owner"].clone();
    done(&["locks", "kill", region, holder.as_str().unwrap()]);
    let ended = peer.order("commit");
    assert!(ended.starts_with("Err") && ended.contains("ended by an operator"), "{ended}");
    let output = latchwork(&["store", "get", store, "--table", "people", "ann"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    is_not_poisoned(store);
}

/// What `store locks` says as soon as it knows of a transaction that waits.
fn blocked(store: &str) -> Value {
    loop {
        if let Some(row) = rows(&["store", "locks", store]).into_iter().next() {
            return row;
        }
    }
}

#[test]
fn blockers_are_shown_given_only_the_folder() {
    let folder = Folder::new("blocked");
    let store = &folder.store();
    let (mut holder, mut waiter) = (Peer::start(store), Peer::start(store));
    assert_eq!(done(&["store", "locks", store]), "no transaction waits for a lock\n");
    holder.order("hold ann nightly");
    waiter.order("wait ann web");
    let row = blocked(store);
    let ids = (&row["pid"], &row["label"], &row["waits"]["table"], &row["waits"]["key"]);
    assert_eq!(
        ids,
        (&waiter.pid().into(), &"web".into(), &"people".into(), &"ann".into()),
        "{row}"
    );
    assert_eq!(row["waits"]["mode"], "write");
    assert!(row["waits"]["since_ns"].is_u64() && row["thread"].is_u64(), "{row}");
    assert!(row["command"].as_str().unwrap().contains("peer"), "{row}");
    let blocker = &row["blockers"][0];
    let ids = (&blocker["pid"], &blocker["label"], &blocker["holds"], &blocker["state"]);
    let expected = (&holder.pid().into(), &"nightly".into(), &true.into(), &"running".into());
    assert_eq!(ids, expected, "{row}");
    assert!(blocker["age_ns"].as_u64() > row["age_ns"].as_u64(), "{row}");

    let said = done(&["store", "locks", store]);
    assert!(said.contains(&format!("process {}", waiter.pid())), "{said}");
    assert!(said.contains("\"web\" waits") && said.contains("to write people/ann"), "{said}");
    let held = said.lines().nth(1).unwrap();
    assert!(held.contains(&format!("held by process {}", holder.pid())), "{said}");
    assert!(held.contains("\"nightly\", to write"), "{said}");
    let graph = done(&["store", "locks", store, "--graph"]);
    let lines: Vec<_> = graph.lines().collect();
    assert!(lines[0].contains("nightly") && lines[1].starts_with("    process"), "{graph}");
    let svg = folder.0.join("waits.svg");
    done(&["store", "locks", store, "--svg", svg.to_str().unwrap()]);
    assert!(fs::read_to_string(svg).unwrap().contains("people/ann"));
    let all = rows(&["store", "locks", store, "--all"]);
    let held: Vec<_> = all.iter().filter(|lock| lock["key"] == "ann").collect();
    assert_eq!(held.len(), 2, "{all:?}");
    assert!(done(&["store", "locks", store, "--all"]).contains("people"));

    let top = done(&["store", "top", store, "--once", "--interval", "0.02"]);
    assert!(top.contains("blocked    1 transaction\n") && top.contains("people/ann"), "{top}");
    let top = &rows(&["store", "top", store, "--interval", "0.02"])[0];
    assert_eq!(top["blocked"][0]["blockers"][0]["pid"], holder.pid());

    // The commands for regions accept the folder as well, and translate names.
    assert!(done(&["locks", "who", store, "ann"]).contains("people/ann"));
    assert!(done(&["locks", "who", store, "people/ann"]).contains("nightly"));
    assert_eq!(latchwork(&["locks", "who", store, "zoe"]).status.code(), Some(1));
    assert!(done(&["locks", "graph", store]).contains("wants people/ann in X"));
    assert!(done(&["locks", "top", store]).contains("people/ann"));
    assert!(done(&["pool", "stat", store]).contains("frames"));
    holder.order("commit");
    assert!(waiter.next().starts_with("ended after 1: Ok"));
}

#[test]
fn a_writer_that_a_reader_of_a_range_blocks_is_shown() {
    let folder = Folder::new("range");
    let store = &folder.store();
    let (mut reader, mut writer) = (Peer::start(store), Peer::start(store));
    reader.order("hold bob first");
    reader.order("commit");
    reader.order("read a c report");
    writer.order("wait ann web");
    // A look while the writer begins to wait may know the reader's range and not the writer's key.
    let row = loop {
        let row = blocked(store);
        if row["waits"]["key"] == "ann" {
            break row;
        }
    };
    assert_eq!(row["waits"]["table"], "people");
    let blocker = &row["blockers"][0];
    assert_eq!((&blocker["label"], &blocker["mode"]), (&"report".into(), &"read range".into()));
    let all = done(&["store", "locks", store, "--all"]);
    assert!(all.contains("a up to c"), "{all}");
}

#[test]
fn a_copy_of_the_folder_is_closed() {
    let folder = Folder::new("copy");
    let store = &folder.store();
    let _peer = Peer::start(store);
    let copy = folder.0.join("copy");
    let copied = Command::new("cp").args(["-a", store]).arg(&copy).status().unwrap();
    assert!(copied.success());
    let copy = copy.to_str().unwrap();
    assert!(done(&["store", "processes", copy]).starts_with("closed"));
    assert!(done(&["store", "locks", copy]).starts_with("closed"));
    assert_eq!(latchwork(&["locks", "stat", copy]).status.code(), Some(2));
    assert!(done(&["store", "processes", store]).contains("running"));
}

/// The row of a process.
fn process(store: &str, pid: u32) -> Value {
    let found = rows(&["store", "processes", store]);
    found.into_iter().find(|row| row["pid"] == pid).unwrap()
}

#[test]
fn processes_are_shown_with_their_activity() {
    let folder = Folder::new("processes");
    let store = &folder.store();
    assert_eq!(latchwork(&["store", "processes", store]).status.code(), Some(2));
    let (mut one, mut two) = (Peer::start(store), Peer::start(store));
    one.order("snapshot");
    two.order("hold ann import");
    two.order("prepare eve transfer");
    let region = &region(store);
    let before = fs::read(region).unwrap();
    let first = process(store, one.pid());
    let second = process(store, two.pid());
    assert!(fs::read(region).unwrap() == before, "looking has changed the memory");
    assert_eq!((&first["state"], &second["state"]), (&"running".into(), &"running".into()));
    assert!(first["command"].as_str().unwrap().contains("peer"), "{first}");
    assert!(first["age_ns"].as_u64() > Some(0), "{first}");
    assert_eq!(first["transactions"].as_array().unwrap().len(), 0, "{first}");
    let kept = first["snapshots"][0]["log_kept"].as_u64().unwrap();
    let transaction = &second["transactions"][0];
    assert_eq!((&transaction["label"], &transaction["locks"]), (&"import".into(), &1.into()));
    assert!(transaction["log_kept"].as_u64() > Some(0), "{second}");
    assert!(kept >= transaction["log_kept"].as_u64().unwrap(), "{first} {second}");
    let rest = rows(&["store", "processes", store]).pop().unwrap();
    assert_eq!(rest["prepared"][0]["prepared"], "transfer", "{rest}");
    assert!(rest["log_kept"].as_u64() >= Some(kept), "{rest}");
    let said = done(&["store", "processes", store]);
    assert!(said.contains("transaction \"import\"") && said.contains("    snapshot, "), "{said}");
    assert!(said.contains("prepared transaction transfer") && said.contains("\nlog: "), "{said}");
    assert!(said.contains("for a snapshot of process"), "{said}");
    drop(one);
    drop(two);
    // After all processes were killed, their locks are shown and not repaired.
    let said = done(&["store", "processes", store]);
    assert!(said.contains("dead and not swept") && said.contains("\"import\""), "{said}");
    done(&["store", "prepared", store, "--roll-back", "transfer"]);
    assert!(done(&["store", "processes", store]).contains("closed"));
}

#[test]
fn a_stopped_process_is_named_with_its_locks() {
    let folder = Folder::new("stopped");
    let store = &folder.store();
    let (mut holder, mut waiter) = (Peer::start(store), Peer::start(store));
    holder.order("hold ann nightly");
    waiter.order("wait ann web");
    let row = blocked(store);
    assert_eq!(row["blockers"][0]["state"], "running");
    holder.signal(libc::SIGSTOP);
    while process(store, holder.pid())["state"] != "stopped" {}
    assert_eq!(process(store, waiter.pid())["state"], "running");
    let said = done(&["store", "locks", store]);
    let stopped = format!("held by process {}", holder.pid());
    assert!(said.contains(&stopped) && said.contains(", STOPPED, \"nightly\""), "{said}");
    let said = done(&["store", "processes", store]);
    assert!(said.contains(&format!("process {}, STOPPED", holder.pid())), "{said}");
    let top = done(&["store", "top", store, "--once", "--interval", "0.02"]);
    let named = format!("STOPPED    process {}, which holds 1 lock", holder.pid());
    assert!(top.contains(&named), "{top}");
    // The same for a thread that waits, and knows which thread slot it waits for.
    let region = region_file(store).unwrap().unwrap();
    let region = Region::<Shared>::view(region, &Options::default()).unwrap();
    let slots: Vec<u32> = region.threads().map(|thread| thread.slot).collect();
    let stopped: Vec<u32> = slots.iter().filter_map(|slot| region.stopped(*slot)).collect();
    assert_eq!(stopped, [holder.pid()]);
    holder.signal(libc::SIGCONT);
    while slots.iter().any(|slot| region.stopped(*slot).is_some()) {}
    assert!(waiter.next_after(|| holder.order("commit")).starts_with("ended after 1: Ok"));
}

#[test]
fn log_latches_of_a_stopped_process_are_named() {
    let folder = Folder::new("holds");
    let store = &folder.store();
    let mut writer = Peer::start(store);
    let looker = Store::open(store).unwrap();
    writer.order("busy ann");
    // A writer syncs most of its time.
    for _ in 0..1000 {
        writer.signal(libc::SIGSTOP);
        let found = looker.processes().unwrap();
        let row = found.processes.iter().find(|row| row.pid == writer.pid()).unwrap();
        if row.state == ProcessState::Stopped && !row.holds.is_empty() {
            let holds = row.holds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let said = done(&["store", "processes", store]);
            assert!(said.contains(&format!("    holds {holds}")), "{holds}: {said}");
            let top = done(&["store", "top", store, "--once", "--interval", "0.02"]);
            let named = format!("STOPPED    process {}, which holds {holds}", writer.pid());
            assert!(top.contains(&named), "{holds}: {top}");
            writer.signal(libc::SIGCONT);
            return;
        }
        writer.signal(libc::SIGCONT);
        thread::sleep(Duration::from_millis(1));
    }
    panic!("a writer never held anything");
}
