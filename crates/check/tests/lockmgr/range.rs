//! Locks on ranges of keys: which kinds conflict, and which requests wait for which.

use core::ops::Bound;

use latchwork_check::left::nothing_in as nothing_is_left;
use latchwork_lockmgr::{
    Error, KEY_MAX, KeyRange, Manager, Owner, RangeKind, RangeRequest, Step, View, Wait, berkeley,
    granular, postgres, shared,
};
use latchwork_region::Region;

use RangeKind::{Gap, Insert, Intention, ReadNext, ReadRecord, WriteNext, WriteRecord};

const SPACE: &[u8] = b"orders";

fn never(owner: &Owner<'_>, range: KeyRange<'_>, kind: RangeKind) -> Result<(), Error> {
    owner.lock_range(SPACE, range, kind, Wait::Never)
}

fn range_request<'o, 's>(
    owner: &'o Owner<'s>,
    range: KeyRange<'_>,
    kind: RangeKind,
) -> RangeRequest<'o, 's> {
    let request = owner.request_range(SPACE, range, kind, Wait::Detect).unwrap();
    assert_eq!(request.step(), Step::Waiting);
    request
}

#[test]
fn kinds_conflict_as_in_innodb() {
    // Held by row, wanted by column. Unlike InnoDB, an insert also locks its record.
    #[rustfmt::skip]
    let stops = [
        //RR WR G RN WN I Ins
        [0, 1, 0, 0, 1, 0, 1], // ReadRecord
        [1, 1, 0, 1, 1, 0, 1], // WriteRecord
        [0, 0, 0, 0, 0, 1, 1], // Gap
        [0, 1, 0, 0, 1, 1, 1], // ReadNext
        [1, 1, 0, 1, 1, 1, 1], // WriteNext
        [0, 0, 0, 0, 0, 0, 0], // Intention
        [1, 1, 0, 1, 1, 0, 1], // Insert
    ];
    for modes in [granular::modes(), berkeley::modes(), postgres::modes(), shared::modes()] {
        let manager = latchwork_check::early::private(modes).unwrap();
        let session = manager.session().unwrap();
        for (held, row) in RangeKind::ALL.into_iter().zip(stops) {
            for (wanted, stop) in RangeKind::ALL.into_iter().zip(row) {
                assert_eq!(held.stops(wanted), stop == 1, "{held:?} against {wanted:?}");
                let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
                never(&a, KeyRange::half_open(b"b", b"d"), held).unwrap();
                let expected = if stop == 1 { Err(Error::NotGranted) } else { Ok(()) };
                assert_eq!(never(&b, KeyRange::key(b"c"), wanted), expected);
                assert_eq!(never(&b, KeyRange::key(b"d"), wanted), Ok(()));
                // An owner's own claims do not block it.
                assert_eq!(never(&a, KeyRange::key(b"b"), wanted), Ok(()));
                assert_eq!(
                    b.lock_range(b"other", KeyRange::key(b"c"), wanted, Wait::Never),
                    Ok(())
                );
            }
        }
        nothing_is_left(&session);
    }
}

/// A range, keys inside it, and keys outside it.
type Ends = (KeyRange<'static>, &'static [&'static [u8]], &'static [&'static [u8]]);

#[test]
fn ends_are_inside_or_outside_as_given() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let key = KeyRange::key;
    let cases: [Ends; 7] = [
        (KeyRange::between(b"b", b"d"), &[b"b\0", b"c", b"cz"], &[b"b", b"d"]),
        (KeyRange::next_key(b"b", b"d"), &[b"b\0", b"d"], &[b"b", b"d\0"]),
        (KeyRange::half_open(b"b", b"d"), &[b"b", b"c\xff\xff"], &[b"a\xff", b"d"]),
        (KeyRange::after(b"b"), &[b"b\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"], &[b"b"]),
        (KeyRange::at_least(b"b"), &[b"b", b"z"], &[b"", b"a"]),
        (KeyRange::all(), &[b"", b"z"], &[]),
        (
            KeyRange { from: Bound::Unbounded, to: Bound::Included(b"longer than a word") },
            &[b"", b"longer than a word", b"longer t"],
            &[b"longer than a word\0", b"longer u"],
        ),
    ];
    for (range, inside, outside) in cases {
        let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
        never(&a, range, Gap).unwrap();
        for k in inside {
            assert_eq!(never(&b, key(k), Insert), Err(Error::NotGranted), "{range:?}, {k:?}");
        }
        for k in outside {
            assert_eq!(never(&b, key(k), Insert), Ok(()), "{range:?}, {k:?}");
        }
    }
    nothing_is_left(&session);
}

#[test]
fn impossible_ranges_are_refused() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let a = session.owner().unwrap();
    let long = vec![b'k'; KEY_MAX + 1];
    let empty = KeyRange::half_open(b"b", b"b");
    assert_eq!(never(&a, empty, Gap), Err(Error::EmptyRange));
    assert_eq!(never(&a, KeyRange::key(&long), Gap), Err(Error::Key(KEY_MAX + 1)));
    assert_eq!(
        never(&a, KeyRange::between(&long[1..], &[b'k'; KEY_MAX]), Gap),
        Err(Error::EmptyRange)
    );
    assert_eq!(a.lock_range(b"", KeyRange::all(), Gap, Wait::Never), Err(Error::Keyspace(0)));
    let name = [7; 201];
    assert_eq!(a.lock_range(&name, KeyRange::all(), Gap, Wait::Never), Err(Error::Keyspace(201)));
    assert_eq!(a.unlock_range(SPACE, KeyRange::all(), Gap), Err(Error::NotHeld));
    // The longest key.
    let last = vec![b'z'; KEY_MAX];
    never(&a, KeyRange::next_key(&long[1..], &last), WriteNext).unwrap();
    a.lock_range(&name[1..], KeyRange::all(), Gap, Wait::Never).unwrap();
    let b = session.owner().unwrap();
    assert_eq!(never(&b, KeyRange::key(&last), ReadRecord), Err(Error::NotGranted));
    assert_eq!(never(&b, KeyRange::key(&long[1..]), ReadRecord), Ok(()));
    drop((a, b));
    nothing_is_left(&session);
    // A set of modes without a conflict has no ranges.
    let spec = latchwork_lockmgr::ModesSpec {
        names: &["all"],
        conflicts: &[0],
        convert: None,
        weak: 0,
        writes: 0,
    };
    let manager =
        latchwork_check::early::private(latchwork_lockmgr::Modes::new(&spec).unwrap()).unwrap();
    let session = manager.session().unwrap();
    let a = session.owner().unwrap();
    let end = never(&a, KeyRange::all(), Gap);
    assert_eq!(end, Err(Error::Mode(latchwork_lockmgr::Mode::new(0))));
}

#[test]
fn ranges_are_counted_and_released_like_locks() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    let (row, gap) = (KeyRange::key(b"r"), KeyRange::between(b"r", b"s"));
    never(&a, row, WriteRecord).unwrap();
    never(&a, row, WriteRecord).unwrap();
    assert_eq!(a.holds_range(SPACE, row, WriteRecord), Ok(Some(2)));
    assert_eq!(a.holds_range(SPACE, row, ReadRecord), Ok(None));
    a.unlock_range(SPACE, row, WriteRecord).unwrap();
    assert_eq!(never(&b, row, ReadRecord), Err(Error::NotGranted));
    let savepoint = a.savepoint().unwrap();
    never(&a, gap, Gap).unwrap();
    a.lock(b"an object", granular::X).unwrap();
    assert_eq!(never(&b, KeyRange::key(b"ra"), Insert), Err(Error::NotGranted));
    a.roll_back_to(savepoint).unwrap();
    assert_eq!(never(&b, KeyRange::key(b"ra"), Insert), Ok(()));
    assert_eq!(never(&b, row, ReadRecord), Err(Error::NotGranted));
    a.unlock_range(SPACE, row, WriteRecord).unwrap();
    assert_eq!(a.unlock_range(SPACE, row, WriteRecord), Err(Error::NotHeld));
    assert_eq!(never(&b, row, ReadRecord), Ok(()));
    assert_eq!((a.held(), b.held()), (Ok(0), Ok(2)));
    b.release_all().unwrap();
    assert_eq!(never(&a, KeyRange::all(), WriteNext), Ok(()));
    drop((a, b));
    nothing_is_left(&session);
}

#[test]
fn families_share_ranges_and_pass_them_on() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (parent, stranger) = (session.owner().unwrap(), session.owner().unwrap());
    never(&parent, KeyRange::all(), WriteNext).unwrap();
    let (child, sibling) = (parent.child().unwrap(), parent.child().unwrap());
    never(&child, KeyRange::key(b"k"), Insert).unwrap();
    assert_eq!(never(&sibling, KeyRange::key(b"k"), WriteRecord), Err(Error::NotGranted));
    let waits = range_request(&sibling, KeyRange::key(b"k"), WriteRecord);
    child.inherit().unwrap();
    assert_eq!(child.held(), Ok(0));
    assert_eq!(waits.poll(), Ok(Some(Ok(()))));
    drop(waits);
    sibling.release_all().unwrap();
    drop((child, sibling));
    parent.unlock_range(SPACE, KeyRange::all(), WriteNext).unwrap();
    assert_eq!(never(&stranger, KeyRange::key(b"j"), Insert), Ok(()));
    assert_eq!(never(&stranger, KeyRange::key(b"k"), ReadRecord), Err(Error::NotGranted));
    drop(parent);
    assert_eq!(never(&stranger, KeyRange::key(b"k"), ReadRecord), Ok(()));
    drop(stranger);
    nothing_is_left(&session);
}

#[test]
fn two_inserters_behind_two_gap_locks_are_a_deadlock() {
    for modes in [granular::modes(), berkeley::modes(), postgres::modes(), shared::modes()] {
        two_inserters(modes);
    }
}

fn two_inserters(modes: latchwork_lockmgr::Modes) {
    let manager = latchwork_check::early::private(modes).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    never(&a, KeyRange::between(b"10", b"20"), Gap).unwrap();
    never(&b, KeyRange::between(b"10", b"20"), Gap).unwrap();
    let (from_a, from_b) = (
        range_request(&a, KeyRange::key(b"15"), Intention),
        range_request(&b, KeyRange::key(b"16"), Intention),
    );
    assert_eq!(session.detect(), Ok(1));
    // The younger owner is the victim; its report names who waits for which gap.
    let Ok(Some(Err(Error::Deadlock(cycle)))) = from_b.poll() else { panic!("no victim") };
    assert_eq!(cycle.len(), 2);
    assert_eq!((cycle[0].owner, cycle[1].owner), (b.id(), a.id()));
    for link in &cycle {
        let what = String::from_utf8_lossy(&link.object);
        assert!(what.starts_with("orders gap [10\0, 20) #"), "{what}");
        assert!(link.hard);
    }
    assert_eq!(from_a.poll(), Ok(None));
    drop(from_b);
    b.release_all().unwrap();
    assert_eq!(from_a.poll(), Ok(Some(Ok(()))));
    drop(from_a);
    drop((a, b));
    nothing_is_left(&session);
}

#[test]
fn a_cycle_through_ranges_and_objects_is_found() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owners: Vec<_> = (0..3).map(|_| session.owner().unwrap()).collect();
    never(&owners[0], KeyRange::half_open(b"a", b"m"), WriteNext).unwrap();
    never(&owners[1], KeyRange::half_open(b"m", b"z"), WriteNext).unwrap();
    owners[2].lock(b"object", granular::X).unwrap();
    let first = range_request(&owners[0], KeyRange::half_open(b"l", b"n"), ReadRecord);
    owners[1].request(b"object", granular::S, Wait::Detect).unwrap();
    assert_eq!(session.detect(), Ok(0));
    let last = range_request(&owners[2], KeyRange::key(b"b"), Insert);
    assert_eq!(session.detect(), Ok(1));
    let Ok(Some(Err(Error::Deadlock(cycle)))) = last.poll() else { panic!("no victim") };
    let who: Vec<_> = cycle.iter().map(|link| link.owner).collect();
    assert_eq!(who, [owners[2].id(), owners[0].id(), owners[1].id()]);
    drop(last);
    owners[2].release_all().unwrap();
    assert_eq!(owners[1].poll(), Ok(Some(Ok(()))));
    owners[1].release_all().unwrap();
    assert_eq!(first.poll(), Ok(Some(Ok(()))));
}

#[test]
fn there_are_no_phantoms() {
    // A scanned range stays unchanged: inserts into it wait, inserts outside it do not.
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (scan, insert) = (session.owner().unwrap(), session.owner().unwrap());
    never(&scan, KeyRange::half_open(b"b", b"d"), ReadNext).unwrap();
    never(&insert, KeyRange::key(b"d"), Insert).unwrap();
    let waits = range_request(&insert, KeyRange::key(b"c"), Insert);
    scan.release_all().unwrap();
    assert_eq!(waits.poll(), Ok(Some(Ok(()))));
    // A key that was inserted and may be rolled back cannot be scanned.
    let waits = range_request(&scan, KeyRange::half_open(b"b", b"d"), ReadNext);
    insert.release_all().unwrap();
    assert_eq!(waits.poll(), Ok(Some(Ok(()))));
}

#[test]
fn requests_keep_their_order() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = || session.owner().unwrap();
    let (reader, writer, late, apart) = (owner(), owner(), owner(), owner());
    never(&reader, KeyRange::half_open(b"a", b"c"), ReadRecord).unwrap();
    let writes = range_request(&writer, KeyRange::half_open(b"b", b"d"), WriteRecord);
    // Later readers do not starve the writer. Requests for other keys pass, and so does the
    // request of an owner that the writer waits for.
    let reads = range_request(&late, KeyRange::key(b"c"), ReadRecord);
    assert_eq!(never(&apart, KeyRange::key(b"a"), ReadRecord), Ok(()));
    assert_eq!(never(&reader, KeyRange::key(b"b"), ReadRecord), Ok(()));
    reader.release_all().unwrap();
    assert_eq!((writes.poll(), reads.poll()), (Ok(Some(Ok(()))), Ok(None)));
    writer.release_all().unwrap();
    assert_eq!(reads.poll(), Ok(Some(Ok(()))));
}

#[test]
fn a_deadlock_through_a_waiting_range_is_solved_by_reordering() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = || session.owner().unwrap();
    let (reader, writer, late) = (owner(), owner(), owner());
    never(&reader, KeyRange::key(b"k"), ReadRecord).unwrap();
    late.lock(b"object", granular::X).unwrap();
    let writes = range_request(&writer, KeyRange::key(b"k"), WriteRecord);
    reader.request(b"object", granular::X, Wait::Detect).unwrap();
    // The youngest waits for the writer's request, the writer for the reader, the reader for the
    // youngest.
    let reads = range_request(&late, KeyRange::key(b"k"), ReadRecord);
    assert_eq!(session.detect(), Ok(1));
    assert_eq!(reads.poll(), Ok(Some(Ok(()))));
    late.release_all().unwrap();
    assert_eq!(reader.poll(), Ok(Some(Ok(()))));
    reader.release_all().unwrap();
    assert_eq!(writes.poll(), Ok(Some(Ok(()))));
}

#[test]
fn a_dropped_range_request_is_withdrawn() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = || session.owner().unwrap();
    let (a, b, c) = (owner(), owner(), owner());
    never(&a, KeyRange::key(b"k"), ReadRecord).unwrap();
    let waits = range_request(&b, KeyRange::all(), WriteNext);
    assert_eq!(b.lock(b"x", granular::S), Err(Error::Waiting));
    assert_eq!(never(&c, KeyRange::key(b"k"), ReadRecord), Err(Error::NotGranted));
    drop(waits);
    assert_eq!(b.held(), Ok(0));
    assert_eq!(never(&c, KeyRange::key(b"k"), ReadRecord), Ok(()));
    // Dropped after it was granted the ticket, before it was polled.
    let waits = range_request(&b, KeyRange::all(), WriteNext);
    a.release_all().unwrap();
    c.release_all().unwrap();
    drop(waits);
    assert_eq!((b.held(), never(&c, KeyRange::all(), WriteNext)), (Ok(0), Ok(())));
    let soon = core::time::Duration::from_millis(3);
    let until = latchwork_machine::Deadline::after::<latchwork_machine::Native>(soon);
    let end = b.lock_range(SPACE, KeyRange::all(), ReadNext, Wait::Until(until));
    assert_eq!((end, b.held()), (Err(Error::TimedOut), Ok(0)));
    // An older owner waits, a younger one dies; a killed owner's wait fails.
    let end = b.request_range(SPACE, KeyRange::all(), ReadNext, Wait::Die).map(|r| r.step());
    assert_eq!(end, Ok(Step::Waiting));
    never(&c, KeyRange::all(), Intention).unwrap();
    c.release_all().unwrap();
    never(&b, KeyRange::key(b"a"), Insert).unwrap();
    let end = c.request_range(SPACE, KeyRange::all(), Gap, Wait::Die).map(|r| r.step());
    assert_eq!(end, Ok(Step::Granted));
    let end = c.request_range(SPACE, KeyRange::all(), ReadNext, Wait::Die).map(|r| r.step());
    assert_eq!(end, Err(Error::Died(b.id())));
    assert_eq!(c.held(), Ok(1));
    let waits = range_request(&b, KeyRange::key(b"b"), Intention);
    session.kill(b.id()).unwrap();
    assert!(matches!(waits.poll(), Ok(Some(Err(Error::Aborted(_))))));
    drop(waits);
    drop((a, b, c));
    nothing_is_left(&session);
}

#[test]
fn ranges_are_visible_in_snapshots() {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let manager = Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    never(&a, KeyRange::between(b"b", b"d"), Gap).unwrap();
    let waits = range_request(&b, KeyRange::key(b"c"), Insert);
    let view = View::new(manager.region().clone()).unwrap().unwrap();
    let picture = view.look().unwrap();
    let named =
        |row: &latchwork_lockmgr::LockInfo| String::from_utf8_lossy(&row.object).into_owned();
    let edges = picture.edges(Some(manager.modes()));
    assert_eq!(edges.len(), 1);
    let (waiter, holder) = (&picture.rows[edges[0].row], &picture.rows[edges[0].blocker]);
    assert_eq!((waiter.owner, holder.owner), (b.id(), a.id()));
    assert!(named(waiter).starts_with("orders gap [b\0, d) #"), "{}", named(waiter));
    assert!(picture.rows.iter().any(|row| {
        let text = named(row);
        row.owner == b.id() && text.starts_with("orders insert c #") && text.ends_with("(waiting)")
    }));
    assert!(session.snapshot().unwrap().iter().any(|row| row.object == waiter.object));
    assert_eq!(session.totals().unwrap().ranges, 2);
    let verified = view.verify(Some(manager.modes())).unwrap();
    assert!(verified.flaws.is_empty(), "{:?}", verified.flaws);
    drop(waits);
}

#[test]
fn threads_insert_and_scan() {
    // A bitmap of keys: a scan reads the same twice, an insert is alone at its key.
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let keys: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
    let deadlocks = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for me in 1..=4u32 {
            let (manager, keys, deadlocks) = (&manager, &keys, &deadlocks);
            scope.spawn(move || {
                let session = manager.session().unwrap();
                let mut random = me;
                let mut below = |n: u32| {
                    random ^= random << 13;
                    random ^= random >> 17;
                    random ^= random << 5;
                    random % n
                };
                for _ in 0..300 {
                    let owner = session.owner().unwrap();
                    let (low, long) = (below(60), 1 + below(4));
                    let (from, to) = (low.to_be_bytes(), (low + long).to_be_bytes());
                    let range = KeyRange::half_open(&from, &to);
                    let part = &keys[low as usize..(low + long) as usize];
                    let sum = || part.iter().map(|key| key.load(Relaxed)).collect::<Vec<_>>();
                    match owner.lock_range(SPACE, range, ReadNext, Wait::Detect) {
                        Ok(()) => {}
                        Err(Error::Deadlock(_)) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    let before = sum();
                    std::thread::yield_now();
                    assert_eq!(sum(), before, "a phantom appeared");
                    let key = below(64);
                    let bytes = key.to_be_bytes();
                    let one = KeyRange::key(&bytes);
                    match owner.lock_range(SPACE, one, Insert, Wait::Detect) {
                        Ok(()) => {}
                        Err(Error::Deadlock(cycle)) => {
                            assert!(cycle.len() >= 2);
                            deadlocks.fetch_add(1, Relaxed);
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    let was = keys[key as usize].load(Relaxed);
                    keys[key as usize].store(was + me, Relaxed);
                    std::thread::yield_now();
                    assert_eq!(
                        keys[key as usize].load(Relaxed),
                        was + me,
                        "two inserts at one key"
                    );
                }
            });
        }
    });
    println!("{} deadlocks", deadlocks.load(Relaxed));
    nothing_is_left(&manager.session().unwrap());
}

#[test]
fn reading_ranges_are_released_with_the_reads() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let a = session.owner().unwrap();
    for kind in RangeKind::ALL {
        // Locked twice: counts must not matter.
        never(&a, KeyRange::key(b"c"), kind).unwrap();
        never(&a, KeyRange::key(b"c"), kind).unwrap();
    }
    a.lock(b"read", granular::S).unwrap();
    a.lock(b"written", granular::X).unwrap();
    a.release_reads().unwrap();
    for kind in RangeKind::ALL {
        let held = a.holds_range(SPACE, KeyRange::key(b"c"), kind).unwrap();
        assert_eq!(held, kind.is_write().then_some(2), "{kind:?}");
    }
    assert_eq!((a.holds(b"read").unwrap(), a.held()), (None, Ok(5)));
    assert_eq!(session.totals().unwrap().ranges, 4);
    // While the owner waits, it releases nothing.
    let b = session.owner().unwrap();
    never(&b, KeyRange::key(b"d"), ReadNext).unwrap();
    let request = range_request(&b, KeyRange::key(b"c"), WriteRecord);
    assert_eq!(b.release_reads(), Err(Error::Waiting));
    drop(request);
    b.release_reads().unwrap();
    assert_eq!(b.held(), Ok(0));
    drop((a, b));
    nothing_is_left(&session);
}

#[test]
fn ranges_can_be_released_in_a_full_region() {
    let options = latchwork_region::Options { limit: 6 << 20, ..Default::default() };
    let region = Region::private(&options).unwrap();
    let manager = Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    for round in 0..5 {
        let (a, filler) = (session.owner().unwrap(), session.owner().unwrap());
        let mut keys = Vec::new();
        for key in 0..200u32 {
            never(&a, KeyRange::key(&key.to_be_bytes()), WriteNext).unwrap();
            keys.push(key.to_be_bytes());
        }
        let full = (0u64..).find(|at| filler.try_lock(&at.to_le_bytes(), shared::X).is_err());
        assert!(full.is_some_and(|count| count > 5000), "round {round}: {full:?}");
        let next = |at: u32| never(&a, KeyRange::key(&at.to_be_bytes()), WriteNext);
        let end = (1000..).map(next).find(Result::is_err);
        assert_eq!(end, Some(Err(Error::Region(latchwork_region::Error::Full(6 << 20)))));
        for key in &keys {
            assert_eq!(a.holds_range(SPACE, KeyRange::key(key), WriteNext), Ok(Some(1)));
            a.unlock_range(SPACE, KeyRange::key(key), WriteNext).unwrap();
        }
        drop((a, filler));
        nothing_is_left(&session);
    }
}

/// A wait for a range that is cancelled through the owner does not give the waiter the ticket of
/// the blocking claim; the holder keeps it.
#[test]
fn a_wait_cancelled_by_the_owner_releases_no_other_range() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (holder, waiter) = (session.owner().unwrap(), session.owner().unwrap());
    let range = KeyRange::half_open(b"b", b"d");
    never(&holder, range, WriteNext).unwrap();
    let request = range_request(&waiter, range, WriteNext);
    assert_eq!(waiter.cancel(), Ok(true));
    assert_eq!(request.poll(), Ok(None), "the request was not repeated");
    assert_eq!(holder.holds_range(SPACE, range, WriteNext), Ok(Some(1)));
    assert_eq!(waiter.holds_range(SPACE, range, WriteNext), Ok(None));
    holder.release_all().unwrap();
    assert_eq!(request.poll(), Ok(Some(Ok(()))));
    assert_eq!(waiter.holds_range(SPACE, range, WriteNext), Ok(Some(1)));
    waiter.release_all().unwrap();
    drop(request);
    drop((holder, waiter));
    nothing_is_left(&session);
}

/// A refused request does not report success later.
#[test]
fn a_failed_request_stays_failed() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (holder, waiter) = (session.owner().unwrap(), session.owner().unwrap());
    let range = KeyRange::half_open(b"b", b"d");
    never(&holder, range, WriteNext).unwrap();
    let request = range_request(&waiter, range, WriteNext);
    session.kill(waiter.id()).unwrap();
    assert!(matches!(request.poll(), Ok(Some(Err(Error::Aborted(_))))));
    assert_eq!(request.poll(), Ok(Some(Err(Error::NotHeld))));
}
