//! The lock manager on real threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use latchwork_check::left::nothing as nothing_is_left;
use latchwork_check::random::Random;
use latchwork_lockmgr::{Error, Manager, Mode, granular, shared};

/// The holders of an object by mode, counted by themselves.
#[derive(Default)]
struct Used {
    modes: [AtomicU64; 16],
}

impl Used {
    /// Counts a holder; returns whether another holder conflicts with it.
    fn enter(&self, manager: &Manager, mode: Mode) -> bool {
        self.modes[usize::from(mode.number())].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        manager.modes().each().any(|other| {
            let count =
                self.modes[usize::from(other.number())].load(std::sync::atomic::Ordering::SeqCst);
            let others = count - u64::from(other == mode);
            others > 0 && manager.modes().conflicts(other, mode)
        })
    }

    fn leave(&self, mode: Mode) {
        self.modes[usize::from(mode.number())].fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Threads take locks in random modes, mostly weak ones, so that biases open and close.
fn mix(manager: &Manager, threads: u64, rounds: u64, objects: u64, weak_of_16: u64) -> u64 {
    let used: Vec<Used> = (0..objects).map(|_| Used::default()).collect();
    let (wrong, strong) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (used, wrong, strong) = (&used, &wrong, &strong);
            scope.spawn(move || {
                let session = manager.session().unwrap();
                let mut random = Random(thread * 77 + 3);
                for _ in 0..rounds {
                    let owner = session.owner().unwrap();
                    let mut taken = Vec::new();
                    let mut at = random.below(objects);
                    // In ascending order, so that no cycle can form.
                    while at < objects && taken.len() < 3 {
                        let modes = manager.modes();
                        let weak: Vec<Mode> = modes.each().filter(|m| modes.is_weak(*m)).collect();
                        let mode = if random.below(16) < weak_of_16 {
                            weak[random.below(weak.len() as u64) as usize]
                        } else {
                            strong.fetch_add(1, Relaxed);
                            modes.each().nth(random.below(modes.len() as u64) as usize).unwrap()
                        };
                        let name = [b"object ".as_slice(), &at.to_le_bytes()].concat();
                        match owner.lock(&name, mode) {
                            Ok(()) => {}
                            Err(Error::Deadlock(cycle)) => {
                                panic!("no cycle is possible: {cycle:?}")
                            }
                            Err(error) => panic!("{error}"),
                        }
                        wrong.fetch_add(u64::from(used[at as usize].enter(manager, mode)), Relaxed);
                        taken.push((at, mode, name));
                        at += 1 + random.below(3);
                    }
                    for (at, mode, name) in taken {
                        used[at as usize].leave(mode);
                        owner.unlock(&name).unwrap();
                    }
                    assert_eq!(owner.held(), Ok(0));
                }
            });
        }
    });
    assert!(strong.into_inner() > 0);
    wrong.into_inner()
}

#[test]
fn conflicting_locks_are_never_held() {
    for (modes, weak) in [
        (granular::modes(), 15),
        (granular::modes(), 8),
        (shared::modes(), 15),
        (shared::modes(), 4),
    ] {
        let manager = latchwork_check::early::private(modes).unwrap();
        assert_eq!(mix(&manager, 4, 6_000, 4, weak), 0);
        nothing_is_left(&manager);
    }
}

#[test]
fn conflicting_holders_are_detected() {
    // The control: conflicting holders, which the counters must detect.
    let used = Used::default();
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    assert!(!used.enter(&manager, shared::S));
    assert!(used.enter(&manager, shared::X));
}

#[test]
fn a_million_locks_need_no_setting() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let count = 200_000u64;
    for at in 0..count {
        owner.lock(&[at, at].map(u64::to_le_bytes).concat(), granular::X).unwrap();
    }
    assert_eq!(owner.held(), Ok(count as usize));
    assert_eq!(session.totals().unwrap().objects, count);
    owner.release_all().unwrap();
    drop(owner);
    nothing_is_left(&manager);
}

#[test]
fn weak_locks_leave_the_table_alone() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    a.lock(b"table", granular::IS).unwrap();
    b.lock(b"table", granular::IX).unwrap();
    let totals = session.totals().unwrap();
    assert_eq!((totals.requests, totals.weak), (0, 2));
    assert_eq!(session.stats().weak, 2, "the fast path was not used");
    // A strong request finds them.
    let c = session.owner().unwrap();
    assert_eq!(c.try_lock(b"table", granular::X), Err(Error::NotGranted));
    assert_eq!(c.try_lock(b"another table", granular::X), Ok(()));
    assert_eq!(session.totals().unwrap().requests, 3);
    a.unlock(b"table").unwrap();
    assert_eq!(c.try_lock(b"table", granular::S), Err(Error::NotGranted));
    b.unlock(b"table").unwrap();
    assert_eq!(c.try_lock(b"table", granular::X), Ok(()));
    c.release_all().unwrap();
    // The bias opens again after a time that depends on the cost of closing it.
    for _ in 0..600 {
        a.lock(b"table", granular::IS).unwrap();
        a.unlock(b"table").unwrap();
    }
    let before = session.stats().weak;
    a.lock(b"table", granular::IS).unwrap();
    assert_eq!(session.stats().weak, before + 1);
}

#[test]
fn calls_in_the_child_of_a_fork_fail() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(b"read", shared::S).unwrap();
    owner.lock(b"written", shared::X).unwrap();
    // SAFETY: the child only makes calls that fail, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let told = |end: Result<(), Error>| {
            matches!(end, Err(Error::Region(latchwork_region::Error::Forked)))
        };
        let all = told(owner.lock(b"read", shared::S))
            && told(owner.lock(b"new", shared::X))
            && told(owner.unlock(b"read"))
            && told(owner.unlock(b"written"))
            && told(owner.downgrade(b"written", shared::S))
            && told(owner.release_all())
            && told(session.owner().map(drop))
            && told(manager.session().map(drop));
        drop(owner);
        drop(session);
        // SAFETY: it does not return.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: a child process that has not been waited for.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "a call in the child did not fail, or the child died");
    assert_eq!(owner.held(), Ok(2), "the parent must keep its locks");
}
