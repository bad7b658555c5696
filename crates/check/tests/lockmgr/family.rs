//! Children, and savepoints.

use latchwork_lockmgr::{
    Error, Step, Wait,
    granular::{self, IS, IX, S, SIX, X},
};

#[test]
fn only_unrelated_owners_block_a_child() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (parent, stranger) = (session.owner().unwrap(), session.owner().unwrap());
    parent.lock(b"a", X).unwrap();
    parent.lock(b"weak", IS).unwrap();
    let child = parent.child().unwrap();
    let grandchild = child.child().unwrap();
    assert_eq!(child.try_lock(b"a", S), Ok(()));
    assert_eq!(child.try_lock(b"weak", X), Ok(()));
    assert_eq!(grandchild.try_lock(b"a", X), Ok(()));
    assert_eq!(stranger.try_lock(b"a", IS), Err(Error::NotGranted));
    assert_eq!(stranger.try_lock(b"weak", IS), Err(Error::NotGranted));
    let sibling = parent.child().unwrap();
    assert_eq!(sibling.try_lock(b"weak", S), Err(Error::NotGranted));
    assert_eq!(parent.try_lock(b"weak", X), Err(Error::NotGranted));
    drop((grandchild, sibling));
    drop(child);
    assert_eq!(stranger.try_lock(b"weak", IS), Ok(()));
    assert_eq!(parent.holds(b"a"), Ok(Some((X, 1))));
}

#[test]
fn a_child_does_not_queue_behind_waiters_for_its_parent() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (parent, stranger) = (session.owner().unwrap(), session.owner().unwrap());
    parent.lock(b"a", X).unwrap();
    stranger.request(b"a", X, latchwork_lockmgr::Wait::Detect).unwrap();
    let child = parent.child().unwrap();
    assert_eq!(child.try_lock(b"a", X), Ok(()));
    child.inherit().unwrap();
    assert_eq!((child.held(), parent.holds(b"a")), (Ok(0), Ok(Some((X, 2)))));
    assert_eq!(stranger.poll(), Ok(None));
    parent.release_all().unwrap();
    assert_eq!(stranger.poll(), Ok(Some(Ok(()))));
}

#[test]
fn a_parent_inherits_its_childs_locks() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (parent, stranger) = (session.owner().unwrap(), session.owner().unwrap());
    parent.lock(b"both", S).unwrap();
    parent.lock(b"weak both", IS).unwrap();
    let child = parent.child().unwrap();
    child.lock(b"both", IX).unwrap();
    child.lock(b"weak both", IX).unwrap();
    child.lock(b"weak", IS).unwrap();
    child.lock(b"weak", IS).unwrap();
    child.lock(b"its own", X).unwrap();
    let waits = parent.child().unwrap();
    waits.request(b"its own", X, latchwork_lockmgr::Wait::Detect).unwrap();
    assert_eq!(waits.inherit(), Err(Error::Waiting));
    child.inherit().unwrap();
    // The lock that its parent now holds no longer blocks the other child.
    assert_eq!(waits.poll(), Ok(Some(Ok(()))));
    drop((child, waits));
    assert_eq!(parent.holds(b"both"), Ok(Some((SIX, 2))));
    assert_eq!(parent.holds(b"weak both"), Ok(Some((IX, 2))));
    assert_eq!(parent.holds(b"weak"), Ok(Some((IS, 2))));
    assert_eq!(parent.holds(b"its own"), Ok(Some((X, 1))));
    assert_eq!(parent.held(), Ok(4));
    assert_eq!(stranger.try_lock(b"weak", X), Err(Error::NotGranted));
    assert_eq!(stranger.try_lock(b"its own", IS), Err(Error::NotGranted));
    drop(parent);
    assert_eq!(stranger.try_lock(b"its own", X), Ok(()));
    drop(stranger);
    let totals = session.totals().unwrap();
    assert_eq!((totals.objects, totals.requests, totals.weak, totals.owners), (0, 0, 0, 0));
    assert!(manager.region().audit().unwrap().is_sound());
}

/// Each savepoint restores what was held then; rolling back to an earlier one makes later ones
/// void.
#[test]
fn savepoints_nest() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let holds = |name: &[u8]| owner.holds(name).unwrap();
    owner.lock(b"a", S).unwrap();
    let first = owner.savepoint().unwrap();
    owner.lock(b"a", IX).unwrap();
    owner.lock(b"b", IS).unwrap();
    let second = owner.savepoint().unwrap();
    for _ in 0..3 {
        owner.lock(b"a", X).unwrap();
        owner.convert(b"b", X, Wait::Never).unwrap();
        owner.lock(b"b", X).unwrap();
        owner.roll_back_to(second).unwrap();
        assert_eq!((holds(b"a"), holds(b"b")), (Some((SIX, 2)), Some((IS, 1))));
    }
    assert_eq!(other.lock(b"b", IX), Ok(()), "the lock should be weak again");
    other.lock(b"c", S).unwrap();
    other.trade(b"c", &owner).unwrap();
    // Released and weakened locks stay so.
    owner.unlock(b"a").unwrap();
    owner.downgrade(b"a", IS).unwrap();
    owner.lock(b"a", S).unwrap();
    for savepoint in [second, first, second, first] {
        owner.roll_back_to(savepoint).unwrap();
        assert_eq!(holds(b"c"), None);
    }
    assert_eq!((holds(b"a"), holds(b"b")), (Some((IS, 1)), None));
    owner.release_all().unwrap();
    owner.lock(b"a", X).unwrap();
    owner.roll_back_to(first).unwrap();
    assert_eq!(owner.held(), Ok(0));
}

/// A parent holds a weak lock in its own memory, sets a savepoint, and inherits one in the table.
/// Another owner's request joins the two locks; the result is as old as the older one.
#[test]
fn a_savepoint_keeps_a_lock_that_was_joined_with_an_inherited_one() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (parent, stranger) = (session.owner().unwrap(), session.owner().unwrap());
    // The bias is closed, so the child's lock is in the table; then it opens again.
    for mode in [IS, X] {
        stranger.lock(b"a", mode).unwrap();
        stranger.release_all().unwrap();
    }
    let child = parent.child().unwrap();
    child.lock(b"a", IS).unwrap();
    assert!(!child.locks().unwrap()[0].weak);
    for _ in 0..1000 {
        stranger.lock(b"a", IS).unwrap();
        stranger.unlock(b"a").unwrap();
    }
    parent.lock(b"a", IS).unwrap();
    assert!(parent.locks().unwrap()[0].weak, "the lock should be in the parent's own memory");
    let savepoint = parent.savepoint().unwrap();
    child.inherit().unwrap();
    assert_eq!(stranger.try_lock(b"a", X), Err(Error::NotGranted));
    assert_eq!(parent.holds(b"a"), Ok(Some((IS, 2))), "the two locks should be one");
    parent.roll_back_to(savepoint).unwrap();
    assert_eq!(parent.holds(b"a"), Ok(Some((IS, 1))));
}

/// A table is read, and written after a savepoint. After the rollback, the other owners' locks on
/// it are still in their own memory.
#[test]
fn rolling_back_closes_no_bias() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    owner.lock(b"table", IS).unwrap();
    other.lock(b"table", IX).unwrap();
    for _ in 0..3 {
        let savepoint = owner.savepoint().unwrap();
        owner.lock(b"table", IX).unwrap();
        owner.lock(b"table", IS).unwrap();
        owner.roll_back_to(savepoint).unwrap();
        assert_eq!(owner.holds(b"table"), Ok(Some((IS, 1))));
    }
    for one in [&owner, &other] {
        assert!(one.locks().unwrap()[0].weak, "its bias was closed");
    }
    let mut waits = owner.savepoint().unwrap();
    assert_eq!(owner.request(b"table", X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(owner.savepoint(), Err(Error::Waiting));
    assert_eq!(owner.cancel(), Ok(true));
    owner.roll_back_to(waits).unwrap();
    waits = owner.savepoint().unwrap();
    owner.roll_back_to(waits).unwrap();
    assert_eq!(owner.holds(b"table"), Ok(Some((IS, 1))));
}

#[test]
fn rolling_back_releases_later_locks() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    owner.lock(b"weak before", IS).unwrap();
    owner.lock(b"before", S).unwrap();
    let point = owner.savepoint().unwrap();
    for _ in 0..2 {
        owner.lock(b"before", X).unwrap();
        owner.lock(b"after", X).unwrap();
        owner.lock(b"weak after", IS).unwrap();
        let child = owner.child().unwrap();
        child.lock(b"inherited", X).unwrap();
        child.inherit().unwrap();
        assert_eq!(owner.held(), Ok(5));
        owner.roll_back_to(point).unwrap();
        assert_eq!(owner.held(), Ok(2));
        for name in [b"after".as_slice(), b"weak after", b"inherited"] {
            assert_eq!(other.try_lock(name, X), Ok(()));
        }
        other.release_all().unwrap();
    }
    assert_eq!(owner.holds(b"before"), Ok(Some((S, 1))));
    assert_eq!(owner.holds(b"weak before"), Ok(Some((IS, 1))));
    assert_eq!(other.roll_back_to(point), Err(Error::Family));
}
