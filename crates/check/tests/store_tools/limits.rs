//! Processes with few addresses, descriptors or threads: each call succeeds or returns an error,
//! and no thread panics.

use std::fs;
use std::panic::set_hook;

use latchwork_machine::Shared;
use latchwork_region::Region;
use latchwork_store::{Error, Refusal, Store, StoreView, region_file};

use crate::stage::{Place, ROWS, options, why};

/// Exit codes of a child.
const DONE: i32 = 0;
const REFUSED: i32 = 1;
const PANICKED: i32 = 101;

/// A user without other processes.
const USER: u32 = 54_399;

/// Forks a child that runs `work`; returns its exit code, or minus the signal that ended it.
fn in_child(work: impl FnOnce() -> Result<(), Error>) -> i32 {
    // SAFETY: this process has one active thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process at once.
        set_hook(Box::new(|_| unsafe { libc::_exit(PANICKED) }));
        let code = if work().is_ok() { DONE } else { REFUSED };
        // SAFETY: as above.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a place for the status of a child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        false => -libc::WTERMSIG(status),
    }
}

/// Limits a resource of this process.
fn bound(resource: libc::__rlimit_resource_t, limit: u64) {
    let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the limits outlive the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &limits) }, 0);
}

fn work(place: &Place) -> Result<(), Error> {
    let store = Store::open_with(place.at("one"), &options())?;
    store.put(&ROWS, 7, b"pear")?;
    store.checkpoint()?;
    store.close().map(drop)
}

/// Runs the work in a child with a resource limit, as this user. Returns its exit code, or minus
/// the signal that ended it.
fn limited(place: &Place, limit: (libc::__rlimit_resource_t, u64), user: Option<u32>) -> i32 {
    in_child(|| {
        bound(limit.0, limit.1);
        if let Some(user) = user {
            // SAFETY: it takes no pointer.
            assert_eq!(unsafe { libc::setuid(user) }, 0);
        }
        work(place)
    })
}

/// Raises a limit until the work has succeeded three times in a row. Returns how often it was
/// refused.
fn sweep(
    place: &Place,
    resource: libc::__rlimit_resource_t,
    limits: impl Iterator<Item = u64>,
    user: Option<u32>,
) -> u32 {
    let (mut refused, mut in_a_row) = (0, 0);
    for limit in limits {
        let code = limited(place, (resource, limit), user);
        assert!([DONE, REFUSED].contains(&code), "limit {limit}: ended with {code}");
        refused += u32::from(code == REFUSED);
        in_a_row = if code == DONE { in_a_row + 1 } else { 0 };
        if in_a_row == 3 {
            return refused;
        }
    }
    panic!("the work never succeeded");
}

/// The size of this process's address space.
fn addresses() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn opens_with_few_descriptors_and_addresses() {
    let Some(place) = Place::told() else { return };
    assert!(sweep(&place, libc::RLIMIT_NOFILE, 3..60, None) > 5);
    // In large steps, and in small ones where threads are started.
    let (now, mut least, mut most) = (addresses(), 0_u64, 1 << 36);
    while most - least > 1 << 20 {
        let middle = (least + most) / 2;
        match limited(&place, (libc::RLIMIT_AS, now + middle), None) {
            DONE => most = middle,
            code => {
                assert_eq!(code, REFUSED, "{middle} bytes of addresses");
                least = middle;
            }
        }
    }
    let fine = (now + least).saturating_sub(24 << 20)..now + least + (64 << 20);
    assert!(sweep(&place, libc::RLIMIT_AS, fine.step_by(192 << 10), None) > 5);
    fs::write(place.at("done"), "").unwrap();
}

#[test]
fn opens_with_few_threads() {
    let Some(place) = Place::told() else { return };
    sweep(&place, libc::RLIMIT_NPROC, 1..30, Some(USER));
    fs::write(place.at("done"), "").unwrap();
}

#[test]
fn few_descriptors_or_addresses_are_errors() {
    let place = Place::new("limits");
    let test = "limits::opens_with_few_descriptors_and_addresses";
    let ended = place.start(test).wait().unwrap();
    assert!(place.at("done").exists(), "{ended}");
}

#[test]
fn few_threads_are_errors() {
    let place = Place::new("threads");
    if std::os::unix::fs::chown(&place.path, Some(USER), None).is_err() {
        println!("SKIPPED: only root can be another user");
        return;
    }
    let ended = place.start("limits::opens_with_few_threads").wait().unwrap();
    assert!(place.at("done").exists(), "{ended}");
}

/// With a process in each slot of the shared memory, the next open is refused and the error gives
/// the number of slots. A view needs no slot, and the slot of an ended process is free again.
#[test]
fn a_process_without_a_slot_is_refused() {
    let place = Place::new("slots");
    let path = place.at("one");
    let store = Store::open_with(&path, &options()).unwrap();
    store.put(&ROWS, 7, b"pear").unwrap();
    let file = region_file(&path).unwrap().unwrap();
    let mut held = Vec::new();
    let full = loop {
        let about =
            latchwork_region::Options { mode: 0o777, ..latchwork_region::Options::default() };
        match Region::<Shared>::open(&file, &about) {
            Ok(region) => held.push(region),
            Err(full) => break full,
        }
        assert!(held.len() < 1000);
    };
    let limit = held.len() as u32 + 1;
    assert_eq!(full, latchwork_region::Error::Processes(limit));
    let refused = Store::open_with(&path, &options()).map(drop).unwrap_err();
    assert!(refused.to_string().contains(&format!("{limit} processes have it open")), "{refused}");
    assert_eq!(why(refused), Refusal::Processes { limit });
    let view = StoreView::open(&path).unwrap().unwrap();
    assert_eq!(view.processes().unwrap().processes.len() as u32, limit);
    assert_eq!(store.get(&ROWS, 7).unwrap().as_deref(), Some(&b"pear"[..]));
    drop(held.pop());
    let other = Store::open_with(&path, &options()).unwrap();
    assert_eq!(other.get(&ROWS, 7).unwrap().as_deref(), Some(&b"pear"[..]));
}
