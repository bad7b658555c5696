//! Owners that share ownership of their manager: they are stored, sent to other threads, renewed,
//! and so are futures of their requests.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use latchwork_lockmgr::granular::{self, IX, S, X};
use latchwork_lockmgr::{Error, KeyRange, Manager, OwnerOptions, RangeKind, StoredOwner, Wait};
use latchwork_machine::Deadline;
use latchwork_machine::Native;

/// The state of a connection in a server.
struct Connection {
    owner: StoredOwner,
    rows: usize,
}

fn manager() -> Manager {
    latchwork_check::early::private(granular::modes()).unwrap()
}

fn stored(manager: &Manager) -> StoredOwner {
    manager.stored_owner(&OwnerOptions::default()).unwrap()
}

#[test]
fn a_stored_owner_is_sent_with_its_locks() {
    let manager = manager();
    let mut connection = Connection { owner: stored(&manager), rows: 0 };
    connection.owner.get().lock(b"table", IX).unwrap();
    for turn in 0..4usize {
        let work = move || {
            let name = format!("row {turn}");
            connection.owner.get().lock(name.as_bytes(), X).unwrap();
            connection.rows += 1;
            connection
        };
        connection = thread::spawn(work).join().unwrap();
    }
    assert_eq!((connection.rows, connection.owner.get().held()), (4, Ok(5)));
    let other = stored(&manager);
    assert_eq!(other.get().try_lock(b"row 3", X), Err(Error::NotGranted));
    drop(connection);
    assert_eq!(other.get().try_lock(b"row 3", X), Ok(()));
    assert_eq!(other.get().try_lock(b"table", X), Ok(()));
}

#[test]
fn a_stored_owner_outlives_its_manager_and_is_renewed() {
    let manager = manager();
    let mut owner = stored(&manager);
    let other = stored(&manager);
    drop(manager);
    let first = owner.get().id();
    owner.get().lock(b"row", X).unwrap();
    owner.renew(&OwnerOptions { label: "next", ..OwnerOptions::default() }).unwrap();
    assert_ne!(owner.get().id(), first);
    assert_eq!(owner.get().held(), Ok(0));
    assert_eq!(other.get().try_lock(b"row", X), Ok(()));
    let label = |row: &latchwork_lockmgr::LockInfo| row.owner == other.get().id();
    assert_eq!(owner.session().snapshot().unwrap().iter().filter(|row| label(row)).count(), 1);
}

#[test]
fn stored_owners_return_their_slots() {
    let manager = manager();
    let kept = stored(&manager);
    for _ in 0..5000 {
        let owner = stored(&manager);
        owner.get().lock(b"row", X).unwrap();
    }
    assert_eq!(kept.get().try_lock(b"row", X), Ok(()));
    assert_eq!(kept.session().totals().unwrap().owners, 1);
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls once here, and then in another thread until it ends.
fn moved<F: Future + Send>(future: F, between: impl FnOnce()) -> F::Output
where
    F::Output: Send,
{
    let mut future = Box::pin(future);
    let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending(), "the future should wait");
    thread::scope(|scope| {
        let ended = scope.spawn(move || {
            let waker = Waker::from(Arc::new(Unpark(thread::current())));
            let mut future = pin!(future);
            loop {
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(end) => return end,
                    Poll::Pending => thread::park_timeout(Duration::from_secs(10)),
                }
            }
        });
        between();
        ended.join().unwrap()
    })
}

#[test]
fn a_future_is_polled_by_one_thread_and_then_by_another() {
    let manager = manager();
    let (holder, mut waiter) = (stored(&manager), stored(&manager));
    holder.get().lock(b"row", X).unwrap();
    let end = moved(waiter.lock_async(b"row", S, Wait::Detect), || {
        holder.get().unlock(b"row").unwrap();
    });
    assert_eq!(end, Ok(()));
    assert_eq!(waiter.get().holds(b"row"), Ok(Some((S, 1))));
    assert_eq!(holder.get().try_lock(b"row", X), Err(Error::NotGranted));
    let soon = Wait::Until(Deadline::after::<Native>(Duration::from_millis(20)));
    let mut late = stored(&manager);
    assert_eq!(moved(late.lock_async(b"row", X, soon), || {}), Err(Error::TimedOut));
    assert_eq!(late.get().held(), Ok(0));
}

#[test]
fn a_range_is_awaited_by_one_thread_and_then_by_another() {
    let manager = manager();
    let (holder, mut waiter) = (stored(&manager), stored(&manager));
    let range = KeyRange::half_open(b"a", b"m");
    let kind = RangeKind::WriteNext;
    holder.get().lock_range(b"orders", range, kind, Wait::Detect).unwrap();
    let insert =
        waiter.lock_range_async(b"orders", KeyRange::key(b"c"), RangeKind::Insert, Wait::Detect);
    let end = moved(insert, || holder.get().unlock_range(b"orders", range, kind).unwrap());
    assert_eq!(end, Ok(()));
    drop(waiter);
    assert_eq!(holder.get().try_lock_range(b"orders", range, kind), Ok(()));
}
