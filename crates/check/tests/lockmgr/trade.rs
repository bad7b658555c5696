//! Trades of locks between owners.

use latchwork_lockmgr::{
    Error, Wait, berkeley,
    granular::{self, IS, IX, S, SIX, X},
};

#[test]
fn a_lock_is_traded_with_its_count() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b, other) =
        (session.owner().unwrap(), session.owner().unwrap(), session.owner().unwrap());
    for name in [b"strong".as_slice(), b"strong", b"kept"] {
        a.lock(name, X).unwrap();
    }
    a.lock(b"weak", IS).unwrap();
    a.trade(b"strong", &b).unwrap();
    a.trade(b"weak", &b).unwrap();
    assert_eq!((a.held(), b.held()), (Ok(1), Ok(2)));
    assert_eq!((a.holds(b"strong"), b.holds(b"strong")), (Ok(None), Ok(Some((X, 2)))));
    assert_eq!((a.holds(b"weak"), b.holds(b"weak")), (Ok(None), Ok(Some((IS, 1)))));
    drop(a);
    assert_eq!(other.try_lock(b"kept", X), Ok(()));
    assert_eq!(other.try_lock(b"strong", IS), Err(Error::NotGranted));
    assert_eq!(other.try_lock(b"weak", X), Err(Error::NotGranted));
    b.unlock(b"strong").unwrap();
    b.unlock(b"strong").unwrap();
    b.unlock(b"weak").unwrap();
    assert_eq!(other.try_lock(b"strong", X), Ok(()));
    assert_eq!(other.try_lock(b"weak", X), Ok(()));
    drop((b, other));
    let totals = session.totals().unwrap();
    assert_eq!((totals.objects, totals.requests, totals.weak, totals.owners), (0, 0, 0, 0));
    assert!(manager.region().audit().unwrap().is_sound());
}

#[test]
fn a_traded_lock_joins_the_receivers() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let parent = session.owner().unwrap();
    parent.lock(b"both", S).unwrap();
    parent.lock(b"weak", IX).unwrap();
    let child = parent.child().unwrap();
    child.lock(b"both", IX).unwrap();
    child.lock(b"weak", IS).unwrap();
    child.trade(b"both", &parent).unwrap();
    child.trade(b"weak", &parent).unwrap();
    assert_eq!(parent.holds(b"both"), Ok(Some((SIX, 2))));
    assert_eq!(parent.holds(b"weak"), Ok(Some((IX, 2))));
    assert_eq!(child.held(), Ok(0));
}

#[test]
fn a_trade_reconsiders_waiting_requests() {
    // A child does not wait for its parent's locks, and the parent receives the lock.
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, parent, stranger) =
        (session.owner().unwrap(), session.owner().unwrap(), session.owner().unwrap());
    let child = parent.child().unwrap();
    a.lock(b"x", X).unwrap();
    child.request(b"x", X, Wait::Detect).unwrap();
    stranger.request(b"x", X, Wait::Detect).unwrap();
    a.trade(b"x", &parent).unwrap();
    assert_eq!(child.poll(), Ok(Some(Ok(()))));
    assert_eq!(stranger.poll(), Ok(None));
    drop(child);
    assert_eq!(stranger.poll(), Ok(None));
    parent.release_all().unwrap();
    assert_eq!(stranger.poll(), Ok(Some(Ok(()))));
}

#[test]
fn trades_that_are_refused_change_nothing() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let (session, elsewhere) = (manager.session().unwrap(), manager.session().unwrap());
    let (a, b, far) =
        (session.owner().unwrap(), session.owner().unwrap(), elsewhere.owner().unwrap());
    assert_eq!(a.trade(b"x", &b), Err(Error::NotHeld));
    assert_eq!(a.trade(b"", &b), Err(Error::Name(0)));
    a.lock(b"x", X).unwrap();
    assert_eq!(a.trade(b"x", &far), Err(Error::Family));
    assert_eq!(a.trade(b"x", &a), Ok(()));
    assert_eq!(a.holds(b"x"), Ok(Some((X, 1))));
    // A waiting owner can neither give nor receive a lock.
    b.lock(b"y", X).unwrap();
    b.request(b"x", S, Wait::Detect).unwrap();
    assert_eq!(a.trade(b"x", &b), Err(Error::Waiting));
    assert_eq!(b.trade(b"y", &a), Err(Error::Waiting));
    assert_eq!(b.cancel(), Ok(true));
    // The child holds it together with its parent; an unrelated owner cannot.
    let child = a.child().unwrap();
    child.lock(b"x", X).unwrap();
    assert_eq!(child.trade(b"x", &b), Err(Error::NotGranted));
    assert_eq!(a.trade(b"x", &b), Err(Error::NotGranted));
    assert_eq!((child.held(), a.held(), b.held()), (Ok(1), Ok(1), Ok(1)));
    child.trade(b"x", &a).unwrap();
    assert_eq!(a.holds(b"x"), Ok(Some((X, 2))));
    a.trade(b"x", &b).unwrap();
    assert_eq!(b.holds(b"x"), Ok(Some((X, 2))));
}

#[test]
fn a_trade_whose_joined_mode_conflicts_is_refused() {
    // READ and IWRITE make WRITE. IREAD is compatible with both, but not with WRITE.
    let manager = latchwork_check::early::private(berkeley::modes()).unwrap();
    let session = manager.session().unwrap();
    let (parent, third) = (session.owner().unwrap(), session.owner().unwrap());
    parent.lock(b"x", berkeley::READ).unwrap();
    let child = parent.child().unwrap();
    child.lock(b"x", berkeley::IWRITE).unwrap();
    third.lock(b"x", berkeley::IREAD).unwrap();
    assert_eq!(manager.modes().convert(berkeley::READ, berkeley::IWRITE), berkeley::WRITE);
    assert_eq!(child.trade(b"x", &parent), Err(Error::NotGranted));
    assert_eq!(child.inherit(), Err(Error::NotGranted));
    assert_eq!(parent.holds(b"x"), Ok(Some((berkeley::READ, 1))));
    assert_eq!(child.holds(b"x"), Ok(Some((berkeley::IWRITE, 1))));
    third.release_all().unwrap();
    child.inherit().unwrap();
    assert_eq!(parent.holds(b"x"), Ok(Some((berkeley::WRITE, 2))));
}
