//! Exploring schedules: costs off, and chance decides who goes on after each access.
//!
//! Two ways to choose. At random, every thread is as likely as any other at every step. By priority
//! (PCT: Burckhardt, Kothari, Musuvathi and Nagarakatte, "A Randomized Scheduler with Probabilistic
//! Guarantees of Finding Bugs", ASPLOS 2010) threads have random priorities, the highest runs, and
//! at a few random accesses the running one falls below all that have not fallen. Which of those
//! that have fallen is the lowest is as random as when: the first to fall may be the last to go on.
//! A bug that needs `c` such changes (the paper says that its depth is `c + 1`) among `k` accesses
//! of `n` threads is found with a chance of at least `1/(n * k^c)`, if no thread waits in a loop.
//!
//! Stores are buffered and seen by others at any later time, in order, as on x86. The seed replays
//! the run.

use latchwork_machine::Deadline;

use crate::agenda::TIME_MAX;
use crate::rng::Rng;
use crate::threads::State;
use crate::world::World;

/// Simulated nanoseconds for each step.
const STEP_NS: u64 = 100;

/// How schedules are chosen.
#[derive(Clone, Debug)]
pub struct Explorer {
    rng: Rng,
    length: u64,
    /// At which accesses the running thread falls, and to which rank: the next one last.
    falls: Vec<(u64, usize)>,
    /// All threads, the lowest first.
    order: Vec<usize>,
    /// The rank of each thread that has fallen and not stepped back since.
    rank: Vec<Option<usize>>,
    /// How many have fallen.
    pub(crate) fallen: usize,
    /// Accesses so far. The clock does not count: it leaps, and falls would be lost.
    accesses: u64,
    /// What the clock shows.
    steps: u64,
    chosen: Option<usize>,
    deadlines: Vec<Option<u64>>,
    /// For how many steps a store waits in its buffer, about.
    buffered: u64,
}

impl Explorer {
    /// Each thread as likely as any other.
    pub fn random(seed: u64) -> Self {
        Self::pct(seed, 0, 0)
    }

    /// By priorities, with `changes` changes in a run of about `length` accesses.
    pub fn pct(seed: u64, changes: usize, length: u64) -> Self {
        let mut rng = Rng::new(seed);
        let buffered = 2 << rng.below(6);
        let mut at: Vec<u64> = (0..changes).map(|_| 1 + rng.below(length.max(1))).collect();
        at.sort_unstable_by(|a, b| b.cmp(a));
        let mut ranks: Vec<usize> = (0..changes).collect();
        for i in (1..changes).rev() {
            ranks.swap(i, rng.below(i as u64 + 1) as usize);
        }
        Self {
            rng,
            length,
            falls: at.into_iter().zip(ranks).collect(),
            order: Vec::new(),
            rank: Vec::new(),
            fallen: 0,
            accesses: 0,
            steps: 0,
            chosen: None,
            deadlines: Vec::new(),
            buffered,
        }
    }

    pub(crate) fn begin(&mut self, threads: usize) {
        let priority: Vec<u64> = (0..threads).map(|_| self.rng.below(1 << 40)).collect();
        self.order = (0..threads).collect();
        self.order.sort_by_key(|thread| priority[*thread]);
        self.rank = vec![None; threads];
        self.deadlines = vec![None; threads];
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.steps * STEP_NS
    }

    fn by_priority(&self) -> bool {
        self.length > 0
    }

    /// The thread is about to make an access, and falls if that is drawn.
    fn access(&mut self, thread: usize) {
        self.steps += 1;
        self.accesses += 1;
        while let Some((_, rank)) = self.falls.pop_if(|(at, _)| *at <= self.accesses) {
            self.fallen += 1;
            self.order.retain(|other| *other != thread);
            // Below all but those who fell to a lower rank.
            let lower = |other: &usize| self.rank[*other].is_some_and(|theirs| theirs < rank);
            let place = self.order.iter().rposition(lower).map_or(0, |below| below + 1);
            self.order.insert(place, thread);
            self.rank[thread] = Some(rank);
        }
    }

    /// The thread is the lowest of all, whatever it was.
    fn sink(&mut self, thread: usize) {
        self.steps += 1;
        self.order.retain(|other| *other != thread);
        self.order.insert(0, thread);
        self.rank[thread] = None;
    }
}

impl World {
    fn explorer(&mut self) -> &mut Explorer {
        self.explorer.as_mut().expect("only called while exploring")
    }

    /// An access is about to happen: false if another thread goes first.
    pub(crate) fn point(&mut self, me: usize) -> bool {
        if self.explorer().chosen.take() == Some(me) {
            return true;
        }
        self.accesses += 1;
        self.explorer().access(me);
        false
    }

    /// The thread has nothing better to do than to let others go on.
    pub(crate) fn step_back(&mut self, me: usize) {
        self.accesses += 1;
        self.explorer().sink(me);
    }

    /// Who goes on: nobody, if nobody can.
    pub(crate) fn choose(&mut self) -> Option<usize> {
        self.some_stores_are_seen();
        self.some_deadlines_come();
        let mut ready: Vec<usize> = self.ready();
        if ready.is_empty() {
            // What is in a buffer is seen in the end, and may be what somebody looks for.
            (0..self.threads.len()).for_each(|t| self.flush(t));
            ready = self.ready();
        }
        if ready.is_empty() {
            self.first_deadline()?;
            ready = self.ready();
        }
        let explorer = self.explorer();
        let thread = match explorer.by_priority() {
            true => *explorer.order.iter().rev().find(|t| ready.contains(t))?,
            false => ready[explorer.rng.below(ready.len() as u64) as usize],
        };
        explorer.chosen = Some(thread);
        Some(thread)
    }

    fn ready(&self) -> Vec<usize> {
        let runs = |t: &usize| self.threads[*t].state == State::Running;
        (0..self.threads.len()).filter(runs).collect()
    }

    fn some_stores_are_seen(&mut self) {
        let waiting: Vec<usize> =
            (0..self.threads.len()).filter(|t| !self.threads[*t].stores.is_empty()).collect();
        for thread in waiting {
            let explorer = self.explorer();
            if explorer.rng.below(explorer.buffered) == 0 {
                self.see_one(thread);
            }
        }
    }

    fn see_one(&mut self, thread: usize) {
        if let Some(store) = self.threads[thread].stores.pop_front() {
            store.write();
            self.touched(store.address);
        }
    }

    /// All stores of a thread are seen.
    pub(crate) fn flush(&mut self, thread: usize) {
        while !self.threads[thread].stores.is_empty() {
            self.see_one(thread);
        }
    }

    /// A word changes: whoever looks at its line looks again.
    pub(crate) fn touched(&mut self, address: usize) {
        for t in self.threads.iter_mut() {
            if matches!(t.state, State::Watching(seen) if seen >> 6 == address >> 6) {
                t.state = State::Running;
            }
        }
    }

    /// Looks at a word until its line is written to.
    pub(crate) fn watch_word(&mut self, me: usize, address: usize) -> bool {
        self.threads[me].state = State::Watching(address);
        true
    }

    /// Reading the clock takes time, so that who does nothing else comes to an end.
    pub(crate) fn look_at_clock(&mut self) {
        if let Some(explorer) = &mut self.explorer {
            explorer.steps += 1;
        }
    }

    pub(crate) fn park_until(&mut self, me: usize, deadline: Option<Deadline>) {
        self.explorer().deadlines[me] = deadline.map(|d| d.at).filter(|at| *at < TIME_MAX);
    }

    /// The thread ends, whatever it waits for. Its buffered stores have left its program already.
    pub(crate) fn kill(&mut self, thread: usize) {
        assert!(self.explorer.is_some(), "only explorations kill");
        self.flush(thread);
        self.awake(thread, 0);
        self.threads[thread].state = State::Done;
    }

    /// Deadlines that have passed are noticed at any later time.
    fn some_deadlines_come(&mut self) {
        let asleep = |t: &usize| matches!(self.threads[*t].state, State::Parked(_));
        let sleepers: Vec<usize> = (0..self.threads.len()).filter(asleep).collect();
        for thread in sleepers {
            let explorer = self.explorer();
            let passed = explorer.deadlines[thread].is_some_and(|at| at <= explorer.now_ns());
            if passed && explorer.rng.below(4) == 0 {
                self.times_out(thread);
            }
        }
    }

    fn times_out(&mut self, thread: usize) {
        self.threads[thread].timed_out = true;
        self.awake(thread, 0);
    }

    /// Nobody can go on: the sleeper whose deadline is next does.
    fn first_deadline(&mut self) -> Option<()> {
        let asleep = |t: &usize| matches!(self.threads[*t].state, State::Parked(_));
        let explorer = self.explorer.as_ref()?;
        let due = |t: usize| explorer.deadlines[t].map(|at| (at, t));
        let (at, thread) = (0..self.threads.len()).filter(asleep).filter_map(due).min()?;
        let explorer = self.explorer();
        explorer.steps = explorer.steps.max(at.div_ceil(STEP_NS));
        self.times_out(thread);
        Some(())
    }
}
