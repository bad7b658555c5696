//! Waiter slots of processes that were killed: had again, and never while a queue leads to them.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use latchwork_check::cell::{self, value};
use latchwork_latch::{FetchAdd, LwLatch, ShflMutex};
use latchwork_machine::{Deadline, Shared, status};
use latchwork_region::{Offset, Options, Plain, Region};

/// Threads of each process that is killed, and slots of the region: two processes' worth and some.
const THREADS: usize = 12;
const SLOTS: u32 = 30;

/// What the processes wait for.
#[repr(C)]
struct Room {
    list: LwLatch<FetchAdd, Shared>,
    queue: ShflMutex<Shared>,
    inside: AtomicU64,
}

// SAFETY: latches are words of the machine, and any value of them is one.
unsafe impl Plain for Room {}

fn open(path: &Path) -> Region<Shared> {
    let options =
        Options { processes: 8, threads: 8, waiters: SLOTS, limit: 64 << 20, ..Options::default() };
    Region::open_or_create(path, &options).unwrap()
}

fn nap() {
    std::thread::sleep(Duration::from_micros(100));
}

/// What a child does: its threads wait, each for the latch that its part says, and stay.
#[test]
fn child() {
    let Ok(path) = std::env::var("REGION") else { return };
    let part = std::env::var("PART").unwrap();
    let region = open(&PathBuf::from(path));
    let offset = Offset::<Room>::from_raw(region.root(0).unwrap().load(Relaxed) as u32);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let room = value(&region, offset).unwrap();
                match part.as_str() {
                    // Killed while it waits.
                    "waiting" => {
                        room.inside.fetch_add(1, SeqCst);
                        room.list.lock_shared();
                    }
                    // Killed when it has waited.
                    "waited" => {
                        let soon = Deadline::after::<Shared>(Duration::from_micros(300));
                        assert!(!room.list.lock_shared_until(soon));
                        room.inside.fetch_add(1, SeqCst);
                    }
                    // Killed when it gave up in the midst of a queue.
                    _ => {
                        let soon = Deadline::after::<Shared>(Duration::from_micros(300));
                        assert!(!room.queue.lock_until(soon));
                        room.inside.fetch_add(1, SeqCst);
                    }
                }
                loop {
                    std::thread::park();
                }
            });
        }
    });
}

fn start(path: &Path, part: &str) -> Child {
    let mut command = latchwork_check::again(module_path!(), "child");
    command.env("REGION", path).env("PART", part);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills processes of waiting threads, and looks that their slots come back each time.
fn kills(name: &str, rounds: u64) {
    let path = std::env::temp_dir().join(format!("region-waiters-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let region = open(&path);
    let thread = region.thread().unwrap();
    // One slot is ours, for good: this thread waits once.
    let offset = thread.alloc::<Room>().unwrap().publish();
    let room = value(&region, offset).unwrap();
    room.list.lock_exclusive();
    let soon = Deadline::after::<Shared>(Duration::from_micros(100));
    assert!(!room.list.lock_shared_until(soon));
    assert_eq!(region.waiters(), 1);
    let mut had = 0;
    for round in 0..rounds {
        // A latch of its own each time: those who died waiting may have been handed it.
        let offset = thread.alloc::<Room>().unwrap().publish();
        let room = value(&region, offset).unwrap();
        region.root(0).unwrap().store(u64::from(offset.raw()), Relaxed);
        room.list.lock_exclusive();
        room.queue.lock();
        let part = ["waiting", "waited", "left"][round as usize % 3];
        let mut peer = start(&path, part);
        while room.inside.load(SeqCst) != THREADS as u64 || region.waiters() != 1 + THREADS as u32 {
            nap();
        }
        std::thread::sleep(Duration::from_millis(2));
        peer.kill().unwrap();
        peer.wait().unwrap();
        had += THREADS;
        let back = region.reclaim_waiters();
        match part {
            // In a list still: not to be had, until the list lets go of them.
            "waiting" => {
                assert_eq!((back, region.waiters()), (0, 1 + THREADS as u32), "round {round}");
                // SAFETY: locked above.
                unsafe { room.list.unlock_exclusive() };
                assert_eq!(region.reclaim_waiters(), THREADS as u32, "round {round}");
            }
            "waited" => assert_eq!(back, THREADS as u32, "round {round}"),
            // In a queue, and gone away. Some were at its head by then, and out.
            _ => {
                // SAFETY: locked above.
                unsafe { room.queue.unlock() };
                room.queue.lock();
                // SAFETY: locked above.
                unsafe { room.queue.unlock() };
                region.sweep().unwrap();
            }
        }
        assert_eq!(region.waiters(), 1, "round {round}, {part}");
        cell::free(&thread, offset).unwrap();
    }
    println!("{had} threads that waited were killed, with {SLOTS} slots");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn slots_of_the_killed_come_back() {
    kills("short", 60);
}

#[test]
#[ignore = "long: 70,000 threads"]
fn slots_of_the_killed_come_back_long() {
    kills("long", 70_000 / THREADS as u64 + 1);
}

/// Which statuses a dead one's slot is taken back from: those in which nothing leads to it.
#[test]
fn only_what_no_queue_leads_to_is_taken_back() {
    let all = [
        (status::FREE, true),
        (status::WAITING, false),
        (status::PARKED, false),
        (status::HEAD, false),
        (status::HEAD_PARKED, false),
        (status::TAKEN, false),
        (status::TAKEN_PARKED, false),
        (status::GRANTED, true),
        (status::LEAVING, false),
        (status::ABANDONED, false),
        (status::ORPHANED, false),
        (status::REMOVED, false),
        (status::SECOND, false),
    ];
    let length = 1 << 16;
    for (state, back) in all {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS | libc::MAP_SHARED);
        // SAFETY: a new mapping, wherever there is room.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: so much is mapped, zeroed, and nobody else knows of it; it is never unmapped.
        let attached = unsafe { Shared::create(base.cast(), length, 4) }.unwrap();
        attached.set_owner(7);
        let number = attached.slots().mine();
        attached.slots().at(number).status.store(state, Relaxed);
        attached.set_owner(8);
        assert_eq!(attached.reclaim(|_| false), 0, "its owner lives");
        assert_eq!(attached.reclaim(|owner| owner == 7), u32::from(back), "status {state}");
        assert_eq!(attached.slots().taken(), u32::from(!back), "status {state}");
        // A dead one's slot in a queue goes when who removes it says so.
        if state == status::ABANDONED {
            assert_eq!(attached.slots().at(number).status.load(Relaxed), status::ORPHANED);
            attached.slots().discard(number, status::ORPHANED);
            assert_eq!(attached.slots().taken(), 0);
        }
        assert_eq!(attached.reclaim(|owner| owner == 7), 0, "twice");
    }
}
