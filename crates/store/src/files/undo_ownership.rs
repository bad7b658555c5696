//! Which thread works on a slot's transaction: its own thread, or another thread that ends it.
//!
//! An open transaction retains the log from its first record on. If it retains too much, the thread
//! that makes a checkpoint rolls it back. Its locks stay until its own thread makes its next call,
//! detects the rollback, and releases them.
//!
//! ```text
//!                     own thread                     another thread
//!            enter ─────────────▶ BUSY       look ──────────────────▶ LOOKS: slot n
//!   IDLE ────┤                     │          ▲                        │          │
//!            ◀──────── leave ──────┘          │◀──────── it is young ──┘          │it is old
//!    ▲                                        │                                   ▼
//!    │                                        │                           TAKEN by slot n
//!    │                                        │              all undone│          │not all
//!    │   own thread: rolls back               │                        ▼          ▼
//!    └────────────────────────────────────────┼────────────────────── ENDED     LEFT
//!                                            IDLE; of a dead owner, any
//!                                            of a dead slot n: LOOKS to IDLE, TAKEN to TAKEN
//! ```
//!
//! | from `LEFT` | by | then |
//! |---|---|---|
//! | `BUSY` | its own thread, which undoes the rest | `IDLE`, or `LEFT` if it fails |
//! | `TAKEN` | the thread of a later checkpoint: its own may never call again | as above |
//!
//! Each call of the engine that changes a transaction is one entry, so another thread finds the
//! transaction between two of them, with a complete chain of records.
//!
//! Whether a transaction is old is checked in the state `LOOKS`, in which its own thread can
//! neither end it nor begin another one. That thread waits during the check; a young transaction is
//! not affected by it.
//!
//! Memory order: a thread looks, takes or enters by an exchange with Acquire, and leaves with
//! Release: what one of them has stored the next one sees.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

const IDLE: u64 = 0;
const BUSY: u64 = 1;
const ENDED: u64 = 2;
const LEFT: u64 = 3;
const TAKEN: u64 = 4;
const LOOKS: u64 = 5;

/// The state in a slot's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No thread works on it.
    Idle,
    /// Its own thread works on it.
    Busy,
    /// Another thread has rolled it back.
    Ended,
    /// Another thread has rolled back a part of it.
    Left,
    /// The thread of this slot rolls it back.
    Taken(u32),
    /// The thread of this slot checks whether it must be rolled back.
    Looks(u32),
}

impl State {
    const fn of(word: u64) -> Self {
        match word & 7 {
            IDLE => Self::Idle,
            BUSY => Self::Busy,
            ENDED => Self::Ended,
            TAKEN => Self::Taken((word >> 8) as u32),
            LOOKS => Self::Looks((word >> 8) as u32),
            _ => Self::Left,
        }
    }

    const fn word(self) -> u64 {
        match self {
            Self::Idle => IDLE,
            Self::Busy => BUSY,
            Self::Ended => ENDED,
            Self::Left => LEFT,
            Self::Taken(slot) => (slot as u64) << 8 | TAKEN,
            Self::Looks(slot) => (slot as u64) << 8 | LOOKS,
        }
    }
}

/// The word of one slot.
#[derive(Debug)]
pub struct UndoOwnership<'s, M: ConstMachine> {
    /// The word.
    pub word: &'s M::AtomicU64,
}

impl<M: ConstMachine> UndoOwnership<'_, M> {
    /// Returns the state.
    pub fn now(&self) -> State {
        // Acquire: synchronizes with the Release in `set`.
        State::of(self.word.load(Acquire))
    }

    /// Replaces a damaged word by `LEFT`, because the transaction must be rolled back then. Called
    /// by its own thread between two calls, or if that thread is dead.
    pub fn heal(&self) {
        // Relaxed: what is made of it comes to others by the exchange.
        let word = self.word.load(Relaxed);
        if State::of(word).word() != word {
            // AcqRel: as in `pass`.
            let left = State::Left.word();
            let _ = self.word.compare_exchange(word, left, AcqRel, Relaxed);
        }
    }

    /// Changes from one state to another, unless the state differs.
    #[inline]
    pub fn pass(&self, from: State, to: State) -> bool {
        // AcqRel: synchronizes with itself and with the Release in `set`.
        self.word.compare_exchange(from.word(), to.word(), AcqRel, Relaxed).is_ok()
    }

    /// Sets the next state. Called by the thread that owns the current one.
    #[inline]
    pub fn set(&self, to: State) {
        // Release: synchronizes with the AcqRel in `pass`.
        self.word.store(to.word(), Release);
    }

    /// Enters a call of the slot's own thread. Returns false if another thread has rolled the
    /// transaction back, completely or in part. While another thread checks it or rolls it back,
    /// calls `waits` with the slot of that thread.
    ///
    /// # Errors
    ///
    /// Those of `waits`.
    #[inline]
    pub fn enter<E>(&self, mut waits: impl FnMut(u32) -> Result<(), E>) -> Result<bool, E> {
        loop {
            if self.pass(State::Idle, State::Busy) {
                return Ok(true);
            }
            self.heal();
            match self.now() {
                State::Looks(by) | State::Taken(by) => waits(by)?,
                State::Idle => {}
                State::Busy | State::Ended | State::Left => return Ok(false),
            }
        }
    }

    /// Takes the word back from a slot whose thread does not use it: damaged memory may name one.
    /// The transaction's own thread rolls back what that thread left.
    pub fn take_back(&self, by: u32) {
        let _ = self.pass(State::Looks(by), State::Idle);
        let _ = self.pass(State::Taken(by), State::Left);
    }

    /// Takes a living slot's transaction for the thread of the slot `by`, if its own thread is
    /// between two calls and `is_old` returns true at that time, or if another thread has rolled
    /// back a part of it.
    ///
    /// # Errors
    ///
    /// Those of `is_old`. The transaction is not taken then.
    pub fn take<E>(&self, by: u32, is_old: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        if !self.pass(State::Idle, State::Looks(by)) {
            // It was too old when another thread rolled back a part of it.
            return Ok(self.pass(State::Left, State::Taken(by)));
        }
        let old = is_old();
        let next = if matches!(old, Ok(true)) { State::Taken(by) } else { State::Idle };
        Ok(self.pass(State::Looks(by), next) && old?)
    }

    /// Takes the rest of the rollback for the transaction's own thread. Returns false if another
    /// thread works on it again.
    pub fn resume(&self) -> bool {
        self.pass(State::Left, State::Busy)
    }

    /// Takes over for the slot `by` a transaction that a dead thread of another slot had taken. A
    /// check that it had begun is cancelled.
    pub fn take_over(&self, dead: u32, by: u32) -> bool {
        let _ = self.pass(State::Looks(dead), State::Idle);
        self.pass(State::Taken(dead), State::Taken(by))
    }
}

#[cfg(test)]
mod tests {
    use latchwork_machine::{ConstMachine, Native};

    use super::*;

    #[test]
    fn a_damaged_word_is_left_to_its_own_thread() {
        for damaged in [6, 7, 0x100, 0x103, TAKEN | 1 << 4, u64::MAX] {
            let word = <Native as ConstMachine>::U64;
            word.store(damaged, Relaxed);
            let turn = UndoOwnership::<Native> { word: &word };
            let entered = turn.enter(Err);
            assert_eq!(entered, Ok(false), "{damaged:#x}: nobody is at it");
            assert_eq!((turn.now(), turn.resume()), (State::Left, true), "{damaged:#x}");
        }
    }
}
