//! Cycles of waiting owners: each is broken by one victim, which the policy determines, and no
//! other owner is affected.

use std::sync::Barrier;
use std::time::Duration;

use latchwork_lockmgr::{
    Error, Manager, Options, OwnerOptions, Policy, Reason, Step, Wait, granular, shared,
    shared::{S, X},
};
use latchwork_region::Region;

fn manager(policy: Policy) -> Manager {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let options = Options { policy, ..latchwork_check::early::early() };
    Manager::new(region, shared::modes(), options).unwrap()
}

fn name(number: usize) -> Vec<u8> {
    format!("object {number}").into_bytes()
}

/// Each of `n` owners holds its own object and requests the next one's. Returns the refused owners.
fn cycle(n: usize, policy: Policy, priority: impl Fn(usize) -> u32 + Sync) -> Vec<usize> {
    let manager = manager(policy);
    let barrier = Barrier::new(n);
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|me| {
                let (manager, barrier, priority) = (&manager, &barrier, &priority);
                scope.spawn(move || {
                    let session = manager.session().unwrap();
                    // Ages by number, so that the oldest is known.
                    let options = OwnerOptions {
                        priority: priority(me),
                        age: Some(me as u64 + 1),
                        ..OwnerOptions::default()
                    };
                    let owner = session.owner_with(&options).unwrap();
                    // For policies that count locks: each owner holds more than those before it.
                    for extra in 0..me {
                        owner.lock(format!("extra {me} {extra}").as_bytes(), X).unwrap();
                    }
                    owner.lock(&name(me), X).unwrap();
                    barrier.wait();
                    let end = owner.lock(&name((me + 1) % n), X);
                    if let Err(Error::Deadlock(cycle)) = &end {
                        assert_eq!(cycle.len(), n);
                        assert_eq!(cycle[0].owner, owner.id());
                        for (at, link) in cycle.iter().enumerate() {
                            assert_eq!(link.wanted, X);
                            assert!(link.hard);
                            assert_eq!(link.object, name((me + at + 1) % n));
                        }
                    }
                    end.is_err()
                })
            })
            .collect();
        for (me, thread) in threads.into_iter().enumerate() {
            if thread.join().unwrap() {
                failed.push(me);
            }
        }
    });
    failed
}

#[test]
fn a_cycle_has_one_victim() {
    for n in [2, 4, 10] {
        for policy in [Policy::Default, Policy::Random, Policy::Expire] {
            assert_eq!(cycle(n, policy, |_| 100).len(), 1, "{n} owners, {policy:?}");
        }
    }
}

#[test]
fn policies_choose_the_documented_victim() {
    let n = 4;
    let expected = [
        (Policy::Oldest, 0),
        (Policy::Youngest, n - 1),
        (Policy::MaxLocks, n - 1),
        (Policy::MaxWrites, n - 1),
        (Policy::MinLocks, 0),
        (Policy::MinWrites, 0),
    ];
    for (policy, victim) in expected {
        assert_eq!(cycle(n, policy, |_| 100), [victim], "{policy:?}");
    }
}

#[test]
fn the_lowest_priority_is_the_victim() {
    assert_eq!(cycle(4, Policy::Oldest, |me| if me == 2 { 1 } else { 100 }), [2]);
    // The oldest has a high priority, so the second oldest is chosen.
    assert_eq!(cycle(4, Policy::Oldest, |me| if me == 0 { 200 } else { 100 }), [1]);
}

#[test]
fn of_clashing_upgrades_one_succeeds() {
    // All read one object, then all request to write it.
    for n in [2, 4, 10] {
        let manager = manager(Policy::Default);
        let barrier = Barrier::new(n);
        let done: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|_| {
                    let (manager, barrier) = (&manager, &barrier);
                    scope.spawn(move || {
                        let session = manager.session().unwrap();
                        let owner = session.owner().unwrap();
                        owner.lock(b"all", S).unwrap();
                        barrier.wait();
                        match owner.lock(b"all", X) {
                            Ok(()) => 1,
                            Err(Error::Deadlock(cycle)) => {
                                assert!(cycle.iter().all(|link| link.held == Some(S)));
                                0
                            }
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(done, 1, "{n} owners");
    }
}

#[test]
fn a_long_chain_is_no_deadlock() {
    let manager = manager(Policy::Default);
    let session = manager.session().unwrap();
    let n = 10_000;
    let owners: Vec<_> = (0..n).map(|_| session.owner().unwrap()).collect();
    for (at, owner) in owners.iter().enumerate() {
        owner.lock(&name(at), X).unwrap();
    }
    for (at, owner) in owners.iter().enumerate().skip(1) {
        let step = owner.request(&name(at - 1), X, Wait::Detect).unwrap();
        assert_eq!(step, Step::Waiting);
    }
    assert_eq!(session.detect().unwrap(), 0);
    assert!(owners.iter().skip(1).all(|owner| owner.poll().unwrap().is_none()));
    // With the cycle closed there is one deadlock, of all owners.
    assert_eq!(owners[0].request(&name(n - 1), X, Wait::Detect).unwrap(), Step::Waiting);
    assert_eq!(session.detect().unwrap(), 1);
    let failed: Vec<_> =
        owners.iter().filter_map(|owner| owner.poll().unwrap()).filter(Result::is_err).collect();
    assert_eq!(failed.len(), 1);
}

#[test]
fn the_victim_is_in_the_cycle() {
    // Two owners outside the cycle wait for it: the oldest and the youngest.
    let manager = manager(Policy::Oldest);
    let session = manager.session().unwrap();
    let owner =
        |age| session.owner_with(&OwnerOptions { age: Some(age), ..Default::default() }).unwrap();
    let (oldest, a, b, youngest) = (owner(1), owner(2), owner(3), owner(4));
    a.lock(b"a", X).unwrap();
    b.lock(b"b", X).unwrap();
    assert_eq!(oldest.request(b"a", X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(a.request(b"b", X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(youngest.request(b"b", X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(session.detect(), Ok(0));
    assert_eq!(b.request(b"a", X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(session.detect(), Ok(1));
    assert!(matches!(a.poll(), Ok(Some(Err(Error::Deadlock(_))))));
    a.release_all().unwrap();
    // The owner in the cycle is granted first, then the owners outside it in queue order.
    assert_eq!(b.poll(), Ok(Some(Ok(()))));
    assert_eq!((oldest.poll(), youngest.poll()), (Ok(None), Ok(None)));
    b.release_all().unwrap();
    assert_eq!((oldest.poll(), youngest.poll()), (Ok(Some(Ok(()))), Ok(Some(Ok(())))));
}

#[test]
fn a_deadlock_with_a_soft_edge_is_solved_by_reordering() {
    // C waits behind W's request, W for R, and R for C's lock. C's request is compatible with R's
    // lock.
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let manager = Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    let (r, w, c) = (session.owner().unwrap(), session.owner().unwrap(), session.owner().unwrap());
    r.lock(b"table", granular::S).unwrap();
    c.lock(b"row", granular::X).unwrap();
    assert_eq!(w.request(b"table", granular::X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(c.request(b"table", granular::S, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(r.request(b"row", granular::X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(session.detect(), Ok(0));
    assert_eq!(c.poll(), Ok(Some(Ok(()))));
    assert_eq!(session.stats().reordered, 1);
    c.release_all().unwrap();
    assert_eq!(r.poll(), Ok(Some(Ok(()))));
    r.release_all().unwrap();
    assert_eq!(w.poll(), Ok(Some(Ok(()))));
}

#[test]
fn the_older_wait_and_the_younger_die() {
    let manager = manager(Policy::Default);
    let session = manager.session().unwrap();
    let (old, young) = (session.owner().unwrap(), session.owner().unwrap());
    assert!(old.age().unwrap() < young.age().unwrap());
    old.lock(b"x", X).unwrap();
    young.lock(b"y", X).unwrap();
    assert_eq!(young.request(b"x", X, Wait::Die), Err(Error::Died(old.id())));
    assert_eq!(old.request(b"y", X, Wait::Die), Ok(Step::Waiting));
    young.release_all().unwrap();
    assert_eq!(old.poll(), Ok(Some(Ok(()))));
}

#[test]
fn the_older_wound_and_the_younger_wait() {
    let manager = manager(Policy::Default);
    let session = manager.session().unwrap();
    let (old, young) = (session.owner().unwrap(), session.owner().unwrap());
    old.lock(b"x", X).unwrap();
    young.lock(b"y", X).unwrap();
    assert_eq!(young.request(b"x", X, Wait::Wound), Ok(Step::Waiting));
    assert_eq!(old.request(b"y", X, Wait::Wound), Ok(Step::Waiting));
    let wounded = Err(Error::Aborted(Reason::Wounded));
    assert_eq!(young.poll(), Ok(Some(wounded.clone())));
    assert_eq!(young.try_lock(b"z", X), wounded);
    young.release_all().unwrap();
    assert_eq!(old.poll(), Ok(Some(Ok(()))));
}

#[test]
fn a_timeout_leaves_no_request() {
    let manager = manager(Policy::Default);
    let session = manager.session().unwrap();
    let (a, b, c) = (session.owner().unwrap(), session.owner().unwrap(), session.owner().unwrap());
    a.lock(b"x", S).unwrap();
    assert_eq!(b.lock_timeout(b"x", X, Duration::from_millis(5)), Err(Error::TimedOut));
    // B's request was removed, so a reader is granted.
    c.try_lock(b"x", S).unwrap();
    assert_eq!(b.held(), Ok(0));
    assert_eq!(a.lock_timeout(b"x", X, Duration::from_millis(5)), Err(Error::TimedOut));
    assert_eq!(a.holds(b"x"), Ok(Some((S, 1))));
}

#[test]
fn a_killed_owners_wait_fails() {
    let manager = manager(Policy::Default);
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    a.lock(b"x", X).unwrap();
    assert_eq!(b.request(b"x", X, Wait::Detect), Ok(Step::Waiting));
    session.kill(b.id()).unwrap();
    assert_eq!(b.poll(), Ok(Some(Err(Error::Aborted(Reason::Killed)))));
    let id = b.id();
    drop(b);
    assert_eq!(session.kill(id), Err(Error::NoOwner(id)));
}

#[test]
fn a_cycle_among_very_many_waiters_is_found() {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let calm =
        Options { detect_after: Duration::from_secs(3600), ..latchwork_check::early::early() };
    let manager = Manager::new(region, shared::modes(), calm).unwrap();
    let session = manager.session().unwrap();
    let holder = session.owner().unwrap();
    holder.lock(b"hot", X).unwrap();
    let waiters: Vec<_> = (0..3000).map(|_| session.owner().unwrap()).collect();
    for (at, waiter) in waiters.iter().enumerate() {
        waiter.lock(&name(at), X).unwrap();
        let mode = if at % 2 == 0 { X } else { S };
        assert_eq!(waiter.request(b"hot", mode, Wait::Detect), Ok(Step::Waiting));
    }
    assert_eq!(session.detect(), Ok(0), "all wait for an owner that runs");
    assert_eq!(holder.request(&name(1500), S, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(session.detect(), Ok(1));
    let refused = waiters.iter().filter(|waiter| waiter.poll().unwrap().is_some()).count();
    let victim = usize::from(matches!(holder.poll().unwrap(), Some(Err(_))));
    assert_eq!(refused + victim, 1);
    assert_eq!(session.detect(), Ok(0));
}

#[test]
fn of_many_clashing_conversions_one_succeeds() {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let calm =
        Options { detect_after: Duration::from_secs(3600), ..latchwork_check::early::early() };
    let manager = Manager::new(region, shared::modes(), calm).unwrap();
    let session = manager.session().unwrap();
    let owners: Vec<_> = (0..20).map(|_| session.owner().unwrap()).collect();
    for owner in &owners {
        owner.lock(b"hot", S).unwrap();
    }
    for owner in &owners {
        assert_eq!(owner.request(b"hot", X, Wait::Detect), Ok(Step::Waiting));
    }
    // Each waits for all others: a victim keeps its S until it releases it.
    let mut left = owners;
    while left.len() > 1 {
        assert_eq!(session.detect(), Ok(left.len() - 1), "all but one must be victims");
        left.retain(|owner| match owner.poll().unwrap() {
            Some(end) => {
                assert!(end.is_err());
                owner.release_all().unwrap();
                false
            }
            None => true,
        });
    }
    assert_eq!(left[0].finish(None), Ok(()));
}

/// Two names that are locked in either order. The owner that waited for the victim is granted
/// first, although another requested the same name earlier: granted first, that owner would hold
/// the name while the first one holds its next name, and would be the next victim.
#[test]
fn the_owner_that_waited_for_the_victim_is_next() {
    let manager = manager(Policy::Default);
    let session = manager.session().unwrap();
    let [old, early, young] = [1, 2, 3].map(|age| {
        let options = OwnerOptions { age: Some(age), ..OwnerOptions::default() };
        session.owner_with(&options).unwrap()
    });
    young.lock(&name(1), X).unwrap();
    old.lock(&name(0), X).unwrap();
    assert_eq!(early.request(&name(1), X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(old.request(&name(1), X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(young.request(&name(0), X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(session.detect(), Ok(1));
    assert!(matches!(young.poll(), Ok(Some(Err(Error::Deadlock(_))))));
    young.release_all_in_turn().unwrap();
    assert_eq!(old.poll(), Ok(Some(Ok(()))), "it queues behind another owner");
    assert_eq!(early.poll(), Ok(None));
    old.release_all().unwrap();
    assert_eq!(early.poll(), Ok(Some(Ok(()))));
    // The queue's order is unchanged for later requests.
    assert_eq!(young.request(&name(1), X, Wait::Detect), Ok(Step::Waiting));
    early.release_all().unwrap();
    assert_eq!(young.poll(), Ok(Some(Ok(()))));
}

/// An owner that begins to wait for a waiting owner looks for a deadlock at once, without sleeping
/// first.
#[test]
fn a_deadlock_of_two_is_found_at_once() {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let hour = Duration::from_secs(3600);
    let options = Options { detect_after: hour, ..latchwork_check::early::early() };
    let manager = Manager::new(region, shared::modes(), options).unwrap();
    for _ in 0..20 {
        let both = Barrier::new(2);
        let ends = std::thread::scope(|scope| {
            let threads = [0, 1].map(|me| {
                let (manager, both) = (&manager, &both);
                scope.spawn(move || {
                    let session = manager.session().unwrap();
                    let owner = session.owner().unwrap();
                    owner.lock(&name(me), X).unwrap();
                    both.wait();
                    owner.lock_timeout(&name(1 - me), X, Duration::from_secs(30))
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let victims = ends.iter().filter(|end| matches!(end, Err(Error::Deadlock(_)))).count();
        assert_eq!((victims, ends.iter().filter(|end| end.is_ok()).count()), (1, 1), "{ends:?}");
    }
}
