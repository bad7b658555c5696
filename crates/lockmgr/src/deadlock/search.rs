//! A search for a cycle of waiters, in time linear in the queues that it reads.
//!
//! # The idea
//!
//! All waiters for one object in one mode are blocked by the same holders, and each is behind a
//! longer prefix of the same queue. So a depth-first search (Tarjan, 1972) does not need a list of
//! blockers for each waiter: the waiters of an object share two *cursors* for each mode, one over
//! its holders and one over its queue. Every owner that a cursor has passed was explored
//! completely, from whichever waiter came first, and leads to no cycle. The owner at the cursor is
//! being explored.
//!
//! ```text
//! object   holders  h1 h2 h3          queue  w1 w2 w3 w4 w5
//!                      ^ mode X, hard           ^ mode X, soft: w1 is done, w2 is on the path
//! ```
//!
//! A queue is read once, under its latch, and kept until the search ends. n owners that wait for
//! one name cost n steps together, not n each.
//!
//! # Correctness
//!
//! * A cursor passes an owner that is done. It passes an owner on the path only if that is the
//!   waiter itself, which holds the lock and converts; then the waiter is recorded in `own`, so
//!   that another waiter for the same mode finds it there.
//! * An owner that was explored, or that does not wait, is done for all.
//! * The queues are read at different instants, so a found cycle may not exist: the caller reads it
//!   again (`deadlock/detect.rs`).
//!
//! Children may pass waiters that their ancestors block, which differs for each child. Once a
//! region had a child owner, the caller reads the blockers of each owner instead.
//!
//! # Bounds
//!
//! A search may be limited to a number of steps and by a deadline. A step is an owner that is
//! visited or a request that is read.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

use latchwork_machine::{ConstMachine, Deadline};

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{ObjectAt, RequestAt, get};
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::state::status;
use crate::mode::{MODES_MAX, Mode};

/// Steps between two readings of the clock.
const CLOCK_EVERY: usize = 256;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    steps: usize,
    deadline: Option<Deadline>,
}

impl Bounds {
    pub(crate) fn new(steps: usize, deadline: Option<Deadline>) -> Self {
        Self { steps, deadline }
    }

    /// Whether a deadline has passed.
    pub(crate) fn passed<M: ConstMachine>(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.passed::<M>())
    }

    /// Takes steps. Returns false if none are left.
    fn spend<M: ConstMachine>(&mut self, steps: usize) -> bool {
        let before = self.steps;
        self.steps = before.saturating_sub(steps);
        let looks = before / CLOCK_EVERY != self.steps / CLOCK_EVERY;
        before >= steps && !(looks && self.passed::<M>())
    }
}

/// A hash function for offsets and owner numbers of the region, which no attacker gains by
/// choosing.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map keyed by such a number.
type Numbered<K, T> = HashMap<K, T, BuildHasherDefault<Mixer>>;

/// An owner of a cycle, and whether the next owner holds the lock that it wants.
pub(crate) type Edge = (OwnerNumber, bool);

/// How a search ended.
pub(crate) enum Searched {
    /// No cycle was found.
    None,
    Cycle(Vec<Edge>),
    /// A bound was reached.
    Bounded,
}

/// A waiter in a queue.
struct Queued {
    owner: OwnerNumber,
    want: Mode,
}

/// The requests of an object when they were read.
struct Queue<M: ConstMachine> {
    holders: Vec<(OwnerNumber, Mode)>,
    /// Converting requests first, then the other waiters in queue order.
    queued: Vec<Queued>,
    converting: usize,
    /// The index in `queued` of each request.
    places: Numbered<RequestAt<M>, usize>,
    /// By mode wanted, the cursor over the holders, and the cursor over the waiters.
    hard: [usize; MODES_MAX],
    soft: [usize; MODES_MAX],
    /// By mode wanted, the owners that the cursor passed because they are the waiter itself.
    own: Vec<(Mode, OwnerNumber)>,
}

/// An owner on the path, with its place in a queue.
struct Node {
    owner: OwnerNumber,
    queue: usize,
    place: usize,
    want: Mode,
    hard: bool,
}

/// The progress of an owner.
#[derive(Clone, Copy)]
enum Seen {
    OnPath(usize),
    Done,
}

/// A search, with the queues that it has read.
pub(crate) struct Search<'s, M: ConstMachine> {
    memory: &'s Memory<M>,
    queues: Vec<Queue<M>>,
    /// By object.
    known: Numbered<ObjectAt<M>, usize>,
    seen: Numbered<OwnerNumber, Seen>,
    /// Whether soft edges count.
    soft: bool,
    bounds: Bounds,
}

impl<'s, M: ConstMachine> Search<'s, M> {
    pub(crate) fn new(memory: &'s Memory<M>, bounds: Bounds) -> Self {
        let (known, seen) = (Numbered::default(), Numbered::default());
        Self { memory, queues: Vec::new(), known, seen, soft: false, bounds }
    }

    /// Searches for a cycle that these owners lead to: first of hard edges only, then of any.
    pub(crate) fn run(&mut self, starts: &[OwnerNumber]) -> Result<Searched, Error> {
        for soft in [false, true] {
            self.begin(soft);
            for start in starts {
                match self.from(*start)? {
                    Searched::None => {}
                    end => return Ok(end),
                }
            }
        }
        Ok(Searched::None)
    }

    /// Starts a new search over the queues that were read.
    fn begin(&mut self, soft: bool) {
        self.soft = soft;
        self.seen.clear();
        for queue in &mut self.queues {
            queue.hard = [0; MODES_MAX];
            queue.soft = [0; MODES_MAX];
            queue.own.clear();
        }
    }

    fn from(&mut self, start: OwnerNumber) -> Result<Searched, Error> {
        if self.seen.contains_key(&start) {
            return Ok(Searched::None);
        }
        let mut path = Vec::new();
        let mut next = start;
        loop {
            if !self.bounds.spend::<M>(1) {
                return Ok(Searched::Bounded);
            }
            match self.node(next)? {
                Looked::Waits(node) => {
                    self.seen.insert(next, Seen::OnPath(path.len()));
                    path.push(node);
                }
                Looked::Runs => {
                    self.seen.insert(next, Seen::Done);
                }
                Looked::Bounded => return Ok(Searched::Bounded),
            }
            next = loop {
                let Some(node) = path.last_mut() else { return Ok(Searched::None) };
                let Some((owner, hard)) = self.after(node) else {
                    self.leave(&path.pop().expect("it has a last one"));
                    continue;
                };
                node.hard = hard;
                if let Some(Seen::OnPath(place)) = self.seen.get(&owner) {
                    let cycle = path.drain(*place..).map(|node| (node.owner, node.hard));
                    return Ok(Searched::Cycle(cycle.collect()));
                }
                break owner;
            };
        }
    }

    /// Marks an owner as done.
    fn leave(&mut self, node: &Node) {
        self.seen.insert(node.owner, Seen::Done);
        self.queues[node.queue].own.retain(|(_, owner)| *owner != node.owner);
    }

    /// Returns the next owner that blocks a waiter and is not done, and whether it holds the lock.
    fn after(&mut self, node: &Node) -> Option<Edge> {
        let (modes, queue) = (self.memory.modes(), &mut self.queues[node.queue]);
        let (stops, clash) = (modes.stopped_by(node.want), modes.clash(node.want));
        let mode = usize::from(node.want.0) % MODES_MAX;
        let done = |owner: &OwnerNumber| matches!(self.seen.get(owner), Some(Seen::Done));
        if let Some((_, owner)) =
            queue.own.iter().find(|(want, owner)| *want == node.want && *owner != node.owner)
        {
            return Some((*owner, true));
        }
        while let Some((owner, held)) = queue.holders.get(queue.hard[mode]) {
            if *owner == node.owner && held.bit() & stops != 0 {
                queue.own.push((node.want, *owner));
            } else if held.bit() & stops != 0 && !done(owner) {
                return Some((*owner, true));
            }
            queue.hard[mode] += 1;
        }
        // A conversion waits for holders only.
        if !self.soft || node.place < queue.converting {
            return None;
        }
        while queue.soft[mode] < node.place {
            let Queued { owner, want } = &queue.queued[queue.soft[mode]];
            if want.bit() & clash != 0 && !done(owner) {
                return Some((*owner, false));
            }
            queue.soft[mode] += 1;
        }
        None
    }

    /// Returns an owner's place in a queue. Reads the queue if it was not read yet.
    fn node(&mut self, owner: OwnerNumber) -> Result<Looked, Error> {
        let memory = self.memory;
        let Some(cell) = memory.owner_cell(owner)? else { return Ok(Looked::Runs) };
        let (at, partition, _) = cell.wait();
        if at.is_null() || !memory.blocks.has(partition) {
            return Ok(Looked::Runs);
        }
        // Read without the latch, the cell may now belong to another request; then it is not in the
        // queue.
        let object = get(&memory.request(at)?.object);
        let queue = match self.known.get(&object) {
            Some(queue) => *queue,
            None => match self.read(owner, at, partition)? {
                Some(queue) => queue,
                None if self.bounds.steps == 0 => return Ok(Looked::Bounded),
                None => return Ok(Looked::Runs),
            },
        };
        let it = &self.queues[queue];
        let Some(place) = it.places.get(&at).copied() else { return Ok(Looked::Runs) };
        let Queued { owner: waiter, want } = it.queued[place];
        if waiter != owner {
            return Ok(Looked::Runs);
        }
        Ok(Looked::Waits(Node { owner, queue, place, want, hard: true }))
    }

    /// Reads the queue in which an owner waits. Returns `None` if it no longer waits, or if the
    /// queue is longer than the remaining steps.
    fn read(
        &mut self,
        owner: OwnerNumber,
        at: RequestAt<M>,
        partition: PartitionNumber,
    ) -> Result<Option<usize>, Error> {
        let memory = self.memory;
        let Some(cell) = memory.owner_cell(owner)? else { return Ok(None) };
        let latched = memory.latch(partition)?;
        // While this thread has the latch, no wait in this partition begins or ends.
        let now = cell.wait();
        if (now.0, now.1) != (at, partition) {
            return Ok(None);
        }
        let request = memory.request(at)?;
        // A request that a sweep releases leaves its queue before its owner's wait is cleared.
        if !get(&request.state).waits() || get(&request.owner) != owner {
            return Ok(None);
        }
        let object_at = get(&request.object);
        let object = memory.object(object_at)?;
        if get(&object.length) as usize > self.bounds.steps {
            self.bounds.steps = 0;
            return Ok(None);
        }
        let (mut holders, mut queued, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for each in latched.requests(object) {
            let (at, request, state) = each?;
            let owner = get(&request.owner);
            if state.holds() {
                holders.push((owner, state.mode));
            }
            match state.status {
                status::CONVERTING => queued.push((at, Queued { owner, want: state.want })),
                status::WAITING => waiting.push((at, Queued { owner, want: state.want })),
                _ => {}
            }
        }
        drop(latched);
        let steps = holders.len() + queued.len() + waiting.len();
        self.bounds.steps = self.bounds.steps.saturating_sub(steps);
        let converting = queued.len();
        queued.append(&mut waiting);
        let places = queued.iter().enumerate().map(|(place, (at, _))| (*at, place)).collect();
        let queue = Queue {
            holders,
            queued: queued.into_iter().map(|(_, queued)| queued).collect(),
            converting,
            places,
            hard: [0; MODES_MAX],
            soft: [0; MODES_MAX],
            own: Vec::new(),
        };
        self.known.insert(object_at, self.queues.len());
        self.queues.push(queue);
        Ok(Some(self.queues.len() - 1))
    }
}

/// Whether an owner waits.
enum Looked {
    Waits(Node),
    Runs,
    Bounded,
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork_machine::Native;

    #[test]
    fn steps_are_spent() {
        let mut bounds = Bounds::new(3, None);
        assert!(bounds.spend::<Native>(2) && bounds.spend::<Native>(1));
        assert!(!bounds.spend::<Native>(1));
        assert!(Bounds::new(usize::MAX, None).spend::<Native>(1 << 40));
    }

    #[test]
    fn a_deadline_that_has_passed_ends_a_search() {
        let past = Deadline::after::<Native>(core::time::Duration::ZERO);
        let mut bounds = Bounds::new(usize::MAX, Some(past));
        assert!((0..=CLOCK_EVERY).any(|_| !bounds.spend::<Native>(1)));
    }
}
