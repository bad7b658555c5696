//! Ranges where strong locks are reserved at once, later, or never: they end with their owner.

use latchwork_check::left;
use latchwork_lockmgr::{
    Error, KeyRange, Manager, Options, Owner, RangeKind, Step, Wait, granular, shared,
};
use latchwork_machine::Native;
use latchwork_region::Region;

use RangeKind::{Gap, Insert, ReadNext, WriteNext};

/// Never; at once; at the second time; practically never.
const AFTER: [u32; 4] = [0, 1, 2, u32::MAX];

fn manager(keep_after: u32) -> Manager {
    let region = Region::<Native>::private(&latchwork_region::Options::default()).unwrap();
    let options = Options { keep_after, ..latchwork_check::early::early() };
    Manager::new(region, granular::modes(), options).unwrap()
}

fn take(owner: &Owner<'_>, key: &[u8], kind: RangeKind) -> Result<(), Error> {
    owner.lock_range(b"orders", KeyRange::key(key), kind, Wait::Never)
}

/// Each way to end a range, and whether other claims remain.
#[test]
fn every_way_to_end_a_range_releases_it() {
    type End = fn(&Owner<'_>);
    let ends: [(&str, End); 5] = [
        ("unlock", |owner| {
            for kind in [WriteNext, ReadNext] {
                owner.unlock_range(b"orders", KeyRange::key(b"k"), kind).unwrap();
            }
        }),
        ("release_all", |owner| owner.release_all().unwrap()),
        ("release_reads", |owner| {
            owner.release_reads().unwrap();
            let kept = owner.holds_range(b"orders", KeyRange::key(b"k"), WriteNext).unwrap();
            assert_eq!(kept, Some(1), "a writing range was released with the reading ones");
            owner.unlock_range(b"orders", KeyRange::key(b"k"), WriteNext).unwrap();
        }),
        ("inherit", |owner| {
            let child = owner.child().unwrap();
            take(&child, b"child", Gap).unwrap();
            child.inherit().unwrap();
            drop(child);
            assert_eq!(owner.holds_range(b"orders", KeyRange::key(b"child"), Gap), Ok(Some(1)));
            owner.release_all().unwrap();
        }),
        ("drop", |_| {}),
    ];
    for after in AFTER {
        let manager = manager(after);
        let session = manager.session().unwrap();
        for (what, end) in ends {
            for round in 0..4 {
                let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
                take(&owner, b"k", WriteNext).unwrap();
                take(&owner, b"k", ReadNext).unwrap();
                assert_eq!(take(&other, b"k", Insert), Err(Error::NotGranted));
                end(&owner);
                let owner = Some(owner).filter(|_| what != "drop");
                let free = take(&other, b"k", Insert).and(take(&other, b"child", Insert));
                assert_eq!(free, Ok(()), "after {what}, round {round}, kept after {after}");
                drop((owner, other));
                left::nothing_in(&session);
            }
        }
    }
}

#[test]
fn rolling_back_releases_ranges_after_the_savepoint() {
    for after in AFTER {
        let manager = manager(after);
        let session = manager.session().unwrap();
        let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
        take(&owner, b"a", WriteNext).unwrap();
        let savepoint = owner.savepoint().unwrap();
        take(&owner, b"b", WriteNext).unwrap();
        owner.roll_back_to(savepoint).unwrap();
        assert_eq!(take(&other, b"b", Insert), Ok(()), "kept after {after}");
        assert_eq!(take(&other, b"a", Insert), Err(Error::NotGranted), "kept after {after}");
        drop((owner, other));
        left::nothing_in(&session);
    }
}

/// A waiting request for a range asks for its ticket repeatedly; the ticket is not reserved for it.
#[test]
fn a_ticket_that_is_waited_for_is_not_reserved() {
    for modes in [granular::modes, shared::modes] {
        for after in AFTER {
            let region = Region::<Native>::private(&latchwork_region::Options::default()).unwrap();
            let options = Options { keep_after: after, ..latchwork_check::early::early() };
            let manager = Manager::new(region, modes(), options).unwrap();
            let session = manager.session().unwrap();
            for _ in 0..4 {
                let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
                take(&a, b"k", WriteNext).unwrap();
                let key = KeyRange::key(b"k");
                let request = b.request_range(b"orders", key, WriteNext, Wait::Detect).unwrap();
                assert_eq!(request.step(), Step::Waiting);
                drop(a);
                assert_eq!(request.poll(), Ok(Some(Ok(()))), "kept after {after}");
                drop(request);
                drop(b);
                left::nothing_in(&session);
            }
        }
    }
}
