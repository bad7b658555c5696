//! Shared memory: accesses, their order, and their cost.
//!
//! A line is 64 bytes by real address; `line.rs` has the cost of getting one. Values are written to
//! real memory at the moment at which the access takes effect, so threads see the memory in the
//! order of simulated time. Plain stores wait in a store buffer, in order, as on x86: a thread sees
//! its own stores immediately, and other threads see them when the line has arrived.

use latchwork_machine::Clock;

use crate::agenda::Event;
use crate::buffer::Store;
use crate::fiber::{suspend, with};
use crate::line::{Kind, Request};
use crate::threads::State;
use crate::world::World;

/// The next action of an access, before it takes effect.
enum Access {
    /// The access takes effect now.
    Now,
    /// The value is in the thread's own store buffer.
    Forwarded(u64),
    /// Suspend; then the access takes effect.
    Granted,
    /// Suspend, and try again.
    Later,
}

/// Charges a load. Returns the value if the thread has a buffered store of it.
#[inline]
pub(crate) fn load(address: usize) -> Option<u64> {
    loop {
        match with(|world, me| world.load(me, address))? {
            Access::Now => return None,
            Access::Forwarded(value) => return Some(value),
            Access::Granted => {
                suspend();
                return None;
            }
            Access::Later => suspend(),
        }
    }
}

/// Charges a store. Returns true if the caller must write the value, false if the buffer will.
#[inline]
pub(crate) fn store(address: usize, value: u64, bytes: u8) -> bool {
    loop {
        match with(|world, me| world.store(me, Store { address, value, bytes })) {
            None | Some(Access::Now) => return true,
            Some(Access::Granted | Access::Forwarded(_)) => return false,
            Some(Access::Later) => suspend(),
        }
    }
}

/// Charges an atomic read-modify-write. The caller performs it afterwards.
#[inline]
pub(crate) fn atomic(address: usize) {
    loop {
        match with(|world, me| world.atomic(me, address)) {
            None | Some(Access::Now | Access::Forwarded(_)) => return,
            Some(Access::Granted) => {
                suspend();
                // Other threads may have read the line since it arrived at this core: its other
                // hardware threads, or requesters that were served before this thread continued.
                with(|world, me| world.performed(me, address));
                return;
            }
            Some(Access::Later) => suspend(),
        }
    }
}

/// Waits until all of this thread's stores are visible: a full fence.
pub(crate) fn drain() {
    while with(|world, me| world.drained(me)) == Some(false) {
        suspend();
    }
}

/// Waits until everything before this thread's time has happened and its stores are visible.
///
/// In an exploration other threads may see them later, because only `run` joins threads.
pub(crate) fn end() {
    if with(|world, _| world.explorer.is_some()) == Some(true) {
        return;
    }
    drain();
    while with(World::is_ahead) == Some(true) {
        suspend();
    }
}

/// Waits until the line of `address`, which this thread has just read, is taken from its core.
pub(crate) fn watch(address: usize) {
    let waits = with(|world, me| world.watch(me, address));
    if waits.expect("latches wait in simulated threads only") {
        suspend();
    }
}

impl World {
    /// Advances the thread's clock by a computation.
    #[inline]
    pub(crate) fn spend(&mut self, me: usize, cycles: u64) {
        let cycles = if self.spec.topology.smt > 1 { self.shared(me, cycles) } else { cycles };
        self.threads[me].time += cycles;
    }

    /// Returns the duration of a computation while the core's other hardware threads may run.
    fn shared(&self, me: usize, cycles: u64) -> u64 {
        match self.sibling_runs(me) {
            true => (cycles as f64 * self.spec.costs.smt_share) as u64,
            false => cycles,
        }
    }

    /// Executes a pause of a spinning thread. Returns true if it must suspend.
    #[inline]
    pub(crate) fn pause(&mut self, me: usize) -> bool {
        if self.explorer.is_some() {
            self.step_back(me);
            return true;
        }
        self.spend(me, self.cost.pause);
        false
    }

    /// Returns whether everything before this thread's time has happened. If not, the thread must
    /// suspend.
    #[inline]
    fn in_order(&mut self, me: usize) -> bool {
        self.accesses += 1;
        let (time, cpu) = (self.threads[me].time, self.threads[me].cpu);
        let goes_on = self.agenda.horizon() >= time && self.accesses <= self.limit;
        goes_on && !self.os.cpus[cpu].preempt || self.passes(me, time, cpu)
    }

    /// Decides `in_order` if another event is first or a flag must be checked.
    fn passes(&mut self, me: usize, time: u64, cpu: usize) -> bool {
        if self.os.cpus[cpu].preempt {
            self.preempt(me, time);
            return false;
        }
        // A thread that never waits would never reach the loop that checks the limit.
        let spent = self.accesses > self.limit;
        if spent || self.agenda.horizon() < time {
            self.accesses -= u64::from(!spent);
            self.push(time, Event::Resume(me));
            return false;
        }
        true
    }

    fn is_ahead(&mut self, me: usize) -> bool {
        let time = self.threads[me].time;
        let ahead = self.explorer.is_none() && self.agenda.horizon() < time;
        if ahead {
            self.push(time, Event::Resume(me));
        }
        ahead
    }

    fn forwarded(&self, me: usize, address: usize) -> Option<u64> {
        let stores = &self.threads[me].stores;
        // A word may be part of a wider store: memory is zeroed in units of eight bytes and used in
        // units of four.
        let covers = |s: &&Store| (s.address..s.address + s.bytes as usize).contains(&address);
        let last = stores.iter().rev().find(covers);
        last.map(|s| s.value >> (8 * (address - s.address)))
    }

    fn load(&mut self, me: usize, address: usize) -> Access {
        if self.explorer.is_some() {
            return self.load_at_point(me, address);
        }
        if !self.in_order(me) {
            return Access::Later;
        }
        if !self.threads[me].stores.is_empty()
            && let Some(value) = self.forwarded(me, address)
        {
            self.spend(me, self.cost.l1);
            return Access::Forwarded(value);
        }
        let line = self.line(me, address);
        let t = &self.threads[me];
        if self.lines[line].has(t.core, Kind::Load, t.time) {
            let again = t.changed == line;
            self.threads[me].changed = usize::MAX;
            return self.hit(me, line, if again { self.cost.reload } else { self.cost.l1 });
        }
        self.ask(line, Request::own(me, Kind::Load, address, self.threads[me].time));
        Access::Granted
    }

    /// Completes an access to a line that the thread's core has, or will have when it arrives.
    #[inline]
    fn hit(&mut self, me: usize, line: usize, cycles: u64) -> Access {
        let t = &self.threads[me];
        let from = self.lines[line].usable(t.core, t.time);
        if from == t.time {
            self.spend(me, cycles);
            return Access::Now;
        }
        self.resume(me, from + cycles);
        Access::Granted
    }

    fn load_at_point(&mut self, me: usize, address: usize) -> Access {
        match self.point(me) {
            false => Access::Later,
            true => self.forwarded(me, address).map_or(Access::Now, Access::Forwarded),
        }
    }

    fn store(&mut self, me: usize, store: Store) -> Access {
        if self.explorer.is_some() {
            if !self.point(me) {
                return Access::Later;
            }
            self.threads[me].stores.push_back(store);
            return Access::Granted;
        }
        if !self.in_order(me) {
            return Access::Later;
        }
        let line = self.line(me, store.address);
        let t = &mut self.threads[me];
        let (l, at) = (&self.lines[line], t.time);
        if t.stores.is_empty() && l.has(t.core, Kind::Store, at) && l.usable(t.core, at) == at {
            self.written(line, at);
            self.spend(me, 1);
            return Access::Now;
        }
        if t.stores.len() >= self.spec.coherence.store_buffer {
            t.state = State::Draining;
            return Access::Later;
        }
        t.stores.push_back(store);
        if t.stores.len() == 1 {
            let request = Request::buffer(me, store.address, t.time);
            self.ask(line, request);
        }
        self.spend(me, 1);
        Access::Granted
    }

    fn atomic(&mut self, me: usize, address: usize) -> Access {
        if self.explorer.is_some() {
            if !self.point(me) {
                return Access::Later;
            }
            self.flush(me);
            self.touched(address);
            return Access::Now;
        }
        if !self.in_order(me) {
            return Access::Later;
        }
        if !self.threads[me].stores.is_empty() {
            self.threads[me].state = State::Draining;
            return Access::Later;
        }
        let line = self.line(me, address);
        self.threads[me].changed = line;
        let t = &self.threads[me];
        if self.lines[line].has(t.core, Kind::Atomic, t.time) {
            self.written(line, self.threads[me].time);
            return self.hit(me, line, self.cost.atomic_hit);
        }
        self.ask(line, Request::own(me, Kind::Atomic, address, self.threads[me].time));
        Access::Granted
    }

    /// Takes a line from the threads that watch it, before a thread changes a word on it.
    fn performed(&mut self, me: usize, address: usize) {
        let (line, at) = (self.line(me, address), self.threads[me].time);
        if !self.lines[line].watchers.is_empty() {
            self.invalidate(line, at);
            self.serve_by(line, at);
        }
    }

    fn drained(&mut self, me: usize) -> bool {
        if self.explorer.is_some() {
            self.flush(me);
            return true;
        }
        let drained = self.threads[me].stores.is_empty();
        if !drained {
            self.threads[me].state = State::Draining;
        }
        drained
    }

    /// Registers the thread as watching a word. Returns false if its line was already taken.
    fn watch(&mut self, me: usize, address: usize) -> bool {
        if self.explorer.is_some() {
            return self.watch_word(me, address);
        }
        let line = self.line(me, address);
        if !self.lines[line].sharers.has(self.threads[me].core) {
            return false;
        }
        self.lines[line].watchers.push(me);
        self.threads[me].state = State::Watching(address);
        self.look_until_tired(me);
        true
    }

    /// Removes a thread that lost its processor from the watchers.
    pub(crate) fn unwatch(&mut self, me: usize, address: usize) {
        let line = self.line(me, address);
        self.lines[line].watchers.retain(|w| *w != me);
    }

    /// Commits a thread's oldest store, whose line has arrived, and following stores as far as
    /// possible.
    pub(crate) fn commit(&mut self, thread: usize) {
        let now = self.agenda.now;
        let mut first = true;
        while let Some(store) = self.threads[thread].stores.front().copied() {
            let line = self.line(thread, store.address);
            let (l, core) = (&self.lines[line], self.threads[thread].core);
            let is_there = l.has(core, Kind::Store, now) && l.usable(core, now) == now;
            if !first && !is_there {
                self.ask(line, Request::buffer(thread, store.address, now));
                break;
            }
            first = false;
            self.threads[thread].stores.pop_front();
            self.threads[thread].seen += 1;
            store.write();
            self.written(line, now);
        }
        let t = &self.threads[thread];
        let room = t.stores.len() < self.spec.coherence.store_buffer;
        if t.state == State::Draining && (t.stores.is_empty() || room) {
            self.resume(thread, now);
        }
    }

    pub(crate) fn now_ns(&self, me: usize, _: Clock) -> u64 {
        match &self.explorer {
            Some(explorer) => explorer.now_ns(),
            None => (self.threads[me].time as f64 / self.spec.ghz) as u64,
        }
    }
}
