//! Strong locks that are reserved for a slot: how reservations begin and end.

use std::time::Duration;

use latchwork_lockmgr::{Error, Manager, Mode, Options, Session, Wait, granular};
use latchwork_machine::{Machine, Native};
use latchwork_region::Region;

use granular::{IS, S, X};

const NAME: &[u8] = b"a name of 16 byte";

fn manager(keep_after: u32) -> Manager {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let options = Options { keep_after, ..latchwork_check::early::early() };
    Manager::new(region, granular::modes(), options).unwrap()
}

/// Returns whether the lock is granted in the owner's own memory.
fn kept(session: &Session, lock: impl FnOnce()) -> bool {
    let before = session.stats().weak;
    lock();
    session.stats().weak != before
}

/// The holds of a name in a snapshot, and whether each is in its owner's memory.
fn held(session: &Session, name: &[u8]) -> Vec<(Mode, u32, bool)> {
    let rows = session.snapshot().unwrap();
    let of_name = rows.iter().filter(|row| row.object == name);
    of_name.map(|row| (row.held.unwrap(), row.count, row.weak)).collect()
}

fn nothing_is_left(session: &Session) {
    let left = session.totals().unwrap();
    assert_eq!((left.objects, left.requests, left.weak, left.waiting), (0, 0, 0, 0));
    assert!(session.manager().region().audit().unwrap().is_sound());
}

#[test]
fn often_locked_names_are_reserved() {
    if !Native::heavy_barrier() {
        return eprintln!("skipped: this system has no asymmetric barrier, so nothing is kept");
    }
    let manager = manager(Options::default().keep_after);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let mut first = None;
    for time in 0..100 {
        if kept(&session, || owner.lock(NAME, X).unwrap()) {
            first = first.or(Some(time));
        } else {
            assert_eq!(first, None, "a reservation ended without another request");
        }
        assert_eq!(owner.holds(NAME), Ok(Some((X, 1))));
        owner.unlock(NAME).unwrap();
    }
    assert_eq!(first, Some(32));
    assert_eq!(owner.unlock(NAME), Err(Error::NotHeld));
    drop(owner);
    nothing_is_left(&session);
}

#[test]
fn nothing_is_reserved_without_the_option() {
    for options in [
        Options { keep_after: 0, ..latchwork_check::early::early() },
        Options { owner_locks: Some(10), ..latchwork_check::early::early() },
        Options { weak: false, ..latchwork_check::early::early() },
    ] {
        let region = Region::private(&latchwork_region::Options::default()).unwrap();
        let manager = Manager::new(region, granular::modes(), options).unwrap();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        for _ in 0..100 {
            owner.lock(NAME, X).unwrap();
            owner.unlock(NAME).unwrap();
        }
        assert_eq!(session.stats().weak, 0);
    }
}

#[test]
fn the_next_owner_of_the_slot_has_the_reservation() {
    let manager = manager(1);
    let session = manager.session().unwrap();
    for round in 0..3 {
        let owner = session.owner().unwrap();
        let has = kept(&session, || owner.lock(NAME, X).unwrap());
        assert_eq!(has, round > 0 && Native::heavy_barrier());
        assert_eq!(held(&session, NAME), [(X, 1, Native::heavy_barrier())]);
        owner.release_all().unwrap();
        assert_eq!(held(&session, NAME), []);
    }
    nothing_is_left(&session);
}

#[test]
fn a_reserved_lock_blocks_others_until_it_is_released() {
    let manager = manager(1);
    let (mine, theirs) = (manager.session().unwrap(), manager.session().unwrap());
    let (owner, other) = (mine.owner().unwrap(), theirs.owner().unwrap());
    owner.lock(NAME, X).unwrap();
    owner.lock(NAME, IS).unwrap();
    for mode in [IS, S, X] {
        assert_eq!(other.try_lock(NAME, mode), Err(Error::NotGranted));
    }
    // The lock is now in the table, with its count.
    assert_eq!(held(&mine, NAME), [(X, 2, false)]);
    owner.unlock(NAME).unwrap();
    assert_eq!(other.try_lock(NAME, IS), Err(Error::NotGranted));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = manager.session().unwrap();
            let waiter = session.owner().unwrap();
            waiter.lock_timeout(NAME, X, Duration::from_secs(20)).unwrap();
        });
        while mine.totals().unwrap().waiting == 0 {
            std::thread::yield_now();
        }
        owner.unlock(NAME).unwrap();
    });
    other.try_lock(NAME, X).unwrap();
    drop((owner, other));
    nothing_is_left(&mine);
}

#[test]
fn weak_locks_are_found_before_a_reservation() {
    let manager = manager(1);
    let (mine, theirs) = (manager.session().unwrap(), manager.session().unwrap());
    let (owner, other) = (mine.owner().unwrap(), theirs.owner().unwrap());
    assert_eq!(kept(&mine, || owner.lock(NAME, IS).unwrap()), Native::heavy_barrier());
    assert_eq!(other.try_lock(NAME, X), Err(Error::NotGranted));
    owner.unlock(NAME).unwrap();
    other.try_lock(NAME, X).unwrap();
}

#[test]
fn a_waiter_is_granted_a_lock_released_in_the_owners_memory() {
    let manager = manager(1);
    let mine = manager.session().unwrap();
    let owner = mine.owner().unwrap();
    for _ in 0..50 {
        owner.lock(NAME, X).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let session = manager.session().unwrap();
                let waiter = session.owner().unwrap();
                waiter.lock_timeout(NAME, S, Duration::from_secs(20))
            });
            owner.unlock(NAME).unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
    nothing_is_left(&mine);
}

#[test]
fn all_calls_work_on_a_reserved_lock() {
    let manager = manager(1);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let again = |mode| {
        owner.release_all().unwrap();
        owner.lock(NAME, mode).unwrap();
        owner.unlock(NAME).unwrap();
        owner.lock(NAME, mode).unwrap();
    };
    again(S);
    owner.lock(NAME, X).unwrap();
    assert_eq!(owner.holds(NAME), Ok(Some((X, 2))));
    owner.release_reads().unwrap();
    assert_eq!(owner.holds(NAME), Ok(Some((X, 2))), "a write");
    owner.release_object(NAME).unwrap();
    assert_eq!(owner.holds(NAME), Ok(None));
    again(S);
    owner.convert(NAME, X, Wait::Never).unwrap();
    assert_eq!(owner.holds(NAME), Ok(Some((X, 1))));
    again(X);
    owner.downgrade(NAME, S).unwrap();
    assert_eq!(owner.holds(NAME), Ok(Some((S, 1))));
    owner.release_reads().unwrap();
    assert_eq!(owner.holds(NAME), Ok(None));
    let before = owner.savepoint().unwrap();
    owner.lock(NAME, X).unwrap();
    owner.roll_back_to(before).unwrap();
    assert_eq!(owner.held(), Ok(0));
    again(X);
    let child = owner.child().unwrap();
    child.lock(NAME, X).unwrap();
    child.inherit().unwrap();
    assert_eq!(owner.holds(NAME), Ok(Some((X, 2))));
    drop(child);
    again(X);
    let other = session.owner().unwrap();
    owner.trade(NAME, &other).unwrap();
    assert_eq!((owner.holds(NAME), other.holds(NAME)), (Ok(None), Ok(Some((X, 1)))));
    drop((owner, other));
    nothing_is_left(&session);
}

#[test]
fn more_names_than_a_page_has_entries() {
    let manager = manager(1);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for _ in 0..5 {
        for name in 0..100u64 {
            owner.lock(&name.to_le_bytes(), if name % 3 == 0 { IS } else { X }).unwrap();
        }
        assert_eq!(owner.held(), Ok(100));
        for name in (0..100u64).rev() {
            owner.unlock(&name.to_le_bytes()).unwrap();
        }
    }
    drop(owner);
    nothing_is_left(&session);
}

#[test]
fn weak_locks_find_room_next_to_reservations() {
    let manager = manager(1);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for name in 0..100u64 {
        owner.lock(&name.to_le_bytes(), X).unwrap();
        owner.unlock(&name.to_le_bytes()).unwrap();
    }
    for name in 1000..1032u64 {
        for _ in 0..40 {
            owner.lock(&name.to_le_bytes(), IS).unwrap();
            owner.unlock(&name.to_le_bytes()).unwrap();
        }
        let weak = kept(&session, || owner.lock(&name.to_le_bytes(), IS).unwrap());
        assert_eq!(weak, Native::heavy_barrier(), "name {name}");
        owner.unlock(&name.to_le_bytes()).unwrap();
    }
}

#[test]
fn a_bias_opens_again_after_its_first_strong_lock() {
    let manager = manager(0);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for mode in [X].into_iter().chain([IS; 40]) {
        owner.lock(NAME, mode).unwrap();
        owner.unlock(NAME).unwrap();
    }
    assert_eq!(kept(&session, || owner.lock(NAME, IS).unwrap()), Native::heavy_barrier());
}

#[test]
fn a_name_too_long_for_an_entry_is_not_reserved() {
    let manager = manager(1);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for _ in 0..5 {
        owner.lock(&[7; 65], X).unwrap();
        owner.unlock(&[7; 65]).unwrap();
    }
    assert_eq!(session.stats().weak, 0);
}

#[test]
fn frequent_interruptions_delay_the_next_reservation() {
    if !Native::heavy_barrier() {
        return eprintln!("skipped: this system has no asymmetric barrier, so nothing is kept");
    }
    let manager = manager(4);
    let (mine, theirs) = (manager.session().unwrap(), manager.session().unwrap());
    let (owner, other) = (mine.owner().unwrap(), theirs.owner().unwrap());
    let until_kept = || {
        let once = || {
            owner.lock(NAME, X).unwrap();
            owner.unlock(NAME).unwrap();
        };
        (1..).find(|_| kept(&mine, once)).unwrap()
    };
    let mut times = Vec::new();
    for _ in 0..4 {
        times.push(until_kept());
        other.lock(NAME, X).unwrap();
        other.unlock(NAME).unwrap();
    }
    assert!(times.windows(2).all(|pair| pair[1] > pair[0]), "{times:?}");
}

/// An object stays in the table for a name that is soon locked again. Names that are locked once
/// leave nothing behind, however many there are.
#[test]
fn objects_stay_for_names_that_are_locked_again() {
    let manager = manager(0);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let once = |names: std::ops::Range<u32>| {
        for name in names {
            owner.lock(&name.to_le_bytes(), X).unwrap();
            owner.release_all().unwrap();
        }
    };
    let idle = || session.totals().unwrap().idle;
    for count in [1, 20_000] {
        once(0..count);
        // Names whose hashes agree in 28 bits count as one.
        assert!(idle() <= 20, "{} of {count} stay", idle());
    }
    for _ in 0..3 {
        once(100_000..100_500);
    }
    assert!((450..=520).contains(&idle()), "{} of 500 stay", idle());
    // Other names replace them and leave nothing behind either.
    once(200_000..300_000);
    assert!(idle() <= 300, "{} still stay", idle());
    drop(owner);
    nothing_is_left(&session);
}
