//! Requests for a place in the log, and the thread that serves the requests of one NUMA node.
//!
//! A thread that appends stores a request in a *request word* of its node's group. One thread of
//! the group leads: it takes the log's latch once and gives places to all requests that it finds,
//! at most [`REQUESTS`]. So the latch moves between nodes once per batch and not once per record
//! (the combining of Hendler, Incze, Shavit and Tzafrir, "Flat Combining", SPAA 2010). Each thread
//! then copies its own record, concurrently with the others (the decoupled buffer fill of Johnson
//! et al., "Aether", PVLDB 2010).
//!
//! # The request word
//!
//! ```text
//!  63                                             16 15            2 1     0
//! ┌─────────────────────────────────────────────────┬───────────────┬───────┐
//! │ PLACED, DONE: the LSN in units of 16 bytes      │ slot + 1, or  │ state │
//! │ REFUSED, COPYING: zero                          │ zero for no   │       │
//! │ ASKED: mark 30 │ has a mark 1 │ size in units 17 │ slot          │       │
//! │ ASKED for credit: units 30    │ 0             0  │               │       │
//! └─────────────────────────────────────────────────┴───────────────┴───────┘
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | `IDLE`, or `DONE` below `end` | `ASKED` | the thread that appends, with a compare-exchange |
//! | `ASKED` | `PLACED` | a leader, under the latch |
//! | `ASKED` | `REFUSED` | a leader: the log was marked since, or credit was asked for |
//! | `PLACED` | `COPYING` | the thread, with a compare-exchange, before it stores in the buffer |
//! | `COPYING` | `DONE` | the thread, when its record is in the buffer |
//! | `REFUSED` | `IDLE` | the thread |
//! | `PLACED` | `PLACED`, `DONE` of no slot | a thread that fills the place of a late owner |
//! | `ASKED`, `REFUSED` of a dead thread | `IDLE` | its repair: `flight.rs` |
//! | `PLACED`, `COPYING` of a dead thread | `PLACED`, `DONE` of no slot | its repair: `flight.rs` |
//!
//! `REFUSED` is `PLACED` at LSN 0, and `COPYING` is `DONE` at LSN 0: the LSN is in the slot's note.
//!
//! The request of a `DONE` word is over when `end` is past its record. The word stays as it is
//! until a thread uses it again, so that the end of an append stores nothing.
//!
//! The places that are given and not yet below `end` are the places in `PLACED`, `COPYING` and
//! `DONE` words. After the death of a latch holder, `reserved` is computed from them.
//!
//! The mark in a request is the low 30 bits of the mark's number of units. For a false match, a
//! thread would have to be stopped between two instructions, with its page latched, for exactly a
//! multiple of 16 GiB of log between two checkpoints.

use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_machine::{Machine, Word};

use crate::UNIT;
use crate::line::Line;

/// The number of groups of a log. Nodes with higher numbers share them.
pub(crate) const GROUPS: usize = 8;
/// The maximum number of concurrent requests of a group. Further threads of the node wait for a
/// free word.
pub(crate) const REQUESTS: usize = LINES * PER_LINE;
/// The lines of request words, and the words of each. Each change of a word takes its line from the
/// threads that wait for the others, but a leader fetches each line once. 8, 24, 96 and 192
/// simulated threads append 6.5, 12.8, 30.3 and 31.7 M records a second with 3 lines; 6.5, 17.4,
/// 33.3 and 31.7 with 6; 8.1, 11.7, 21.1 and 7.9 with 24.
const LINES: usize = 6;
const PER_LINE: usize = 8;

const STATE: u64 = 3;
const SLOT_SHIFT: u32 = 2;
const SLOT: u64 = ((1 << 14) - 1) << SLOT_SHIFT;
const VALUE_SHIFT: u32 = 16;
const SIZE_BITS: u32 = 17;
const HAS_MARK: u64 = 1 << SIZE_BITS;
const MARK_SHIFT: u32 = SIZE_BITS + 1;
const MARK: u64 = (1 << 30) - 1;

const _: () = assert!(STATE & SLOT == 0 && (STATE | SLOT) >> VALUE_SHIFT == 0);
const _: () = assert!(SLOT >> SLOT_SHIFT == latchwork_latch::HolderNumber::MAX as u64);
const _: () = assert!(MARK_SHIFT + 30 + VALUE_SHIFT == 64);
const _: () = assert!(crate::RECORD_MAX as u64 / UNIT < 1 << SIZE_BITS);

/// The state that the threads of a node share when they append.
#[repr(C, align(64))]
pub(crate) struct Group<M: Machine> {
    /// Claim: the thread that gives places to the requests. The second word has a bit for each
    /// request word that was ever used.
    pub(crate) leader: Line<M>,
    /// A lower bound of the log's end, raised by the leaders of this group, and by threads that
    /// repair or help. Other nodes write its line seldom.
    pub(crate) end: Line<M>,
    requests: [M::AtomicU64; REQUESTS],
}

/// The numbers of some request words of a group, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers(u64);

const _: () = assert!(REQUESTS <= u64::BITS as usize);

impl Numbers {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn of(number: usize) -> Self {
        Self(1 << number)
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl Iterator for Numbers {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let next = (self.0 != 0).then(|| self.0.trailing_zeros() as usize);
        // Clears the lowest bit.
        self.0 &= self.0.wrapping_sub(1);
        next
    }
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Asked,
    Refused,
    Placed,
    Copying,
    Done,
}

const ASKED: u64 = 1;
const PLACED: u64 = 2;
const DONE: u64 = 3;

/// The value of a request word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request(pub(crate) u64);

impl Request {
    fn new(state: u64, slot: u32, value: u64) -> Self {
        Self(value << VALUE_SHIFT | (u64::from(slot) + 1) << SLOT_SHIFT & SLOT | state)
    }

    /// Creates the word of a thread that appends nothing.
    pub(crate) fn idle(slot: u32) -> Self {
        Self::new(0, slot, 0)
    }

    /// Creates a request for a place of `bytes`, granted only while the log is marked at `mark`.
    pub(crate) fn asked(slot: u32, bytes: u64, mark: Option<u64>) -> Self {
        let mark = mark.map_or(0, |mark| HAS_MARK | ((mark / UNIT) & MARK) << MARK_SHIFT);
        Self::new(ASKED, slot, (bytes / UNIT) | mark)
    }

    /// Creates a request for `bytes` of credit.
    pub(crate) fn credit(slot: u32, bytes: u64) -> Self {
        Self::new(ASKED, slot, bytes.div_ceil(UNIT) << MARK_SHIFT)
    }

    /// Returns the bytes of requested credit; `None` if the request is for a place.
    pub(crate) fn asks_for_credit(self) -> Option<u64> {
        (self.bytes() == 0).then_some((self.0 >> VALUE_SHIFT >> MARK_SHIFT) * UNIT)
    }

    /// Returns the request with the place `lsn`; zero refuses it.
    pub(crate) fn placed(self, lsn: u64) -> Self {
        Self(((lsn / UNIT) << VALUE_SHIFT) | self.0 & SLOT | PLACED)
    }

    /// Returns the request in the state in which its thread copies its record.
    pub(crate) fn copying(self) -> Self {
        Self(self.0 & SLOT | DONE)
    }

    /// Returns the request in the state in which its record is in the buffer.
    pub(crate) fn done(self) -> Self {
        Self(self.0 & !STATE | DONE)
    }

    /// Returns the request without an owner.
    pub(crate) fn without_owner(self) -> Self {
        Self(self.0 & !SLOT)
    }

    pub(crate) fn state(self) -> State {
        match (self.0 & STATE, self.lsn()) {
            (0, _) => State::Idle,
            (ASKED, _) => State::Asked,
            (PLACED, 0) => State::Refused,
            (PLACED, _) => State::Placed,
            (_, 0) => State::Copying,
            _ => State::Done,
        }
    }

    /// Returns whether any thread may use the word, in a log that ends at `end` or beyond. Then its
    /// last request is over.
    pub(crate) fn is_free(self, end: u64) -> bool {
        match self.state() {
            State::Idle => true,
            State::Done => self.lsn() < end,
            _ => false,
        }
    }

    /// Returns the thread slot that owns the request.
    pub(crate) fn slot(self) -> Option<u32> {
        ((self.0 & SLOT) >> SLOT_SHIFT).checked_sub(1).map(|slot| slot as u32)
    }

    /// Returns the place of a request that is placed or done.
    pub(crate) fn lsn(self) -> u64 {
        (self.0 >> VALUE_SHIFT) * UNIT
    }

    /// Returns the requested bytes.
    pub(crate) fn bytes(self) -> u64 {
        (self.0 >> VALUE_SHIFT & (HAS_MARK - 1)) * UNIT
    }

    /// Returns whether the request may get a place in a log that is marked at `mark`.
    pub(crate) fn allows(self, mark: u64) -> bool {
        let value = self.0 >> VALUE_SHIFT;
        value & HAS_MARK == 0 || value >> MARK_SHIFT == (mark / UNIT) & MARK
    }
}

impl<M: Machine> Group<M> {
    /// Raises the end that the threads of the group see to `to`.
    pub(crate) fn raise_end(&self, to: u64) {
        let mut seen = self.end.0.load(Relaxed);
        while seen < to {
            // Release: synchronizes with the Acquires in `append.rs`: an end that is loaded later
            // is no older.
            match self.end.0.compare_exchange(seen, to, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    /// Returns the request word of this number.
    pub(crate) fn request(&self, number: usize) -> &M::AtomicU64 {
        &self.requests[number % REQUESTS]
    }

    /// Returns the numbers of the request words, in the order in which a thread tries to use them:
    /// from `first`, one of each line before a second one.
    pub(crate) fn numbers(first: usize) -> impl Iterator<Item = usize> {
        (0..REQUESTS).map(move |n| (first + n % LINES * PER_LINE + n / LINES) % REQUESTS)
    }

    /// Makes the word of this number one that was used. Returns false if another thread has changed
    /// the bits meanwhile.
    pub(crate) fn use_request(&self, number: usize) -> bool {
        let used = self.leader.1.load(Relaxed);
        let with = used | 1 << number;
        // Relaxed, all: the thread stores its request afterwards, with Release.
        used == with || self.leader.1.compare_exchange(used, with, Relaxed, Relaxed).is_ok()
    }

    /// Returns the numbers of the words that were ever used.
    pub(crate) fn used(&self) -> Numbers {
        // Relaxed: see `use_request`.
        Numbers(self.leader.1.load(Relaxed))
    }

    /// Returns the words that were ever used.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &M::AtomicU64> {
        self.used().map(|number| self.request(number))
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, State};
    use crate::UNIT;

    #[test]
    fn a_request_keeps_what_it_is_given() {
        for slot in [0, 1, 16_382] {
            for (bytes, mark) in [(64, None), (1 << 20, Some(16)), (80, Some((1 << 52) - 16))] {
                let asked = Request::asked(slot, bytes, mark);
                assert_eq!((asked.state(), asked.slot()), (State::Asked, Some(slot)));
                assert_eq!((asked.bytes(), asked.asks_for_credit()), (bytes, None));
                let credit = Request::credit(slot, bytes + 1);
                assert_eq!((credit.state(), credit.slot()), (State::Asked, Some(slot)));
                assert_eq!(credit.asks_for_credit(), Some(bytes + UNIT));
                assert!(mark.is_none_or(|mark| asked.allows(mark)));
                assert_eq!(asked.allows(32), mark.is_none());
                let refused = asked.placed(0);
                assert_eq!((refused.state(), refused.slot()), (State::Refused, Some(slot)));
                for lsn in [64, (1 << 52) - 16] {
                    let placed = asked.placed(lsn);
                    assert_eq!((placed.state(), placed.slot()), (State::Placed, Some(slot)));
                    assert_eq!(placed.lsn(), lsn);
                    let copying = placed.copying();
                    assert_eq!((copying.state(), copying.slot()), (State::Copying, Some(slot)));
                    let done = placed.done();
                    assert_eq!((done.state(), done.lsn()), (State::Done, lsn));
                    assert_eq!(done.without_owner().slot(), None);
                    assert_eq!(done.without_owner().lsn(), lsn);
                }
            }
        }
    }
}
