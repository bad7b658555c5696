//! What an operator sees of a store that other processes use: real processes, one of which holds a
//! record, one waits for it, one is stopped, one is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs, io, thread};

use latchwork_store::{Patience, Store, Table};
use serde_json::Value;

const PEOPLE: Table<&str, &str> = Table::new("people");

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

/// A process that has a store open and does what it is told, a line each.
struct Peer {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

/// What begins each line that a peer says: the test harness prints lines of its own.
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
                let options = Patience { label, ..Patience::default() };
                let mut transaction = store.begin_with(&options).unwrap();
                transaction.put(&PEOPLE, key, "held").unwrap();
                open.push(transaction);
                println!("{SAID}held");
            }
            // Waits for a record in a transaction of another thread.
            ["wait", key, label] => {
                let store = store.clone();
                thread::spawn(move || {
                    let time = Duration::from_secs(20);
                    let options = Patience { label, time, ..Patience::default() };
                    let mut runs = 0;
                    let ended = store.write_with(&options, |tx| {
                        runs += 1;
                        tx.put(&PEOPLE, key, "waited")
                    });
                    println!("{SAID}ended after {runs}: {:?}", ended.map_err(|e| e.to_string()));
                });
                println!("{SAID}begun");
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
fn a_killed_transaction_is_not_run_again() {
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
    // One that requests no other lock learns of it when it commits.
    let list = rows(&["locks", "list", region]);
    let holder = list.iter().find(|row| row["label"] == "holder").unwrap()["owner"].clone();
    done(&["locks", "kill", region, holder.as_str().unwrap()]);
    let ended = peer.order("commit");
    assert!(ended.starts_with("Err") && ended.contains("ended by an operator"), "{ended}");
    let output = latchwork(&["store", "get", store, "--table", "people", "ann"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    is_not_poisoned(store);
}
