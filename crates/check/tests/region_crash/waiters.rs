//! Waiter slots of killed processes are reused, and never while a queue links to them.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use latchwork_check::cell::{self, value};
use latchwork_latch::{
    Biased, FetchAdd, Holder, HolderNumber, LwLatch, OptLatch, ShflMutex, ShflRwLock,
};
use latchwork_machine::{Deadline, Shared, status};
use latchwork_region::{Offset, Options, Plain, Region};

/// Threads of each process that is killed, and slots of the region, which are enough for two.
const THREADS: usize = 12;
const SLOTS: u32 = 30;

/// The latches that the processes wait for.
#[repr(C)]
struct Room {
    list: LwLatch<FetchAdd, Shared>,
    queue: ShflMutex<Shared>,
    biased: Biased<ShflRwLock<Shared>>,
    inside: AtomicU64,
}

// SAFETY: latches are words of the machine, and any value of them is valid.
unsafe impl Plain for Room {}

fn open(path: &Path) -> Region<Shared> {
    let options =
        Options { processes: 8, threads: 8, waiters: SLOTS, limit: 64 << 20, ..Options::default() };
    Region::open_or_create(path, &options).unwrap()
}

fn nap() {
    std::thread::sleep(Duration::from_micros(100));
}

/// The child process: its threads wait for the latch that `PART` selects, and stay.
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
                    // Killed after it has waited.
                    "waited" => {
                        let soon = Deadline::after::<Shared>(Duration::from_micros(300));
                        assert!(!room.list.lock_shared_until(soon));
                        room.inside.fetch_add(1, SeqCst);
                    }
                    // Killed while it holds a share.
                    "reading" => {
                        let share = room.biased.lock_shared();
                        assert!(share.is_biased());
                        room.inside.fetch_add(1, SeqCst);
                        let _not_unlocked = share;
                    }
                    // Killed after it gave up in the middle of a queue.
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

/// Kills processes with waiting threads, and checks each time that their slots are reused.
fn kills(name: &str, rounds: u64) {
    let path = std::env::temp_dir().join(format!("region-waiters-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let region = open(&path);
    let thread = region.thread().unwrap();
    // This thread takes one slot permanently by waiting once.
    let offset = thread.alloc::<Room>().unwrap().publish();
    let room = value(&region, offset).unwrap();
    room.list.lock_exclusive();
    let soon = Deadline::after::<Shared>(Duration::from_micros(100));
    assert!(!room.list.lock_shared_until(soon));
    assert_eq!(region.waiters(), 1);
    let mut had = 0;
    for round in 0..rounds {
        // A new latch in each round: killed threads may have been handed the old one.
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
            // Still in a list: not reused until the list has released them.
            "waiting" => {
                assert_eq!((back, region.waiters()), (0, 1 + THREADS as u32), "round {round}");
                // SAFETY: locked above.
                unsafe { room.list.unlock_exclusive() };
                assert_eq!(region.reclaim_waiters(), THREADS as u32, "round {round}");
            }
            "waited" => assert_eq!(back, THREADS as u32, "round {round}"),
            // Abandoned in a queue. Some were at its head and are already out.
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

/// Biased shares of a killed process: a writer waits until a sweep has withdrawn them.
#[test]
fn shares_of_killed_processes_are_withdrawn() {
    let path = std::env::temp_dir().join(format!("region-readers-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let region = open(&path);
    let thread = region.thread().unwrap();
    let offset = thread.alloc::<Room>().unwrap().publish();
    let room = value(&region, offset).unwrap();
    region.root(0).unwrap().store(u64::from(offset.raw()), Relaxed);
    for round in 0..5 {
        room.inside.store(0, SeqCst);
        while !room.biased.is_open() {
            // A share of the latch opens the bias once it has rested.
            let share = room.biased.lock_shared();
            // SAFETY: taken above.
            unsafe { room.biased.unlock_shared(share) };
        }
        let mut peer = start(&path, "reading");
        while room.inside.load(SeqCst) != THREADS as u64 {
            nap();
        }
        assert!(!room.biased.try_lock_exclusive(), "round {round}: a writer ignored the readers");
        peer.kill().unwrap();
        peer.wait().unwrap();
        let soon = Deadline::after::<Shared>(Duration::from_micros(300));
        assert!(!room.biased.lock_exclusive_until(soon), "round {round}: withdrawn before a sweep");
        region.sweep().unwrap();
        room.biased.lock_exclusive();
        // SAFETY: locked above.
        unsafe { room.biased.unlock_exclusive() };
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn slots_of_killed_processes_are_reclaimed() {
    kills("short", 60);
}

#[test]
#[ignore = "long: 70,000 threads"]
fn slots_of_killed_processes_are_reclaimed_long() {
    kills("long", 70_000 / THREADS as u64 + 1);
}

/// The statuses in which a dead thread's slot is reclaimed: those in which nothing links to it.
#[test]
fn only_slots_outside_queues_are_reclaimed() {
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
        (status::READING, true),
    ];
    for (state, back) in all {
        let attached = table();
        attached.set_owner(7);
        let number = attached.slots().mine();
        attached.slots().at(number).status.store(state, Relaxed);
        attached.set_owner(8);
        assert_eq!(attached.reclaim(|_| false), 0, "a living owner's slot was reclaimed");
        assert_eq!(attached.reclaim(|owner| owner == 7), u32::from(back), "status {state}");
        assert_eq!(attached.slots().taken(), u32::from(!back), "status {state}");
        // A dead thread's slot in a queue is released by the thread that removes it.
        if state == status::ABANDONED {
            assert_eq!(attached.slots().at(number).status.load(Relaxed), status::ORPHANED);
            attached.slots().discard(number, status::ORPHANED);
            assert_eq!(attached.slots().taken(), 0);
        }
        assert_eq!(attached.reclaim(|owner| owner == 7), 0, "twice");
    }
}

/// The memory of a table of waiter slots, never freed.
fn table() -> latchwork_machine::Attached<'static> {
    let length = 1 << 16;
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS | libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the system chooses.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: mapped above, zeroed, not used otherwise, and never unmapped.
    unsafe { Shared::create(base.cast(), length, 4) }.unwrap()
}

/// The action of a sweep of thread 5 on waiters in no queue. Thread 8 is also dead and belongs to
/// another sweep; the others live.
#[test]
fn dead_threads_neither_give_nor_receive_a_latch() {
    let by = |thread: u32| status::HANDED | thread << status::BY_SHIFT;
    let (gone, all) = (status::GRANTED, true);
    for (state, waiter, then, done) in [
        (status::ALONE, 5, gone, all),
        (status::ALONE_PARKED, 5, gone, all),
        (status::ALONE_PARKED, 6, status::ALONE_PARKED, all),
        (by(5), 6, gone, all),
        (by(5), 5, gone, all),
        (by(8), 5, gone, all),
        (by(8), 6, gone, all),
        (status::ALONE_PARKED, 8, status::ALONE_PARKED, all),
        (by(7), 6, by(7), all),
        // A living thread is handing it over.
        (by(7), 5, by(7), false),
        // In the queue of another latch.
        (status::WAITING, 5, status::WAITING, all),
    ] {
        let attached = table();
        let slots = attached.slots();
        let slot = slots.at(slots.mine());
        slot.next.store(waiter, Relaxed);
        slot.status.store(state, Relaxed);
        let forgotten = slots.forget(|thread| thread == 5, |thread| matches!(thread, 5 | 8));
        assert_eq!((slot.status.load(Relaxed), forgotten), (then, done), "{state:x} of {waiter}");
    }
}

/// A thread that is handed the latch whenever it sleeps.
struct Named<'r> {
    region: &'r Region<Shared>,
    number: HolderNumber,
}

impl Holder<Shared> for Named<'_> {
    const LOSSES: u32 = 0;

    fn number(&self) -> HolderNumber {
        self.number
    }

    // Processes map it at different addresses.
    fn name(&self, _: &OptLatch<Shared>) -> u64 {
        1
    }

    fn nap(&self) -> Option<Duration> {
        Some(Duration::from_millis(10))
    }

    fn is_dead(&self, number: HolderNumber) -> bool {
        self.region.is_dead(number.get() - 1)
    }
}

fn named(region: &Region<Shared>, slot: u32) -> Named<'_> {
    Named { region, number: HolderNumber::new(slot + 1).unwrap() }
}

#[repr(C)]
struct Door {
    latch: OptLatch<Shared>,
    inside: AtomicU64,
}

// SAFETY: words of the machine; any value of them is valid.
unsafe impl Plain for Door {}

/// The child process: waits for a latch with a thread slot, and stays.
#[test]
fn child_at_a_door() {
    let Ok(path) = std::env::var("REGION") else { return };
    let region = open(&PathBuf::from(path));
    let offset = Offset::<Door>::from_raw(region.root(0).unwrap().load(Relaxed) as u32);
    let thread = region.thread().unwrap();
    let door = value(&region, offset).unwrap();
    door.inside.store(u64::from(thread.number()) + 1, SeqCst);
    let me = named(&region, thread.number());
    let _held = door.latch.lock(&me).unwrap();
    unreachable!("the latch is held until this process is killed");
}

/// A waiting thread died, and its number belongs to a new thread. The latch must not be handed to
/// that number: the new thread would hold it without knowing.
#[test]
fn the_reused_number_of_a_dead_waiter_is_handed_nothing() {
    let path = std::env::temp_dir().join(format!("region-waiters-door-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let region = open(&path);
    let thread = region.thread().unwrap();
    let offset = thread.alloc::<Door>().unwrap().publish();
    let door = value(&region, offset).unwrap();
    region.root(0).unwrap().store(u64::from(offset.raw()), Relaxed);
    let me = named(&region, thread.number());
    let held = door.latch.lock(&me).unwrap();
    let mut command = latchwork_check::again(module_path!(), "child_at_a_door");
    command.env("REGION", &path).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    while door.inside.load(SeqCst) == 0 || !format!("{:?}", door.latch).contains("waiters: true") {
        nap();
    }
    // Until it sleeps.
    std::thread::sleep(Duration::from_millis(5));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(region.sweep(), Ok(1));
    let newcomer = region.thread().unwrap();
    assert_eq!(u64::from(newcomer.number()) + 1, door.inside.load(SeqCst), "another number");
    drop(held);
    assert_eq!(door.latch.holder(), None, "handed to a thread that did not request it");
    let _ = std::fs::remove_file(&path);
}

/// A thread that has waited keeps its slot. Threads that get none can still wait: for a writer, as
/// readers, and past a deadline.
#[test]
fn threads_without_a_slot_wait_by_spinning() {
    let path = std::env::temp_dir().join(format!("region-waiters-few-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let options =
        Options { processes: 8, threads: 16, waiters: 1, limit: 64 << 20, ..Options::default() };
    let region = Region::open_or_create(&path, &options).unwrap();
    let thread = region.thread().unwrap();
    let offset = thread.alloc::<Door>().unwrap().publish();
    let door = value(&region, offset).unwrap();
    let me = named(&region, thread.number());
    let held = door.latch.lock(&me).unwrap();
    std::thread::scope(|scope| {
        for kind in 0..6 {
            let (region, door) = (&region, &door);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let me = named(region, thread.number());
                if kind % 3 == 0 {
                    let soon = Deadline::after::<Shared>(Duration::from_millis(5));
                    assert!(door.latch.lock_until(&me, soon).unwrap().is_none());
                }
                door.inside.fetch_add(1, SeqCst);
                match kind % 3 {
                    1 => drop(door.latch.read(&me).unwrap()),
                    _ => drop(door.latch.lock(&me).unwrap()),
                }
                door.inside.fetch_sub(1, SeqCst);
            });
        }
        while door.inside.load(SeqCst) < 6 {
            nap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(door.inside.load(SeqCst), 6);
        assert_eq!(region.waiters(), 1);
        drop(held);
    });
    assert_eq!(door.inside.load(SeqCst), 0);
    let _ = std::fs::remove_file(&path);
}
