//! Wakers that do more than set a flag: they poll a task at once, drop it, or panic. The store must
//! hold no lock when it calls them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use latchwork_check::tasks::block_on;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Mode, Store, Table};

use crate::stage::{TABLE, begin};

const ACCOUNTS: Table<u64, u64> = Table::new("accounts");

type Sent = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Fails if `work` takes more than ten seconds.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    if is_done.recv_timeout(Duration::from_secs(10)) != Ok(()) {
        assert!(thread.is_finished(), "it hangs");
        thread.join().unwrap();
    }
}

fn poll(future: &mut Sent, waker: &Waker) -> Poll<()> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

async fn puts(store: Store<Native>, value: u64) {
    store.write_async(|mut tx| async move { tx.put(&ACCOUNTS, 1, value).await }).await.unwrap();
}

struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
        panic!("a waker that panics");
    }
}

#[test]
fn a_panicking_waker_stops_no_other_task() {
    ends(|| {
        let store = begin(&Simulated::new(), Mode::Full).unwrap();
        let panics = Arc::new(Panics(AtomicBool::new(false)));
        // The sync may end before the waker is registered.
        while !panics.0.load(SeqCst) {
            let mut waits: Sent = Box::pin(puts(store.clone(), 1));
            let _ = poll(&mut waits, &Waker::from(panics.clone()));
            std::thread::sleep(Duration::from_millis(5));
        }
        for value in 2..5 {
            block_on(puts(store.clone(), value));
        }
        assert_eq!(store.get(&ACCOUNTS, 1).unwrap(), Some(4));
    });
}

/// A task of an executor that has ended: calling its waker drops it.
#[derive(Default)]
struct Over {
    task: Mutex<Option<Sent>>,
    called: AtomicBool,
}

impl Wake for Over {
    fn wake(self: Arc<Self>) {
        self.called.store(true, SeqCst);
        let task = self.task.lock().unwrap().take();
        drop(task);
    }
}

impl Over {
    /// Polls a task once; after that only its wakers keep it. Returns None if it has ended.
    fn polled(mut task: Sent) -> Option<Arc<Self>> {
        let over = Arc::new(Self::default());
        if poll(&mut task, &Waker::from(over.clone())).is_ready() {
            return None;
        }
        *over.task.lock().unwrap() = Some(task);
        Some(over)
    }
}

#[test]
fn a_waker_may_drop_its_task_in_the_flusher() {
    ends(|| {
        let store = begin(&Simulated::new(), Mode::Full).unwrap();
        loop {
            let over = Over::polled(Box::pin(puts(store.clone(), 1)));
            std::thread::sleep(Duration::from_millis(5));
            if over.is_some_and(|over| over.called.load(SeqCst)) {
                break;
            }
        }
        block_on(puts(store.clone(), 2));
        assert_eq!(store.get(&ACCOUNTS, 1).unwrap(), Some(2));
    });
}

/// Each dropped task passes its admission to the next one, 20,000 times: recursion would overflow
/// the stack.
#[test]
fn wakers_that_drop_their_tasks_pass_turns_on() {
    ends(|| {
        let store = begin(&Simulated::new(), Mode::None).unwrap();
        let all = || (0..12).map(|_| block_on(store.begin_async()).unwrap()).collect::<Vec<_>>();
        let held = all();
        for _ in 0..20_000 {
            assert!(Over::polled(Box::pin(puts(store.clone(), 1))).is_some());
        }
        drop(held);
        drop(all());
        assert_eq!(store.get(&ACCOUNTS, 1).unwrap(), None);
    });
}

/// A task that its waker polls.
struct Inline(Mutex<Option<Sent>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let Some(mut task) = self.0.lock().unwrap().take() else { return };
        if poll(&mut task, &Waker::from(self.clone())).is_pending() {
            *self.0.lock().unwrap() = Some(task);
        }
    }
}

#[test]
fn the_flusher_may_drop_the_last_handle_of_a_store() {
    ends(|| {
        for _ in 0..20 {
            let store = begin(&Simulated::new(), Mode::Full).unwrap();
            let (done, is_done) = channel();
            let task: Sent = Box::pin(async move {
                for value in 0..5 {
                    puts(store.clone(), value).await;
                }
                drop(store);
                done.send(()).unwrap();
            });
            let task = Arc::new(Inline(Mutex::new(Some(task))));
            // It may be called while it is polled, so it is called again.
            while is_done.try_recv().is_err() {
                task.clone().wake();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

/// The waker of a waiting lock request is the last owner of a task in which another request waits.
#[test]
fn a_waker_that_keeps_a_task_is_dropped() {
    ends(|| {
        let store = begin(&Simulated::new(), Mode::None).unwrap();
        let mut holder = store.begin().unwrap();
        holder.put(&TABLE, b"k", b"holder").unwrap();
        holder.put(&TABLE, b"l", b"holder").unwrap();
        let waits = |key: &'static [u8]| -> Sent {
            let store = store.clone();
            Box::pin(async move {
                let put =
                    store.write_async(|mut tx| async move { tx.put(&TABLE, key, b"x").await });
                put.await.unwrap();
            })
        };
        for polled_again in [true, false] {
            let (mut one, mut other) = (waits(b"k"), waits(b"l"));
            assert!(poll(&mut other, Waker::noop()).is_pending());
            let keeps = Arc::new(Over { task: Mutex::new(Some(other)), ..Over::default() });
            assert!(poll(&mut one, &Waker::from(keeps)).is_pending());
            if polled_again {
                assert!(poll(&mut one, Waker::noop()).is_pending());
            }
            drop(one);
        }
        holder.commit().unwrap();
        let counts = store.counts().unwrap();
        assert_eq!((counts.locks, counts.transactions), (0, 0));
    });
}
