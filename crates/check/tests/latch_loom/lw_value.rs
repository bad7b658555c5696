//! The shared-exclusive latch under loom: waiting for a release and for a value, and bugs that
//! PostgreSQL had.

use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::loom_machine::explore;
use latchwork_latch::FetchAdd;
use latchwork_machine::Word;
use loom::thread;

use crate::guarded::{Blind, Guarded, THREE, TWO, threads};

#[test]
fn loom_acquire_or_wait_sees_the_holders_writes() {
    fn model(name: &str, preemptions: usize, reads: bool) {
        explore(name, preemptions, move || {
            let g = Guarded::<Blind>::new();
            g.latch.lock_exclusive();
            let other = g.clone();
            let waiter = thread::spawn(move || {
                let acquired = other.latch.acquire_or_wait();
                // No thread writes after the first holder, so reading is no race.
                assert_eq!(other.get(), 1);
                if acquired {
                    // SAFETY: acquired just now.
                    unsafe { other.latch.unlock_exclusive() };
                }
            });
            // It may back out and wake the waiter in place of the holder.
            let other = g.clone();
            let reader = reads.then(|| thread::spawn(move || other.try_read()));
            g.add();
            // SAFETY: locked above.
            unsafe { g.latch.unlock_exclusive() };
            waiter.join().unwrap();
            if let Some(reader) = reader {
                reader.join().unwrap();
            }
            g.is_idle();
        });
    }
    model("acquire or wait", TWO, false);
    model("acquire or wait, beside a reader", 2, true);
}

fn value(name: &str, rival: bool) {
    explore(name, if rival { THREE } else { TWO }, move || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let other = g.clone();
        let waiter = thread::spawn(move || {
            let new = other.latch.wait_for_value(&other.value, 0);
            assert!(matches!(new, None | Some(7)));
            // Written before the value was changed.
            other.get()
        });
        let other = g.clone();
        let writer = rival.then(|| {
            thread::spawn(move || {
                other.latch.lock_exclusive();
                assert_eq!(other.value.load(Relaxed), 0);
                // SAFETY: locked above.
                unsafe { other.latch.unlock_and_clear_value(&other.value) };
            })
        });
        g.add();
        g.latch.update_value(&g.value, 7);
        if rival {
            // SAFETY: locked above.
            unsafe { g.latch.unlock_and_clear_value(&g.value) };
        }
        // Without a rival the waiter must return although the latch is kept.
        assert_eq!(waiter.join().unwrap(), 1);
        if !rival {
            // SAFETY: locked above.
            unsafe { g.latch.unlock_and_clear_value(&g.value) };
        }
        if let Some(writer) = writer {
            writer.join().unwrap();
        }
        g.is_idle();
    });
}

#[test]
fn loom_value_changes_wake_waiters() {
    value("value", false);
}

/// PostgreSQL 7039760114 (2015): the value changed between the check and the queue; the value was
/// not reset for the next holder.
#[test]
fn loom_bug_2015_value_is_reset_at_release() {
    value("value, next holder", true);
}

/// PostgreSQL 82d4b262d9 (2012): behind a waiter for a release at the head, an exclusive waiter is
/// not woken.
#[test]
fn loom_bug_2012_exclusive_behind_wait_until_free() {
    explore("2012", THREE, || {
        let g = Guarded::<FetchAdd>::new();
        threads!(g: g.write(), {
            if g.latch.acquire_or_wait() {
                // SAFETY: acquired just now.
                unsafe { g.latch.unlock_exclusive() };
            }
        }; g.write());
    });
}

/// PostgreSQL e0d97d77bf (2014): a thread queues for a value while a call is under way, so the
/// release does not wake it.
#[test]
fn loom_bug_2014_value_waiter_queues_during_a_call() {
    explore("2014", THREE, || {
        let g = Guarded::<FetchAdd>::new();
        threads!(g: g.write(), g.latch.wait_for_value(&g.value, 0); (g.write(), g.write()));
    });
}

/// PostgreSQL 81f7738953 (2025): the flag for waiters was computed from the wrong list and cleared
/// with waiters left: the third of these threads is not woken.
#[test]
fn loom_bug_2025_waiters_flag_follows_the_latchs_own_list() {
    explore("2025", THREE, || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let holder = |g: &Guarded<FetchAdd>| {
            // SAFETY: locked above, on this thread's behalf.
            unsafe { g.latch.unlock_exclusive() };
        };
        threads!(g: holder(&g), g.write(); g.write());
    });
}
