//! Ownership of a transaction's undo: its own thread between two calls, a thread that finds it too
//! old, a thread that sweeps; and the death of either.

use std::convert::Infallible;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_check::overlaid::{Flaw, explore, together};
use latchwork_check::{Overlaid, models};
use latchwork_machine::{ConstMachine, Machine, Word};
use latchwork_store::internals::{UndoOwnership, UndoState as State};
use loom::cell::UnsafeCell;

type Part<'a> = Box<dyn FnOnce() + 'a>;
type Word64 = <Overlaid as Machine>::AtomicU64;

/// The slots of the thread that finds it too old, and of the sweeping thread.
const TAKER: u32 = 1;
const SWEEPER: u32 = 2;
/// First records of a transaction that is too old, and of a younger one.
const OLD: u64 = 16;
const YOUNG: u64 = 160;
const LEAST: u64 = 100;

/// At which point the taking thread dies.
#[derive(Clone, Copy, PartialEq)]
enum Dies {
    Never,
    Looking,
    Taken,
}

/// Executions begin with it and restore it.
struct Stage {
    turn: Word64,
    /// The first record of the slot's transaction, or zero.
    first: Word64,
    /// Nonzero if the taking thread is dead.
    dead: Word64,
}

/// The writes of a transaction, and how often another thread has undone one.
#[derive(Default)]
struct Written(UnsafeCell<u32>);

impl Stage {
    fn new() -> Self {
        let word = || <Overlaid as ConstMachine>::U64;
        let stage = Self { turn: word(), first: word(), dead: word() };
        stage.first.store(OLD, Relaxed);
        stage
    }

    fn turn(&self) -> UndoOwnership<'_, Overlaid> {
        UndoOwnership { word: &self.turn }
    }

    /// A call of the slot's own thread, after which its transaction has this first record.
    fn call(&self, written: &Written, first: u64) -> bool {
        let turn = self.turn();
        let entered = turn.enter(|by| {
            // Acquire: synchronizes with the Release of the death.
            if by != TAKER || self.dead.load(Acquire) == 0 {
                // Not the machine's yield, which waits for the last loaded word: there are two
                // words.
                loom::thread::yield_now();
            } else if turn.take_over(by, SWEEPER) {
                self.undo(written, State::Ended);
            }
            Ok::<(), Infallible>(())
        });
        let entered = entered.unwrap();
        if entered {
            // SAFETY: no other thread works on the transaction, or loom panics.
            written.0.with_mut(|_| {});
            self.first.store(first, Relaxed);
            turn.set(State::Idle);
        }
        entered
    }

    /// Undoes the transaction in the thread that has taken it.
    fn undo(&self, written: &Written, then: State) {
        if self.first.load(Relaxed) != 0 {
            // SAFETY: as above.
            written.0.with_mut(|count| unsafe { *count += 1 });
            self.first.store(0, Relaxed);
        }
        self.turn().set(then);
    }

    /// As a checkpoint does.
    fn end_old(&self, written: &Written, dies: Dies) {
        let is_old = || (1..LEAST).contains(&self.first.load(Relaxed));
        if !is_old() {
            return;
        }
        let die = || self.dead.store(1, Release);
        if dies == Dies::Looking {
            self.turn().pass(State::Idle, State::Looks(TAKER));
            return die();
        }
        if self.turn().take(TAKER, || Ok::<_, ()>(is_old())) == Ok(true) {
            match dies {
                Dies::Taken => die(),
                _ => self.undo(written, State::Ended),
            }
        }
    }

    /// As the sweep of a dead slot does.
    fn sweep(&self, written: &Written) {
        loop {
            match self.turn().now() {
                State::Looks(_) => Overlaid::yield_now(),
                State::Taken(_) => return,
                seen if self.turn().pass(seen, State::Taken(SWEEPER)) => {
                    return self.undo(written, State::Idle);
                }
                _ => {}
            }
        }
    }
}

/// A thread commits its old transaction, begins another one and commits it; another thread finds
/// the old one.
fn commits(dies: Dies) -> impl Fn() + Send + Sync + 'static {
    let stage = Stage::new();
    move || {
        let (stage, written) = (&stage, &Written::default());
        let own: Part<'_> = Box::new(move || {
            if !stage.call(written, 0) {
                assert!(dies != Dies::Looking, "a thread that only checked has undone it");
                assert_eq!(stage.turn().now(), State::Ended);
                stage.turn().set(State::Idle);
            }
            for first in [YOUNG, 0] {
                assert!(stage.call(written, first), "a young transaction was ended");
            }
        });
        let taker: Part<'_> = Box::new(move || stage.end_old(written, dies));
        together(vec![own, taker]);
        assert_eq!(stage.first.load(Relaxed), 0);
    }
}

/// The owner is dead: the transaction is undone once, by the sweeping or the checking thread.
fn owner_dies() -> impl Fn() + Send + Sync + 'static {
    let stage = Stage::new();
    move || {
        let (stage, written) = (&stage, &Written::default());
        let sweeper: Part<'_> = Box::new(move || stage.sweep(written));
        let taker: Part<'_> = Box::new(move || stage.end_old(written, Dies::Never));
        together(vec![sweeper, taker]);
        // A second sweep, in case the first one was too early.
        stage.sweep(written);
        assert_eq!((stage.first.load(Relaxed), stage.turn().now()), (0, State::Idle));
        // SAFETY: all other threads have ended.
        assert_eq!(written.0.with(|count| unsafe { *count }), 1);
    }
}

/// Another thread has undone a part: its own thread undoes the rest, or a thread that makes the
/// next checkpoint.
fn left_over() -> impl Fn() + Send + Sync + 'static {
    let stage = Stage::new();
    stage.turn().set(State::Left);
    move || {
        let (stage, written) = (&stage, &Written::default());
        let own: Part<'_> = Box::new(move || {
            let turn = stage.turn();
            loop {
                let waits = |_| {
                    loom::thread::yield_now();
                    Ok::<(), Infallible>(())
                };
                assert_eq!(turn.enter(waits), Ok(false), "it must be rolled back");
                match turn.now() {
                    State::Ended => return turn.set(State::Idle),
                    State::Left if turn.resume() => return stage.undo(written, State::Idle),
                    _ => {}
                }
            }
        });
        let taker: Part<'_> = Box::new(move || stage.end_old(written, Dies::Never));
        together(vec![own, taker]);
        assert_eq!((stage.first.load(Relaxed), stage.turn().now()), (0, State::Idle));
        // SAFETY: all other threads have ended.
        assert_eq!(written.0.with(|count| unsafe { *count }), 1);
    }
}

models! {
    loom_commits, loom_commits_long, loom_commits_control:
        commits(Dies::Never), 3, 5, [Flaw::Lax, Flaw::Torn];
    loom_taker_dies, loom_taker_dies_long, loom_taker_dies_control:
        commits(Dies::Taken), 3, 5, [Flaw::Lax, Flaw::Torn];
    loom_owner_dies, loom_owner_dies_long, loom_owner_dies_control:
        owner_dies(), 3, 5, [Flaw::Lax];
    loom_left_over, loom_left_over_long, loom_left_over_control:
        left_over(), 3, 5, [Flaw::Lax];
}

/// A thread that only checks changes nothing, so no order of stores matters.
#[test]
fn loom_turn_survives_a_dead_looker() {
    explore("loom_turn_survives_a_dead_looker", 3, commits(Dies::Looking));
}
