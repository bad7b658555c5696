//! Latches in memory that two processes share, mapped at different addresses.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use latchwork_check::forked::in_child;
use latchwork_latch::{LwLatch, RawCondvar, ShflMutex, ShflRwLock};
use latchwork_machine::{AttachError, Attached, Deadline, Shared};

const LENGTH: usize = 1 << 16;
const SLOTS: u32 = 100;

/// What lies in the mapping, behind the slots. All zero is free.
#[repr(C)]
struct Room {
    mutex: ShflMutex<Shared>,
    rw: ShflRwLock<Shared>,
    lw: LwLatch<latchwork_latch::FetchAdd, Shared>,
    condvar: RawCondvar<Shared>,
    turn: AtomicU32,
    counts: [AtomicU64; 3],
}

/// A fresh file without a name, mapped once.
fn map(fd: i32) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is LENGTH bytes long.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, fd, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    base.cast()
}

fn file() -> i32 {
    // SAFETY: a name that ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"latchwork-shared".as_ptr(), 0) };
    // SAFETY: the file was just made.
    assert_eq!(unsafe { libc::ftruncate(fd, LENGTH as i64) }, 0);
    fd
}

fn room<'a>(attached: &'a Attached<'_>) -> &'a Room {
    let (base, length) = attached.room();
    assert!(length >= size_of::<Room>());
    // SAFETY: the room is mapped, zeroed at first, aligned to 64 bytes, and all atomics.
    unsafe { &*base.cast::<Room>() }
}

/// Adds without an atomic addition, so that two at once would lose one.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

const ROUNDS: u64 = 5_000;

fn work(room: &Room, me: u32) {
    for _ in 0..ROUNDS {
        room.mutex.lock();
        count(&room.counts[0]);
        // SAFETY: locked above.
        unsafe { room.mutex.unlock() };
        room.rw.lock_exclusive();
        count(&room.counts[1]);
        // SAFETY: locked above.
        unsafe { room.rw.unlock_exclusive() };
        room.rw.lock_shared();
        // SAFETY: locked above.
        unsafe { room.rw.unlock_shared() };
        room.lw.lock_exclusive();
        count(&room.counts[2]);
        // SAFETY: locked above.
        unsafe { room.lw.unlock_exclusive() };
    }
    // Take turns, through the condition variable.
    for _ in 0..200 {
        room.mutex.lock();
        while room.turn.load(Relaxed) != me {
            // SAFETY: the mutex is held.
            let _ = room.condvar.wait(|| unsafe { room.mutex.unlock() }, None);
            room.mutex.lock();
        }
        room.turn.store(1 - me, Relaxed);
        room.condvar.notify_one();
        // SAFETY: locked above.
        unsafe { room.mutex.unlock() };
    }
}

#[test]
fn two_processes_share_latches() {
    let fd = file();
    let base = map(fd);
    // SAFETY: the mapping stays, and holds atomics only.
    let attached = unsafe { Shared::create(base, LENGTH, SLOTS) }.unwrap();
    // SAFETY: the child works on the mapping alone and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // At an address of its own: numbers must mean the same there.
        let elsewhere = map(fd);
        // SAFETY: as above.
        let attached = unsafe { Shared::attach(elsewhere, LENGTH) }.unwrap();
        work(room(&attached), 1);
        // SAFETY: it does not return.
        unsafe { libc::_exit(0) };
    }
    let room = room(&attached);
    work(room, 0);
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    for counter in &room.counts {
        assert_eq!(counter.load(Relaxed), 2 * ROUNDS);
    }
}

/// What its parent had attached lies where the child maps something else, as it does with a
/// region, of which a child has nothing.
#[test]
fn a_child_of_a_fork_finds_slots_of_its_own() {
    let (base, half) = (map(file()), LENGTH / 2);
    // SAFETY: the mapping stays, and holds atomics only.
    let attached = unsafe { Shared::create(base, LENGTH, SLOTS) }.unwrap();
    let (of_parent, number) = (attached.slots(), attached.slots().mine());
    let status = in_child(|| {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = base.wrapping_add(half).cast();
        // SAFETY: the parent's mapping, which nobody uses in the child.
        unsafe { libc::munmap(base.cast(), LENGTH) };
        // SAFETY: a new one, where nothing is any more.
        let own = unsafe { libc::mmap(at, half, rights, flags | libc::MAP_FIXED, file(), 0) };
        assert_eq!(own, base.wrapping_add(half).cast());
        // SAFETY: the mapping stays, and holds atomics only.
        let own = unsafe { Shared::create(own.cast(), half, 10) }.unwrap();
        let is_own = || {
            let slot = std::ptr::from_ref(own.slots().at(own.slots().mine())).cast::<u8>();
            (half..LENGTH).contains(&(slot as usize - base as usize))
        };
        assert!(is_own());
        // SAFETY: the child has no other use for it, and never returns.
        drop(unsafe { std::ptr::read(&attached) });
        assert!(is_own());
    });
    assert_eq!(status, 0);
    assert_eq!((of_parent.taken(), attached.slots().mine()), (1, number));
}

#[test]
fn deadlines_pass_in_shared_memory() {
    let base = map(file());
    // SAFETY: the mapping stays, and holds atomics only.
    let attached = unsafe { Shared::create(base, LENGTH, SLOTS) }.unwrap();
    let room = room(&attached);
    room.mutex.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let soon = Deadline::after::<Shared>(Duration::from_millis(2));
            assert!(!room.mutex.lock_until(soon));
        });
    });
    // SAFETY: locked above.
    unsafe { room.mutex.unlock() };
}

#[test]
fn what_is_no_mapping_of_ours_is_refused() {
    let base = map(file());
    let attach = |base: *mut u8, length| {
        // SAFETY: the mapping stays, and nobody uses it.
        unsafe { Shared::attach(base, length) }.map(|_| ())
    };
    let create = |slots| {
        // SAFETY: as above.
        unsafe { Shared::create(base, LENGTH, slots) }.map(|_| ())
    };
    assert_eq!(attach(base, LENGTH), Err(AttachError::Foreign));
    assert_eq!(attach(base.wrapping_add(8), LENGTH - 8), Err(AttachError::Misaligned));
    assert!(matches!(attach(base, 64), Err(AttachError::TooSmall { given: 64, .. })));
    assert_eq!(create(0), Err(AttachError::Slots(0)));
    assert_eq!(create(70_000), Err(AttachError::Slots(70_000)));
    assert!(matches!(create(60_000), Err(AttachError::TooSmall { .. })));
    create(SLOTS).unwrap();
    // A peer writes nonsense into the count of slots.
    let counted = base.wrapping_add(8).cast::<u32>();
    // SAFETY: within the mapping; no other thread is there.
    unsafe { counted.write_volatile(1 << 30) };
    assert_eq!(attach(base, LENGTH), Err(AttachError::Slots(1 << 30)));
    for error in [AttachError::Foreign, AttachError::TooMany, AttachError::Slots(9)] {
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_latch_outside_all_mappings_panics_when_it_must_wait() {
    let latch = Box::leak(Box::new(ShflMutex::<Shared>::default()));
    latch.lock();
    let waits = std::thread::spawn(|| latch.lock());
    let message = *waits.join().unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("no mapping"), "{message}");
}
