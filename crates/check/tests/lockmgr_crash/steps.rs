//! States between two steps: a refused barrier, a dead process in a full region, and a grant at the
//! moment of a refusal.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use latchwork_check::refusal::{Call, refuse};
use latchwork_check::{again, left};
use latchwork_lockmgr::{
    Error, Manager, Reason, Step, Wait, shared,
    shared::{S, X},
};
use latchwork_machine::{Machine, Shared};
use latchwork_region::Region;

use crate::deaths::{self, Peers, Stop};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());

fn forbid_membarrier() {
    refuse(Call { number: libc::SYS_membarrier, only: None }, libc::EPERM);
}

/// A small region, which is soon full.
fn open(path: &Path) -> Result<Manager<Shared>, Error> {
    let options = latchwork_region::Options { limit: 5 << 20, ..Default::default() };
    let region = Region::open_or_create(path, &options)?;
    Manager::new(region, shared::modes(), latchwork_check::early::early())
}

/// The child process: does what the environment says and prints a line. Does nothing in the parent.
#[test]
fn child() {
    let (Ok(path), Ok(part)) = (std::env::var("STEPS_REGION"), std::env::var("STEPS_PART")) else {
        return;
    };
    if part == "forbidden" {
        forbid_membarrier();
    }
    let manager = match open(Path::new(&path)) {
        Ok(manager) => manager,
        Err(error) => return println!("said: {error:?}"),
    };
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(b"mine", X).unwrap();
    owner.unlock(b"mine").unwrap();
    match &*part {
        "closes" => {
            forbid_membarrier();
            let end = owner.try_lock(b"x", X);
            assert_eq!(owner.try_lock(b"mine", X), Ok(()), "its bias is closed already");
            println!("said: {end:?}");
        }
        "sweeps" => {
            forbid_membarrier();
            println!("said: {:?}", session.sweep());
        }
        "dies" | "dies behind" => {
            println!("said: ready");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            let closes = part == "dies";
            deaths::die_at(if closes { "bias closed" } else { "request linked" }, 1);
            // With a timeout: in one of thousands of regions `mine` shares the bias of `x`, and has
            // closed it.
            let mode = if closes { X } else { S };
            owner.lock_timeout(b"x", mode, Duration::from_secs(30)).unwrap();
        }
        _ => {
            for mode in [S, X].repeat(50).into_iter().chain([S; 40]) {
                owner.lock(b"x", mode).unwrap();
                owner.unlock(b"x").unwrap();
            }
            println!("said: weak {}", session.stats().weak != 0);
        }
    }
}

/// Starts a child; returns it with its output.
fn start(path: &Path, part: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = again(module_path!(), "child");
    command.env("STEPS_REGION", path).env("STEPS_PART", part);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn hears(out: &mut BufReader<ChildStdout>) -> String {
    let mut lines = out.lines().map(Result::unwrap);
    let said = lines.find_map(|line| line.split_once("said: ").map(|(_, said)| said.to_owned()));
    said.expect("the child printed no line")
}

/// Returns what a child prints. The child must exit successfully.
fn says(path: &Path, part: &str) -> String {
    let (mut child, mut out) = start(path, part);
    let said = hears(&mut out);
    assert!(child.wait().unwrap().success());
    said
}

/// A child dies after it has closed the bias of `x` and before its barrier. `before` runs when the
/// child is ready.
fn dies_closing(path: &Path, before: impl FnOnce()) {
    dies_at(path, "dies", before);
}

fn dies_at(path: &Path, part: &str, before: impl FnOnce()) {
    let (mut child, mut out) = start(path, part);
    assert_eq!(hears(&mut out), "ready");
    before();
    child.stdin.take().unwrap().write_all(b"now\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), None, "the child was not killed");
}

#[test]
fn a_process_that_may_not_use_the_barrier() {
    let path = PEERS.fresh("forbidden");
    // The processes that came first rely on the barrier.
    let told = ["allowed", "forbidden", "allowed"].map(|part| says(&path, part));
    assert_eq!(told, ["weak true", "Barrier", "weak true"]);
    // If the first process has no barrier, no process uses it.
    std::fs::remove_file(&path).unwrap();
    let told = ["forbidden", "allowed", "forbidden"].map(|part| says(&path, part));
    assert_eq!(told, ["weak false"; 3]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn closing_a_bias_without_the_barrier_fails() {
    if !Shared::heavy_barrier() {
        return eprintln!("skipped: this system has no barrier for all processes");
    }
    let path = PEERS.fresh("sandbox");
    let manager = open(&path).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(b"x", S).unwrap();
    assert_eq!(says(&path, "closes"), "Err(Barrier)");
    assert!(session.snapshot().unwrap()[0].weak, "the refused request changed the lock");
    owner.unlock(b"x").unwrap();
    owner.lock(b"x", X).unwrap();
    drop(owner);
    left::nothing_in(&session);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_sweep_without_the_barrier_is_left_to_other_processes() {
    if !Shared::heavy_barrier() {
        return eprintln!("skipped: this system has no barrier for all processes");
    }
    let path = PEERS.fresh("sweeps");
    let manager = open(&path).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    owner.lock(b"x", S).unwrap();
    dies_closing(&path, || ());
    assert_eq!(says(&path, "sweeps"), "Err(Barrier)");
    assert_eq!(session.sweep(), Ok(1), "the latch should still belong to the dead process");
    assert_eq!(other.try_lock(b"x", X), Err(Error::NotGranted));
    owner.unlock(b"x").unwrap();
    other.try_lock(b"x", X).unwrap();
    drop((owner, other));
    left::nothing_in(&session);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_sweep_after_a_closing_threads_death_works_in_a_full_region() {
    let path = PEERS.fresh("no-room");
    let manager = open(&path).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let filler = session.owner().unwrap();
    owner.lock(b"x", S).unwrap();
    dies_closing(&path, || {
        // Fills with S: a request for X whose name shares the bias of `x` would close it.
        let full = (0u64..).find_map(|n| filler.lock(&n.to_le_bytes(), S).err());
        assert!(is_full(&full.unwrap()));
    });
    // A lock that was not moved is still held, and a strong request fails for lack of room.
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(owner.holds(b"x"), Ok(Some((S, 1))));
    assert!(other.try_lock(b"x", X).is_err());
    filler.release_all().unwrap();
    assert_eq!(other.try_lock(b"x", X), Err(Error::NotGranted));
    owner.unlock(b"x").unwrap();
    other.try_lock(b"x", X).unwrap();
    drop((owner, other, filler));
    left::nothing_in(&session);
    std::fs::remove_file(&path).unwrap();
}

/// A process dies in a partition where a strong request waits for a weak lock. The repair rebuilds
/// the partition, and the strong request still waits.
#[test]
fn a_waiter_waits_for_a_weak_lock_after_a_repair() {
    let path = PEERS.fresh("repaired");
    let manager = open(&path).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    owner.lock(b"x", S).unwrap();
    dies_at(&path, "dies behind", || {
        assert_eq!(other.request(b"x", X, Wait::Detect), Ok(Step::Waiting));
    });
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!(other.poll(), Ok(None));
    owner.unlock(b"x").unwrap();
    assert_eq!(other.poll(), Ok(Some(Ok(()))));
    drop((owner, other));
    left::nothing_in(&session);
    std::fs::remove_file(&path).unwrap();
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Region(latchwork_region::Error::Full(_)))
}

/// An owner is killed before it waits, and granted before it can withdraw. It has the lock and
/// learns so; its next request fails.
#[test]
fn a_wounded_owner_is_granted_before_it_can_withdraw() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let holder = session.owner().unwrap();
    holder.lock(b"x", X).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let (manager, stop) = (&manager, &stop);
        let waiter = scope.spawn(move || {
            let session = manager.session().unwrap();
            let owner = session.owner().unwrap();
            tell.send(owner.id()).unwrap();
            stop.at("request linked");
            assert_eq!(owner.request(b"x", X, Wait::Detect), Ok(Step::Waiting));
            stop.at("about to withdraw");
            assert_eq!(owner.poll(), Ok(Some(Ok(()))));
            assert_eq!(owner.holds(b"x"), Ok(Some((X, 1))));
            assert_eq!(owner.try_lock(b"y", X), Err(Error::Aborted(Reason::Killed)));
        });
        let id = told.recv().unwrap();
        stop.until_stopped();
        // The owner is not waiting yet, so the kill cannot refuse its request.
        session.kill(id).unwrap();
        stop.go_on();
        stop.until_stopped();
        holder.unlock(b"x").unwrap();
        stop.go_on();
        waiter.join().unwrap();
    });
    drop(holder);
    left::nothing_in(&session);
}
