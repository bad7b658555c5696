//! The Malthusian lock: MCS whose holder makes surplus waiters passive.
//!
//! D. Dice, "Malthusian locks", EuroSys 2017: MCSCR, spinning. One waiter suffices to keep a lock
//! busy; more of them cost cache space. The holder moves a waiter that is not the last to a passive
//! list, calls the youngest of that list back when no waiter is left, and the eldest from time to
//! time.
//!
//! State: MCS's `tail`, `next`, `waits`; `youngest` and `eldest`, numbers or zero, and a node's
//! links in that list. Invariants: only the holder reads and writes the passive list; a passive
//! node is in no queue, its `next` is zero, and it waits as before.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use latchwork_machine::{Integer, Machine, Padded, Word};

use crate::words::words;
use crate::{Bytes, Lock, Named, Row, row};

#[derive(Default)]
#[repr(C)]
struct Node<M: Machine> {
    next: M::AtomicU32,
    waits: M::AtomicU32,
    older: M::AtomicU32,
    younger: M::AtomicU32,
}

impl<M: Machine> Named for Node<M> {
    words!(next, waits, older, younger);
}

/// State that only the holder uses.
#[derive(Default)]
struct Passive<M: Machine> {
    youngest: M::AtomicU32,
    eldest: M::AtomicU32,
    releases: M::AtomicU32,
}

impl<M: Machine> Named for Passive<M> {
    words!(youngest, eldest, releases);
}

/// The Malthusian lock: 16 bytes, and 16 for each thread that waits or holds.
pub struct Malthusian<M: Machine> {
    tail: Padded<M::AtomicU32>,
    passive: Padded<Passive<M>>,
    nodes: Row<Node<M>>,
}

impl<M: Machine> Named for Malthusian<M> {
    words!(tail, passive, [nodes]);
}

impl<M: Machine> Malthusian<M> {
    /// Releases between two calls of the eldest. The paper draws lots, 1 in 1000.
    pub const PROMOTE_EVERY: u32 = 1000;

    fn at(&self, number: u32) -> &Node<M> {
        &self.nodes[number as usize - 1]
    }

    fn call(&self, number: u32) {
        // Release: synchronizes with the Acquire of the wait in `lock`.
        self.at(number).waits.store(0, Release);
    }

    // The passive list's words are Relaxed: the lock guards them.
    fn send_away(&self, number: u32) {
        let (node, youngest) = (self.at(number), self.passive.youngest.load(Relaxed));
        node.next.store(0, Relaxed);
        node.younger.store(0, Relaxed);
        node.older.store(youngest, Relaxed);
        match youngest {
            0 => self.passive.eldest.store(number, Relaxed),
            youngest => self.at(youngest).younger.store(number, Relaxed),
        }
        self.passive.youngest.store(number, Relaxed);
    }

    fn take_back(&self, number: u32) {
        let node = self.at(number);
        let (older, younger) = (node.older.load(Relaxed), node.younger.load(Relaxed));
        match older {
            0 => self.passive.eldest.store(younger, Relaxed),
            older => self.at(older).younger.store(younger, Relaxed),
        }
        match younger {
            0 => self.passive.youngest.store(older, Relaxed),
            younger => self.at(younger).older.store(older, Relaxed),
        }
    }
}

impl<M: Machine> Lock for Malthusian<M> {
    fn new(threads: usize) -> Self {
        Self { tail: Padded::default(), passive: Padded::default(), nodes: row(threads) }
    }

    fn lock(&self, me: usize) {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        // Relaxed: the exchange publishes them.
        node.next.store(0, Relaxed);
        node.waits.store(1, Relaxed);
        // Release: our cleared node comes before the link of our successor. Acquire: and before us
        // comes the last holder's section, if it left an empty queue in `unlock`.
        let before = self.tail.swap(number, AcqRel);
        if before == 0 {
            return;
        }
        // Release: synchronizes with the Acquire of the links in `unlock`.
        self.at(before).next.store(number, Release);
        // Acquire: synchronizes with the Release in `call`.
        M::spin_until(&node.waits, Acquire, |waits| waits == 0);
    }

    fn unlock(&self, me: usize) {
        let (node, number) = (&self.nodes[me], me as u32 + 1);
        let releases = self.passive.releases.fetch_add(1, Relaxed);
        let promotes = releases % Self::PROMOTE_EVERY == Self::PROMOTE_EVERY - 1;
        let youngest = self.passive.youngest.load(Relaxed);
        let back = if promotes { self.passive.eldest.load(Relaxed) } else { youngest };
        // Acquire: synchronizes with the Release of the link in `lock`.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // Release: synchronizes with the Acquire of the exchange in `lock`.
            if self.tail.compare_exchange(number, back, Release, Relaxed).is_ok() {
                if back != 0 {
                    self.take_back(back);
                    self.call(back);
                }
                return;
            }
            // Acquire: as above.
            next = M::spin_until(&node.next, Acquire, |next| next != 0);
        }
        if promotes && back != 0 {
            self.take_back(back);
            // Release: publishes the link in `lock` for the Acquire above.
            self.at(back).next.store(next, Release);
            self.call(back);
            return;
        }
        // Acquire: as above.
        let second = self.at(next).next.load(Acquire);
        if second != 0 {
            self.send_away(next);
            next = second;
        }
        self.call(next);
    }

    fn bytes(&self, _: usize) -> Bytes {
        let lock = size_of::<M::AtomicU32>() + size_of::<Passive<M>>();
        Bytes::new(lock, size_of::<Node<M>>())
    }
}
