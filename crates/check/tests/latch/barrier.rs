//! The asymmetric barrier between two processes: a store, a barrier and a load on either side, and
//! at least one of the two sees the other's store. One side has the light half, which is no
//! instruction.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use latchwork_machine::{Machine, Shared};

const LENGTH: usize = 1 << 16;

/// Each word in a line of its own.
#[repr(C, align(64))]
#[derive(Default)]
struct Line(AtomicU32);

/// What lies in the mapping, behind the slots.
#[repr(C)]
struct Room {
    stored: [Line; 2],
    saw: [Line; 2],
    /// Which round each has come to.
    at: [Line; 2],
}

/// One side of so many rounds, in step with the other; calls `each` when both are through one.
fn play(room: &Room, me: usize, rounds: u32, barrier: impl Fn(), mut each: impl FnMut(bool)) {
    let meet = |at: u32| {
        room.at[me].0.store(at, SeqCst);
        while room.at[1 - me].0.load(SeqCst) < at {
            std::hint::spin_loop();
        }
    };
    for round in 1..=rounds {
        meet(round * 3);
        // So that now one comes first and now the other.
        for _ in 0..(round as usize * 7 + me * 13) % 40 {
            std::hint::spin_loop();
        }
        room.stored[me].0.store(round, Relaxed);
        barrier();
        room.saw[me].0.store(room.stored[1 - me].0.load(Relaxed), Relaxed);
        meet(round * 3 + 1);
        each(room.saw.iter().all(|saw| saw.0.load(Relaxed) != round));
        meet(round * 3 + 2);
    }
}

/// How often neither saw the other; the light side is a process of its own.
fn missed(rounds: u32, heavy: fn()) -> u32 {
    // SAFETY: a new mapping that is shared with the children of this process.
    let base = unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: zeroed, and accessed atomically from here on.
    let attached = unsafe { Shared::create(base.cast(), LENGTH, 10) }.unwrap();
    // SAFETY: the room is aligned to 64 bytes, zero, and all atomics.
    let room = unsafe { &*attached.room().0.cast::<Room>() };
    // SAFETY: the child works on the mapping alone and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A process like any other: it attaches the mapping itself.
        // SAFETY: as above.
        let attached = unsafe { Shared::attach(base.cast(), LENGTH) };
        play(room, 1, rounds, Shared::reached_barrier, |_| {});
        // SAFETY: it does not return.
        unsafe { libc::_exit(i32::from(attached.is_err())) };
    }
    let mut missed = 0;
    play(room, 0, rounds, heavy, |both| missed += u32::from(both));
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(attached);
    // SAFETY: mapped above, and used by nobody any more.
    unsafe { libc::munmap(base, LENGTH) };
    missed
}

#[test]
fn one_of_two_processes_sees_the_other() {
    assert_eq!(missed(20_000, || assert!(Shared::heavy_barrier())), 0);
}

#[test]
fn a_fence_on_one_side_alone_is_not_enough() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return eprintln!("skipped: on one core nobody misses anything");
    }
    // On a loaded host the two seldom run at the same time.
    let found = (0..200).any(|_| missed(100_000, || fence(SeqCst)) != 0);
    assert!(found, "twenty million rounds, and no store was late");
}
