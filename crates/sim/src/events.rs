//! The event queue: a timing wheel for the near future, and a heap for the far one.
//!
//! Nearly all events are due within a few thousand cycles, so one slot for each cycle makes
//! insertion and removal constant-time. Events of one cycle happen in the order of their insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Cycles that the wheel covers.
const SPAN: u64 = 8192;
const WORDS: usize = SPAN as usize / 64;

/// No node.
const NONE: u32 = u32::MAX;

/// An event of the wheel. Nodes are contiguous and the last freed one is reused first, so that the
/// nodes in use are in the host's first-level cache; a list for each slot would not be.
#[derive(Clone, Copy)]
struct Node<T> {
    event: T,
    next: u32,
}

/// Events ordered by time.
pub(crate) struct Events<T> {
    /// For each slot its last event, whose `next` is the first one, or none.
    slots: Box<[u32; SPAN as usize]>,
    nodes: Vec<Node<T>>,
    /// The first free node.
    free: u32,
    /// By bit, the slots that hold events.
    full: [u64; WORDS],
    /// By bit, the words of `full` that are not zero.
    words: u128,
    /// The time of the last removed event; no event is due earlier.
    now: u64,
    /// The time of the next event.
    next: u64,
    far: BinaryHeap<Reverse<(u64, u64, T)>>,
    pushed: u64,
}

impl<T: Copy + Ord> Events<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Box::new([NONE; SPAN as usize]),
            nodes: Vec::new(),
            free: NONE,
            full: [0; WORDS],
            words: 0,
            now: 0,
            next: u64::MAX,
            far: BinaryHeap::new(),
            pushed: 0,
        }
    }

    /// Returns the time of the next event; the end of time if there is none.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds an event. An event in the past is due now.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, event: T) {
        let at = at.max(self.now);
        self.next = self.next.min(at);
        if at - self.now < SPAN {
            self.near(at, event);
        } else {
            self.pushed += 1;
            self.far.push(Reverse((at, self.pushed, event)));
        }
    }

    #[inline]
    fn near(&mut self, at: u64, event: T) {
        let slot = (at % SPAN) as usize;
        let last = self.slots[slot];
        let mut node = self.free;
        if node == NONE {
            node = self.nodes.len() as u32;
            self.nodes.push(Node { event, next: node });
        } else {
            self.free = self.nodes[node as usize].next;
            self.nodes[node as usize] = Node { event, next: node };
        }
        self.slots[slot] = node;
        if last == NONE {
            self.full[slot / 64] |= 1 << (slot % 64);
            self.words |= 1 << (slot / 64);
        } else {
            let first = std::mem::replace(&mut self.nodes[last as usize].next, node);
            self.nodes[node as usize].next = first;
        }
    }

    /// Removes and returns the next event and its time.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        if self.next == u64::MAX {
            return None;
        }
        if self.next != self.now {
            self.now = self.next;
            while let Some(Reverse((at, _, _))) = self.far.peek()
                && *at - self.now < SPAN
            {
                let Some(Reverse((at, _, event))) = self.far.pop() else { break };
                self.near(at, event);
            }
        }
        let slot = (self.now % SPAN) as usize;
        let last = self.slots[slot];
        let first = self.nodes[last as usize].next;
        let Node { event, next } = self.nodes[first as usize];
        self.nodes[first as usize].next = self.free;
        self.free = first;
        if first == last {
            self.slots[slot] = NONE;
            self.full[slot / 64] &= !(1 << (slot % 64));
            if self.full[slot / 64] == 0 {
                self.words &= !(1 << (slot / 64));
            }
            self.next = self.find(slot);
        } else {
            self.nodes[last as usize].next = next;
        }
        Some((self.now, event))
    }

    /// Returns the time of the next event after the slot of `now`, which is empty.
    fn find(&self, from: usize) -> u64 {
        let far = self.far.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
        if self.words == 0 {
            return far;
        }
        let later = self.full[from / 64] & (u64::MAX << (from % 64));
        let slot = if later != 0 {
            from / 64 * 64 + later.trailing_zeros() as usize
        } else {
            // The first nonempty word after this one, around the wheel, this one last.
            let first = from / 64 + 1;
            let turned = self.words.rotate_right(first as u32 % WORDS as u32);
            let word = (first + turned.trailing_zeros() as usize) % WORDS;
            word * 64 + self.full[word].trailing_zeros() as usize
        };
        let ahead = (slot as u64).wrapping_sub(from as u64) % SPAN;
        far.min(self.now + ahead)
    }
}

const _: () = assert!(WORDS == 128);

#[cfg(test)]
mod tests {
    use super::Events;
    use crate::rng::Rng;

    #[test]
    fn comes_in_order_of_time_and_then_of_pushing() {
        let mut rng = Rng::new(7);
        let mut events = Events::new();
        let mut waiting = Vec::new();
        let mut now = 0;
        for number in 0..200_000u64 {
            if rng.below(100) < 52 {
                let reach = [10, 300, 8192, 50_000][rng.below(4) as usize];
                let at = now + rng.below(reach);
                events.push(at, number);
                waiting.push((at, number));
            } else if let Some((at, event)) = events.pop() {
                // Among equals, events that were far away when they were added may be overtaken.
                let first = waiting.iter().map(|(at, _)| *at).min();
                assert_eq!(Some(at), first);
                let index = waiting.iter().position(|w| *w == (at, event)).expect("pushed");
                waiting.swap_remove(index);
                now = at;
            } else {
                assert!(waiting.is_empty());
            }
            assert_eq!(events.next(), waiting.iter().map(|(at, _)| *at).min().unwrap_or(u64::MAX));
        }
    }
}
