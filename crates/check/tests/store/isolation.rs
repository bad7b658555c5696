//! The anomalies of Hermitage (Kleppmann, github ept/hermitage), one step after the other in one
//! thread.
//!
//! A step that would wait for a lock is refused and told so: its transaction has to wait or to go.
//! Each anomaly says at which level it can happen; one level higher it must not.

use std::ops::Bound;

use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_lockmgr::{Error as Lock, Manager, Session, Wait, granular};
use latchwork_store::{Error, Level, Snapshot, Txn};

const TREE: u32 = 1;
const BOTH: [Level; 2] = [Level::Serializable, Level::ReadCommitted];

/// Two rows, 1 = 10 and 2 = 20, and sessions for each.
struct Scene {
    memory: Memory,
    manager: Manager,
}

impl Scene {
    fn new(bug: Bug) -> Self {
        let scene = Self {
            memory: Memory::new(bug),
            manager: Manager::private(granular::modes()).unwrap(),
        };
        let session = scene.session();
        let mut txn = scene.begin(&session, 9, Level::Serializable);
        put(&mut txn, 1, 10).unwrap();
        put(&mut txn, 2, 20).unwrap();
        txn.commit().unwrap();
        scene
    }

    fn session(&self) -> Session {
        self.manager.session().unwrap()
    }

    fn begin<'t>(&'t self, session: &'t Session, slot: u16, level: Level) -> Txn<'t, Memory> {
        let mut txn = Txn::new(&self.memory, session.owner().unwrap(), slot, level);
        txn.set_wait(Wait::Never);
        txn
    }
}

fn put(txn: &mut Txn<'_, Memory>, row: u8, value: u8) -> Result<(), Error> {
    txn.write_raw(TREE, &[row], Some(&[value]))
}

fn get(txn: &mut Txn<'_, Memory>, row: u8) -> Result<Option<u8>, Error> {
    Ok(txn.get_raw(TREE, &[row])?.map(|value| value[0]))
}

fn all(txn: &mut Txn<'_, Memory>) -> Result<Vec<(u8, u8)>, Error> {
    let mut rows = Vec::new();
    txn.scan_raw(TREE, (Bound::Unbounded, Bound::Unbounded), false, &mut |key, value| {
        rows.push((key[0], value[0]));
        Ok(true)
    })?;
    Ok(rows)
}

/// Whether a step would have to wait.
fn waits<R>(result: Result<R, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::Lock { why: Lock::NotGranted, .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn g0_no_level_lets_writes_cycle() {
    for level in BOTH {
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        put(&mut a, 1, 11).unwrap();
        assert!(waits(put(&mut b, 1, 12)), "{level:?}");
    }
}

#[test]
fn g1a_and_g1b_no_level_reads_what_is_aborted_or_in_between() {
    for level in BOTH {
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        put(&mut a, 1, 101).unwrap();
        assert!(waits(get(&mut b, 1)), "{level:?}");
        let snapshot = Snapshot::new(&scene.memory, 3).unwrap();
        assert_eq!(snapshot.get_raw(TREE, &[1]), Ok(Some(vec![10])), "and a snapshot waits never");
        a.roll_back().unwrap();
        assert_eq!(get(&mut b, 1), Ok(Some(10)), "{level:?}");
        assert_eq!(snapshot.get_raw(TREE, &[1]), Ok(Some(vec![10])));
    }
}

#[test]
fn g1c_no_level_lets_information_flow_in_a_circle() {
    for level in BOTH {
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        put(&mut a, 1, 11).unwrap();
        put(&mut b, 2, 22).unwrap();
        assert!(waits(get(&mut a, 2)) && waits(get(&mut b, 1)), "{level:?}");
    }
}

#[test]
fn otv_what_is_seen_does_not_vanish() {
    let scene = Scene::new(Bug::None);
    let (one, two) = (scene.session(), scene.session());
    let mut a = scene.begin(&one, 1, Level::Serializable);
    put(&mut a, 1, 11).unwrap();
    put(&mut a, 2, 19).unwrap();
    a.commit().unwrap();
    let snapshot = Snapshot::new(&scene.memory, 3).unwrap();
    let mut b = scene.begin(&two, 2, Level::Serializable);
    put(&mut b, 1, 12).unwrap();
    put(&mut b, 2, 18).unwrap();
    b.commit().unwrap();
    let seen = [1, 2].map(|row| snapshot.get_raw(TREE, &[row]).unwrap());
    assert_eq!(seen, [Some(vec![11]), Some(vec![19])], "all of the first, nothing of the second");
}

#[test]
fn pmp_a_range_gets_no_phantom_above_read_committed() {
    for (level, phantom) in [(Level::Serializable, false), (Level::ReadCommitted, true)] {
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        assert_eq!(all(&mut a), Ok(vec![(1, 10), (2, 20)]));
        let inserted = b.insert_raw(TREE, &[3], &[30]);
        assert_eq!(waits(inserted), !phantom, "{level:?}");
        b.commit().unwrap();
        let rows = all(&mut a).unwrap();
        assert_eq!(rows.len(), if phantom { 3 } else { 2 }, "{level:?}");
    }
    // The control: with writers that ignore claims, the same phantom at the higher level.
    let scene = Scene::new(Bug::ClaimsIgnored);
    let (one, two) = (scene.session(), scene.session());
    let mut a = scene.begin(&one, 1, Level::Serializable);
    let mut b = scene.begin(&two, 2, Level::Serializable);
    assert_eq!(all(&mut a).unwrap().len(), 2);
    b.insert_raw(TREE, &[3], &[30]).unwrap();
    b.commit().unwrap();
    assert_eq!(all(&mut a).unwrap().len(), 3);
}

#[test]
fn p4_an_update_is_lost_only_below_serializable() {
    for (level, lost) in [(Level::Serializable, false), (Level::ReadCommitted, true)] {
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        assert_eq!((get(&mut a, 1), get(&mut b, 1)), (Ok(Some(10)), Ok(Some(10))));
        assert_eq!(waits(put(&mut a, 1, 11)), !lost, "{level:?}");
        if lost {
            a.commit().unwrap();
            put(&mut b, 1, 11).unwrap();
            b.commit().unwrap();
        }
    }
}

#[test]
fn g_single_reads_do_not_skew_above_read_committed() {
    for (level, skew) in [(Level::Serializable, false), (Level::ReadCommitted, true)] {
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        let snapshot = Snapshot::new(&scene.memory, 3).unwrap();
        assert_eq!(get(&mut a, 1), Ok(Some(10)));
        assert_eq!(waits(put(&mut b, 1, 12)), !skew, "{level:?}");
        if skew {
            put(&mut b, 2, 18).unwrap();
            b.commit().unwrap();
            assert_eq!(get(&mut a, 2), Ok(Some(18)), "10 and 18 were never there together");
            assert_eq!(snapshot.get_raw(TREE, &[2]), Ok(Some(vec![20])), "nor in a snapshot");
        }
    }
}

#[test]
fn g2_item_and_g2_writes_do_not_skew_above_read_committed() {
    for (level, skew) in [(Level::Serializable, false), (Level::ReadCommitted, true)] {
        // Two items, each read by both and written by one.
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        for txn in [&mut a, &mut b] {
            assert_eq!((get(txn, 1), get(txn, 2)), (Ok(Some(10)), Ok(Some(20))));
        }
        assert_eq!(waits(put(&mut a, 1, 11)), !skew, "items, {level:?}");
        assert_eq!(waits(put(&mut b, 2, 21)), !skew, "items, {level:?}");

        // A range that both read, and into which both insert.
        let scene = Scene::new(Bug::None);
        let (one, two) = (scene.session(), scene.session());
        let (mut a, mut b) = (scene.begin(&one, 1, level), scene.begin(&two, 2, level));
        for txn in [&mut a, &mut b] {
            assert_eq!(all(txn).unwrap().len(), 2);
        }
        assert_eq!(waits(a.insert_raw(TREE, &[3], &[30])), !skew, "a range, {level:?}");
        assert_eq!(waits(b.insert_raw(TREE, &[4], &[42])), !skew, "a range, {level:?}");
    }
}

/// Fekete, O'Neil and O'Neil, 2004: under snapshot isolation a transaction that only reads can see
/// what no serial order shows. Here the second writer waits.
#[test]
fn a_reader_alone_sees_no_anomaly() {
    let scene = Scene::new(Bug::None);
    let (one, two) = (scene.session(), scene.session());
    let mut withdraws = scene.begin(&one, 1, Level::Serializable);
    let mut deposits = scene.begin(&two, 2, Level::Serializable);
    assert_eq!((get(&mut withdraws, 1), get(&mut withdraws, 2)), (Ok(Some(10)), Ok(Some(20))));
    assert_eq!(get(&mut deposits, 2), Ok(Some(20)));
    assert!(waits(put(&mut deposits, 2, 40)), "what the first read may not change yet");
    put(&mut withdraws, 1, 0).unwrap();
    withdraws.commit().unwrap();
    put(&mut deposits, 2, 40).unwrap();
    deposits.commit().unwrap();
    let snapshot = Snapshot::new(&scene.memory, 3).unwrap();
    let seen = [1, 2].map(|row| snapshot.get_raw(TREE, &[row]).unwrap());
    assert_eq!(seen, [Some(vec![0]), Some(vec![40])]);
}

#[test]
fn savepoints_take_back_what_came_after() {
    let scene = Scene::new(Bug::None);
    let session = scene.session();
    let mut txn = scene.begin(&session, 1, Level::Serializable);
    put(&mut txn, 1, 11).unwrap();
    let first = txn.savepoint();
    put(&mut txn, 1, 12).unwrap();
    put(&mut txn, 3, 30).unwrap();
    let second = txn.savepoint();
    put(&mut txn, 2, 21).unwrap();
    txn.roll_back_to(second).unwrap();
    assert_eq!(get(&mut txn, 2), Ok(Some(20)));
    txn.roll_back_to(first).unwrap();
    assert_eq!((get(&mut txn, 1), get(&mut txn, 3)), (Ok(Some(11)), Ok(None)));
    txn.commit().unwrap();
    let snapshot = Snapshot::new(&scene.memory, 3).unwrap();
    assert_eq!(snapshot.get_raw(TREE, &[1]), Ok(Some(vec![11])));
    let other = scene.session();
    let mut stranger = scene.begin(&other, 2, Level::Serializable);
    assert_eq!(stranger.roll_back_to(first), Err(Error::Savepoint));
}
