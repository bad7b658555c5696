//! The condition variable: under loom, then on real threads.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_check::Loom;
use latchwork_check::loom_machine::{explore, objects};
use latchwork_latch::{LwLatch, Outcome, RawCondvar};
use latchwork_machine::{Clock, Deadline, Machine, Native, Waited};
use loom::cell::UnsafeCell;
use loom::thread;

const NOW: Option<Deadline> = Some(Deadline { clock: Clock::Monotonic, at: 0 });
/// Preemptions in models of two threads, and of three.
const TWO: usize = 3;
const THREE: usize = 3;

/// Tokens behind a mutex, and data that is written before a notification without the mutex.
struct Model {
    mutex: loom::sync::Mutex<u32>,
    condvar: RawCondvar<Loom>,
    data: UnsafeCell<u32>,
}

// SAFETY: a notification or the mutex guards the data, and loom fails otherwise.
unsafe impl Sync for Model {}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            mutex: loom::sync::Mutex::new(0),
            condvar: RawCondvar::default(),
            data: UnsafeCell::new(0),
        })
    }

    /// Takes a token, and waits while there is none.
    fn take(&self) {
        let mut tokens = self.mutex.lock().unwrap();
        while *tokens == 0 {
            assert_eq!(self.condvar.wait(|| drop(tokens), None), Outcome::Notified);
            tokens = self.mutex.lock().unwrap();
        }
        *tokens -= 1;
    }

    /// Takes a token, or times out without consuming a notification.
    fn take_until(&self) -> bool {
        let mut tokens = self.mutex.lock().unwrap();
        if *tokens == 0 {
            let outcome = self.condvar.wait(|| drop(tokens), NOW);
            tokens = self.mutex.lock().unwrap();
            if outcome == Outcome::GaveUp {
                return false;
            }
        }
        if *tokens == 0 {
            return false;
        }
        *tokens -= 1;
        true
    }

    /// As `take_until`, by the calls that make up a cancellable wait.
    fn take_cancelled(&self) {
        let tokens = self.mutex.lock().unwrap();
        if *tokens > 0 {
            return;
        }
        let ticket = self.condvar.enqueue();
        drop(tokens);
        if let Some((word, expected)) = self.condvar.sleep_word(&ticket) {
            assert_eq!(expected, word_now(word, expected));
        }
        if self.condvar.cancel(ticket) {
            self.condvar.notify_one();
        }
    }

    /// Adds tokens; unlocks before it notifies, which allows more orders.
    fn add(&self, tokens: u32) {
        *self.mutex.lock().unwrap() += tokens;
    }
}

/// Waits with an expired deadline, as a cancelled waiter does.
fn word_now(word: &<Loom as Machine>::AtomicU32, expected: u32) -> u32 {
    assert!(matches!(Loom::wait(word, expected, NOW), Waited::TimedOut | Waited::Woken));
    expected
}

#[test]
fn loom_notify_one_wakes_the_waiter() {
    explore("one", TWO, || {
        let m = Model::new();
        let other = m.clone();
        let waiter = thread::spawn(move || other.take());
        m.add(1);
        m.condvar.notify_one();
        waiter.join().unwrap();
        m.condvar.settle();
    });
}

#[test]
fn loom_two_signals_wake_two() {
    explore("two signals", THREE, || {
        let m = Model::new();
        let waiters = [(); 2].map(|()| {
            let m = m.clone();
            thread::spawn(move || m.take())
        });
        for _ in 0..2 {
            m.add(1);
            m.condvar.notify_one();
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
        m.condvar.settle();
    });
}

#[test]
fn loom_notify_all_wakes_all() {
    explore("all", THREE, || {
        let m = Model::new();
        let waiters = [(); 2].map(|()| {
            let m = m.clone();
            thread::spawn(move || m.take())
        });
        m.add(2);
        m.condvar.notify_all();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        m.condvar.settle();
    });
}

/// A granted slot belongs to its thread: it may already be in another list when the waker continues
/// with the next one.
#[test]
fn loom_granted_slots_wait_again_at_once() {
    explore("again", THREE, || {
        let m = Model::new();
        let other = m.clone();
        let twice = thread::spawn(move || (other.take(), other.take()));
        let other = m.clone();
        let once = thread::spawn(move || other.take());
        m.add(2);
        m.condvar.notify_all();
        m.add(1);
        m.condvar.notify_all();
        twice.join().unwrap();
        once.join().unwrap();
        m.condvar.settle();
    });
}

/// Writes before a notification are visible after it, without the mutex.
#[test]
fn loom_writes_before_a_notification_are_visible() {
    explore("carries", TWO, || {
        let m = Model::new();
        let ticket = m.condvar.enqueue();
        let other = m.clone();
        let notifier = thread::spawn(move || {
            // SAFETY: loom fails if the waiter reads it now.
            other.data.with_mut(|data| unsafe { *data = 1 });
            assert!(other.condvar.notify_one());
        });
        while let Some((word, expected)) = m.condvar.sleep_word(&ticket) {
            Loom::wait(word, expected, None);
        }
        // SAFETY: loom fails if the notifier may still write it.
        assert_eq!(m.data.with(|data| unsafe { *data }), 1);
        assert_eq!(m.condvar.finish(ticket), Outcome::Notified);
        notifier.join().unwrap();
    });
}

/// A waiter that gives up does not consume a signal that another waiter needs.
#[test]
fn loom_timed_waits_lose_no_signal() {
    explore("timed", THREE, || {
        let m = Model::new();
        let other = m.clone();
        let patient = thread::spawn(move || other.take());
        let other = m.clone();
        let hasty = thread::spawn(move || other.take_until());
        m.add(1);
        m.condvar.notify_one();
        if hasty.join().unwrap() {
            m.add(1);
            m.condvar.notify_one();
        }
        patient.join().unwrap();
        m.condvar.settle();
    });
}

#[test]
fn loom_cancelled_waits_pass_the_signal_on() {
    explore("cancelled", THREE, || {
        let m = Model::new();
        let other = m.clone();
        let patient = thread::spawn(move || other.take());
        let other = m.clone();
        let cancelled = thread::spawn(move || other.take_cancelled());
        m.add(1);
        m.condvar.notify_one();
        cancelled.join().unwrap();
        patient.join().unwrap();
        m.condvar.settle();
    });
}

/// The count of woken waiters is exact: each was notified, or gave up and was not counted.
#[test]
fn loom_counts_are_exact() {
    explore("counts", TWO, || {
        let m = Model::new();
        let ticket = m.condvar.enqueue();
        let other = m.clone();
        let notifier = thread::spawn(move || other.condvar.notify_all());
        let notified = m.condvar.finish(ticket) == Outcome::Notified;
        assert_eq!(notifier.join().unwrap(), usize::from(notified));
        m.condvar.settle();
    });
    explore("counts, one", TWO, || {
        let m = Model::new();
        let ticket = m.condvar.enqueue();
        let other = m.clone();
        let notifier = thread::spawn(move || other.condvar.notify_one());
        let notified = m.condvar.finish(ticket) == Outcome::Notified;
        assert_eq!(notifier.join().unwrap(), notified);
    });
}

/// When `settle` returns, waiters that gave up have finished their accesses, so the memory may be
/// freed.
#[test]
fn loom_settled_condvar_may_be_freed() {
    explore("settle", TWO, || {
        let m = Model::new();
        let other = m.clone();
        let ticket = m.condvar.enqueue();
        let notifier = thread::spawn(move || {
            if other.condvar.notify_all() == 0 {
                other.condvar.settle();
                // SAFETY: loom fails if the waiter may still access it.
                other.data.with_mut(|data| unsafe { *data += 1 });
            }
        });
        // Stands for the last access, before the waiter unlinks itself.
        // SAFETY: loom fails if the notifier may already write it.
        m.data.with(|data| unsafe { *data });
        let _ = m.condvar.finish(ticket);
        notifier.join().unwrap();
    });
}

/// The control: a waiter that unlocks before it enters the list misses the signal.
#[test]
fn loom_detects_a_late_entry() {
    assert!(objects(TWO, || {
        let m = Model::new();
        let other = m.clone();
        let waiter = thread::spawn(move || {
            let tokens = other.mutex.lock().unwrap();
            if *tokens == 0 {
                drop(tokens);
                let _ = other.condvar.wait(|| {}, None);
            }
        });
        m.add(1);
        m.condvar.notify_one();
        waiter.join().unwrap();
    }));
}

/// Producers and consumers. Some consumers time out: no token is lost and every consumer ends.
#[test]
fn stress_tokens() {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    for threads in [2, 2 * cores, 16 * cores] {
        let state = Arc::new((LwLatch::new(), RawCondvar::new(), AtomicU64::new(0)));
        let each = 4_000 / threads as u64;
        let consumers: Vec<_> = (0..threads)
            .map(|i| {
                let state = state.clone();
                std::thread::spawn(move || {
                    let (latch, condvar, tokens) = &*state;
                    let unlock = || {
                        // SAFETY: locked by the caller.
                        unsafe { latch.unlock_exclusive() }
                    };
                    for round in 0..each {
                        latch.lock_exclusive();
                        while tokens.load(Relaxed) == 0 {
                            let soon = (round % 2 == 0).then(|| {
                                Deadline::after::<Native>(Duration::from_micros(i as u64 * 11))
                            });
                            let _ = condvar.wait(unlock, soon);
                            latch.lock_exclusive();
                        }
                        tokens.store(tokens.load(Relaxed) - 1, Relaxed);
                        unlock();
                    }
                })
            })
            .collect();
        let (latch, condvar, tokens) = &*state;
        for round in 0..each * threads as u64 {
            latch.lock_exclusive();
            tokens.store(tokens.load(Relaxed) + 1, Relaxed);
            // SAFETY: locked above.
            unsafe { latch.unlock_exclusive() };
            if round % 5 == 0 {
                condvar.notify_all();
            } else {
                condvar.notify_one();
            }
        }
        // The last notifications may have reached consumers that timed out in between.
        while consumers.iter().any(|consumer| !consumer.is_finished()) {
            condvar.notify_all();
            std::thread::yield_now();
        }
        for consumer in consumers {
            consumer.join().unwrap();
        }
        assert_eq!(tokens.load(Relaxed), 0);
        condvar.settle();
    }
}

/// Waiters are woken in the order of their arrival, each by its own notification.
#[test]
fn fairness_first_come_first_woken() {
    let state = Arc::new((Mutex::new(Vec::new()), RawCondvar::new()));
    let began = Arc::new(AtomicUsize::new(0));
    let waiters: Vec<_> = (0..8)
        .map(|i| {
            let (state, began) = (state.clone(), began.clone());
            while began.load(Relaxed) != i {
                std::thread::yield_now();
            }
            let waiter = std::thread::spawn({
                let began = began.clone();
                move || {
                    let (mutex, condvar) = &*state;
                    let ticket = condvar.enqueue();
                    began.fetch_add(1, Relaxed);
                    while let Some((word, expected)) = condvar.sleep_word(&ticket) {
                        Native::wait(word, expected, None);
                    }
                    assert_eq!(condvar.finish(ticket), Outcome::Notified);
                    mutex.lock().unwrap().push(i);
                }
            });
            while began.load(Relaxed) != i + 1 {
                std::thread::yield_now();
            }
            waiter
        })
        .collect();
    for woken in 1..=waiters.len() {
        assert!(state.1.notify_one());
        while state.0.lock().unwrap().len() != woken {
            std::thread::yield_now();
        }
    }
    assert!(!state.1.notify_one());
    assert_eq!(state.1.notify_all(), 0);
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert!(state.0.lock().unwrap().is_sorted());
}

#[test]
fn timeouts_are_not_early() {
    let condvar = RawCondvar::new();
    let deadline = Deadline::after::<Native>(Duration::from_millis(10));
    assert_eq!(condvar.wait(|| {}, Some(deadline)), Outcome::GaveUp);
    assert!(deadline.passed::<Native>());
    condvar.settle();
}

/// A waiter leaves the list if the unlocking closure panics.
#[test]
fn a_panic_leaves_the_list() {
    let condvar = RawCondvar::new();
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        condvar.wait(|| panic!("as the test wants it"), None)
    }));
    assert!(waited.is_err());
    condvar.settle();
}
