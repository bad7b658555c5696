//! The locks of an owner as `locks` lists them, and the state of a manager.

use latchwork_check::early::early;
use latchwork_lockmgr::{
    Error, KeyRange, Manager, Mode, Owner, RangeKind, Session, Wait, granular,
};
use latchwork_machine::{Machine, Native};
use latchwork_region::Region;

use granular::{IS, IX, S, X};

fn manager() -> Manager {
    Manager::private(granular::modes()).unwrap()
}

fn told(owner: &Owner<'_>) -> Vec<(String, Mode, u32)> {
    let locks = owner.locks().unwrap();
    let name = |object: &[u8]| String::from_utf8_lossy(object).into_owned();
    locks.iter().map(|lock| (name(&lock.object), lock.mode, lock.count)).collect()
}

/// Opens the bias of a name by as many weak requests as that takes.
fn open(session: &Session, name: &[u8]) {
    for _ in 0..33 {
        let owner = session.owner().unwrap();
        owner.lock(name, IS).unwrap();
        owner.unlock(name).unwrap();
    }
}

#[test]
fn own_locks_are_listed_in_the_order_of_acquisition() {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let manager = Manager::new(region, granular::modes(), early()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    assert_eq!(owner.locks(), Ok(vec![]));
    for (at, mode) in [IX, X, IS, S, IX, X, IS].into_iter().enumerate() {
        owner.lock(format!("name {}", 9 - at).as_bytes(), mode).unwrap();
    }
    owner.lock_range(b"keys", KeyRange::key(b"k"), RangeKind::Gap, Wait::Never).unwrap();
    // A second, stronger lock keeps its position.
    owner.lock(b"name 9", IX).unwrap();
    owner.lock(b"name 7", X).unwrap();
    owner.unlock(b"name 6").unwrap();
    owner.lock(b"name 6", S).unwrap();
    let found = told(&owner);
    let expected = [
        ("name 9", IX, 2),
        ("name 8", X, 1),
        ("name 7", X, 2),
        ("name 5", IX, 1),
        ("name 4", X, 1),
        ("name 3", IS, 1),
    ];
    let first: Vec<_> = found.iter().map(|(name, mode, count)| (&**name, *mode, *count)).collect();
    assert_eq!(first[..6], expected);
    assert!(first[6].0.starts_with("keys gap k"), "{first:?}");
    assert_eq!(first[7], ("name 6", S, 1));
    assert_eq!(first.len(), owner.held().unwrap());
    let weak = owner.locks().unwrap().iter().filter(|lock| lock.weak).count();
    assert_eq!(weak != 0, Native::heavy_barrier());
    owner.release_all().unwrap();
    assert_eq!(owner.locks(), Ok(vec![]));
}

/// An owner holds a name in the table in a mode that writes, and reads it in its own memory.
#[test]
fn reads_are_released_and_no_count_is_lost() {
    let manager = manager();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    // In the table, because the bias is not open yet.
    owner.lock(b"both", IX).unwrap();
    owner.lock(b"read alone", IS).unwrap();
    open(&session, b"both");
    let before = session.stats().weak;
    owner.lock(b"both", IS).unwrap();
    assert_eq!(session.stats().weak - before, u64::from(Native::heavy_barrier()));
    assert_eq!(owner.holds(b"both"), Ok(Some((IX, 2))));
    assert_eq!(told(&owner)[0], ("both".to_owned(), IX, 2));
    owner.release_reads().unwrap();
    assert_eq!(owner.holds(b"both"), Ok(Some((IX, 2))), "a count was lost");
    assert_eq!(owner.holds(b"read alone"), Ok(None));
    owner.unlock(b"both").unwrap();
    owner.unlock(b"both").unwrap();
    assert_eq!(owner.unlock(b"both"), Err(Error::NotHeld));
    assert_eq!(owner.held(), Ok(0));
}

#[test]
fn a_manager_reports_its_health() {
    let manager = manager();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    owner.lock(b"a", X).unwrap();
    let health = manager.health().unwrap();
    assert!(health.is_settled());
    assert_eq!((health.threads, health.owners, health.waiting, health.orphans), (1, 2, 0, 0));
    assert_eq!((health.latched, health.longest_wait_ns), (0, 0));
    assert_eq!(health.weak, Native::heavy_barrier());
    other.request(b"a", S, Wait::Detect).unwrap();
    let health = manager.health().unwrap();
    assert_eq!(health.waiting, 1);
    assert!(manager.health().unwrap().longest_wait_ns >= health.longest_wait_ns);
    other.cancel().unwrap();
    drop((owner, other));
    assert_eq!(manager.health().unwrap().owners, 0);
}

#[test]
fn all_types_can_be_printed() {
    let manager = manager();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(b"a", X).unwrap();
    let shown = format!("{manager:?} {session:?} {owner:?}");
    for part in ["\"IS\"", "detect_after", "requests: 1", &owner.id().to_string(), "waits: false"] {
        assert!(shown.contains(part), "{shown} has no {part}");
    }
    let future = owner.lock_async(b"b", X);
    assert!(format!("{future:?}").contains("of b in"), "{future:?}");
    let keys = KeyRange::key(b"k");
    let future = owner.lock_range_async(b"s", keys, RangeKind::Gap, Wait::Never);
    assert!(format!("{future:?}").contains("of s"), "{future:?}");
    assert_eq!(format!("{:?}", session.keyspace_claims(b"s").unwrap()), "Claims(s)");
}
