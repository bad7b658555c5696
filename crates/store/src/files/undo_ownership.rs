//! Who is at work on a slot's transaction: its own thread, or another that ends it.
//!
//! A transaction that stays open keeps the log from its first record on. One that keeps too much
//! is undone by the thread that makes a checkpoint. Its locks stay until its own thread goes on,
//! learns of it, and lets them go.
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
//! Each call of the engine that changes a transaction is one entry, so another thread finds it
//! between two of them: its chain of records is whole.
//!
//! Whether a transaction is old is found in `LOOKS`, when its own thread can neither end it nor
//! begin another. That thread waits meanwhile: a young transaction is none the worse for the look.
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

/// What a slot's word says.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody is at work.
    Idle,
    /// Its own thread is.
    Busy,
    /// Another thread has undone it.
    Ended,
    /// Another thread has undone a part of it.
    Left,
    /// The thread of this slot undoes it.
    Taken(u32),
    /// The thread of this slot looks whether it is to be undone.
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

/// The word of one slot. Public for models of it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Turn<'s, M: ConstMachine> {
    /// It.
    pub word: &'s M::AtomicU64,
}

impl<M: ConstMachine> Turn<'_, M> {
    /// What the word says.
    pub fn now(&self) -> State {
        // Acquire: synchronizes with the Release in `set`.
        State::of(self.word.load(Acquire))
    }

    /// Makes a word that says nothing, which is damaged, `LEFT`: what there is is to be undone. For
    /// its own thread between two calls, or where that is dead.
    pub fn heal(&self) {
        // Relaxed: what is made of it comes to others by the exchange.
        let word = self.word.load(Relaxed);
        if State::of(word).word() != word {
            // AcqRel: as in `pass`.
            let left = State::Left.word();
            let _ = self.word.compare_exchange(word, left, AcqRel, Relaxed);
        }
    }

    /// From one state to another, if it is still that one.
    #[inline]
    pub fn pass(&self, from: State, to: State) -> bool {
        // AcqRel: synchronizes with itself and with the Release in `set`.
        self.word.compare_exchange(from.word(), to.word(), AcqRel, Relaxed).is_ok()
    }

    /// The next state, by the thread whose turn it is.
    #[inline]
    pub fn set(&self, to: State) {
        // Release: synchronizes with the AcqRel in `pass`.
        self.word.store(to.word(), Release);
    }

    /// Makes it its own thread's turn: false if another has ended the transaction, in whole or in
    /// part. Calls `waits` with the slot of the thread that looks at it or ends it, for as long.
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

    /// Takes the word from a slot whose thread is not at it, nor will be: damaged memory may name
    /// one. What that may have undone, the own thread undoes.
    pub fn take_back(&self, by: u32) {
        let _ = self.pass(State::Looks(by), State::Idle);
        let _ = self.pass(State::Taken(by), State::Left);
    }

    /// Takes a living slot's transaction for the thread of the slot `by`, if its own thread is
    /// between two calls and `is_old` says so then; or if another thread has undone a part of it.
    ///
    /// # Errors
    ///
    /// Those of `is_old`: then it is not taken.
    pub fn take<E>(&self, by: u32, is_old: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        if !self.pass(State::Idle, State::Looks(by)) {
            // It was too old when another thread undid a part of it.
            return Ok(self.pass(State::Left, State::Taken(by)));
        }
        let old = is_old();
        let next = if matches!(old, Ok(true)) { State::Taken(by) } else { State::Idle };
        Ok(self.pass(State::Looks(by), next) && old?)
    }

    /// Makes it its own thread's turn to undo what another has left of it: false if another one is
    /// at it again.
    pub fn resume(&self) -> bool {
        self.pass(State::Left, State::Busy)
    }

    /// Takes for the slot `by` what the dead thread of another had taken. What that one only
    /// looked at is let go.
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
            let turn = Turn::<Native> { word: &word };
            let entered = turn.enter(Err);
            assert_eq!(entered, Ok(false), "{damaged:#x}: nobody is at it");
            assert_eq!((turn.now(), turn.resume()), (State::Left, true), "{damaged:#x}");
        }
    }
}
