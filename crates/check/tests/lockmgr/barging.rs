//! A released lock is free until the waiter that was called has taken it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use latchwork_lockmgr::granular::{S, X};
use latchwork_lockmgr::{Error, Manager, Options, Owner, Step, Wait, granular};
use latchwork_region::Region;

const NAME: &[u8] = b"the one";

fn manager(barge_for: Duration) -> Manager {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let options = Options {
        detect_after: Duration::from_secs(3600),
        barge_for,
        ..latchwork_check::early::early()
    };
    Manager::new(region, granular::modes(), options).unwrap()
}

fn asks(owner: &Owner<'_>, mode: latchwork_lockmgr::Mode) -> Step {
    owner.request(NAME, mode, Wait::Detect).unwrap()
}

const LONG: Duration = Duration::from_secs(3600);

/// A waker that sends a message when it is called.
struct Says(Sender<()>);

impl Wake for Says {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn says() -> (Waker, Receiver<()>) {
    let (sender, receiver) = channel();
    (Waker::from(Arc::new(Says(sender))), receiver)
}

#[test]
fn a_request_passes_a_called_waiter_only_with_the_option() {
    for (barge_for, passes) in [(Duration::ZERO, false), (LONG, true)] {
        let manager = manager(barge_for);
        let session = manager.session().unwrap();
        let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
        one.lock(NAME, X).unwrap();
        assert_eq!(asks(&two, X), Step::Waiting);
        one.release_all().unwrap();
        assert_eq!(asks(&three, X) == Step::Granted, passes);
        if passes {
            assert_eq!(two.poll(), Ok(None), "the waiter came too late and waits again");
            assert_eq!(asks(&one, X), Step::Waiting, "the request must queue behind the waiter");
            three.release_all().unwrap();
            assert_eq!(one.poll(), Ok(None), "the waiter was called too early");
        }
        assert_eq!(two.poll(), Ok(Some(Ok(()))));
        assert_eq!(session.totals().unwrap().waiting, 1);
    }
}

#[test]
fn readers_are_granted_the_lock_at_once() {
    let manager = manager(LONG);
    let session = manager.session().unwrap();
    let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
    one.lock(NAME, X).unwrap();
    assert_eq!((asks(&two, S), asks(&three, S)), (Step::Waiting, Step::Waiting));
    one.release_all().unwrap();
    assert_eq!(one.lock_with(NAME, X, Wait::Never), Err(Error::NotGranted));
    assert_eq!((two.poll(), three.poll()), (Ok(Some(Ok(()))), Ok(Some(Ok(())))));
}

#[test]
fn aborted_owners_and_readers_pass_no_called_waiter() {
    let manager = manager(LONG);
    let session = manager.session().unwrap();
    let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
    one.lock(NAME, X).unwrap();
    assert_eq!(asks(&two, X), Step::Waiting);
    one.release_all_in_turn().unwrap();
    assert_eq!(asks(&one, X), Step::Waiting);
    assert_eq!(two.poll(), Ok(Some(Ok(()))));
    two.release_all().unwrap();
    assert_eq!(asks(&three, S), Step::Waiting, "the request must queue behind the called waiter");
    assert_eq!(one.poll(), Ok(Some(Ok(()))));
}

#[test]
fn a_waiter_that_has_waited_long_is_granted_the_lock() {
    let manager = manager(Duration::from_nanos(1));
    let session = manager.session().unwrap();
    let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
    one.lock(NAME, X).unwrap();
    assert_eq!(asks(&two, X), Step::Waiting);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(10) {}
    one.release_all().unwrap();
    assert_eq!(asks(&three, X), Step::Waiting);
    assert_eq!(two.poll(), Ok(Some(Ok(()))));
}

#[test]
fn the_next_waiter_is_called_after_a_called_one_gives_up() {
    let manager = manager(LONG);
    let session = manager.session().unwrap();
    let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
    one.lock(NAME, X).unwrap();
    assert_eq!((asks(&two, X), asks(&three, X)), (Step::Waiting, Step::Waiting));
    one.release_all().unwrap();
    assert_eq!(two.cancel(), Ok(true));
    assert_eq!(three.poll(), Ok(Some(Ok(()))));
}

#[test]
fn a_called_future_is_woken() {
    let manager = manager(LONG);
    let session = manager.session().unwrap();
    let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
    let (waker, woken) = says();
    // Without a call the task would poll after an hour: see `detect_after`.
    let comes = || woken.recv_timeout(Duration::from_secs(60)).expect("the waker is called");
    one.lock(NAME, X).unwrap();
    let mut future = Box::pin(two.lock_async(NAME, X));
    let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    one.release_all().unwrap();
    comes();
    assert_eq!(asks(&three, X), Step::Granted);
    assert!(poll().is_pending(), "the task came too late and waits again");
    three.release_all().unwrap();
    comes();
    assert_eq!(poll(), Poll::Ready(Ok(())));
}

#[test]
fn all_threads_get_the_lock() {
    for barge_for in [Duration::from_micros(50), LONG] {
        let manager = manager(barge_for);
        let count = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let session = manager.session().unwrap();
                    for _ in 0..2000 {
                        let owner = session.owner().unwrap();
                        owner.lock(NAME, X).unwrap();
                        // Not an atomic increment: the lock must exclude other threads.
                        count.store(count.load(Relaxed) + 1, Relaxed);
                        owner.release_all().unwrap();
                    }
                });
            }
        });
        assert_eq!(count.load(Relaxed), 16_000);
    }
}
