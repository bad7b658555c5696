//! Unusual conditions: names that collide on purpose, ten thousand waiters, a callback that panics,
//! deadlines by the wall clock.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind};

use latchwork_check::left;
use latchwork_lockmgr::{
    Error, Manager, Options, Step, Wait, shared,
    shared::{S, X},
};
use latchwork_machine::{Clock, Deadline, Machine, Native};
use latchwork_region::Region;

fn manager(keep_after: u32) -> Manager {
    let region = Region::<Native>::private(&latchwork_region::Options::default()).unwrap();
    let options = Options { keep_after, ..latchwork_check::early::early() };
    Manager::new(region, shared::modes(), options).unwrap()
}

/// Names of 16 to 48 bytes with one hash, made with the region's secret: where a factor of the
/// hash's product is zero, the other factor does not matter.
fn colliding(manager: &Manager, count: u64) -> Vec<Vec<u8>> {
    const K1: u64 = 0xe703_7ed1_a0b4_28db;
    let key = ((manager.region().creation() as u64).rotate_left(32) ^ K1).to_le_bytes();
    let name = |at: u64| {
        // Names of one length collide; most are long.
        let before = if at.is_multiple_of(8) { Vec::new() } else { at.to_le_bytes().repeat(4) };
        [&before[..], &key[..], &at.to_le_bytes()[..]].concat()
    };
    (0..count).map(name).collect()
}

#[test]
fn colliding_names_are_distinguished() {
    for keep_after in [0, 1, 32] {
        let manager = manager(keep_after);
        let session = manager.session().unwrap();
        let names = colliding(&manager, 1200);
        let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
        for (at, name) in names.iter().enumerate() {
            a.lock(name, if at % 3 == 0 { S } else { X }).unwrap();
        }
        let most = session.partition_totals().unwrap().into_iter().map(|one| one.objects).max();
        assert!(most > Some(900), "the names do not collide, so this tests nothing: {most:?}");
        for (at, name) in names.iter().enumerate() {
            let shared = at % 3 == 0;
            let mode = if shared { S } else { X };
            assert_eq!(a.holds(name), Ok(Some((mode, 1))));
            assert_eq!(b.try_lock(name, X), Err(Error::NotGranted));
            let second = if shared { Ok(()) } else { Err(Error::NotGranted) };
            assert_eq!(b.try_lock(name, S), second);
            if at % 2 == 0 {
                a.unlock(name).unwrap();
                assert_eq!(a.unlock(name), Err(Error::NotHeld));
                b.release_object(name).unwrap();
                assert_eq!(b.try_lock(name, X), Ok(()));
            }
        }
        // Often, so that they would be reserved; in pairs, which meet in each other's entries.
        b.release_all().unwrap();
        a.release_all().unwrap();
        for round in 0..200 {
            for pair in names[1..40].chunks(2).filter(|pair| pair.len() == 2) {
                a.lock(&pair[0], X).unwrap();
                a.lock(&pair[1], S).unwrap();
                assert_eq!(b.try_lock(&pair[0], S), Err(Error::NotGranted), "round {round}");
                assert_eq!(b.try_lock(&pair[1], X), Err(Error::NotGranted), "round {round}");
                a.unlock(&pair[1]).unwrap();
                a.unlock(&pair[0]).unwrap();
            }
        }
        drop((a, b));
        left::nothing_in(&session);
    }
}

#[test]
fn ten_thousand_wait_for_one_name() {
    let manager = manager(32);
    let session = manager.session().unwrap();
    let holder = session.owner().unwrap();
    let waiters: Vec<_> = (0..10_000).map(|_| session.owner().unwrap()).collect();
    // Readers are granted all at once, writers one after the other.
    for (mode, at_once) in [(S, true), (X, false)] {
        holder.lock(b"x", X).unwrap();
        for waiter in &waiters {
            assert_eq!(waiter.request(b"x", mode, Wait::Detect), Ok(Step::Waiting));
        }
        // Every hundredth waiter cancels, in the middle of the queue.
        for waiter in waiters.iter().step_by(100) {
            assert_eq!(waiter.cancel(), Ok(true));
        }
        holder.unlock(b"x").unwrap();
        let rest = || waiters.iter().enumerate().filter(|(at, _)| at % 100 != 0).map(|one| one.1);
        for (at, waiter) in rest().enumerate() {
            assert_eq!(waiter.poll(), Ok(Some(Ok(()))), "{at} was not granted in queue order");
            if let (Some(next), false) = (rest().nth(at + 1).filter(|_| at < 50), at_once) {
                assert_eq!(next.poll(), Ok(None), "{at} was passed");
            }
            if !at_once {
                waiter.unlock(b"x").unwrap();
            }
        }
        for waiter in rest().filter(|_| at_once) {
            waiter.unlock(b"x").unwrap();
        }
    }
    drop((holder, waiters));
    left::nothing_in(&session);
}

#[test]
fn a_callback_that_panics_is_asked_again() {
    let region = Region::<Native>::private(&latchwork_region::Options::default()).unwrap();
    let dying = region.another().unwrap();
    let asked = std::sync::Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let recovery = Box::new(move |_, _: &[u8]| {
        assert!(count.fetch_add(1, Relaxed) >= 3, "the callback panics");
        true
    });
    let manager =
        Manager::with_recovery(region, shared::modes(), Options::default(), recovery).unwrap();
    let session = manager.session().unwrap();
    let other = Manager::new(dying.clone(), shared::modes(), Options::default()).unwrap();
    let killed = other.session().unwrap();
    for name in [b"a", b"b", b"c"] {
        let owner = killed.owner().unwrap();
        owner.lock(name, X).unwrap();
        owner.lock(b"all", S).unwrap();
        core::mem::forget(owner);
    }
    dying.die();
    core::mem::forget((killed, other));
    let waiter = session.owner().unwrap();
    for round in 1..=3 {
        // The panic reaches the caller and has no other effect.
        let end = catch_unwind(AssertUnwindSafe(|| waiter.lock(b"a", X)));
        assert!(end.is_err(), "round {round}: {end:?}");
        assert_eq!(asked.load(Relaxed), round);
        assert_eq!(waiter.cancel(), Ok(true));
        let third = session.owner().unwrap();
        third.lock(b"free", X).unwrap();
        assert_eq!(third.try_lock(b"b", X), Err(Error::NotGranted));
    }
    for name in [b"a".as_slice(), b"b", b"c", b"all"] {
        waiter.lock(name, X).unwrap();
    }
    assert!(asked.load(Relaxed) >= 6, "the callback was not asked about an owner");
    drop(waiter);
    left::nothing_in(&session);
}

/// The wall clock may be set. A wait until a wall-clock time is otherwise like any other wait.
#[test]
fn a_wall_clock_deadline_does_not_stop_deadlock_detection() {
    let manager = manager(32);
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    let wall = |after: u64| {
        Wait::Until(Deadline {
            clock: Clock::Realtime,
            at: Native::now(Clock::Realtime).saturating_add(after),
        })
    };
    a.lock(b"a", X).unwrap();
    b.lock(b"b", X).unwrap();
    assert_eq!(a.request(b"b", X, Wait::Detect), Ok(Step::Waiting));
    // Half a minute, during which deadlocks are detected; a time that never comes; a time in the
    // past.
    for after in [30_000_000_000, u64::MAX] {
        let end = b.lock_with(b"a", X, wall(after));
        assert!(matches!(end, Err(Error::Deadlock(_))), "{end:?}");
    }
    assert_eq!(a.cancel(), Ok(true));
    for at in [0, 1_000_000] {
        let past = Wait::Until(Deadline { clock: Clock::Realtime, at });
        assert_eq!(b.lock_with(b"a", X, past), Err(Error::TimedOut));
    }
    assert_eq!(b.lock_with(b"a", X, wall(5_000_000)), Err(Error::TimedOut));
    drop((a, b));
    left::nothing_in(&session);
}
