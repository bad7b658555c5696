//! The lock manager under loom: every schedule of two or three owners, and all values that a
//! relaxed load may return.
//!
//! Each model has a control: a machine with a flaw under which it must fail. The long form is
//! `cargo test --release -p latchwork-check --test lockmgr_loom table:: -- --ignored`.

use std::time::Duration;

use crate::stage::{A, B, Bias, Life, Play};
use latchwork_check::models;
use latchwork_check::overlaid::{Flaw, nap_short};
use latchwork_lockmgr::{Error, Mode, Reason, Wait, granular, shared};
use shared::{S, X};

const NOW: Duration = Duration::ZERO;

models! {
    loom_writers, loom_writers_long, loom_writers_control:
        writers(2), 4, 6, [Flaw::Lax, Flaw::Deaf];
    loom_three_writers, loom_three_writers_long, loom_three_writers_control:
        writers(3), 2, 3, [Flaw::Lax, Flaw::Deaf];
    loom_weak_and_strong, loom_weak_and_strong_long, loom_weak_and_strong_control:
        weak_and_strong(1), 4, 5, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_weak_twice_and_strong, loom_weak_twice_and_strong_long, loom_weak_twice_and_strong_control:
        weak_and_strong(2), 3, 4, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_two_weak_and_strong, loom_two_weak_and_strong_long, loom_two_weak_and_strong_control:
        two_weak_and_strong(), 2, 3, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_weak_given_back, loom_weak_given_back_long, loom_weak_given_back_control:
        weak_given_back(), 4, 6, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_opening, loom_opening_long, loom_opening_control:
        opening(), 3, 4, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_first_weak_lock, loom_first_weak_lock_long, loom_first_weak_lock_control:
        first_weak_lock(), 3, 4, [Flaw::Hasty, Flaw::Lax];
    loom_kept_and_strong, loom_kept_and_strong_long, loom_kept_and_strong_control:
        kept(1, X), 3, 5, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_kept_twice_and_strong, loom_kept_twice_and_strong_long, loom_kept_twice_and_strong_control:
        kept(2, X), 3, 4, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_kept_and_weak, loom_kept_and_weak_long, loom_kept_and_weak_control:
        kept(1, S), 3, 5, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_kept_given_back, loom_kept_given_back_long, loom_kept_given_back_control:
        kept_given_back(), 3, 5, [Flaw::Hasty, Flaw::Lax, Flaw::Deaf];
    loom_conversion, loom_conversion_long, loom_conversion_control:
        conversion(), 4, 6, [Flaw::Lax, Flaw::Deaf];
    loom_weak_conversion, loom_weak_conversion_long, loom_weak_conversion_control:
        weak_conversion(), 4, 6, [Flaw::Lax, Flaw::Deaf];
    loom_release_all, loom_release_all_long, loom_release_all_control:
        release_all(), 3, 4, [Flaw::Lax, Flaw::Deaf];
    loom_slot_reuse, loom_slot_reuse_long, loom_slot_reuse_control:
        slot_reuse(), 4, 6, [Flaw::Lax];
    loom_cycle, loom_cycle_long, loom_cycle_control:
        cycle(), 2, 3, [Flaw::Unfenced, Flaw::Lax];
    loom_killed, loom_killed_long, loom_killed_control:
        killed(), 4, 5, [Flaw::Unfenced, Flaw::Deaf];
    loom_tried, loom_tried_long, loom_tried_control:
        tried(), 4, 6, [Flaw::Lax];
    loom_timed_out, loom_timed_out_long, loom_timed_out_control:
        timed_out(), 2, 3, [Flaw::Lax];
    loom_intents, loom_intents_long, loom_intents_control:
        intents(), 3, 5, [Flaw::Hasty, Flaw::Lax];
}

/// Locks, counts, unlocks.
fn write(life: &Life<'_>) {
    life.owner().lock(A, X).unwrap();
    life.guarded.count();
    life.owner().unlock(A).unwrap();
}

/// Reads under the lock, which is taken `times` times.
fn read(life: &Life<'_>, times: u32) {
    for _ in 0..times {
        life.owner().lock(A, S).unwrap();
    }
    life.guarded.read();
    for _ in 0..times {
        life.owner().unlock(A).unwrap();
    }
}

/// All owners write under the same lock.
fn writers(threads: usize) -> impl Fn() + Send + Sync + 'static {
    Play::new(threads, Bias::Closed).model(|_| {}, write)
}

/// One owner's weak lock in its own page, against an owner that closes the bias.
fn weak_and_strong(times: u32) -> impl Fn() + Send + Sync + 'static {
    let life = move |life: &Life<'_>| if life.me == 1 { write(life) } else { read(life, times) };
    Play::new(2, Bias::Open).model(|_| {}, life)
}

fn two_weak_and_strong() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| if life.me == 1 { write(life) } else { read(life, 1) };
    Play::new(3, Bias::Open).model(|_| {}, life)
}

/// A held weak lock is released while it is moved: the waiter must be granted it.
fn weak_given_back() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        if life.me == 0 {
            life.owner().lock(A, S).unwrap();
        }
    };
    let life = |life: &Life<'_>| match life.me {
        0 => {
            life.guarded.read();
            life.owner().release_all().unwrap();
        }
        _ => write(life),
    };
    Play::new(2, Bias::Open).model(before, life)
}

/// A name is reserved for one owner, which locks it repeatedly; another owner requests it.
fn kept(times: u32, mode: Mode) -> impl Fn() + Send + Sync + 'static {
    let life = move |life: &Life<'_>| match life.me {
        0 => (0..times).for_each(|_| write(life)),
        _ if mode == S => read(life, 1),
        _ => write(life),
    };
    Play::new(2, Bias::Kept).model(|_| {}, life)
}

/// A held reserved lock is released while it is moved: the waiter must be granted it.
fn kept_given_back() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        if life.me == 0 {
            life.owner().lock(A, X).unwrap();
            assert_eq!(life.session().stats().weak, 1);
        }
    };
    let life = |life: &Life<'_>| match life.me {
        0 => {
            life.guarded.count();
            life.owner().release_all().unwrap();
        }
        _ => write(life),
    };
    Play::new(2, Bias::Kept).model(before, life)
}

/// The next weak request opens a closed bias: a strong request closes it again, or is in the table
/// first.
fn opening() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        for _ in 0..if life.me == 0 { 31 } else { 0 } {
            life.owner().lock(A, S).unwrap();
            life.owner().unlock(A).unwrap();
        }
    };
    let life = |life: &Life<'_>| match life.me {
        0 => (0..2).for_each(|_| read(life, 1)),
        _ => write(life),
    };
    Play::new(2, Bias::Closed).model(before, life)
}

/// An owner without a page, of a session without pages: the closing thread must find its lock.
fn first_weak_lock() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| match life.me {
        0 => {
            let owner = life.session().owner().unwrap();
            owner.lock(A, S).unwrap();
            life.guarded.read();
            owner.unlock(A).unwrap();
        }
        _ => write(life),
    };
    Play { ownerless: 1, ..Play::new(2, Bias::Open) }.model(|_| {}, life)
}

/// Both read; one converts to write, the other unlocks.
fn conversion() -> impl Fn() + Send + Sync + 'static {
    conversion_with(Bias::Closed)
}

fn weak_conversion() -> impl Fn() + Send + Sync + 'static {
    conversion_with(Bias::Open)
}

fn conversion_with(bias: Bias) -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| life.owner().lock(A, S).unwrap();
    let life = |life: &Life<'_>| {
        if life.me == 1 {
            life.owner().lock(A, X).unwrap();
            life.guarded.count();
        } else {
            life.guarded.read();
        }
        life.owner().release_all().unwrap();
    };
    Play::new(2, bias).model(before, life)
}

/// One owner releases two locks for which two others wait.
fn release_all() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        for name in if life.me == 0 { &[A, B][..] } else { &[] } {
            life.owner().lock(name, X).unwrap();
        }
    };
    let life = |life: &Life<'_>| match life.me {
        0 => {
            life.guarded.count();
            life.owner().release_all().unwrap();
        }
        me => {
            let name = [A, B][me - 1];
            life.owner().lock(name, S).unwrap();
            life.guarded.read();
            life.owner().release_all().unwrap();
        }
    };
    Play::new(3, Bias::Closed).model(before, life)
}

/// One slot for two threads: the second session starts with the state that the first left.
fn slot_reuse() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| {
        let Ok(session) = life.manager.session() else { return };
        let owner = session.owner().unwrap();
        owner.lock(A, X).unwrap();
        life.guarded.count();
        drop(owner);
        drop(session);
    };
    Play { slots: 1, own: true, ..Play::new(2, Bias::Closed) }.model(|_| {}, life)
}

/// Two owners deadlock, and each searches once after it has begun to wait: one is refused.
fn cycle() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        life.owner().lock([A, B][life.me], X).unwrap();
        nap_short(life.me + 1, 1);
    };
    let life = |life: &Life<'_>| {
        match life.owner().lock([B, A][life.me], X) {
            Ok(()) => life.guarded.count(),
            Err(Error::Deadlock(_)) => life.note(),
            Err(error) => panic!("{error}"),
        }
        life.owner().release_all().unwrap();
    };
    let mut play = Play::new(2, Bias::Closed);
    play.notes = Some(1);
    play.model(before, life)
}

/// An owner is killed before or while it begins to wait: its wait must end.
fn killed() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        if life.me == 1 {
            life.owner().lock(A, X).unwrap();
        }
    };
    let life = |life: &Life<'_>| match life.me {
        0 => {
            let end = life.owner().lock(A, X);
            assert!(matches!(end, Err(Error::Aborted(Reason::Killed))), "{end:?}");
        }
        _ => life.session().kill(life.ids[0]).unwrap(),
    };
    Play::new(2, Bias::Closed).model(before, life)
}

/// One owner tries a lock while another holds it.
fn tried() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| match life.me {
        0 => match life.owner().try_lock(A, X) {
            Ok(()) => {
                life.guarded.count();
                life.owner().unlock(A).unwrap();
            }
            Err(error) => assert!(matches!(error, Error::NotGranted), "{error}"),
        },
        _ => write(life),
    };
    Play::new(2, Bias::Closed).model(|_| {}, life)
}

/// A request with an expired timeout is granted, or withdrawn from the queue.
fn timed_out() -> impl Fn() + Send + Sync + 'static {
    let before = |life: &Life<'_>| {
        if life.me == 1 {
            life.owner().lock(A, X).unwrap();
        }
    };
    let life = |life: &Life<'_>| match life.me {
        0 => match life.owner().lock_timeout(A, X, NOW) {
            Ok(()) => {
                life.guarded.count();
                life.owner().unlock(A).unwrap();
            }
            Err(error) => assert!(matches!(error, Error::TimedOut), "{error}"),
        },
        1 => {
            life.guarded.count();
            life.owner().unlock(A).unwrap();
        }
        _ => {
            life.owner().lock_with(A, S, Wait::Detect).unwrap();
            life.guarded.read();
            life.owner().unlock(A).unwrap();
        }
    };
    Play::new(3, Bias::Closed).model(before, life)
}

/// Two weak modes, and a mode that conflicts with one of them.
fn intents() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| match life.me {
        0 => {
            life.owner().lock(A, granular::IS).unwrap();
            life.owner().lock(A, granular::IX).unwrap();
            life.guarded.count();
            life.owner().release_all().unwrap();
        }
        _ => {
            life.owner().lock(A, granular::S).unwrap();
            life.guarded.read();
            life.owner().release_all().unwrap();
        }
    };
    Play { modes: granular::modes(), ..Play::new(2, Bias::Open) }.model(|_| {}, life)
}
