//! C and C++ programs, each without our library, to prove the program right, and on our latches.

#[path = "rig/mod.rs"]
mod rig;

use std::io::{Write, stderr};
use std::path::Path;

use rig::{Rig, Run};

/// The latches that every program runs on; the last is the C library's own through our names.
const LATCHES: [&str; 4] = ["shfl", "shfl-spin", "lw", "glibc"];

/// Allocators that bring locks of their own.
const ALLOCATORS: [&str; 2] = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"];

/// Set where all of [`ALLOCATORS`] are installed, so that none can be skipped.
const ALL: &str = "LATCHWORK_ALL_ALLOCATORS";

/// Runs a program bare, on each latch, and profiled.
fn everywhere(source: &str, latches: &[&str], args: &[&str]) {
    let rig = Rig::new();
    let program = rig.compile(source);
    rig.run(&program, &Run { args, ..Run::default() }).ok(source, "bare");
    for latch in latches {
        let run = Run { args, latch: Some(latch), ..Run::default() };
        rig.run(&program, &run).ok(source, latch);
    }
    let run = Run { args, latch: Some("shfl"), profile: true, ..Run::default() };
    rig.run(&program, &run).ok(source, "shfl, profiled");
}

#[test]
fn mutexes_of_every_kind() {
    everywhere("mutex.c", &LATCHES, &[]);
}

#[test]
fn a_recursive_mutex_overflows() {
    let rig = Rig::new();
    let program = rig.compile("overflow.c");
    rig.run(&program, &Run::default()).ok("overflow.c", "bare");
    for latch in ["shfl", "shfl-spin", "lw"] {
        let run = Run { args: &["3"], latch: Some(latch), ..Run::default() };
        rig.run(&program, &run).ok("overflow.c", latch);
    }
}

#[test]
fn reader_writer_locks_and_spin_locks() {
    everywhere("rwlock.c", &["shfl", "lw", "glibc"], &[]);
}

/// glibc's own locks bear it of mutexes alone.
#[test]
fn unlocks_of_free_locks_are_errors() {
    everywhere("unowned.c", &LATCHES, &["mutex"]);
    let rig = Rig::new();
    let program = rig.compile("unowned.c");
    for latch in ["shfl", "shfl-spin", "lw"] {
        rig.run(&program, &Run { latch: Some(latch), ..Run::default() }).ok("unowned.c", latch);
    }
}

#[test]
fn condition_variables_with_every_mutex() {
    everywhere("cond.c", &LATCHES, &[]);
}

#[test]
fn cancelled_waits() {
    everywhere("cancel.c", &LATCHES, &[]);
    let rig = Rig::new();
    let program = rig.compile("cancel.c");
    for latch in LATCHES {
        let args = &["at any instruction"];
        rig.run(&program, &Run { args, latch: Some(latch), ..Run::default() })
            .ok("cancel.c", latch);
    }
}

#[test]
fn a_lock_is_no_point_of_cancellation() {
    for kind in ["mutex", "spin", "read", "write"] {
        everywhere("pending.c", &LATCHES, &[kind]);
    }
}

/// A thread may be cancelled in the instructions around its sleep. A stub there has no entry in
/// the table of unwinding with some linkers, and the cleanups are left out.
#[test]
fn no_stub_around_the_sleep() {
    let rig = Rig::new();
    let kinds = rig.relocations("pthread_setcanceltype");
    assert!(!kinds.is_empty(), "pthread_setcanceltype is not called");
    assert!(kinds.iter().all(|kind| kind.contains("GLOB_DAT")), "{kinds:?}");
}

#[test]
fn forks() {
    everywhere("fork.c", &LATCHES, &["what glibc can do, too"]);
    let rig = Rig::new();
    let program = rig.compile("fork.c");
    for latch in ["shfl", "shfl-spin", "lw"] {
        rig.run(&program, &Run { latch: Some(latch), ..Run::default() }).ok("fork.c", latch);
    }
}

#[test]
fn a_mutex_is_unmapped_as_soon_as_it_is_free() {
    everywhere("unmap.c", &["shfl", "shfl-spin"], &[]);
}

#[test]
fn many_threads_and_one_counter() {
    everywhere("stress.c", &LATCHES, &[]);
}

#[test]
fn the_control_is_detected() {
    let rig = Rig::new();
    let (program, broken) = (rig.compile("stress.c"), rig.compile_library("broken.c"));
    let run = Run { before: Some(&broken), ..Run::default() };
    let caught = (0..5).any(|_| !rig.run(&program, &run).succeeded());
    assert!(caught, "a lock that does not exclude was not noticed");
}

#[test]
fn objects_shared_with_a_process_that_has_no_library() {
    everywhere("shared.c", &LATCHES, &[]);
}

#[test]
fn locks_before_our_constructor() {
    let rig = Rig::new();
    let (program, early) = (rig.compile("threads.c"), rig.compile_library("early.c"));
    for latch in [None, Some("shfl"), Some("lw"), Some("glibc")] {
        let run = Run { before: Some(&early), latch, ..Run::default() };
        rig.run(&program, &run).ok("threads.c", "with early.c before us");
    }
}

/// An allocator's locks are also replaced, and are taken before the library's constructor has run
/// and while a thread begins or ends. jemalloc uses mutexes; tcmalloc has its own locks.
#[test]
fn allocators_that_lock() {
    let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let (found, missing): (Vec<_>, Vec<_>) = ALLOCATORS
        .iter()
        .map(|name| Path::new(&folder).join(name))
        .partition(|allocator| allocator.exists());
    if !missing.is_empty() {
        // Not by `eprintln`, which is heard only if the test fails.
        let _ = writeln!(stderr(), "SKIPPED, for want of the allocators: {missing:?}");
        assert!(std::env::var_os(ALL).is_none(), "{ALL} is set, and there is no {missing:?}");
    }
    let rig = Rig::new();
    for source in ["threads.c", "heap.c"] {
        let program = rig.compile(source);
        for allocator in &found {
            let name = allocator.display();
            let bare = Run { before: Some(allocator), ..Run::default() };
            rig.run(&program, &bare).ok(source, &format!("{name}, bare"));
            for latch in LATCHES {
                let run = Run { before: Some(allocator), latch: Some(latch), ..Run::default() };
                rig.run(&program, &run).ok(source, &format!("{name}, {latch}"));
            }
            let latch = Some("shfl");
            let run = Run { before: Some(allocator), latch, profile: true, ..Run::default() };
            rig.run(&program, &run).ok(source, &format!("{name}, shfl, profiled"));
        }
    }
}

#[test]
fn nothing_is_allocated() {
    everywhere("alloc.c", &["shfl", "shfl-spin", "lw"], &[]);
}

#[test]
fn threads_come_and_go() {
    everywhere("threads.c", &["shfl"], &[]);
}

#[test]
fn mutexes_of_the_cxx_library() {
    everywhere("cxx.cpp", &["shfl", "shfl-spin", "glibc"], &[]);
}

#[test]
fn every_name_is_exported() {
    let rig = Rig::new();
    let names = rig.exports();
    let families = [
        ("mutex", "init destroy lock trylock timedlock clocklock unlock consistent"),
        (
            "rwlock",
            "init destroy rdlock wrlock tryrdlock trywrlock timedrdlock timedwrlock clockrdlock \
             clockwrlock unlock",
        ),
        ("spin", "init destroy lock trylock unlock"),
        ("cond", "init destroy wait timedwait clockwait signal broadcast"),
    ];
    for (family, verbs) in families {
        for verb in verbs.split_whitespace() {
            let name = format!("pthread_{family}_{verb}");
            assert!(names.contains(&name), "{name} is not exported");
        }
    }
}
