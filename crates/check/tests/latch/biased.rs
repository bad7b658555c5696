//! The biased latch on real threads.

use std::cell::RefCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use latchwork_check::law::{self, Latch};
use latchwork_latch::{Biased, BiasedShare, FetchAdd, LwLatch, RwLatch, ShflRwLock};
use latchwork_machine::{Deadline, Native};

thread_local! {
    static SHARE: RefCell<Vec<BiasedShare>> = const { RefCell::new(Vec::new()) };
}

/// Adapts the latch to the laws: a thread keeps its shares.
#[derive(Default)]
struct Lawful<L: RwLatch>(Biased<L>);

impl<L: RwLatch + 'static> Latch for Lawful<L> {
    fn lock(&self) {
        self.0.lock_exclusive();
    }
    fn unlock(&self) {
        // SAFETY: a law unlocks what it has locked.
        unsafe { self.0.unlock_exclusive() };
    }
    fn share(&self) {
        let share = self.0.lock_shared();
        SHARE.with(|shares| shares.borrow_mut().push(share));
    }
    fn unshare(&self) {
        let share = SHARE.with(|shares| shares.borrow_mut().pop()).expect("a share");
        // SAFETY: a law releases only a share that it has taken.
        unsafe { self.0.unlock_shared(share) };
    }
}

#[test]
fn biased_latches_exclude() {
    for threads in [2, 8] {
        for reads in [5, 9] {
            law::excludes::<Lawful<ShflRwLock>>(threads, 20_000, reads, |_| ()).unwrap();
            law::excludes::<Lawful<LwLatch<FetchAdd>>>(threads, 20_000, reads, |_| ()).unwrap();
        }
    }
}

/// A latch whose bias is open.
fn open() -> Biased<ShflRwLock> {
    let latch = Biased::<ShflRwLock>::default();
    let share = latch.lock_shared();
    assert!(!share.is_biased() && latch.is_open());
    // SAFETY: taken above.
    unsafe { latch.unlock_shared(share) };
    latch
}

#[test]
fn a_thread_may_hold_shares_of_several_latches_and_wait() {
    let latches: Vec<_> = (0..5).map(|_| open()).collect();
    let shares: Vec<_> = latches.iter().map(Biased::lock_shared).collect();
    assert!(shares.iter().all(BiasedShare::is_biased));
    // The wait uses a separate slot.
    let other = ShflRwLock::new();
    other.lock_exclusive();
    let soon = Deadline::after::<Native>(Duration::from_micros(500));
    assert!(!other.lock_shared_until(soon));
    assert!(latches.iter().all(|latch| !latch.try_lock_exclusive()));
    for (latch, share) in latches.iter().zip(shares) {
        // SAFETY: taken above.
        unsafe { latch.unlock_shared(share) };
        assert!(latch.try_lock_exclusive());
    }
}

#[test]
fn a_writer_waits_for_a_reader_that_sleeps() {
    let latch = open();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let share = latch.lock_shared();
        assert!(share.is_biased());
        scope.spawn(|| {
            latch.lock_exclusive();
            assert_eq!(done.load(SeqCst), 1, "the writer did not wait");
            // SAFETY: locked above.
            unsafe { latch.unlock_exclusive() };
        });
        std::thread::sleep(Duration::from_millis(5));
        done.store(1, SeqCst);
        // SAFETY: taken above.
        unsafe { latch.unlock_shared(share) };
    });
}

/// A bias that is closed repeatedly without benefit stays closed for a while.
#[test]
fn a_bias_that_costs_more_than_it_saves_stays_closed_for_a_while() {
    let latch = open();
    latch.lock_exclusive();
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    assert!(!latch.is_open(), "the bias is open although no share was taken");
    // A thousand shares cost more than a closing, so the bias opens at once in an undisturbed
    // round.
    let worth = (0..100).any(|_| {
        while !latch.is_open() {
            let share = latch.lock_shared();
            // SAFETY: taken above.
            unsafe { latch.unlock_shared(share) };
        }
        for _ in 0..100_000 {
            let share = latch.lock_shared();
            // SAFETY: taken above.
            unsafe { latch.unlock_shared(share) };
        }
        latch.lock_exclusive();
        // SAFETY: locked above.
        unsafe { latch.unlock_exclusive() };
        latch.is_open()
    });
    assert!(worth, "the bias never opens at once");
}

/// A thread that ends with a share leaves the latch held.
#[test]
fn a_share_of_an_ended_thread_is_still_held() {
    let latch = open();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _not_unlocked = latch.lock_shared();
        });
    });
    assert!(!latch.try_lock_exclusive());
    // Slots that are assigned afterwards are different ones.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own = open();
                let share = own.lock_shared();
                // SAFETY: taken above.
                unsafe { own.unlock_shared(share) };
            });
        }
    });
    assert!(!latch.try_lock_exclusive());
}
