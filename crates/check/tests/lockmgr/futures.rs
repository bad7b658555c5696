//! Locks as futures, many on one thread.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use latchwork_check::left::nothing as nothing_is_left;
use latchwork_check::tasks::{Task, block_on, join, pause, poll};
use latchwork_lockmgr::{
    Error, Manager, Options, OwnerOptions, Reason, Step, Wait, set_point_hook, shared,
    shared::{S, X},
};
use latchwork_machine::{Deadline, Native, Shared};
use latchwork_region::Region;

#[test]
fn many_tasks_of_one_thread_take_turns() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (inside, sum) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let task = |me: usize| {
        let (session, inside, sum) = (&session, &inside, &sum);
        let task: Task<'_> = Box::pin(async move {
            for round in 0..20 {
                let owner = session.owner().unwrap();
                let mode = if (me + round).is_multiple_of(3) { S } else { X };
                owner.lock_async(b"x", mode).await.unwrap();
                assert!(mode == S || inside.get() == 0, "not alone");
                inside.set(inside.get() + 1);
                pause().await;
                assert!(mode == S || inside.get() == 1, "not alone");
                inside.set(inside.get() - 1);
                sum.set(sum.get() + 1);
            }
        });
        Some(task)
    };
    join((0..50).map(task).collect());
    assert_eq!(sum.get(), 50 * 20);
    assert!(session.stats().waits > 0);
    drop(session);
    nothing_is_left(&manager);
}

/// Two tasks: a task that begins to wait for a waiting owner detects the deadlock at once.
#[test]
fn a_deadlock_of_two_tasks_is_found_at_once() {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let hour = Duration::from_secs(3600);
    let options = Options { detect_after: hour, ..latchwork_check::early::early() };
    let manager = Manager::new(region, shared::modes(), options).unwrap();
    let session = manager.session().unwrap();
    let ends = RefCell::new(Vec::new());
    let task = |me: u8| {
        let (session, ends) = (&session, &ends);
        let task: Task<'_> = Box::pin(async move {
            let owner = session.owner().unwrap();
            owner.lock_async(&[me], X).await.unwrap();
            pause().await;
            let soon = Wait::Until(Deadline::after::<Native>(Duration::from_secs(30)));
            let end = owner.lock_async_with(&[1 - me], X, soon).await;
            owner.release_all().unwrap();
            ends.borrow_mut().push(end);
        });
        Some(task)
    };
    join((0..2).map(task).collect());
    let ends = ends.into_inner();
    let victims = ends.iter().filter(|end| matches!(end, Err(Error::Deadlock(_)))).count();
    assert_eq!((victims, ends.iter().filter(|end| end.is_ok()).count()), (1, 1), "{ends:?}");
}

#[test]
fn threads_wake_each_others_tasks() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let count = Mutex::new((0u32, false));
    std::thread::scope(|scope| {
        for me in 0..3 {
            let (manager, count) = (&manager, &count);
            scope.spawn(move || {
                let session = manager.session().unwrap();
                let task = |_| {
                    let session = &session;
                    let task: Task<'_> = Box::pin(async move {
                        for _ in 0..50 {
                            let owner = session.owner().unwrap();
                            // One thread blocks in the same queues.
                            if me == 0 {
                                owner.lock(b"x", X).unwrap();
                            } else {
                                owner.lock_async(b"x", X).await.unwrap();
                            }
                            let was = core::mem::replace(&mut count.lock().unwrap().1, true);
                            assert!(!was, "two owners hold the lock");
                            if me != 0 {
                                pause().await;
                            }
                            let mut count = count.lock().unwrap();
                            *count = (count.0 + 1, false);
                        }
                    });
                    Some(task)
                };
                join((0..if me == 0 { 1 } else { 8 }).map(task).collect());
            });
        }
    });
    assert_eq!(count.into_inner().unwrap(), (17 * 50, false));
    nothing_is_left(&manager);
}

#[test]
fn a_future_dropped_at_any_moment_leaves_nothing() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b, c) = (session.owner().unwrap(), session.owner().unwrap(), session.owner().unwrap());
    a.lock(b"x", S).unwrap();
    // Dropped before the first poll: it requests nothing.
    drop(b.lock_async(b"x", X));
    assert_eq!((b.held(), session.stats().waits), (Ok(0), 0));
    // Dropped while it waits.
    let mut future = b.lock_async(b"x", X);
    assert!(poll(&mut future).is_pending());
    assert_eq!(c.try_lock(b"x", S), Err(Error::NotGranted));
    assert_eq!(b.try_lock(b"y", S), Err(Error::Waiting));
    assert_eq!(poll(&mut b.lock_async(b"y", S)), Poll::Ready(Err(Error::Waiting)));
    drop(future);
    assert_eq!((b.held(), c.try_lock(b"x", S)), (Ok(0), Ok(())));
    c.release_all().unwrap();
    // Dropped after it was granted, before it was polled.
    let mut future = b.lock_async(b"x", X);
    assert!(poll(&mut future).is_pending());
    a.release_all().unwrap();
    assert_eq!(c.try_lock(b"x", S), Err(Error::NotGranted));
    drop(future);
    assert_eq!((b.held(), c.try_lock(b"x", S)), (Ok(0), Ok(())));
    // The same for a conversion: the lock stays held in its old mode.
    b.lock(b"x", S).unwrap();
    let mut future = b.lock_async(b"x", X);
    assert!(poll(&mut future).is_pending());
    c.release_all().unwrap();
    drop(future);
    assert_eq!((b.holds(b"x"), c.try_lock(b"x", S)), (Ok(Some((S, 1))), Ok(())));
    // Dropped after it was refused, before it was polled.
    let mut future = b.lock_async(b"x", X);
    assert!(poll(&mut future).is_pending());
    session.kill(b.id()).unwrap();
    drop(future);
    assert_eq!(b.holds(b"x"), Ok(Some((S, 1))));
    // Dropped after completion: the lock stays held.
    let mut future = c.lock_async(b"z", X);
    assert_eq!(poll(&mut future), Poll::Ready(Ok(())));
    drop(future);
    assert_eq!(c.holds(b"z"), Ok(Some((X, 1))));
    drop((a, b, c));
    drop(session);
    nothing_is_left(&manager);
}

#[test]
fn a_deadlock_of_futures_has_one_victim() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (n, victims) = (10, std::cell::RefCell::new(Vec::new()));
    let name = |at: usize| format!("object {}", at % n).into_bytes();
    let task = |me: usize| {
        let (session, victims, name) = (&session, &victims, &name);
        let task: Task<'_> = Box::pin(async move {
            let options = OwnerOptions { age: Some(me as u64 + 1), ..Default::default() };
            let owner = session.owner_with(&options).unwrap();
            owner.lock_async(&name(me), X).await.unwrap();
            pause().await;
            match owner.lock_async(&name(me + 1), X).await {
                Ok(()) => {}
                Err(Error::Deadlock(cycle)) => {
                    assert_eq!((cycle.len(), cycle[0].owner), (n, owner.id()));
                    victims.borrow_mut().push(me);
                }
                Err(error) => panic!("{error}"),
            }
        });
        Some(task)
    };
    join((0..n).map(task).collect());
    assert_eq!(*victims.borrow(), [n - 1]);
    drop(session);
    nothing_is_left(&manager);
}

#[test]
fn futures_end_as_other_waits_do() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    a.lock(b"x", X).unwrap();
    let soon = Wait::Until(Deadline::after::<Native>(Duration::from_millis(5)));
    assert_eq!(block_on(b.lock_async_with(b"x", S, soon)), Err(Error::TimedOut));
    assert_eq!(block_on(b.lock_async_with(b"x", S, Wait::Never)), Err(Error::NotGranted));
    assert_eq!(block_on(b.lock_async_with(b"x", S, Wait::Die)), Err(Error::Died(a.id())));
    assert_eq!(block_on(b.lock_async(b"", S)), Err(Error::Name(0)));
    assert_eq!(b.held(), Ok(0));
    std::thread::scope(|scope| {
        let (manager, id) = (&manager, b.id());
        scope.spawn(move || {
            let session = manager.session().unwrap();
            while session.totals().unwrap().waiting == 0 {
                std::thread::yield_now();
            }
            session.kill(id).unwrap();
        });
        let end = block_on(b.lock_async(b"x", S));
        assert_eq!(end, Err(Error::Aborted(Reason::Killed)));
    });
    drop(b);
    // The thread that calls wakers has ended by now and is started again.
    std::thread::sleep(Duration::from_millis(200));
    let c = session.owner().unwrap();
    let soon = Wait::Until(Deadline::after::<Native>(Duration::from_millis(5)));
    assert_eq!(block_on(c.lock_async_with(b"x", S, soon)), Err(Error::TimedOut));
    drop((a, c));
    drop(session);
    nothing_is_left(&manager);
}

fn open(path: &std::path::Path) -> Manager<Shared> {
    let options = latchwork_region::Options { limit: 1 << 30, ..Default::default() };
    let region = Region::<Shared>::open_or_create(path, &options).unwrap();
    Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap()
}

/// The child process: waits for `x` as a future, concurrently with others, and then holds it until
/// the process is killed, or unlocks it.
#[test]
fn child() {
    let Ok(path) = std::env::var("LOCKMGR_REGION") else { return };
    let manager = open(&PathBuf::from(path));
    let step = std::env::var("LOCKMGR_STEP").unwrap_or_default();
    if step == "notifiers made" {
        set_point_hook(die_at_notifications);
    }
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let first: Task<'_> = Box::pin(async {
        owner.lock_async(b"x", X).await.unwrap();
        owner.lock_async(b"done", X).await.unwrap();
    });
    let second: Task<'_> = Box::pin(async {
        other.lock_async(b"y", X).await.unwrap();
    });
    join(vec![Some(first), Some(second)]);
    if step == "hold" {
        loop {
            std::thread::park();
        }
    }
}

fn die_at_notifications(step: &'static str) {
    if step == "notifiers made" {
        // SAFETY: signals this very process.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
}

fn start(path: &std::path::Path, step: &str) -> Child {
    let mut command = latchwork_check::again(module_path!(), "child");
    command
        .env("LOCKMGR_REGION", path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    command.env("LOCKMGR_STEP", step);
    command.spawn().unwrap()
}

#[test]
fn processes_wake_each_others_tasks() {
    let path = std::env::temp_dir().join(format!("lockmgr-async-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let manager = open(&path);
    let session = manager.session().unwrap();
    for hold in [false, true] {
        let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
        a.lock(b"x", X).unwrap();
        b.lock(b"y", X).unwrap();
        let mut peer = start(&path, if hold { "hold" } else { "" });
        let waiting = |n| {
            while session.totals().unwrap().waiting != n {
                std::thread::yield_now();
            }
        };
        waiting(2);
        a.release_all().unwrap();
        waiting(1);
        // Tasks of this process wait for the other process, which then ends or is killed.
        b.release_all().unwrap();
        if hold {
            waiting(0);
            while a.try_lock(b"done", S) != Err(Error::NotGranted) {
                a.release_all().unwrap();
            }
            let mut future = a.lock_async(b"x", X);
            assert!(poll(&mut future).is_pending());
            peer.kill().unwrap();
            assert_eq!(block_on(future), Ok(()));
            peer.wait().unwrap();
        } else {
            assert_eq!(block_on(a.lock_async(b"x", X)), Ok(()));
            assert!(peer.wait().unwrap().success());
        }
        assert_eq!(b.request(b"y", X, Wait::Detect), Ok(Step::Granted));
    }
    session.sweep().unwrap();
    let totals = session.totals().unwrap();
    assert_eq!((totals.objects, totals.requests, totals.owners), (0, 0, 0));
    drop(session);
    assert!(manager.region().audit().unwrap().is_sound());
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_process_that_dies_waiting_leaves_nothing() {
    let path = std::env::temp_dir().join(format!("lockmgr-async-dies-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let manager = open(&path);
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    owner.lock(b"x", X).unwrap();
    owner.lock(b"y", X).unwrap();
    assert_eq!(start(&path, "notifiers made").wait().unwrap().code(), None);
    assert_eq!(session.sweep(), Ok(1));
    let mut peer = start(&path, "");
    while session.totals().unwrap().waiting != 2 {
        std::thread::yield_now();
    }
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert_eq!(session.sweep(), Ok(1));
    let totals = session.totals().unwrap();
    assert_eq!((totals.requests, totals.owners), (2, 1));
    // The notifiers exist once, among all cells of their size in use.
    let blocks = latchwork_check::left::blocks(&manager);
    let mut future = owner.lock_async(b"x", X);
    assert_eq!(poll(&mut future), Poll::Ready(Ok(())));
    drop(future);
    drop(owner);
    drop(session);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound());
    assert_eq!(audit.of(65_472).used, blocks + 1);
    let _ = std::fs::remove_file(&path);
}

thread_local! {
    static RUNG: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[test]
fn the_notifier_is_used_for_tasks_only() {
    set_point_hook(|step| {
        if step == "about to notify" {
            RUNG.with(|rung| rung.set(rung.get() + 1));
        }
    });
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    for round in 0..4 {
        a.lock(b"x", X).unwrap();
        assert_eq!(b.request(b"x", X, Wait::Detect), Ok(Step::Waiting));
        a.release_all().unwrap();
        assert_eq!(b.poll(), Ok(Some(Ok(()))));
        b.release_all().unwrap();
        assert_eq!(RUNG.get(), round);
        a.lock(b"x", X).unwrap();
        let mut future = b.lock_async(b"x", X);
        assert!(poll(&mut future).is_pending());
        a.release_all().unwrap();
        assert_eq!(RUNG.get(), round + 1);
        assert_eq!(poll(&mut future), Poll::Ready(Ok(())));
        drop(future);
        b.release_all().unwrap();
    }
}

/// A waker that sends a message, or that belongs to a runtime that has ended.
struct Told(Option<std::sync::mpsc::SyncSender<()>>);

impl std::task::Wake for Told {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.as_ref().expect("the runtime is gone").send(()).unwrap();
    }
}

#[test]
fn a_panicking_waker_does_not_keep_others_asleep() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    // The wakers are called in any order.
    for _ in 0..20 {
        let owners = [(); 4].map(|()| session.owner().unwrap());
        let (holder, waiters) = owners.split_first().unwrap();
        holder.lock(b"x", X).unwrap();
        let (tell, told) = std::sync::mpsc::sync_channel(8);
        let mut futures: Vec<_> =
            waiters.iter().map(|owner| Box::pin(owner.lock_async(b"x", S))).collect();
        for (future, tell) in futures.iter_mut().zip([None, Some(tell), None]) {
            let waker = std::task::Waker::from(std::sync::Arc::new(Told(tell)));
            let mut context = std::task::Context::from_waker(&waker);
            assert!(Future::poll(future.as_mut(), &mut context).is_pending());
        }
        holder.unlock(b"x").unwrap();
        told.recv_timeout(Duration::from_secs(30)).expect("a granted future was not woken");
    }
}
