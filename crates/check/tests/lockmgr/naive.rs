//! The lock manager compared with a simple one, step by step.

use latchwork_check::left::nothing_in as nothing_is_left;
use latchwork_lockmgr::{
    Error, Mode, Modes, Owner, Step, Wait, berkeley, granular, postgres, shared,
};
use proptest::prelude::*;

#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
use crate::naive_locks::{Naive, Outcome};

const OWNERS: usize = 5;
const NAMES: [&[u8]; 4] =
    [b"a", b"table/17", b"a name that is longer than twenty-four bytes", &[7; 100]];

#[derive(Clone, Debug)]
enum Operation {
    Ask(usize, usize, u8, bool),
    Unlock(usize, usize),
    ReleaseObject(usize, usize),
    ReleaseAll(usize),
    ReleaseReads(usize),
    Cancel(usize),
    Downgrade(usize, usize, u8),
    /// Weak locks of a name are taken and released until its bias opens.
    Warm(usize),
}

/// How many weak locks that takes.
const WARM: u32 = 40;

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let owner = 0..OWNERS;
    // One name more often, so that requests meet.
    let name = prop_oneof![Just(0), 0..NAMES.len()];
    let operation = prop_oneof![
        10 => (owner.clone(), name.clone(), 0..9u8, any::<bool>())
            .prop_map(|(o, n, m, w)| Operation::Ask(o, n, m, w)),
        4 => (owner.clone(), name.clone()).prop_map(|(o, n)| Operation::Unlock(o, n)),
        1 => (owner.clone(), name.clone()).prop_map(|(o, n)| Operation::ReleaseObject(o, n)),
        1 => owner.clone().prop_map(Operation::ReleaseAll),
        1 => owner.clone().prop_map(Operation::ReleaseReads),
        2 => owner.clone().prop_map(Operation::Cancel),
        1 => (owner, name.clone(), 0..9u8).prop_map(|(o, n, m)| Operation::Downgrade(o, n, m)),
        2 => name.prop_map(Operation::Warm),
    ];
    prop::collection::vec(operation, 1..160)
}

/// A request of an owner that keeps no locks, so that it never waits and blocks no other.
fn come_and_go(owner: &Owner<'_>, naive: &mut Naive, name: &[u8], mode: Mode) {
    let expected = naive.request(OWNERS, name, mode, false) == Outcome::Granted;
    assert_eq!(owner.request(name, mode, Wait::Never).is_ok(), expected);
    naive.release_all(OWNERS);
    assert_eq!(owner.release_all(), Ok(()));
}

/// Runs an operation in both and compares the results.
fn step(owners: &[Owner<'_>], naive: &mut Naive, modes: &Modes, operation: &Operation) {
    let waits: Vec<bool> = (0..OWNERS).map(|owner| naive.waits(owner)).collect();
    let mode_of = |m: u8| modes.each().nth(usize::from(m) % modes.len()).unwrap();
    match *operation {
        Operation::Ask(o, n, m, wait) => {
            let how = if wait { Wait::Detect } else { Wait::Never };
            let got = owners[o].request(NAMES[n], mode_of(m), how);
            if waits[o] {
                assert_eq!(got, Err(Error::Waiting));
                return;
            }
            let expected = match naive.request(o, NAMES[n], mode_of(m), wait) {
                Outcome::Granted => Ok(Step::Granted),
                Outcome::Waiting => Ok(Step::Waiting),
                Outcome::Refused => Err(Error::NotGranted),
            };
            assert_eq!(got, expected);
        }
        Operation::Cancel(o) => {
            assert_eq!(owners[o].cancel(), Ok(waits[o]));
            naive.cancel(o);
        }
        Operation::Unlock(o, _)
        | Operation::ReleaseObject(o, _)
        | Operation::ReleaseAll(o)
        | Operation::ReleaseReads(o)
        | Operation::Downgrade(o, _, _)
            if waits[o] =>
        {
            assert_eq!(owners[o].release_all(), Err(Error::Waiting));
        }
        Operation::Unlock(o, n) => {
            let held = naive.unlock(o, NAMES[n]);
            let expected = if held { Ok(()) } else { Err(Error::NotHeld) };
            assert_eq!(owners[o].unlock(NAMES[n]), expected);
        }
        Operation::ReleaseObject(o, n) => {
            naive.release_object(o, NAMES[n]);
            assert_eq!(owners[o].release_object(NAMES[n]), Ok(()));
        }
        Operation::ReleaseAll(o) => {
            naive.release_all(o);
            assert_eq!(owners[o].release_all(), Ok(()));
        }
        Operation::ReleaseReads(o) => {
            naive.release_reads(o);
            assert_eq!(owners[o].release_reads(), Ok(()));
        }
        Operation::Warm(n) => {
            let weak = modes.each().find(|mode| modes.is_weak(*mode)).unwrap();
            (0..WARM).for_each(|_| come_and_go(&owners[OWNERS], naive, NAMES[n], weak));
        }
        Operation::Downgrade(o, n, m) => {
            let done = naive.downgrade(o, NAMES[n], mode_of(m));
            let expected = if done { Ok(()) } else { Err(Error::NotHeld) };
            assert_eq!(owners[o].downgrade(NAMES[n], mode_of(m)), expected);
        }
    }
    for (o, owner) in owners.iter().enumerate() {
        let decided = owner.poll().unwrap();
        assert_eq!(decided.is_none(), naive.waits(o), "owner {o} waits");
        for name in NAMES {
            assert_eq!(owner.holds(name).unwrap(), naive.holds(o, name), "owner {o} holds");
        }
    }
}

fn compare(modes: Modes, operations: &[Operation]) {
    let manager = latchwork_check::early::private(modes.clone()).unwrap();
    let session = manager.session().unwrap();
    let owners: Vec<Owner<'_>> = (0..=OWNERS).map(|_| session.owner().unwrap()).collect();
    let mut naive = Naive::new(modes.clone());
    for operation in operations {
        step(&owners, &mut naive, &modes, operation);
    }
    drop(owners);
    nothing_is_left(&session);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn manager_equals_the_simple_one_granular(operations in operations()) {
        compare(granular::modes(), &operations);
    }

    #[test]
    fn manager_equals_the_simple_one_berkeley(operations in operations()) {
        compare(berkeley::modes(), &operations);
    }

    #[test]
    fn manager_equals_the_simple_one_postgres(operations in operations()) {
        compare(postgres::modes(), &operations);
    }

    #[test]
    fn manager_equals_the_simple_one_shared(operations in operations()) {
        compare(shared::modes(), &operations);
    }
}

#[test]
fn the_comparison_can_fail() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let owners: Vec<Owner<'_>> = (0..OWNERS).map(|_| session.owner().unwrap()).collect();
    // A set of modes in which nothing conflicts.
    let spec = latchwork_lockmgr::ModesSpec {
        names: &["S", "X"],
        conflicts: &[0; 4],
        convert: None,
        weak: 0,
        writes: 2,
    };
    let mut naive = Naive::new(Modes::new(&spec).unwrap());
    let operations = [Operation::Ask(0, 0, 1, true), Operation::Ask(1, 0, 1, true)];
    let differs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        operations
            .iter()
            .for_each(|operation| step(&owners, &mut naive, manager.modes(), operation));
    }));
    assert!(differs.is_err());
}

/// A lock that is in the table since its bias was closed, and again in the owner's memory, is one
/// lock: it is counted and converted as one.
#[test]
fn a_lock_that_is_in_two_places() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    other.lock(b"x", granular::S).unwrap();
    owner.lock(b"x", granular::IS).unwrap();
    other.unlock(b"x").unwrap();
    // Weak requests that find the bias closed open it again.
    for _ in 0..40 {
        other.lock(b"x", granular::IS).unwrap();
        other.unlock(b"x").unwrap();
    }
    let before = session.stats().weak;
    owner.lock(b"x", granular::IS).unwrap();
    assert_eq!(session.stats().weak, before + 1, "the bias is not open");
    assert_eq!(owner.held(), Ok(1));
    assert_eq!(owner.holds(b"x"), Ok(Some((granular::IS, 2))));
    owner.convert(b"x", granular::IX, Wait::Never).unwrap();
    assert_eq!(owner.holds(b"x"), Ok(Some((granular::IX, 2))));
    assert_eq!(other.try_lock(b"x", granular::S), Err(Error::NotGranted));
    owner.unlock(b"x").unwrap();
    owner.unlock(b"x").unwrap();
    assert_eq!(owner.held(), Ok(0));
    other.try_lock(b"x", granular::S).unwrap();
}

/// An owner that holds `first` of a name in the table and `second` in its own memory; and another.
fn in_two_places(first: Mode, second: Mode, then: impl Fn(&Owner<'_>, &Owner<'_>)) {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    other.lock(b"x", granular::S).unwrap();
    owner.lock(b"x", first).unwrap();
    other.unlock(b"x").unwrap();
    for _ in 0..40 {
        other.lock(b"x", granular::IS).unwrap();
        other.unlock(b"x").unwrap();
    }
    let before = session.stats().weak;
    owner.lock(b"x", second).unwrap();
    assert_eq!(session.stats().weak, before + 1, "the bias is not open");
    assert_eq!(owner.holds(b"x"), Ok(Some((granular::IX, 2))));
    then(&owner, &other);
}

/// Whichever of the two is released first, the mode of both remains.
#[test]
fn the_rest_of_a_lock_in_two_places_has_the_mode_of_both() {
    let holds = |owner: &Owner<'_>, other: &Owner<'_>| {
        assert_eq!(owner.holds(b"x"), Ok(Some((granular::IX, 1))));
        assert_eq!(other.try_lock(b"x", granular::S), Err(Error::NotGranted));
        owner.unlock(b"x").unwrap();
        assert_eq!(owner.unlock(b"x"), Err(Error::NotHeld));
        other.try_lock(b"x", granular::S).unwrap();
    };
    in_two_places(granular::IS, granular::IX, |owner, other| {
        owner.unlock(b"x").unwrap();
        holds(owner, other);
    });
    in_two_places(granular::IS, granular::IX, |owner, other| {
        owner.lock(b"y", granular::IS).unwrap();
        owner.unlock(b"x").unwrap();
        holds(owner, other);
    });
}

/// The lock counts as a write if either of the two is.
#[test]
fn a_lock_in_two_places_is_a_write_if_either_is() {
    in_two_places(granular::IS, granular::IX, |owner, other| {
        owner.release_reads().unwrap();
        assert_eq!(owner.holds(b"x"), Ok(Some((granular::IX, 2))));
        owner.unlock(b"x").unwrap();
        assert_eq!(other.try_lock(b"x", granular::S), Err(Error::NotGranted));
    });
}

/// A downgrade of a lock in both places from one weak mode to another closes no bias.
#[test]
fn a_downgrade_of_a_lock_in_two_places_keeps_its_count() {
    in_two_places(granular::IS, granular::IX, |owner, other| {
        owner.downgrade(b"x", granular::IS).unwrap();
        assert_eq!(owner.holds(b"x"), Ok(Some((granular::IS, 2))));
        other.try_lock(b"x", granular::S).unwrap();
        assert_eq!(owner.held(), Ok(1));
    });
}

/// An owner reuses the page of the previous owner in its slot, and takes its first weak lock there.
#[test]
fn the_next_owner_reuses_the_page() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    for turn in 1..4u64 {
        let owner = session.owner().unwrap();
        owner.lock(b"x", shared::S).unwrap();
        assert_eq!(session.stats().weak, turn);
    }
}
