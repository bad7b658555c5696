//! Many processes, many owners, and different clocks.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use std::path::PathBuf;
use std::time::Duration;

use latchwork_check::forked::in_child;
use latchwork_check::left;
use latchwork_check::random::Random;
use latchwork_lockmgr::{
    Error, Manager, Options, shared,
    shared::{S, X},
};
use latchwork_machine::Shared;
use latchwork_region::Region;

/// A region's file, removed on drop.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("many-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn manager(&self) -> Manager<Shared> {
        let options = latchwork_region::Options { limit: 1 << 30, ..Default::default() };
        let region = Region::open_or_create(&self.0, &options).unwrap();
        Manager::new(region, shared::modes(), Options::default()).unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts a child that runs `part` and ends.
fn start(part: impl FnOnce()) -> i32 {
    // SAFETY: the child has one thread, runs `part`, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(part));
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => child,
    }
}

fn wait_for(child: i32) -> i32 {
    let mut status = -1;
    // SAFETY: a child process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

/// Words that this process shares with its children.
fn shared_words(count: usize) -> &'static [AtomicU32] {
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), count * 4, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: mapped above with this length, zeroed, and never unmapped.
    unsafe { core::slice::from_raw_parts(at.cast(), count) }
}

const NAMES: u64 = 12;
/// The writers of a name are counted from this bit on, its readers below.
const WRITER: u32 = 1 << 16;

/// Locks names in ascending order, one in three to write, and checks that there are no conflicting
/// holders.
fn work(file: &File, there: &[AtomicU32], seed: u64, rounds: u64) {
    let manager = file.manager();
    let session = manager.session().unwrap();
    let mut random = Random(seed | 1);
    for _ in 0..rounds {
        let owner = session.owner().unwrap();
        let mut taken = Vec::new();
        let mut at = random.below(NAMES);
        while at < NAMES && taken.len() < 3 {
            let write = random.below(3) == 0;
            owner.lock(&at.to_le_bytes(), if write { X } else { S }).unwrap();
            let mine = if write { WRITER } else { 1 };
            let before = there[at as usize].fetch_add(mine, SeqCst);
            assert!(before < if write { 1 } else { WRITER }, "{before:#x} holds {at}");
            taken.push((at, mine));
            at += 1 + random.below(3);
        }
        for (at, mine) in taken {
            there[at as usize].fetch_sub(mine, SeqCst);
        }
    }
}

fn processes(count: u64, rounds: u64) {
    let file = File::new("processes");
    let manager = file.manager();
    let there = shared_words(NAMES as usize);
    let children: Vec<i32> =
        (0..count).map(|seed| start(|| work(&file, there, seed, rounds))).collect();
    let wrong = children.into_iter().filter(|child| wait_for(*child) != 0).count();
    assert_eq!(wrong, 0, "{wrong} of {count} processes failed");
    assert!(there.iter().all(|word| word.load(SeqCst) == 0));
    left::nothing(&manager);
}

#[test]
fn twenty_processes_exclude_each_other() {
    processes(20, 100);
}

#[test]
#[ignore = "long: half a minute"]
fn two_hundred_processes_exclude_each_other() {
    processes(200, 500);
}

/// Processes with many owners, each with its own and common locks, are killed while they lock and
/// unlock.
fn kills(count: u64, owners: u64) {
    let file = File::new("kills");
    let manager = file.manager();
    let session = manager.session().unwrap();
    let ready = shared_words(1);
    for seed in 0..count {
        ready[0].store(0, SeqCst);
        let child = start(|| {
            let manager = file.manager();
            let session = manager.session().unwrap();
            let all: Vec<_> = (0..owners).map(|_| session.owner().unwrap()).collect();
            for round in 0u64.. {
                for (at, owner) in all.iter().enumerate() {
                    let own = [&b"own"[..], &(at as u64).to_le_bytes()].concat();
                    owner
                        .lock(&own, if (round + at as u64).is_multiple_of(2) { X } else { S })
                        .unwrap();
                    owner.lock(b"common", S).unwrap();
                    if at as u64 % 5 == round % 5 {
                        owner.release_all().unwrap();
                    }
                }
                ready[0].fetch_add(1, SeqCst);
            }
        });
        while ready[0].load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(seed * 7919 % 5000));
        // SAFETY: signals a child process.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        assert_ne!(wait_for(child), 0);
        // All locks of the killed process are available.
        let owner = session.owner().unwrap();
        owner.lock(b"common", X).unwrap();
        for at in (0..owners).step_by(97) {
            owner.lock(&[&b"own"[..], &at.to_le_bytes()].concat(), X).unwrap();
        }
        drop(owner);
        session.sweep().unwrap();
        left::nothing_in(&session);
    }
}

#[test]
fn hundreds_of_owners_die_at_once() {
    kills(4, 400);
}

#[test]
#[ignore = "long: a minute"]
fn thousands_of_owners_die_at_once() {
    kills(60, 5000);
}

/// A process in a time namespace whose monotonic clock is a day ahead: ages and timeouts still
/// work, and a deadlock between both processes is found.
#[test]
fn clocks_of_time_namespaces_are_tolerated() {
    let file = File::new("clocks");
    let manager = file.manager();
    let session = manager.session().unwrap();
    let (words, owner) = (shared_words(1), session.owner().unwrap());
    owner.lock(b"ours", X).unwrap();
    let child = start(|| {
        // SAFETY: creates a namespace for this process's children.
        if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0
            || std::fs::write("/proc/self/timens_offsets", "monotonic 86400 0").is_err()
        {
            words[0].store(2, SeqCst);
            return;
        }
        let status = in_child(|| {
            let manager = file.manager();
            let session = manager.session().unwrap();
            let owner = session.owner().unwrap();
            owner.lock(b"theirs", X).unwrap();
            words[0].store(1, SeqCst);
            // The timeout is a duration, whatever the clock says.
            let short = owner.lock_timeout(b"ours", X, Duration::from_millis(20));
            assert!(matches!(short, Err(Error::TimedOut | Error::Deadlock(_))), "{short:?}");
            let end = owner.lock_timeout(b"ours", X, Duration::from_secs(300));
            // By its clock it is the younger, if the cycle was closed before the timeout.
            assert!(matches!(end, Ok(()) | Err(Error::Deadlock(_))), "{end:?}");
        });
        assert_eq!(status, 0);
    });
    while words[0].load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    if words[0].load(SeqCst) == 2 {
        println!("skipped: no time namespace can be created here");
        assert_eq!(wait_for(child), 0);
        return;
    }
    let end = owner.lock_timeout(b"theirs", X, Duration::from_secs(300));
    assert!(matches!(end, Ok(()) | Err(Error::Deadlock(_))), "{end:?}");
    drop(owner);
    assert_eq!(wait_for(child), 0);
    left::nothing_in(&session);
}
