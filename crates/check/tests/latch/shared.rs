//! Latches in memory that two processes share, mapped at different addresses.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

use latchwork_check::forked::in_child;
use latchwork_latch::{LwLatch, RawCondvar, ShflMutex, ShflRwLock};
use latchwork_machine::{AttachError, Attached, Deadline, Shared};

const LENGTH: usize = 1 << 16;
const SLOTS: u32 = 100;

/// The contents of the mapping after the slots. All zero is free.
#[repr(C)]
struct Room {
    mutex: ShflMutex<Shared>,
    rw: ShflRwLock<Shared>,
    lw: LwLatch<latchwork_latch::FetchAdd, Shared>,
    condvar: RawCondvar<Shared>,
    turn: AtomicU32,
    counts: [AtomicU64; 3],
}

/// Maps the file.
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
    // SAFETY: the file was created above.
    assert_eq!(unsafe { libc::ftruncate(fd, LENGTH as i64) }, 0);
    fd
}

fn room<'a>(attached: &'a Attached<'_>) -> &'a Room {
    let (base, length) = attached.room();
    assert!(length >= size_of::<Room>());
    // SAFETY: the room is mapped, initially zero, aligned to 64 bytes, and all atomics.
    unsafe { &*base.cast::<Room>() }
}

/// Increments without an atomic operation, so that concurrent calls would lose one.
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
    // Alternate by the condition variable.
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
    // SAFETY: the child only uses the mapping and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Mapped at another address: numbers must mean the same there.
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
    // SAFETY: a child process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    for counter in &room.counts {
        assert_eq!(counter.load(Relaxed), 2 * ROUNDS);
    }
}

/// The child of a fork unmaps what its parent had attached and maps something else there, as it
/// does with a region.
#[test]
fn a_child_of_a_fork_uses_its_own_slots() {
    let (base, half) = (map(file()), LENGTH / 2);
    // SAFETY: the mapping stays, and holds atomics only.
    let attached = unsafe { Shared::create(base, LENGTH, SLOTS) }.unwrap();
    let (of_parent, number) = (attached.slots(), attached.slots().mine());
    let status = in_child(|| {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = base.wrapping_add(half).cast();
        // SAFETY: the parent's mapping, which is not used in the child.
        unsafe { libc::munmap(base.cast(), LENGTH) };
        // SAFETY: a new mapping at a free address.
        let own = unsafe { libc::mmap(at, half, rights, flags | libc::MAP_FIXED, file(), 0) };
        assert_eq!(own, base.wrapping_add(half).cast());
        // SAFETY: the mapping stays, and holds atomics only.
        let own = unsafe { Shared::create(own.cast(), half, 10) }.unwrap();
        let is_own = || {
            let slot = std::ptr::from_ref(own.slots().at(own.slots().mine())).cast::<u8>();
            (half..LENGTH).contains(&(slot as usize - base as usize))
        };
        assert!(is_own());
        // SAFETY: the child does not use it otherwise, and never returns.
        drop(unsafe { std::ptr::read(&attached) });
        assert!(is_own());
    });
    assert_eq!(status, 0);
    assert_eq!((of_parent.taken(), attached.slots().mine()), (1, number));
}

/// The mapping in which a thread stops that accesses it without permission.
static STOPS_AT: AtomicUsize = AtomicUsize::new(0);
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
static MAY_GO: AtomicBool = AtomicBool::new(false);

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid pointer ...
    let info = unsafe { &*info };
    // SAFETY: ... and this signal has an address.
    let at = unsafe { info.si_addr() }.addr();
    let base = STOPS_AT.load(SeqCst);
    if !(base..base + LENGTH).contains(&at) {
        // SAFETY: the next fault, which repeats this one, ends the process.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    IS_STOPPED.store(true, SeqCst);
    while !MAY_GO.load(SeqCst) {
        // SAFETY: the call has no preconditions.
        unsafe { libc::usleep(1000) };
    }
    rights(base as *mut u8, libc::PROT_READ | libc::PROT_WRITE);
}

fn rights(base: *mut u8, rights: i32) {
    // SAFETY: a mapping of the caller, which knows that no other thread uses it.
    assert_eq!(unsafe { libc::mprotect(base.cast(), LENGTH, rights) }, 0);
}

/// A thread of a scope returns its slots when it ends, after the scope, when the mapping may be
/// dropped.
#[test]
fn a_mapping_stays_until_ending_threads_have_left() {
    // SAFETY: all zero is a valid value.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler makes only calls that are allowed in a signal handler.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()) }, 0);
    let base = map(file());
    STOPS_AT.store(base.addr(), SeqCst);
    // SAFETY: the mapping stays, and holds atomics only.
    let attached = unsafe { Shared::create(base, LENGTH, SLOTS) }.unwrap();
    let attached: &'static Attached<'static> = Box::leak(Box::new(attached));
    let ends = std::thread::spawn(|| {
        assert_ne!(attached.slots().mine(), 0);
        // The next access is by the code that runs when this thread ends.
        rights(STOPS_AT.load(SeqCst) as *mut u8, libc::PROT_NONE);
    });
    while !IS_STOPPED.load(SeqCst) {
        std::thread::yield_now();
    }
    let is_gone = &AtomicBool::new(false);
    let too_soon = std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the original is never dropped.
            drop(unsafe { std::ptr::read(attached) });
            is_gone.store(true, SeqCst);
        });
        // Time for a premature unmapping.
        std::thread::sleep(Duration::from_millis(50));
        let too_soon = is_gone.load(SeqCst);
        MAY_GO.store(true, SeqCst);
        ends.join().unwrap();
        too_soon
    });
    assert!(!too_soon, "the mapping was released while a thread uses it");
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
fn foreign_mappings_are_refused() {
    let base = map(file());
    let attach = |base: *mut u8, length| {
        // SAFETY: the mapping stays and is not used otherwise.
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
    // A peer stores a wrong number of slots.
    let counted = base.wrapping_add(8).cast::<u32>();
    // SAFETY: within the mapping; no other thread uses it.
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
