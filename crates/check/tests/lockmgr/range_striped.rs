//! A striped keyspace compared with a plain one: each request has the same result.

use std::time::Duration;

use latchwork_check::left::nothing_in as nothing_is_left;
use latchwork_lockmgr::{Error, KeyRange, Owner, RangeKind, Step, Stripes, Wait, granular};
use latchwork_machine::{Deadline, Native};
use proptest::prelude::*;

use RangeKind::{Insert, Intention, ReadNext, WriteNext};

const PLAIN: &[u8] = b"plain";

fn stripes() -> Stripes {
    Stripes::new(b"striped", ["d", "h", "m"]).unwrap()
}

#[derive(Clone, Debug)]
enum Operation {
    Lock(usize, u8, u8, u8),
    Unlock(usize, u8, u8, u8),
    ReleaseAll(usize),
}

const OWNERS: usize = 3;
const KEYS: &[u8] = b"bdfhkmp";

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let parts = || (0..OWNERS, 0..7u8, 0..8u8, 0..7u8);
    let operation = prop_oneof![
        6 => parts().prop_map(|(o, a, b, k)| Operation::Lock(o, a, b, k)),
        4 => parts().prop_map(|(o, a, b, k)| Operation::Unlock(o, a, b, k)),
        1 => (0..OWNERS).prop_map(Operation::ReleaseAll),
    ];
    prop::collection::vec(operation, 1..80)
}

/// The range from one of the keys to another, or to the end.
fn range_of(a: u8, b: u8) -> KeyRange<'static> {
    let key = |n: u8| &KEYS[usize::from(n)..usize::from(n) + 1];
    match b {
        7 => KeyRange::at_least(key(a)),
        _ if a == b => KeyRange::key(key(a)),
        _ => KeyRange::half_open(key(a.min(b)), key(a.max(b))),
    }
}

fn compare(operations: &[Operation]) {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let (session, stripes) = (manager.session().unwrap(), stripes());
    let owners = || (0..OWNERS).map(|_| session.owner().unwrap()).collect::<Vec<Owner<'_>>>();
    let (plain, striped) = (owners(), owners());
    for operation in operations {
        match *operation {
            Operation::Lock(o, a, b, k) => {
                let (range, kind) = (range_of(a, b), RangeKind::ALL[usize::from(k)]);
                let expected = plain[o].try_lock_range(PLAIN, range, kind);
                let got = striped[o].lock_striped(&stripes, range, kind, Wait::Never);
                if expected.is_err() && got.is_ok() && matches!(kind, Insert | Intention) {
                    // A part that it shares with a longer range is counted. Without stripes it is
                    // a separate claim, which queues behind a gap locked in between.
                    striped[o].unlock_striped(&stripes, range, kind).unwrap();
                    continue;
                }
                assert_eq!(got, expected, "{range:?} {kind:?}");
            }
            Operation::Unlock(o, a, b, k) => {
                let (range, kind) = (range_of(a, b), RangeKind::ALL[usize::from(k)]);
                // Parts of two ranges may form a third one, which is not held as a whole.
                let expected = plain[o].holds_range(PLAIN, range, kind).unwrap();
                if expected.is_none() {
                    continue;
                }
                let got = striped[o].holds_striped(&stripes, range, kind).unwrap();
                assert!(got >= expected, "{got:?} {expected:?}");
                assert_eq!(plain[o].unlock_range(PLAIN, range, kind), Ok(()));
                assert_eq!(striped[o].unlock_striped(&stripes, range, kind), Ok(()));
            }
            Operation::ReleaseAll(o) => {
                plain[o].release_all().unwrap();
                striped[o].release_all().unwrap();
            }
        }
        for (plain, striped) in plain.iter().zip(&striped) {
            assert_eq!(plain.held() == Ok(0), striped.held() == Ok(0));
        }
    }
    drop((plain, striped));
    nothing_is_left(&session);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_striped_keyspace_equals_a_plain_one(operations in operations()) {
        compare(&operations);
    }
}

#[test]
fn a_failure_in_a_later_stripe_releases_the_earlier_ones() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let (session, stripes) = (manager.session().unwrap(), stripes());
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    let late = KeyRange::key(b"p");
    a.lock_striped(&stripes, late, WriteNext, Wait::Never).unwrap();
    b.lock_striped(&stripes, KeyRange::key(b"b"), ReadNext, Wait::Never).unwrap();
    let end = b.lock_striped(&stripes, KeyRange::all(), ReadNext, Wait::Never);
    assert_eq!((end, b.held()), (Err(Error::NotGranted), Ok(1)));
    let soon = Wait::Until(Deadline::after::<Native>(Duration::from_millis(5)));
    let end = b.lock_striped(&stripes, KeyRange::all(), ReadNext, soon);
    assert_eq!((end, b.held()), (Err(Error::TimedOut), Ok(1)));
    a.unlock_striped(&stripes, late, WriteNext).unwrap();
    b.lock_striped(&stripes, KeyRange::all(), ReadNext, Wait::Never).unwrap();
    b.lock_striped(&stripes, KeyRange::all(), ReadNext, Wait::Never).unwrap();
    assert_eq!(b.holds_striped(&stripes, KeyRange::all(), ReadNext), Ok(Some(2)));
    assert_eq!(b.unlock_striped(&stripes, KeyRange::all(), WriteNext), Err(Error::NotHeld));
    // Claims are counted for each stripe.
    let count = |key: &[u8]| session.keyspace_claims(stripes.keyspace(key)).unwrap().count();
    assert_eq!((count(b"a"), count(b"d"), count(b"z")), (Ok(2), Ok(1), Ok(1)));
    assert_eq!(b.held(), Ok(5));
    drop((a, b));
    nothing_is_left(&session);
}

#[test]
fn a_deadlock_through_two_stripes_is_found() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let (session, stripes) = (manager.session().unwrap(), stripes());
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    a.lock_striped(&stripes, KeyRange::half_open(b"a", b"f"), ReadNext, Wait::Detect).unwrap();
    b.lock_striped(&stripes, KeyRange::half_open(b"k", b"p"), ReadNext, Wait::Detect).unwrap();
    let late = a.request_range(stripes.keyspace(b"k"), KeyRange::key(b"k"), Insert, Wait::Detect);
    let late = late.unwrap();
    assert_eq!(late.step(), Step::Waiting);
    // Either of the two is the victim; the other continues.
    let end = b.lock_striped(&stripes, KeyRange::key(b"e"), Insert, Wait::Detect);
    match end {
        Err(Error::Deadlock(cycle)) => {
            assert_eq!(cycle.owners, 2);
            b.release_all().unwrap();
            assert_eq!(late.finish(), Ok(()));
        }
        end => panic!("{end:?}"),
    }
    drop((a, b));
    nothing_is_left(&session);
}
