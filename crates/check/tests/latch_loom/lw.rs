//! The shared-exclusive latch under loom: locking and giving up.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use latchwork_check::Loom;
use latchwork_check::loom_machine::{explore, objects};
use latchwork_latch::{Attempt, CompareExchange, FetchAdd, ReadersFirst, WritersFirst};
use latchwork_machine::{Machine, Word, status};
use loom::thread;

use crate::guarded::{Blind, Guarded, Strict, THREE, TWO, threads};

fn writers<A: Attempt>(name: &str) {
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write(); g.write());
        assert_eq!(g.get(), 2);
    });
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: (g.write(), g.write()); g.write());
        assert_eq!(g.get(), 3);
    });
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write(), g.write(); g.write());
        assert_eq!(g.get(), 3);
    });
}

#[test]
fn loom_writers_exclude_each_other() {
    writers::<FetchAdd>("writers, add");
    writers::<CompareExchange>("writers, exchange");
    writers::<Strict<FetchAdd>>("writers, strict");
}

fn reader<A: Attempt>(name: &str) {
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read(); g.write());
        assert_eq!(g.get(), 1);
    });
}

fn readers<A: Attempt>(name: &str) {
    reader::<A>(name);
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read(), g.read(); g.write());
        assert_eq!(g.get(), 1);
    });
}

#[test]
#[ignore = "long"]
fn loom_readers_first_or_last_exclude_a_writer_long() {
    readers::<ReadersFirst>("readers, readers first");
    readers::<WritersFirst>("readers, writers first");
}

#[test]
fn loom_readers_exclude_a_writer() {
    readers::<FetchAdd>("readers, add");
    readers::<CompareExchange>("readers, exchange");
    readers::<Strict<FetchAdd>>("readers, strict");
    reader::<ReadersFirst>("readers, readers first");
    reader::<WritersFirst>("readers, writers first");
}

/// The second race of the founding mail: a reader that backs out has made a writer fail, and the
/// holder's release saw the reader and woke no thread.
#[test]
fn loom_reader_that_backs_out_wakes_the_writer() {
    explore("backing out", 2, || {
        let g = Guarded::<Blind>::new();
        g.latch.lock_exclusive();
        let (one, other) = (g.clone(), g.clone());
        let reader = thread::spawn(move || one.try_read());
        let writer = thread::spawn(move || other.write());
        g.add();
        // SAFETY: locked above.
        unsafe { g.latch.unlock_exclusive() };
        reader.join().unwrap();
        writer.join().unwrap();
        g.is_idle();
    });
}

/// A try that fails because of a reader that backs out succeeds later.
#[test]
fn loom_try_exclusive_succeeds_in_the_end() {
    explore("try", TWO, || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let other = g.clone();
        let reader = thread::spawn(move || other.latch.try_lock_shared());
        // SAFETY: locked above.
        unsafe { g.latch.unlock_exclusive() };
        let early = g.latch.try_lock_exclusive();
        let shared = reader.join().unwrap();
        if !early {
            assert_eq!(g.latch.try_lock_exclusive(), !shared);
        }
    });
}

#[test]
fn loom_starved_waiters_stop_newcomers() {
    explore("starved writer", THREE, || {
        let g = Guarded::<Strict<FetchAdd>>::new();
        threads!(g: (g.read(), g.read()), g.write(); g.read());
    });
    explore("starved reader", 2, || {
        let g = Guarded::<Strict<CompareExchange>>::new();
        threads!(g: g.read(); (g.write(), g.write(), g.write()));
    });
}

fn timed<A: Attempt>(name: &str) {
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write_until(); g.write());
    });
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read_until(); g.write());
    });
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: (g.write(), g.write()); g.write_until());
    });
}

fn timed_among_three<A: Attempt>(name: &str) {
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write_until(), g.write(); g.read());
    });
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read_until(), g.write(); g.write());
    });
}

/// A waiter may give up at every point without losing another thread's wake-up.
#[test]
fn loom_waiters_that_give_up_pass_the_call_on() {
    timed::<FetchAdd>("timed, add");
    timed::<CompareExchange>("timed, exchange");
    timed::<Strict<FetchAdd>>("timed, strict");
    timed::<ReadersFirst>("timed, readers first");
    timed::<WritersFirst>("timed, writers first");
    timed_among_three::<FetchAdd>("timed among three");
}

/// A writer that gives up at the head of the list lets the readers behind it share with the holder.
#[test]
fn loom_writer_that_gives_up_blocks_no_reader() {
    explore("gives up", THREE, || {
        let g = Guarded::<Strict<FetchAdd>>::new();
        g.latch.lock_shared();
        let inside = Arc::new(loom::sync::Notify::new());
        let other = g.clone();
        let writer = thread::spawn(move || assert!(!other.write_until()));
        let (other, told) = (g.clone(), inside.clone());
        let reader = thread::spawn(move || {
            other.read();
            other.read();
            told.notify();
        });
        // The reader must complete although this share is kept.
        inside.wait();
        writer.join().unwrap();
        // SAFETY: locked above.
        unsafe { g.latch.unlock_shared() };
        reader.join().unwrap();
        g.is_idle();
    });
}

/// A called reader that got in lets in readers that queued since: the release in between called no
/// thread, because a call was under way.
#[test]
fn loom_called_reader_lets_queued_readers_in() {
    // With two preemptions this detects a latch in which no reader follows, but it takes minutes.
    explore("follow", THREE, || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let inside = Arc::new(loom::sync::Notify::new());
        let (other, told) = (g.clone(), inside.clone());
        let first = thread::spawn(move || {
            other.latch.lock_shared();
            told.wait();
            // SAFETY: locked above.
            unsafe { other.latch.unlock_shared() };
        });
        let other = g.clone();
        let second = thread::spawn(move || {
            other.latch.lock_shared();
            inside.notify();
            // SAFETY: locked above.
            unsafe { other.latch.unlock_shared() };
        });
        // SAFETY: locked above.
        unsafe { g.latch.unlock_exclusive() };
        if g.latch.try_lock_exclusive() {
            // SAFETY: locked above.
            unsafe { g.latch.unlock_exclusive() };
        }
        first.join().unwrap();
        second.join().unwrap();
        g.is_idle();
    });
}

/// A reader keeps its share until another reader is in, while a writer waits.
fn readers_meet<A: Attempt>() {
    let g = Guarded::<A>::new();
    g.latch.lock_exclusive();
    let inside = Arc::new(loom::sync::Notify::new());
    let (other, told) = (g.clone(), inside.clone());
    let first = thread::spawn(move || {
        other.latch.lock_shared();
        told.wait();
        // SAFETY: locked above.
        unsafe { other.latch.unlock_shared() };
    });
    let other = g.clone();
    let second = thread::spawn(move || {
        other.latch.lock_shared();
        inside.notify();
        // SAFETY: locked above.
        unsafe { other.latch.unlock_shared() };
    });
    // SAFETY: locked above.
    unsafe { g.latch.unlock_exclusive() };
    g.write();
    first.join().unwrap();
    second.join().unwrap();
    g.is_idle();
}

/// A share is kept until a reader is in, while a writer waits.
fn reader_comes<A: Attempt>() {
    let g = Guarded::<A>::new();
    g.latch.lock_shared();
    let other = g.clone();
    let writer = thread::spawn(move || other.write());
    let inside = Arc::new(loom::sync::Notify::new());
    let (other, told) = (g.clone(), inside.clone());
    let reader = thread::spawn(move || {
        other.read();
        told.notify();
    });
    inside.wait();
    // SAFETY: locked above.
    unsafe { g.latch.unlock_shared() };
    writer.join().unwrap();
    reader.join().unwrap();
    g.is_idle();
}

/// A holder unlocks while a writer and a reader wait, and takes a share until the reader is in.
fn a_reader_behind_a_writer_comes<A: Attempt>() {
    let g = Guarded::<A>::new();
    g.latch.lock_exclusive();
    let other = g.clone();
    let writer = thread::spawn(move || other.write());
    let inside = Arc::new(loom::sync::Notify::new());
    let (other, told) = (g.clone(), inside.clone());
    let reader = thread::spawn(move || {
        other.read();
        told.notify();
    });
    // SAFETY: locked above.
    unsafe { g.latch.unlock_exclusive() };
    g.latch.lock_shared();
    inside.wait();
    // SAFETY: locked above.
    unsafe { g.latch.unlock_shared() };
    writer.join().unwrap();
    reader.join().unwrap();
    g.is_idle();
}

/// With readers first, the second reader shares with the first, wherever they and the writer
/// queued.
#[test]
fn loom_readers_that_pass_writers_meet() {
    explore("readers meet", THREE, readers_meet::<ReadersFirst>);
    let behind = a_reader_behind_a_writer_comes::<ReadersFirst>;
    explore("a reader behind a writer comes", THREE, behind);
    // The control: where readers wait behind writers, they do not.
    explore("a reader comes", THREE, reader_comes::<ReadersFirst>);
    assert!(objects(THREE, reader_comes::<WritersFirst>));
}

#[test]
fn loom_downgrade_lets_readers_in() {
    explore("downgrade", TWO, || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let other = g.clone();
        let inside = Arc::new(loom::sync::Notify::new());
        let told = inside.clone();
        let reader = thread::spawn(move || {
            other.latch.lock_shared();
            assert_eq!(other.get(), 1);
            told.notify();
            // SAFETY: locked above.
            unsafe { other.latch.unlock_shared() };
        });
        g.add();
        // SAFETY: locked above.
        unsafe { g.latch.downgrade() };
        // The reader must get in although the share is kept.
        inside.wait();
        // SAFETY: downgraded above.
        unsafe { g.latch.unlock_shared() };
        reader.join().unwrap();
        g.is_idle();
    });
}

/// The controls: broken latches are detected.
#[test]
fn loom_detects_broken_latches() {
    // Sharers that write.
    assert!(objects(2, || {
        let g = Guarded::<FetchAdd>::new();
        let wrong = |g: &Guarded<FetchAdd>| {
            g.latch.lock_shared();
            g.add();
            // SAFETY: locked above.
            unsafe { g.latch.unlock_shared() };
        };
        let other = g.clone();
        let thread = thread::spawn(move || wrong(&other));
        wrong(&g);
        thread.join().unwrap();
    }));
    // A latch without the third phase: the release comes between the attempt and the queue.
    assert!(objects(2, || {
        #[derive(Default)]
        struct TwoPhases {
            held: <Loom as Machine>::AtomicU32,
            waiter: <Loom as Machine>::AtomicU32,
        }
        let latch = Arc::new(TwoPhases::default());
        latch.held.store(1, Relaxed);
        let other = latch.clone();
        let thread = thread::spawn(move || {
            let slots = Loom::slots(&other.held);
            let me = slots.mine();
            let slot = slots.at(me);
            while other.held.swap(1, SeqCst) != 0 {
                slot.status.store(status::PARKED, SeqCst);
                other.waiter.swap(me, SeqCst);
                Loom::wait(&slot.status, status::PARKED, None);
            }
        });
        latch.held.swap(0, SeqCst);
        let waiter = latch.waiter.swap(0, SeqCst);
        if waiter != 0 {
            let slot = Loom::slots(&latch.held).at(waiter);
            slot.status.store(status::FREE, SeqCst);
            Loom::wake(&slot.status);
        }
        thread.join().unwrap();
    }));
}
