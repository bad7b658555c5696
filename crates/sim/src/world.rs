//! The simulation: its threads, its clock, and the loop that processes events in order.
//!
//! A simulated thread is a fiber with a clock of its own. It runs freely until it accesses shared
//! memory. There it waits until everything that happens before its time has happened. So one host
//! thread accesses memory in the order of simulated time, and the same seed gives the same run on
//! any host.

use latchwork_machine::{MAX_SLOTS, Padded, Slot, SlotTable};

use crate::agenda::{Agenda, Event, TIME_MAX};
use crate::explore::Explorer;
use crate::fiber::{Running, fiber, is_running, world_now};
use crate::line::{Cost, Lines};
use crate::machine::Simulated;
use crate::os::Os;
use crate::outcome::{Outcome, Stuck, ThreadState, spent};
use crate::rng::Rng;
use crate::spec::Spec;
use crate::threads::{State, Thread, Threads};
use crate::topology::Topology;

/// An upper bound of thread numbers, which an event can carry.
const MAX_THREADS: usize = 1 << 16;

/// A running simulated machine.
pub(crate) struct World {
    pub(crate) spec: Spec,
    pub(crate) cost: Cost,
    pub(crate) rng: Rng,
    pub(crate) agenda: Agenda,
    pub(crate) threads: Threads,
    pub(crate) lines: Lines,
    pub(crate) os: Os,
    /// Accesses so far, and the number after which the run is abandoned.
    pub(crate) accesses: u64,
    pub(crate) limit: u64,
    /// The cycle at which the run is abandoned.
    last_cycle: u64,
    pub(crate) explorer: Option<Explorer>,
    /// The next step of the loop in `run`.
    pub(crate) next: Step,
    pub(crate) slots: Slots,
    pub(crate) labels: Vec<(usize, usize, String)>,
}

/// The latches' slots, and the table of free slots.
#[derive(Default)]
pub(crate) struct Slots {
    /// A separate allocation, because locks read it while the world changes; on a line of its own.
    pub(crate) table: Box<Padded<SlotTable<Simulated>>>,
    pub(crate) all: Vec<Slot<Simulated>>,
}

/// The next step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Run a thread.
    Thread(usize),
    /// Stop: all threads have ended.
    End,
    /// Stop: no thread can continue.
    Deadlock,
    /// Stop: a limit is reached.
    Endless,
}

impl World {
    /// Schedules an event.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, event: Event) {
        let epoch = match event {
            Event::Resume(t) | Event::Timer(t) => self.threads[t].epoch,
            _ => 0,
        };
        self.agenda.push(at, event, epoch);
    }

    /// Lets a thread continue at `at`, regardless of what it waits for.
    #[inline]
    pub(crate) fn resume(&mut self, thread: usize, at: u64) {
        let t = &mut self.threads[thread];
        t.state = State::Running;
        t.time = t.time.max(at);
        t.epoch = t.epoch.wrapping_add(1);
        let at = t.time;
        self.push(at, Event::Resume(thread));
    }

    fn states(&self) -> Vec<ThreadState> {
        let name = |addr: usize| crate::outcome::label(&self.labels, addr);
        let doing = |t: &Thread| match t.state {
            State::Running => "running".to_owned(),
            State::Queued => "waiting for a processor".to_owned(),
            State::Missing(line) => format!("fetching {}", name(self.lines[line].address)),
            State::Watching(addr) => format!("looking at {}", name(addr)),
            State::Draining => "waiting for its stores".to_owned(),
            State::Parked(addr) => format!("asleep on {}", name(addr)),
            State::Done => "done".to_owned(),
        };
        let line = |(number, t): (usize, &Thread)| ThreadState {
            thread: number,
            cpu: t.cpu,
            doing: doing(t),
        };
        self.threads.iter().enumerate().map(line).collect()
    }
}

/// A simulation: set it up, then run it.
///
/// Memory that the simulated threads share must outlive [`run`](Self::run).
pub struct Simulation {
    world: Box<World>,
}

impl Simulation {
    /// Creates a machine described by `spec`, without threads. `seed` determines all random
    /// choices.
    pub fn new(spec: &Spec, seed: u64) -> Self {
        Self {
            world: Box::new(World {
                cost: Cost::new(spec),
                spec: spec.clone(),
                rng: Rng::new(seed),
                agenda: Agenda::new(),
                threads: Threads::default(),
                lines: Lines::default(),
                os: Os::new(&spec.topology),
                accesses: 0,
                limit: u64::MAX,
                last_cycle: u64::MAX,
                explorer: None,
                next: Step::End,
                slots: Slots::default(),
                labels: Vec::new(),
            }),
        }
    }

    /// Sets all costs to zero, and lets `explorer` choose the next thread after each access.
    pub fn explore(mut self, explorer: Explorer) -> Self {
        self.world.explorer = Some(explorer);
        self
    }

    /// Lets the scheduler move threads to idle processors. By default they are pinned.
    pub fn unpinned(mut self) -> Self {
        self.world.os.pinned = false;
        self
    }

    /// Limits the number of accesses: beyond it, [`run`](Self::run) returns [`Stuck::Endless`].
    pub fn limit(mut self, accesses: u64) -> Self {
        self.world.limit = accesses;
        self
    }

    /// Limits the simulated time: at this nanosecond [`run`](Self::run) returns [`Stuck::Endless`].
    /// Explorations ignore it.
    pub fn last_ns(mut self, ns: f64) -> Self {
        self.world.last_cycle = self.world.spec.cycles(ns);
        self
    }

    /// Names a value in memory, for reports.
    pub fn label<T: ?Sized>(&mut self, what: &T, name: impl Into<String>) {
        let start = core::ptr::from_ref(what).cast::<u8>().addr();
        self.label_at(start, size_of_val(what), name);
    }

    /// Names `len` bytes at `start`. If labels overlap, the last one is used.
    pub fn label_at(&mut self, start: usize, len: usize, name: impl Into<String>) {
        self.world.labels.push((start, len, name.into()));
    }

    /// Puts `what` into the caches of the first `cpus` processors, as after a long run.
    pub fn warm<T: ?Sized>(&mut self, what: &T, cpus: usize) {
        let start = core::ptr::from_ref(what).cast::<u8>().addr();
        self.warm_at(start, size_of_val(what), cpus);
    }

    /// Puts `len` bytes at `start` into the caches of the first `cpus` processors.
    pub fn warm_at(&mut self, start: usize, len: usize, cpus: usize) {
        self.world.warm(start, len, cpus);
    }

    /// Runs the bodies, each as a thread. Thread `n` begins on processor `n` modulo the number of
    /// processors.
    ///
    /// # Errors
    ///
    /// [`Stuck`] with the state of each thread, if no thread can continue or a limit is reached.
    /// Everything that the threads own is then leaked, as after a panic.
    ///
    /// # Panics
    ///
    /// Panics if a body panics, with the same panic; if there are more than 65,535 bodies; or if a
    /// simulation already runs on this host thread.
    pub fn run<'env>(
        mut self,
        bodies: Vec<Box<dyn FnOnce() + 'env>>,
    ) -> Result<Outcome, Box<Stuck>> {
        assert!(bodies.len() < MAX_THREADS, "at most {MAX_THREADS} simulated threads");
        assert!(!is_running(), "a simulation runs on this thread already");
        let world = &mut *self.world;
        // A thread may abandon slots by timing out, and takes another one each time.
        let slots = (bodies.len() * 4 + 64).min(MAX_SLOTS as usize + 1);
        world.slots.all.resize_with(slots, Slot::default);
        let slots = world.slots.all.as_ptr().addr();
        let slot = size_of::<Slot<Simulated>>();
        let table = core::ptr::from_ref(&**world.slots.table).addr();
        world.labels.push((table, size_of::<SlotTable<Simulated>>(), "slot-table".to_owned()));
        for number in 1..world.slots.all.len() {
            world.label_slot(slots + number * slot, number);
        }
        let mut fibers = Vec::new();
        for (number, body) in bodies.into_iter().enumerate() {
            // SAFETY: the fibers that own the bodies end, or are leaked without another access,
            // before this function returns.
            let body = unsafe {
                core::mem::transmute::<Box<dyn FnOnce() + 'env>, Box<dyn FnOnce() + 'static>>(body)
            };
            fibers.push(Some(fiber(body)));
            world.add(number);
        }
        if let Some(explorer) = &mut world.explorer {
            explorer.begin(world.threads.len());
        } else if world.last_cycle < TIME_MAX {
            // A thread that never waits runs as long as no event is due.
            let (last, nothing) = (world.last_cycle, Event::Timer(0));
            world.push(last, nothing);
        }
        let mut running = Running::new(world, fibers);
        let started = spent();
        world_now(World::decide);
        loop {
            match world_now(|world| world.next) {
                Step::Thread(thread) => running.turn(thread),
                Step::End => return Ok(world_now(|w| Outcome::new(w, spent() - started))),
                Step::Deadlock => return Err(Box::new(Stuck::Deadlock(world_now(|w| w.states())))),
                Step::Endless => return Err(Box::new(Stuck::Endless(world_now(|w| w.states())))),
            }
        }
    }
}

impl World {
    /// Processes events until a thread must run: `next` is that thread.
    pub(crate) fn decide(&mut self) {
        self.next = self.step();
        self.threads.current = match self.next {
            Step::Thread(thread) => Some(thread),
            _ => None,
        };
    }

    fn step(&mut self) -> Step {
        if self.accesses > self.limit {
            return Step::Endless;
        }
        let stuck = |world: &Self| if world.all_done() { Step::End } else { Step::Deadlock };
        if self.explorer.is_some() {
            return self.choose().map_or_else(|| stuck(self), Step::Thread);
        }
        loop {
            let next = self.agenda.pop();
            // A deadline at the end of time never passes.
            let Some((event, epoch)) = next.filter(|_| self.agenda.now < TIME_MAX) else {
                return stuck(self);
            };
            if self.agenda.now >= self.last_cycle {
                // Remaining events of ended threads do not count.
                let on = !self.all_done() && self.agenda.horizon() < TIME_MAX;
                return if on { Step::Endless } else { stuck(self) };
            }
            match event {
                Event::Resume(t) if self.threads[t].epoch == epoch => return Step::Thread(t),
                Event::Timer(t) if self.threads[t].epoch == epoch => self.timer(t),
                Event::Resume(_) | Event::Timer(_) => {}
                Event::Serve(line) => self.serve(line),
                Event::Commit(t) => self.commit(t),
                Event::Slice(cpu) => self.slice(cpu),
            }
        }
    }

    fn all_done(&self) -> bool {
        self.threads.iter().all(|t| t.state == State::Done)
    }

    fn label_slot(&mut self, at: usize, number: usize) {
        self.labels.push((at, size_of::<Slot<Simulated>>(), format!("slot {number}")));
        // An access is identified by its word's first byte, and the last of several labels is used.
        for (offset, word) in Slot::<Simulated>::WORDS {
            self.labels.push((at + offset, 1, format!("slot {number}.{word}")));
        }
    }

    /// Adds a thread that has not started.
    fn add(&mut self, number: usize) {
        let topology = &self.spec.topology;
        let cpu = number % topology.cpus();
        let core = topology.core_of(cpu);
        self.threads.add(Thread::new(cpu, core), topology.socket_of(core));
        if self.explorer.is_some() {
            self.threads[number].state = State::Running;
        } else {
            self.place(number, cpu, 0);
        }
    }

    pub(crate) fn ended(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        t.state = State::Done;
        t.epoch = t.epoch.wrapping_add(1);
        let at = t.time;
        if self.explorer.is_none() {
            self.leave(thread, at);
        }
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.spec.topology
    }
}
