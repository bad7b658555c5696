//! The optimistic latch under loom.

mod pair;

use std::sync::Arc;

use latchwork_check::Loom;
use latchwork_check::loom_machine::{explore, objects};
use latchwork_latch::{HolderNumber, OptLatch};
use latchwork_machine::{Clock, Deadline};
use loom::thread;

use pair::{Fenceless, Me, Pair, Patient, Strict, number};

/// Preemptions in models of two threads, and of three.
const TWO: usize = 3;
const THREE: usize = 2;

const NOW: Deadline = Deadline { clock: Clock::Monotonic, at: 0 };

/// Runs the closures in threads and the last one in the first thread; then checks the result.
///
/// Readers are never the first thread: it runs first, and a writer's own load of the word then
/// hides theirs from loom, which only remembers the last access.
macro_rules! threads {
    ($pair:ident: $($other:expr),*; $first:expr) => {{
        let others = [$({
            let $pair = $pair.clone();
            thread::spawn(move || { let _ = $other; })
        }),*];
        let _ = $first;
        for other in others {
            other.join().unwrap();
        }
        assert!($pair.latch.holder().is_none());
    }};
}

fn writers<H: Me>(name: &str) {
    explore(name, TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.write(&H::new(2)); p.write(&H::new(1)));
        assert_eq!(p.get(), 2);
    });
    explore(name, TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: (p.write(&H::new(2)), p.write(&H::new(2))); p.write(&H::new(1)));
        assert_eq!(p.get(), 3);
    });
    explore(name, 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.write(&H::new(2)), p.write(&H::new(3)); p.write(&H::new(1)));
        assert_eq!(p.get(), 3);
    });
}

#[test]
fn loom_writers_exclude_each_other() {
    writers::<Patient>("writers");
}

#[test]
fn loom_writers_hand_over_to_each_other() {
    writers::<Strict>("writers, strict");
}

#[test]
fn loom_readers_see_one_state() {
    explore("readers", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.try_read(); p.write(&Patient::new(1)));
    });
    explore("readers, two writes", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.try_read(); (p.write(&Patient::new(1)), p.write(&Patient::new(1))));
    });
    explore("readers, two writers", THREE, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.try_read(), p.write(&Patient::new(3)); p.write(&Patient::new(1)));
    });
}

/// Readers of a latch that is handed from writer to writer without being free in between.
#[test]
fn loom_readers_see_one_state_during_a_hand_over() {
    explore("handed over", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let held = p.latch.try_lock(pair::FIRST).unwrap();
        let (one, other) = (p.clone(), p.clone());
        let writer = thread::spawn(move || one.write(&Strict::new(2)));
        let reader = thread::spawn(move || other.try_read());
        p.add();
        drop(held);
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(p.get(), 2);
    });
}

fn sleepers<H: Me>(name: &str) {
    explore(name, TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.read(&H::new(2)); p.write(&H::new(1)));
    });
    explore(name, 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.read(&H::new(2)), p.write(&H::new(3)); p.write(&H::new(1)));
    });
    explore(name, 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.read(&H::new(2)), p.read(&H::new(3)); p.write(&H::new(1)));
    });
}

#[test]
fn loom_readers_that_sleep_are_called() {
    sleepers::<Patient>("sleepers");
    sleepers::<Strict>("sleepers, strict");
}

fn sharers<H: Me>(name: &str) {
    explore(name, TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.share(&H::new(2)); p.write(&H::new(1)));
    });
    explore(name, 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.share(&H::new(2)), p.share(&H::new(3)); p.write(&H::new(1)));
    });
}

#[test]
fn loom_a_share_keeps_writers_out() {
    sharers::<Patient>("sharers");
    sharers::<Strict>("sharers, strict");
}

/// A reader reads while another thread shares: it neither waits nor fails.
#[test]
fn loom_a_share_does_not_block_readers() {
    explore("beside a share", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let (one, other) = (p.clone(), p.clone());
        let sharer = thread::spawn(move || one.share(&Patient::new(2)));
        let reader = thread::spawn(move || assert!(other.try_read(), "the read failed"));
        sharer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn loom_an_upgrade_keeps_the_state_that_was_read() {
    explore("upgrade", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let other = p.clone();
        let thread = thread::spawn(move || other.upgrade(&Patient::new(2)));
        let here = p.upgrade(&Patient::new(1));
        let there = thread.join().unwrap();
        assert_eq!(p.get(), u64::from(here) + u64::from(there));
        assert!(here || there, "both failed");
    });
    explore("upgrade beside a waiter", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let other = p.clone();
        let thread = thread::spawn(move || other.write(&Patient::new(2)));
        let here = p.upgrade(&Patient::new(1));
        thread.join().unwrap();
        assert_eq!(p.get(), 1 + u64::from(here));
    });
}

/// A sharer's reads come before the changes of a later upgrade.
#[test]
fn loom_a_sharers_reads_come_before_an_upgrade() {
    explore("sharer, then upgrade", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let other = p.clone();
        let thread = thread::spawn(move || other.share(&Patient::new(2)));
        p.upgrade(&Patient::new(1));
        thread.join().unwrap();
    });
}

/// A share that becomes exclusive excludes writers and other sharers, and readers detect the
/// change.
#[test]
fn loom_a_share_becomes_exclusive() {
    explore("share, then exclusive, beside a writer", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.write(&Patient::new(2)); p.share_and_add(&Patient::new(1)));
        assert_eq!(p.get(), 2);
    });
    explore("two shares that become exclusive", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.share_and_add(&Patient::new(2)); p.share_and_add(&Patient::new(1)));
        assert_eq!(p.get(), 2);
    });
    explore("share, then exclusive, beside a reader", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.try_read(); p.share_and_add(&Patient::new(1)));
    });
}

/// Two writers sleep while a third holds the latch: each is called once.
#[test]
fn loom_three_writers_are_all_called() {
    explore("all called", 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        let held = p.latch.try_lock(pair::FIRST).unwrap();
        let (one, other) = (p.clone(), p.clone());
        let first = thread::spawn(move || one.write(&Patient::new(2)));
        let second = thread::spawn(move || other.write(&Patient::new(3)));
        drop(held);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(p.get(), 2);
    });
}

#[test]
fn loom_a_writer_without_changes_does_not_disturb_readers() {
    explore("unchanged", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let before = p.latch.try_read().unwrap();
        let other = p.clone();
        let thread = thread::spawn(move || other.look(&Patient::new(2)));
        p.look(&Patient::new(1));
        thread.join().unwrap();
        assert!(p.latch.validate(before));
    });
    explore("unchanged beside a writer", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.look(&Patient::new(2)); p.write(&Patient::new(1)));
        assert_eq!(p.get(), 1);
    });
}

fn timed<H: Me>(name: &str) {
    explore(name, TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.write_until(&H::new(2), NOW); p.write(&H::new(1)));
    });
    explore(name, 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.write_until(&H::new(2), NOW), p.write(&H::new(3)); p.write(&H::new(1)));
    });
    explore(name, 1, || {
        let p = Arc::new(Pair::<Loom>::default());
        threads!(p: p.share_until(&H::new(2), NOW), p.write(&H::new(3)); p.write(&H::new(1)));
    });
}

/// A waiter may give up at every point without losing another thread's call.
#[test]
fn loom_waiters_that_give_up_pass_the_call_on() {
    timed::<Patient>("timed");
    timed::<Strict>("timed, strict");
}

/// Of the threads that find a dead writer one takes over, and the others wait for it.
#[test]
fn loom_one_thread_takes_over_from_a_dead_writer() {
    explore("dead writer", TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let dead = Patient::new(9);
        p.write(&Patient::new(1));
        std::mem::forget(p.latch.try_lock(&dead).unwrap());
        let other = p.clone();
        let thread = thread::spawn(move || other.inherit(number(9), &Patient::new(2)));
        let here = p.inherit(number(9), &Patient::new(1));
        let there = thread.join().unwrap();
        assert_eq!(p.get(), 2);
        assert!(here != there, "exactly one thread must take over");
    });
}

/// The controls: broken latches are detected.
#[test]
fn loom_detects_broken_latches() {
    // No fence on either side.
    assert!(objects(TWO, || {
        let p = Arc::new(Pair::<Fenceless>::default());
        threads!(p: p.try_read(); p.write(&Patient::new(1)));
    }));
    // A writer that makes a change and restores the version.
    assert!(objects(TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let other = p.clone();
        let thread = thread::spawn(move || other.try_read());
        let me = Patient::new(1);
        let held = p.latch.lock(&me).unwrap();
        p.add();
        held.unchanged();
        thread.join().unwrap();
    }));
    // A reader that does not validate.
    assert!(objects(TWO, || {
        let p = Arc::new(Pair::<Loom>::default());
        let other = p.clone();
        let thread = thread::spawn(move || {
            let [a, b] = other.words();
            assert_eq!(a, b);
        });
        p.write(&Patient::new(1));
        thread.join().unwrap();
    }));
}

#[test]
fn a_number_has_fourteen_bits() {
    assert!(HolderNumber::new(0).is_none() && HolderNumber::new(1 << 14).is_none());
    assert_eq!(HolderNumber::new(HolderNumber::MAX).map(HolderNumber::get), Some(16_383));
    let latch = OptLatch::new();
    let me = latchwork_latch::LocalHolder::new(HolderNumber::new(HolderNumber::MAX).unwrap());
    let held = latch.try_lock(&me).unwrap();
    assert_eq!(latch.holder(), HolderNumber::new(HolderNumber::MAX).map(|number| (number, true)));
    let text = format!("{latch:?}");
    assert!(text.contains("exclusive: true") && text.contains("Some(16383)"), "{text}");
    drop(held);
    assert_eq!(latch.try_read().map(|version| version.get()), Some(1));
}
