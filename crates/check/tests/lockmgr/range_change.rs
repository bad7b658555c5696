//! Ranges that are weakened, split, joined and traded, without an unlocked moment for any key; and
//! the count of claims.

use std::time::Duration;

use latchwork_lockmgr::granular;
use latchwork_lockmgr::{Error, KeyRange, Owner, RangeKind, Session, Step, Wait};

use RangeKind::{Gap, Insert, ReadNext, ReadRecord, WriteNext, WriteRecord};

const SPACE: &[u8] = b"orders";

fn with(test: impl FnOnce(&Session, &Owner<'_>, &Owner<'_>)) {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    test(&session, &a, &b);
    drop((a, b));
    let left = session.totals().unwrap();
    assert_eq!((left.requests, left.ranges, left.owners), (0, 0, 0));
}

fn all() -> KeyRange<'static> {
    KeyRange::half_open(b"a", b"z")
}

fn key(key: &'static [u8]) -> KeyRange<'static> {
    KeyRange::key(key)
}

#[test]
fn a_range_is_tried_and_awaited_for_a_while() {
    with(|_, a, b| {
        a.try_lock_range(SPACE, all(), ReadNext).unwrap();
        assert_eq!(b.try_lock_range(SPACE, key(b"c"), Insert), Err(Error::NotGranted));
        let end = b.lock_range_timeout(SPACE, key(b"c"), Insert, Duration::from_millis(5));
        assert_eq!(end, Err(Error::TimedOut));
        a.unlock_range(SPACE, all(), ReadNext).unwrap();
        let end = b.lock_range_timeout(SPACE, key(b"c"), Insert, Duration::from_secs(60));
        assert_eq!(end, Ok(()));
    });
}

#[test]
fn weakening_a_range_grants_compatible_requests() {
    with(|_, a, b| {
        a.lock_range(SPACE, all(), WriteNext, Wait::Detect).unwrap();
        a.lock_range(SPACE, all(), WriteNext, Wait::Detect).unwrap();
        let reader = b.request_range(SPACE, all(), ReadNext, Wait::Detect).unwrap();
        assert_eq!(reader.step(), Step::Waiting);
        assert_eq!(a.downgrade_range(SPACE, all(), WriteNext, Insert), Err(Error::NotHeld));
        assert_eq!(a.downgrade_range(SPACE, all(), ReadNext, Gap), Err(Error::NotHeld));
        a.downgrade_range(SPACE, all(), WriteNext, ReadNext).unwrap();
        assert_eq!(reader.finish(), Ok(()));
        assert_eq!(a.holds_range(SPACE, all(), ReadNext), Ok(Some(2)), "the count has changed");
        assert_eq!(a.holds_range(SPACE, all(), WriteNext), Ok(None));
        assert_eq!(b.try_lock_range(SPACE, key(b"c"), Insert), Err(Error::NotGranted));
        assert_eq!(a.downgrade_range(SPACE, all(), ReadNext, ReadNext), Ok(()));
    });
}

#[test]
fn a_range_is_split_and_joined_while_another_owner_waits() {
    with(|_, a, b| {
        let parts = [KeyRange::half_open(b"a", b"m"), KeyRange::half_open(b"m", b"z")];
        a.lock_range(SPACE, all(), WriteRecord, Wait::Detect).unwrap();
        let writer = b.request_range(SPACE, key(b"n"), WriteRecord, Wait::Detect).unwrap();
        assert_eq!(a.split_range(SPACE, all(), WriteRecord, b"zz"), Err(Error::EmptyRange));
        assert_eq!(a.split_range(SPACE, all(), WriteRecord, b"a"), Err(Error::EmptyRange));
        a.split_range(SPACE, all(), WriteRecord, b"m").unwrap();
        assert_eq!(a.holds_range(SPACE, all(), WriteRecord), Ok(None));
        for part in parts {
            assert_eq!(a.holds_range(SPACE, part, WriteRecord), Ok(Some(1)));
        }
        assert_eq!(writer.poll(), Ok(None), "the second part still locks the key");
        let wrong = a.merge_ranges(SPACE, parts[1], parts[0], WriteRecord);
        assert_eq!(wrong, Err(Error::NotHeld), "these ranges do not meet");
        a.merge_ranges(SPACE, parts[0], parts[1], WriteRecord).unwrap();
        assert_eq!(a.holds_range(SPACE, all(), WriteRecord), Ok(Some(1)));
        assert_eq!(writer.poll(), Ok(None));
        a.split_range(SPACE, all(), WriteRecord, b"m").unwrap();
        a.unlock_range(SPACE, parts[0], WriteRecord).unwrap();
        assert_eq!(writer.poll(), Ok(None));
        a.unlock_range(SPACE, parts[1], WriteRecord).unwrap();
        assert_eq!(writer.finish(), Ok(()));
    });
}

#[test]
fn a_traded_range_keeps_its_count() {
    with(|session, a, b| {
        let c = session.owner().unwrap();
        a.lock_range(SPACE, all(), WriteNext, Wait::Detect).unwrap();
        a.lock_range(SPACE, all(), WriteNext, Wait::Detect).unwrap();
        let reader = c.request_range(SPACE, key(b"c"), ReadRecord, Wait::Detect).unwrap();
        assert_eq!(a.trade_range(SPACE, key(b"c"), WriteNext, b), Err(Error::NotHeld));
        a.trade_range(SPACE, all(), WriteNext, b).unwrap();
        assert_eq!(a.holds_range(SPACE, all(), WriteNext), Ok(None));
        assert_eq!(b.holds_range(SPACE, all(), WriteNext), Ok(Some(2)));
        assert_eq!((a.held(), b.held()), (Ok(0), Ok(1)));
        assert_eq!(reader.poll(), Ok(None), "it must wait for the new owner");
        assert_eq!(b.trade_range(SPACE, all(), WriteNext, b), Ok(()));
        b.release_all().unwrap();
        assert_eq!(reader.finish(), Ok(()));
    });
}

#[test]
fn claims_are_counted() {
    with(|session, a, b| {
        let (claims, others) =
            (session.keyspace_claims(SPACE).unwrap(), session.keyspace_claims(b"lines").unwrap());
        assert_eq!(claims.count(), Ok(0));
        a.lock_range(SPACE, all(), ReadNext, Wait::Detect).unwrap();
        a.lock_range(SPACE, key(b"c"), ReadRecord, Wait::Detect).unwrap();
        assert_eq!((claims.count(), others.count()), (Ok(2), Ok(0)));
        let insert = b.request_range(SPACE, key(b"d"), Insert, Wait::Detect).unwrap();
        assert_eq!(claims.count(), Ok(3), "a waiting claim must count");
        drop(insert);
        a.split_range(SPACE, all(), ReadNext, b"m").unwrap();
        assert_eq!(claims.count(), Ok(3));
        a.release_all().unwrap();
        assert_eq!(claims.count(), Ok(0));
        // The same from a keyspace that was freed and created again.
        b.lock_range(SPACE, all(), Gap, Wait::Detect).unwrap();
        assert_eq!(claims.count(), Ok(1));
        b.unlock_range(SPACE, all(), Gap).unwrap();
        assert_eq!(claims.count(), Ok(0));
    });
}
