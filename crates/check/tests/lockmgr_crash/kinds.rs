//! Every kind of lock at once, in processes that are stopped, killed and replaced at random: weak
//! and strong locks, conversions, ranges, futures, families, trades, names reserved for a session,
//! savepoints, and adopted orphans. A book of held locks detects conflicting grants. The same runs
//! in a region with room for a few cells only, where each of these operations may fail as full.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use latchwork_check::random::Random;
use latchwork_check::{early, left};
use latchwork_lockmgr::{Manager, Options, Owner, Session, granular};
use latchwork_machine::Shared;
use latchwork_region::Region;

use crate::book::Book;
use crate::deaths::{self, FOR_EVER, Peers};
use crate::life::{GRANTED, IS_TIGHT, Life, REFUSED, if_room, stripes};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());
/// Size limit of a region with little room.
const LITTLE: u64 = 4 << 20;

fn open(path: &Path, keep_after: u32) -> Manager<Shared> {
    let options = Options { keep_after, ..early::early() };
    let recovery = || Box::new(|_, label: &[u8]| !label.starts_with(b"kept"));
    loop {
        let mut sizes = deaths::options();
        if IS_TIGHT.get() {
            sizes.limit = LITTLE;
        }
        let region = Region::open_or_create(path, &sizes).unwrap();
        let modes = granular::modes();
        let opened = Manager::with_recovery(region, modes, options.clone(), recovery());
        if let Some(manager) = if_room(opened) {
            return manager;
        }
    }
}

fn session(manager: &Manager<Shared>) -> Session<Shared> {
    loop {
        if let Some(session) = if_room(manager.session()) {
            return session;
        }
    }
}

/// The child process, controlled by its environment. Does nothing in the parent.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    // The process may be killed before a panic ends it, so faults are written to a file.
    let faults = faults(&told.path);
    std::panic::set_hook(Box::new(move |fault| {
        let mut file = File::options().create(true).append(true).open(&faults).unwrap();
        file.write_all(format!("{fault}\n").as_bytes()).unwrap();
    }));
    IS_TIGHT.set(std::env::var_os("KINDS_TIGHT").is_some());
    let manager = open(&told.path, number("KINDS_KEEP_AFTER") as u32);
    live(&session(&manager), &told.path, number("KINDS_ROW"), told.seed, told.rounds);
}

/// The file in which processes record faults.
fn faults(path: &Path) -> PathBuf {
    path.with_extension("faults")
}

/// Runs this many rounds as the process with this row; the serial number is its seed.
fn live(session: &Session<Shared>, path: &Path, row: u64, serial: u64, rounds: u64) {
    let (book, modes) = (Book::open(path, row), granular::modes());
    let kept = is_kept(serial);
    let label = if kept { format!("kept {serial}") } else { format!("row {row}, {serial}") };
    let random = Random(serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (book, modes) = (&book, &modes);
    let stripes = stripes();
    Life { session, modes, book, stripes, random, label, kept }.rounds(rounds);
}

/// Returns whether the owners of this process are kept after its death: one process in three.
fn is_kept(serial: u64) -> bool {
    serial.is_multiple_of(3)
}

/// A process and its row in the book.
struct Peer {
    process: Child,
    row: u64,
}

impl Peer {
    fn start(path: &Path, parent: &Book, serial: u64, keep_after: u32) -> Self {
        let row = parent.begin(serial, is_kept(serial)).expect("all rows are of orphans");
        let mut command = PEERS.command(path, "", 0, serial, FOR_EVER);
        command.env("KINDS_ROW", row.to_string());
        command.env("KINDS_KEEP_AFTER", keep_after.to_string());
        if IS_TIGHT.get() {
            command.env("KINDS_TIGHT", "1");
        }
        Self { process: command.spawn().unwrap(), row }
    }

    fn signal(&mut self, signal: i32) {
        assert_eq!(self.process.try_wait().unwrap(), None, "a peer ended by itself, see .faults");
        // SAFETY: signals a child process that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Stops the process and waits until it has stopped.
    fn stop(&mut self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        loop {
            let stat = std::fs::read_to_string(&stat).unwrap();
            match stat.rsplit(") ").next().and_then(|rest| rest.chars().next()) {
                Some('T') => return,
                Some('Z' | 'X') | None => panic!("a peer ended by itself, see .faults"),
                Some(_) => std::thread::yield_now(),
            }
        }
    }

    /// Stops the process, marks it as dead in the book, and kills it.
    fn kill(mut self, parent: &Book) {
        self.stop();
        parent.end(self.row);
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An owner whose locks fill nearly all of the region.
struct Ballast<'s> {
    owner: Owner<'s, Shared>,
    names: u64,
}

impl Ballast<'_> {
    fn name(number: u64) -> Vec<u8> {
        [b"ballast ", &number.to_le_bytes()[..]].concat()
    }

    /// Locks names until the region is full, then unlocks `room` of them.
    fn leave(&mut self, room: u64) {
        // A weak mode does not close a bias.
        while if_room(self.owner.lock(&Self::name(self.names), granular::IS)).is_some() {
            self.names += 1;
        }
        for _ in 0..room.min(self.names) {
            self.names -= 1;
            self.owner.unlock(&Self::name(self.names)).unwrap();
        }
    }

    fn release(&mut self) {
        self.owner.release_all().unwrap();
        self.names = 0;
    }
}

/// Kills one of three processes `count` times and stops another in every fourth round; the others
/// continue.
fn kills(count: u64, keep_after: u32) {
    let path = PEERS.fresh(&format!("kinds-{}-{keep_after}", IS_TIGHT.get()));
    let _ = std::fs::remove_file(faults(&path));
    let _ = std::fs::remove_file(path.with_extension("book"));
    let parent = Book::open(&path, u64::MAX);
    let manager = open(&path, keep_after);
    let (mut random, mut serial, since) = (Random(0x5eed + count), 10, Instant::now());
    let own = parent.begin(1, false).unwrap();
    let mut start = || {
        serial += 1;
        Peer::start(&path, &parent, serial, keep_after)
    };
    let mut peers: Vec<Peer> = (0..3).map(|_| start()).collect();
    let own_session = manager.session().unwrap();
    let mut ballast = Ballast { owner: own_session.owner().unwrap(), names: 0 };
    for round in 0..count {
        if IS_TIGHT.get() {
            ballast.leave(random.below(60));
        }
        std::thread::sleep(Duration::from_micros(1_000 + random.below(5_000)));
        if round % 4 == 0 {
            let stopped = &mut peers[random.roll(3)];
            stopped.stop();
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            stopped.signal(libc::SIGCONT);
        }
        peers.swap_remove(random.roll(3)).kill(&parent);
        // In a tight region this process keeps its session: only its own kills make room.
        let fresh = (!IS_TIGHT.get()).then(|| session(&manager));
        live(fresh.as_ref().unwrap_or(&own_session), &path, own, 7 + 3 * round, 10);
        peers.push(start());
        if IS_TIGHT.get() && round / 50 % 2 == 0 {
            // Gives processes room for what a session allocates for its lifetime.
            ballast.release();
            std::thread::sleep(Duration::from_millis(5));
        }
        if (round + 1) % 1_000 == 0 {
            let rate = (round + 1) as f64 / since.elapsed().as_secs_f64();
            println!("keep_after {keep_after}: {} kills, {rate:.0} a second", round + 1);
        }
    }
    peers.into_iter().for_each(|peer| peer.kill(&parent));
    drop(ballast);
    drop(own_session);
    if IS_TIGHT.get() {
        let (granted, refused) = (GRANTED.replace(0), REFUSED.replace(0));
        println!("keep_after {keep_after}: granted {granted}, refused {refused}");
        // The region is filled once in each round.
        assert!(granted > count && refused > count / 2, "granted {granted}, {refused}");
    }
    assert_eq!(std::fs::read_to_string(faults(&path)).unwrap_or_default(), "");
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let orphans = session.orphans().unwrap();
    println!("keep_after {keep_after}: {} orphans at the end", orphans.len());
    orphans.into_iter().for_each(|orphan| session.release_orphan(orphan).unwrap());
    left::nothing_in(&session);
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(path.with_extension("book"));
}

fn asked(usual: u64) -> u64 {
    std::env::var("LATCHWORK_LOCK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// With names that are reserved for a session at once, soon, and late.
fn with_all_kinds(count: u64) {
    for keep_after in [1, 2, 8, 32] {
        kills(count / 4, keep_after);
    }
}

#[test]
fn kills_among_all_kinds_leave_sound_locks() {
    with_all_kinds(asked(120));
}

#[test]
fn kills_in_a_full_region_leave_sound_locks() {
    IS_TIGHT.set(true);
    with_all_kinds(asked(80));
}

#[test]
#[ignore = "long: 100,000 kills"]
fn kills_among_all_kinds_leave_sound_locks_long() {
    with_all_kinds(asked(100_000));
}

#[test]
#[ignore = "long: 100,000 kills"]
fn kills_in_a_full_region_leave_sound_locks_long() {
    IS_TIGHT.set(true);
    with_all_kinds(asked(100_000));
}
