//! Futures for ranges: waiting, waking, and cleaning up after a dropped future or a dead process.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::task::Poll;
use std::time::Duration;

use latchwork_check::left;
use latchwork_check::tasks::{Task, block_on, join, pause, poll};
use latchwork_lockmgr::{
    Error, KeyRange, Manager, Owner, RangeFuture, RangeKind, Reason, Session, Wait, granular,
};
use latchwork_machine::{ConstMachine, Deadline, Native, Shared};
use latchwork_region::Region;

use RangeKind::{Gap, Insert, ReadNext, WriteNext, WriteRecord};

const SPACE: &[u8] = b"orders";

fn range_request<'o, 's, 'k, M: ConstMachine>(
    owner: &'o Owner<'s, M>,
    from: &'k [u8],
    to: &'k [u8],
    kind: RangeKind,
) -> RangeFuture<'o, 's, 'k, M> {
    owner.lock_range_async(SPACE, KeyRange::half_open(from, to), kind, Wait::Detect)
}

fn take<M: ConstMachine>(
    owner: &Owner<'_, M>,
    from: &[u8],
    to: &[u8],
    kind: RangeKind,
) -> Result<(), Error> {
    owner.lock_range(SPACE, KeyRange::half_open(from, to), kind, Wait::Never)
}

#[test]
fn many_tasks_of_one_thread_take_turns() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    // Readers and writers that hold each key.
    let inside = RefCell::new([(0u32, 0u32); 16]);
    let done = std::cell::Cell::new(0);
    let task = |me: usize| {
        let (session, inside, done) = (&session, &inside, &done);
        let task: Task<'_> = Box::pin(async move {
            for round in 0..15 {
                let owner = session.owner().unwrap();
                let from = (me * 7 + round * 5) % 14;
                let to = from + 1 + (me + round) % 3;
                let write = !(me + round).is_multiple_of(3);
                let kind = if write { WriteNext } else { ReadNext };
                let keys = [[from as u8], [to as u8]];
                match range_request(&owner, &keys[0], &keys[1], kind).await {
                    Ok(()) => {}
                    // A task waits for one claim at a time, which may close a cycle.
                    Err(Error::Deadlock(_)) => continue,
                    Err(error) => panic!("{error}"),
                }
                for (readers, writers) in &mut inside.borrow_mut()[from..to] {
                    assert!(*writers == 0 && (!write || *readers == 0), "conflicting holders");
                    if write { *writers += 1 } else { *readers += 1 }
                }
                pause().await;
                for (readers, writers) in &mut inside.borrow_mut()[from..to] {
                    if write { *writers -= 1 } else { *readers -= 1 }
                }
                done.set(done.get() + 1);
            }
        });
        Some(task)
    };
    join((0..20).map(task).collect());
    assert_eq!(done.get(), 20 * 15, "a cycle of tasks that hold one range each");
    assert!(session.stats().waits > 0);
    left::nothing_in(&session);
}

#[test]
fn a_future_dropped_at_any_moment_leaves_nothing() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let [a, b, c] = [(); 3].map(|()| session.owner().unwrap());
    take(&a, b"b", b"d", ReadNext).unwrap();
    take(&c, b"d", b"f", Gap).unwrap();
    // Dropped before the first poll: it requests nothing.
    drop(range_request(&b, b"a", b"z", WriteNext));
    assert_eq!((b.held(), session.totals().unwrap().ranges), (Ok(0), 2));
    // Dropped while it waits. Its request blocks others until then.
    let mut future = range_request(&b, b"a", b"z", WriteNext);
    assert!(poll(&mut future).is_pending());
    assert_eq!(session.totals().unwrap().ranges, 3);
    assert_eq!(take(&c, b"x", b"y", ReadNext), Err(Error::NotGranted));
    assert_eq!(b.try_lock(b"y", granular::S), Err(Error::Waiting));
    assert_eq!(poll(&mut range_request(&b, b"y", b"z", Gap)), Poll::Ready(Err(Error::Waiting)));
    drop(future);
    assert_eq!((b.held(), take(&c, b"x", b"y", ReadNext)), (Ok(0), Ok(())));
    // Dropped after it was granted the ticket, before it was polled.
    let mut future = range_request(&b, b"a", b"e", Insert);
    assert!(poll(&mut future).is_pending());
    a.release_all().unwrap();
    drop(future);
    assert_eq!((b.held(), take(&a, b"b", b"d", ReadNext)), (Ok(0), Ok(())));
    // Dropped while it waits for the second blocking claim.
    let mut future = range_request(&b, b"a", b"e", Insert);
    assert!(poll(&mut future).is_pending());
    a.release_all().unwrap();
    assert!(poll(&mut future).is_pending(), "the second claim must block");
    drop(future);
    assert_eq!((b.held(), session.totals().unwrap().ranges), (Ok(0), 2));
    // Claims held before stay held.
    take(&b, b"a", b"b", WriteRecord).unwrap();
    let mut future = range_request(&b, b"d", b"e", Insert);
    assert!(poll(&mut future).is_pending());
    session.kill(b.id()).unwrap();
    drop(future);
    let held = b.holds_range(SPACE, KeyRange::half_open(b"a", b"b"), WriteRecord);
    assert_eq!((b.held(), held), (Ok(1), Ok(Some(1))));
    // Dropped after completion: the range stays locked.
    let mut future = range_request(&a, b"p", b"q", WriteNext);
    assert_eq!(poll(&mut future), Poll::Ready(Ok(())));
    drop(future);
    assert_eq!(a.held(), Ok(1));
    // Locking the same range again is counted.
    assert_eq!(block_on(range_request(&a, b"p", b"q", WriteNext)), Ok(()));
    let held = a.holds_range(SPACE, KeyRange::half_open(b"p", b"q"), WriteNext);
    assert_eq!((a.held(), held), (Ok(1), Ok(Some(2))));
    drop((a, b, c));
    left::nothing_in(&session);
}

/// Two inserts behind two gap locks: one is the victim, and both tasks end.
#[test]
fn a_deadlock_of_futures_has_one_victim() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let victims = std::cell::Cell::new(0);
    let task = |_| {
        let (session, victims) = (&session, &victims);
        let task: Task<'_> = Box::pin(async move {
            let owner = session.owner().unwrap();
            range_request(&owner, b"b", b"d", Gap).await.unwrap();
            pause().await;
            match range_request(&owner, b"c", b"c\0", Insert).await {
                Ok(()) => {}
                Err(Error::Deadlock(cycle)) => {
                    assert_eq!((cycle.len(), cycle[0].owner), (2, owner.id()));
                    victims.set(victims.get() + 1);
                }
                Err(error) => panic!("{error}"),
            }
        });
        Some(task)
    };
    join((0..2).map(task).collect());
    assert_eq!(victims.get(), 1);
    left::nothing_in(&session);
}

#[test]
fn futures_end_as_other_waits_do() {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    take(&a, b"b", b"d", WriteNext).unwrap();
    let ask = |wait| b.lock_range_async(SPACE, KeyRange::key(b"c"), ReadNext, wait);
    let soon = Wait::Until(Deadline::after::<Native>(Duration::from_millis(5)));
    assert_eq!(block_on(ask(soon)), Err(Error::TimedOut));
    assert_eq!(block_on(ask(Wait::Never)), Err(Error::NotGranted));
    assert_eq!(block_on(ask(Wait::Die)), Err(Error::Died(a.id())));
    let none = b.lock_range_async(b"", KeyRange::all(), Gap, Wait::Detect);
    assert_eq!(block_on(none), Err(Error::Keyspace(0)));
    let empty = b.lock_range_async(SPACE, KeyRange::half_open(b"b", b"b"), Gap, Wait::Detect);
    assert_eq!(block_on(empty), Err(Error::EmptyRange));
    assert_eq!((b.held(), session.totals().unwrap().ranges), (Ok(0), 1));
    std::thread::scope(|scope| {
        let (manager, id) = (&manager, b.id());
        scope.spawn(move || {
            let session = manager.session().unwrap();
            waiting(&session, 1);
            session.kill(id).unwrap();
        });
        assert_eq!(block_on(ask(Wait::Detect)), Err(Error::Aborted(Reason::Killed)));
    });
    drop((a, b));
    left::nothing_in(&session);
}

fn open(path: &Path) -> Manager<Shared> {
    let options = latchwork_region::Options { limit: 1 << 30, ..Default::default() };
    let region = Region::<Shared>::open_or_create(path, &options).unwrap();
    Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap()
}

fn waiting<M: ConstMachine>(session: &Session<M>, count: u64) {
    while session.totals().unwrap().waiting != count {
        std::thread::yield_now();
    }
}

/// The child process: two tasks wait for two ranges as futures and hold them until the process is
/// killed.
#[test]
fn child() {
    let Ok(path) = std::env::var("LOCKMGR_REGION") else { return };
    let manager = open(&PathBuf::from(path));
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let task = |owner, from, to| {
        let task: Task<'_> =
            Box::pin(async move { range_request(owner, from, to, WriteNext).await.unwrap() });
        Some(task)
    };
    join(vec![task(&owner, b"a", b"c"), task(&other, b"m", b"p")]);
    owner.lock(b"done", granular::X).unwrap();
    loop {
        std::thread::park();
    }
}

fn start(path: &Path) -> Child {
    let mut command = latchwork_check::again(module_path!(), "child");
    command.env("LOCKMGR_REGION", path);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn processes_wake_and_outlive_each_other() {
    let path = std::env::temp_dir().join(format!("lockmgr-range-async-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let manager = open(&path);
    let session = manager.session().unwrap();
    for killed_waiting in [true, false] {
        let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
        take(&a, b"b", b"c", Gap).unwrap();
        take(&a, b"b", b"z", ReadNext).unwrap();
        let mut peer = start(&path);
        waiting(&session, 2);
        if killed_waiting {
            peer.kill().unwrap();
            peer.wait().unwrap();
            // After a sweep its waiting requests block no other.
            assert_eq!(session.sweep(), Ok(1));
            assert_eq!(session.totals().unwrap().ranges, 2);
        } else {
            a.release_all().unwrap();
            while b.try_lock(b"done", granular::S) != Err(Error::NotGranted) {
                b.release_all().unwrap();
            }
            // A request of this process waits for the other process, which dies.
            let mut future = range_request(&b, b"o", b"q", Insert);
            assert!(poll(&mut future).is_pending());
            peer.kill().unwrap();
            assert_eq!(block_on(future), Ok(()));
            peer.wait().unwrap();
        }
        drop((a, b));
        session.sweep().unwrap();
        left::nothing_in(&session);
    }
    let _ = std::fs::remove_file(&path);
}
