//! Exploring schedules: accesses cost nothing, and the next thread is chosen at random after each
//! access.
//!
//! There are two ways to choose. At random: every thread is equally likely at every step. By
//! priority (PCT: Burckhardt, Kothari, Musuvathi and Nagarakatte, "A Randomized Scheduler with
//! Probabilistic Guarantees of Finding Bugs", ASPLOS 2010): threads have random priorities, and the
//! highest one runs. At a few random accesses the running thread drops below all threads that have
//! not dropped. The order among dropped threads is also random: the first to drop may be the last
//! to continue. A bug that needs `c` such changes (its depth is `c + 1` in the paper's terms) among
//! `k` accesses of `n` threads is found with a probability of at least `1/(n * k^c)`, if no thread
//! waits in a loop.
//!
//! Stores are buffered and become visible to other threads at any later time, in order, as on x86.
//! The seed replays the run.

use latchwork_machine::Deadline;

use crate::agenda::TIME_MAX;
use crate::rng::Rng;
use crate::threads::State;
use crate::world::World;

/// Simulated nanoseconds for each step.
const STEP_NS: u64 = 100;

/// The choice of schedules.
#[derive(Clone, Debug)]
pub struct Explorer {
    rng: Rng,
    length: u64,
    /// The accesses at which the running thread drops, and the rank to which; the next one last.
    falls: Vec<(u64, usize)>,
    /// All threads, lowest priority first.
    order: Vec<usize>,
    /// The rank of each thread that has dropped and not stepped back since.
    rank: Vec<Option<usize>>,
    /// The number of drops so far.
    pub(crate) fallen: usize,
    /// Accesses so far. The clock cannot be used for this: it jumps, and drops would be skipped.
    accesses: u64,
    /// The time of the clock, in steps.
    steps: u64,
    chosen: Option<usize>,
    deadlines: Vec<Option<u64>>,
    /// The approximate number of steps for which a store stays in its buffer.
    buffered: u64,
}

impl Explorer {
    /// Creates an explorer that chooses every thread with equal probability.
    pub fn random(seed: u64) -> Self {
        Self::pct(seed, 0, 0)
    }

    /// Creates an explorer that chooses by priority, with `changes` changes in a run of about
    /// `length` accesses.
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

    /// Counts an access of the thread, and lets it drop if that was drawn.
    fn access(&mut self, thread: usize) {
        self.steps += 1;
        self.accesses += 1;
        while let Some((_, rank)) = self.falls.pop_if(|(at, _)| *at <= self.accesses) {
            self.fallen += 1;
            self.order.retain(|other| *other != thread);
            // Below all threads but those that dropped to a lower rank.
            let lower = |other: &usize| self.rank[*other].is_some_and(|theirs| theirs < rank);
            let place = self.order.iter().rposition(lower).map_or(0, |below| below + 1);
            self.order.insert(place, thread);
            self.rank[thread] = Some(rank);
        }
    }

    /// Makes the thread the lowest of all.
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

    /// Called before an access. Returns false if another thread runs first.
    pub(crate) fn point(&mut self, me: usize) -> bool {
        if self.explorer().chosen.take() == Some(me) {
            return true;
        }
        self.accesses += 1;
        self.explorer().access(me);
        false
    }

    /// Lets other threads run first, because the thread only waits.
    pub(crate) fn step_back(&mut self, me: usize) {
        self.accesses += 1;
        self.explorer().sink(me);
    }

    /// Returns the next thread, or `None` if no thread can continue.
    pub(crate) fn choose(&mut self) -> Option<usize> {
        self.some_stores_are_seen();
        self.some_deadlines_come();
        let mut ready: Vec<usize> = self.ready();
        if ready.is_empty() {
            // Buffered stores become visible eventually, and a waiting thread may need them.
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

    /// Makes all stores of a thread visible.
    pub(crate) fn flush(&mut self, thread: usize) {
        while !self.threads[thread].stores.is_empty() {
            self.see_one(thread);
        }
    }

    /// Reports a change of a word: threads that watch its line check again.
    pub(crate) fn touched(&mut self, address: usize) {
        for t in self.threads.iter_mut() {
            if matches!(t.state, State::Watching(seen) if seen >> 6 == address >> 6) {
                t.state = State::Running;
            }
        }
    }

    /// Waits until the line of a word is written.
    pub(crate) fn watch_word(&mut self, me: usize, address: usize) -> bool {
        self.threads[me].state = State::Watching(address);
        true
    }

    /// Advances the clock when it is read, so that a thread that only reads it terminates.
    pub(crate) fn look_at_clock(&mut self) {
        if let Some(explorer) = &mut self.explorer {
            explorer.steps += 1;
        }
    }

    pub(crate) fn park_until(&mut self, me: usize, deadline: Option<Deadline>) {
        self.explorer().deadlines[me] = deadline.map(|d| d.at).filter(|at| *at < TIME_MAX);
    }

    /// Ends the thread at any point. Its buffered stores have already left its program.
    pub(crate) fn kill(&mut self, thread: usize) {
        assert!(self.explorer.is_some(), "only explorations kill");
        self.flush(thread);
        self.awake(thread, 0);
        self.threads[thread].state = State::Done;
    }

    /// Ends sleeps whose deadline has passed, at any later time.
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

    /// If no thread can continue, ends the sleep with the next deadline.
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
