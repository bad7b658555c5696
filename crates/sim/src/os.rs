//! The operating system: processors, their queues, sleeping and waking.
//!
//! Each processor has a queue, and gives a thread a time slice while others wait. A thread can lose
//! its processor at any access. A woken thread returns to the processor that it ran on or, if
//! threads are not pinned, to an idle one nearby.

use std::collections::VecDeque;

use latchwork_machine::{Clock, Deadline, Waited};
use rustc_hash::FxHashMap;

use crate::agenda::{Event, TIME_MAX};
use crate::fiber::{suspend, with};
use crate::threads::State;
use crate::topology::Topology;
use crate::world::World;

/// Iterations after which a waiter in `spin_until` yields, if others want its processor.
const LOOKS: u64 = 64;

/// A processor.
#[derive(Default)]
pub(crate) struct Cpu {
    running: Option<usize>,
    queue: VecDeque<usize>,
    slice_ends: u64,
    slice_due: bool,
    /// The running thread must leave at its next access.
    pub(crate) preempt: bool,
}

/// The processors and the sleeping threads.
pub(crate) struct Os {
    pub(crate) cpus: Vec<Cpu>,
    /// For each core, how many of its processors run a thread.
    busy: Vec<u16>,
    /// By the address of the word that they sleep on.
    parked: FxHashMap<usize, Vec<usize>>,
    /// Whether threads stay on their processors.
    pub(crate) pinned: bool,
    pub(crate) switches: u64,
}

impl Os {
    pub(crate) fn new(topology: &Topology) -> Self {
        Self {
            cpus: (0..topology.cpus()).map(|_| Cpu::default()).collect(),
            busy: vec![0; topology.total_cores()],
            parked: FxHashMap::default(),
            pinned: true,
            switches: 0,
        }
    }

    fn idle_near(&self, core: usize, topology: &Topology) -> Option<usize> {
        let idle = (0..self.cpus.len()).filter(|cpu| self.cpus[*cpu].running.is_none());
        idle.min_by_key(|cpu| topology.between(core, topology.core_of(*cpu)))
    }
}

/// Sleeps while the word at `address` is unchanged.
pub(crate) fn wait(
    address: usize,
    unchanged: impl Fn() -> bool,
    deadline: Option<Deadline>,
) -> Waited {
    crate::memory::drain();
    with(|world, me| world.charge_ns(me, world.spec.os.syscall_ns));
    // The system reads the word under a lock of its own: no wake-up comes between the load and the
    // sleep.
    crate::memory::load(address);
    if !unchanged() {
        return Waited::Woken;
    }
    with(|world, me| world.park(me, address, deadline));
    suspend();
    let timed_out = with(|world, me| std::mem::take(&mut world.threads[me].timed_out));
    if timed_out == Some(true) { Waited::TimedOut } else { Waited::Woken }
}

/// Wakes the threads that sleep on the word at `address`.
pub(crate) fn wake(address: usize) {
    crate::memory::drain();
    with(|world, me| world.charge_ns(me, world.spec.os.syscall_ns));
    // Ordered with the sleeper's load.
    crate::memory::load(address);
    with(|world, me| world.unpark(me, address));
}

/// Gives the processor to another thread.
pub(crate) fn yield_now() {
    if with(|world, me| world.give_way(me)) == Some(true) {
        suspend();
    }
}

/// Makes the stores of every thread visible, as `membarrier` does.
pub(crate) fn heavy_barrier() {
    crate::memory::drain();
    let threads = with(|world, me| {
        world.charge_ns(me, 2.0 * world.spec.os.syscall_ns);
        world.threads.len()
    });
    for thread in 0..threads.unwrap_or(0) {
        let stored = with(|world, _| world.stored(thread)).unwrap_or(0);
        while with(|world, me| world.barrier_waits_for(me, thread, stored)) == Some(true) {
            suspend();
        }
    }
}

impl World {
    pub(crate) fn charge_ns(&mut self, me: usize, ns: f64) {
        let cycles = self.spec.cycles(ns);
        self.spend(me, cycles);
    }

    fn us(&self, us: f64) -> u64 {
        self.spec.cycles(us * 1000.0)
    }

    /// Returns whether another hardware thread of a thread's core is busy.
    #[inline]
    pub(crate) fn sibling_runs(&self, me: usize) -> bool {
        let t = &self.threads[me];
        self.os.busy[t.core] > u16::from(self.os.cpus[t.cpu].running.is_some())
    }

    /// Puts a thread on a processor or in its queue.
    pub(crate) fn place(&mut self, thread: usize, cpu: usize, at: u64) {
        self.threads[thread].cpu = cpu;
        let core = self.spec.topology.core_of(cpu);
        self.threads[thread].core = core;
        self.threads.sockets[thread] = self.spec.topology.socket_of(core) as u16;
        if self.os.cpus[cpu].running.is_none() {
            self.start(thread, cpu, at);
        } else {
            self.threads[thread].state = State::Queued;
            self.os.cpus[cpu].queue.push_back(thread);
            self.slice_by(cpu, at);
        }
    }

    fn start(&mut self, thread: usize, cpu: usize, at: u64) {
        let slice = self.us(self.spec.os.slice_us);
        let c = &mut self.os.cpus[cpu];
        let idle = c.running.replace(thread).is_none();
        c.preempt = false;
        c.slice_ends = at + slice;
        self.os.busy[self.threads[thread].core] += u16::from(idle);
        self.resume(thread, at);
        if !self.os.cpus[cpu].queue.is_empty() {
            self.slice_by(cpu, at);
        }
    }

    fn slice_by(&mut self, cpu: usize, at: u64) {
        let c = &mut self.os.cpus[cpu];
        if !c.slice_due {
            c.slice_due = true;
            let at = c.slice_ends.max(at);
            self.push(at, Event::Slice(cpu));
        }
    }

    /// Ends a time slice, if it has expired.
    pub(crate) fn slice(&mut self, cpu: usize) {
        let now = self.agenda.now;
        let c = &mut self.os.cpus[cpu];
        c.slice_due = false;
        let Some(thread) = c.running else { return };
        if c.queue.is_empty() {
            return;
        }
        if now < c.slice_ends {
            return self.slice_by(cpu, now);
        }
        match self.threads[thread].state {
            State::Watching(address) => {
                self.unwatch(thread, address);
                self.preempt(thread, now);
            }
            _ => c.preempt = true,
        }
    }

    /// Moves the running thread behind the others of its processor. It must suspend.
    pub(crate) fn preempt(&mut self, thread: usize, at: u64) {
        let cpu = self.threads[thread].cpu;
        self.threads[thread].epoch = self.threads[thread].epoch.wrapping_add(1);
        self.threads[thread].state = State::Queued;
        self.os.cpus[cpu].queue.push_back(thread);
        self.leave(thread, at);
    }

    /// Removes the thread from its processor, and starts the next one.
    pub(crate) fn leave(&mut self, thread: usize, at: u64) {
        let cpu = self.threads[thread].cpu;
        let at = at + self.us(self.spec.os.switch_us);
        let busy = self.os.cpus[cpu].running.take().is_some();
        self.os.busy[self.threads[thread].core] -= u16::from(busy);
        self.os.cpus[cpu].preempt = false;
        if let Some(next) = self.os.cpus[cpu].queue.pop_front() {
            self.os.switches += 1;
            return self.start(next, cpu, at);
        }
        if self.os.pinned {
            return;
        }
        let longest = (0..self.os.cpus.len()).max_by_key(|c| self.os.cpus[*c].queue.len());
        if let Some(from) = longest
            && let Some(next) = self.os.cpus[from].queue.pop_front()
        {
            self.os.switches += 1;
            self.place(next, cpu, at);
        }
    }

    /// Moves the thread behind the others of its processor. Returns whether it must suspend.
    fn give_way(&mut self, me: usize) -> bool {
        if self.explorer.is_some() {
            self.step_back(me);
            return true;
        }
        self.charge_ns(me, self.spec.os.syscall_ns);
        let t = &self.threads[me];
        if self.os.cpus[t.cpu].queue.is_empty() {
            return false;
        }
        let at = t.time;
        self.preempt(me, at);
        true
    }

    fn park(&mut self, me: usize, address: usize, deadline: Option<Deadline>) {
        self.os.parked.entry(address).or_default().push(me);
        let t = &mut self.threads[me];
        t.state = State::Parked(address);
        t.epoch = t.epoch.wrapping_add(1);
        if self.explorer.is_some() {
            return self.park_until(me, deadline);
        }
        let at = self.threads[me].time;
        if let Some(deadline) = deadline {
            let due = self.spec.cycles(deadline.at as f64).max(at);
            self.set_timer(me, due);
        }
        self.leave(me, at);
    }

    pub(crate) fn unpark(&mut self, me: usize, address: usize) {
        let Some(sleepers) = self.os.parked.get_mut(&address) else { return };
        let sleepers = std::mem::take(sleepers);
        let at = self.threads[me].time + self.us(self.spec.os.wake_us);
        for thread in sleepers {
            self.awake(thread, at);
        }
    }

    /// Wakes a sleeping thread.
    pub(crate) fn awake(&mut self, thread: usize, at: u64) {
        if let State::Parked(address) = self.threads[thread].state
            && let Some(sleepers) = self.os.parked.get_mut(&address)
        {
            sleepers.retain(|t| *t != thread);
        }
        if self.explorer.is_some() {
            self.threads[thread].state = State::Running;
            return;
        }
        let t = &mut self.threads[thread];
        t.epoch = t.epoch.wrapping_add(1);
        t.time = t.time.max(at);
        let (last, core) = (t.cpu, t.core);
        let cpu = match self.os.cpus[last].running {
            Some(_) if !self.os.pinned => {
                self.os.idle_near(core, &self.spec.topology).unwrap_or(last)
            }
            _ => last,
        };
        self.place(thread, cpu, at);
    }

    /// Limits the time that a waiter in `spin_until` keeps its processor if others want it.
    pub(crate) fn look_until_tired(&mut self, me: usize) {
        let t = &mut self.threads[me];
        t.epoch = t.epoch.wrapping_add(1);
        if !self.os.cpus[t.cpu].queue.is_empty() {
            let due = t.time + LOOKS * (self.cost.pause + 5);
            self.set_timer(me, due);
        }
    }

    fn set_timer(&mut self, me: usize, due: u64) {
        self.threads[me].due = due.min(TIME_MAX);
        self.push(due, Event::Timer(me));
    }

    /// Handles a timer: the deadline of a sleep, or the end of a watch.
    pub(crate) fn timer(&mut self, thread: usize) {
        let now = self.agenda.now;
        match self.threads[thread].state {
            _ if now != self.threads[thread].due => {}
            State::Parked(_) => {
                self.threads[thread].timed_out = true;
                self.awake(thread, now);
            }
            State::Watching(address) => {
                self.unwatch(thread, address);
                self.preempt(thread, now);
            }
            _ => {}
        }
    }

    /// Returns how many stores the thread has made.
    fn stored(&self, thread: usize) -> u64 {
        let t = &self.threads[thread];
        t.seen + t.stores.len() as u64
    }

    /// Returns whether one of the first `stored` stores of `other` is not yet visible.
    fn barrier_waits_for(&mut self, me: usize, other: usize, stored: u64) -> bool {
        if self.explorer.is_some() {
            self.flush(other);
            return false;
        }
        if self.threads[other].seen >= stored {
            return false;
        }
        let at = self.threads[me].time + 50;
        self.resume(me, at);
        true
    }

    pub(crate) fn deadline_passed(&self, me: usize, deadline: Deadline) -> bool {
        self.now_ns(me, Clock::Monotonic) >= deadline.at
    }
}
