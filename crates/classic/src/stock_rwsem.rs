//! A reader-writer lock like Linux's semaphore: a count, a list of sleepers, writers that spin.
//!
//! D. Howells, 2001; M. Lespinasse, 2013; W. Long, 2019.
//!
//! ```text
//!  63                   8 7     3    2       1       0
//! ┌──────────────────────┬───────┬───────┬───────┬───────┐
//! │ readers              │   0   │HANDOFF│WAITERS│WRITER │
//! └──────────────────────┴───────┴───────┴───────┴───────┘
//! ```
//!
//! | step | by | condition |
//! |---|---|---|
//! | `+ READER` | a reader, before it reads the count | it subtracts again, under the guard, if it must sleep |
//! | `+ WRITER` | a writer | it is free, and `HANDOFF` is clear or set for the first of the list |
//! | `HANDOFF` | the first, a writer woken in vain | until it has it |
//! | grant | the waker, for all readers of the list | the first is a reader, and no writer holds it |
//!
//! Invariants: `WAITERS` is set if and only if the list is not empty, when the guard is free; a
//! release that leaves it free with `WAITERS` wakes the first. The kernel gives a waiter 4 ms
//! before it requests the hand-off, and wakes after it has released the guard; here the second try
//! requests it, and wake-ups are under the guard.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::osq::Osq;
use crate::waiters::{Ends, Looks, Sleepers};
use crate::words::words;
use crate::{Bytes, Named, SharedLock};

const WRITER: u64 = 1;
const WAITERS: u64 = 2;
const HANDOFF: u64 = 4;
const READER: u64 = 1 << 8;
const READERS: u64 = !(READER - 1);
const HELD: u64 = READERS | WRITER;

const WANTS_READ: u32 = 1;
const WANTS_WRITE: u32 = 2;
const GRANTED: u32 = 3;

#[derive(Default)]
#[repr(C)]
struct State<M: Machine> {
    count: M::AtomicU64,
    spinners: M::AtomicU32,
    list: Ends<M>,
}

impl<M: Machine> Named for State<M> {
    words!(count, spinners, list);
}

/// A reader-writer lock like Linux's semaphore: 24 bytes.
pub struct StockRwsem<M: Machine> {
    state: Padded<State<M>>,
    osq: Osq<M>,
    sleepers: Sleepers<M>,
}

impl<M: Machine> Named for StockRwsem<M> {
    words!(state, osq, sleepers);
}

impl<M: Machine> SharedLock for StockRwsem<M> {
    fn new(threads: usize) -> Self {
        let (osq, sleepers) = (Osq::new(threads), Sleepers::new(threads));
        Self { state: Padded::default(), osq, sleepers }
    }

    fn read(&self, me: usize) {
        // Acquire: synchronizes with the Release in `unwrite`.
        let seen = self.state.count.fetch_add(READER, Acquire);
        // With sleepers, a single reader that finds it free keeps it.
        if seen & (HELD | HANDOFF) != 0 && seen & (WRITER | WAITERS | HANDOFF) != 0 {
            self.read_slow(me);
        }
    }

    fn unread(&self, _: usize) {
        // Release: synchronizes with the Acquire of the writer that follows the last reader.
        let now = self.state.count.fetch_sub(READER, Release) - READER;
        if now & (HELD | WAITERS) == WAITERS {
            self.wake();
        }
    }

    fn write(&self, me: usize) {
        // Acquire: synchronizes with the Release in `unread` and `unwrite`.
        if self.state.count.compare_exchange(0, WRITER, Acquire, Relaxed).is_err() && !self.spin(me)
        {
            self.write_slow(me);
        }
    }

    fn unwrite(&self, _: usize) {
        // Release: synchronizes with the Acquire of every later holder.
        if self.state.count.fetch_sub(WRITER, Release) & WAITERS != 0 {
            self.wake();
        }
    }

    fn bytes(&self, _: usize) -> Bytes {
        let waiter = Osq::<M>::bytes().max(Sleepers::<M>::bytes());
        Bytes { lock: size_of::<State<M>>(), waiter, holder: 0 }
    }
}

impl<M: Machine> StockRwsem<M> {
    #[cold]
    fn read_slow(&self, me: usize) {
        let State { count, list, .. } = &*self.state;
        list.lock();
        self.sleepers.arm(me);
        let first = self.sleepers.push(list, me, WANTS_READ);
        // Relaxed: the share is returned unused, and the guard orders the list.
        let now = if first {
            count.fetch_sub(READER - WAITERS, Relaxed) - (READER - WAITERS)
        } else {
            count.fetch_sub(READER, Relaxed) - READER
        };
        if now & HELD == 0 || first && now & WRITER == 0 {
            self.wake_first();
        }
        list.unlock();
        loop {
            self.sleepers.sleep(me);
            if self.sleepers.is_marked(me, GRANTED) {
                return;
            }
            // A late call of an earlier wait.
            self.sleepers.arm(me);
            if self.sleepers.is_marked(me, GRANTED) {
                return;
            }
        }
    }

    /// Polls for a while, alone. Returns whether it is ours.
    fn spin(&self, me: usize) -> bool {
        let (State { count, spinners, .. }, looks) = (&*self.state, Looks::<M>::new());
        if !self.osq.lock(spinners, me, &looks) {
            return false;
        }
        let taken = loop {
            // Relaxed: the exchange orders.
            let seen = M::spin_until(count, Relaxed, |count| {
                count & (HELD | HANDOFF) == 0 || looks.spent()
            });
            if seen & (HELD | HANDOFF) != 0 {
                break false;
            }
            // Acquire: synchronizes with the Release in `unread` and `unwrite`.
            if count.compare_exchange(seen, seen | WRITER, Acquire, Relaxed).is_ok() {
                break true;
            }
        };
        self.osq.unlock(spinners, me);
        taken
    }

    #[cold]
    fn write_slow(&self, me: usize) {
        let State { count, list, .. } = &*self.state;
        list.lock();
        if self.sleepers.push(list, me, WANTS_WRITE) {
            // Relaxed: a release and this are on one word, so one sees the other.
            count.fetch_or(WAITERS, Relaxed);
        } else if count.load(Relaxed) & HELD == 0 {
            self.wake_first();
        }
        self.sleepers.arm(me);
        let mut tired = false;
        while !self.take_listed(me, tired) {
            list.unlock();
            self.sleepers.sleep(me);
            self.sleepers.arm(me);
            tired = true;
            list.lock();
        }
        self.sleepers.remove(list, me);
        list.unlock();
    }

    /// Takes it for a writer of the list, or requests the hand-off if it is tired. Under the guard.
    fn take_listed(&self, me: usize, tired: bool) -> bool {
        let State { count, list, .. } = &*self.state;
        let first = self.sleepers.first(list).is_some_and(|(first, _)| first == me);
        let last = self.sleepers.after(me).is_none();
        let mut seen = count.load(Relaxed);
        loop {
            if !first && seen & HANDOFF != 0 {
                return false;
            }
            let next = if seen & HELD == 0 {
                let cleared = if first && last { HANDOFF | WAITERS } else { HANDOFF };
                seen & !cleared | WRITER
            } else if first && tired && seen & HANDOFF == 0 {
                seen | HANDOFF
            } else {
                return false;
            };
            // Acquire: synchronizes with the Release in `unread` and `unwrite`.
            match count.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) => return seen & HELD == 0,
                Err(now) => seen = now,
            }
        }
    }

    #[cold]
    fn wake(&self) {
        self.state.list.lock();
        self.wake_first();
        self.state.list.unlock();
    }

    /// Wakes the first if it is a writer; otherwise grants all readers a share. Under the guard.
    fn wake_first(&self) {
        let State { count, list, .. } = &*self.state;
        let mut at = match self.sleepers.first(list) {
            Some((writer, WANTS_WRITE)) => return self.sleepers.call(writer),
            first => first,
        };
        if at.is_none() {
            return;
        }
        // Acquire: synchronizes with the Release in `unwrite`, on the readers' behalf.
        while count.fetch_add(READER, Acquire) & WRITER != 0 {
            // Relaxed: returned unused. A writer came in between; it wakes the first when it
            // leaves.
            if (count.fetch_sub(READER, Relaxed) - READER) & WRITER != 0 {
                return;
            }
        }
        // The share just taken is for the first; a share for each other reader is taken before it
        // is notified.
        let mut taken = true;
        while let Some((thread, wants)) = at {
            at = self.sleepers.after(thread);
            if wants != WANTS_READ {
                continue;
            }
            if !taken {
                // Relaxed: acquired above.
                count.fetch_add(READER, Relaxed);
            }
            taken = false;
            if self.sleepers.remove(list, thread) {
                // Relaxed: under the guard.
                count.fetch_and(!WAITERS, Relaxed);
            }
            self.sleepers.mark(thread, GRANTED);
            self.sleepers.call(thread);
        }
    }
}
