//! Cache lines: their holders, their requesters, and the cost of a transfer.
//!
//! A line serves one requester at a time. Sockets take turns, approximately: the machine's
//! `near_bias` is the probability that the next requester is in the socket of the last owner.
//! Threads that only watch a line wait until it is taken from their core, and then all request it
//! again.
//!
//! A line is in one of these states; machines without `owned` have no such state.
//!
//! ```text
//!   state      owner  dirty  supplier  sharers     after a load by another core
//!   memory     -      -      -         none        exclusive
//!   exclusive  core   no     -         the core    shared
//!   modified   core   yes    -         the core    owned; without it shared, or, at random
//!                                                  (`migratory`), taken over by the reader
//!   owned      -      -      core      several     owned: the supplier sends it
//!   shared     -      -      -         several     shared: the nearest sharer sends it
//! ```
//!
//! A store or an atomic operation makes a line modified, from any state. The core that held it
//! exclusively continues to use it until the probe that takes it away has arrived (`leaving`).

use core::ops::{Index, IndexMut};
use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::agenda::Event;
use crate::outcome::Misses;
use crate::spec::{Spec, States};
use crate::threads::State;
use crate::topology::Cores;
use crate::world::World;

const NOBODY: usize = usize::MAX;

/// Cycles between the arrival of a line and the next access.
const RETIRE: u64 = 2;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Load,
    Store,
    Atomic,
}

/// A request for a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    address: usize,
    arrival: u64,
    /// Narrow, because queues are long and searched.
    thread: u32,
    /// Whether the thread itself waits, rather than its store buffer.
    itself: bool,
    kind: Kind,
}

impl Request {
    pub(crate) fn own(thread: usize, kind: Kind, address: usize, arrival: u64) -> Self {
        Self { address, arrival, thread: thread as u32, itself: true, kind }
    }

    pub(crate) fn buffer(thread: usize, address: usize, arrival: u64) -> Self {
        Self { address, arrival, thread: thread as u32, itself: false, kind: Kind::Store }
    }

    fn thread(&self) -> usize {
        self.thread as usize
    }
}

/// A cache line.
pub(crate) struct Line {
    pub(crate) address: usize,
    /// The core that holds it modified or exclusive.
    pub(crate) owner: usize,
    dirty: bool,
    /// The core that holds it modified while others share it, and supplies it to them.
    supplier: usize,
    /// The core that held it exclusively before, and until when: the probe that takes it away is on
    /// its way.
    leaving: (usize, u64),
    /// The core that it was last sent to, and the time of its arrival.
    coming: (usize, u64),
    pub(crate) sharers: Cores,
    home: usize,
    /// The core that received it last.
    last: usize,
    free_at: u64,
    serve_due: bool,
    queue: VecDeque<Request>,
    pub(crate) watchers: Vec<usize>,
}

impl Line {
    /// Returns whether a core can use it at this time without a request.
    pub(crate) fn has(&self, core: usize, kind: Kind, at: u64) -> bool {
        let (leaving, until) = self.leaving;
        let has = match kind {
            Kind::Load => self.sharers.has(core),
            Kind::Store | Kind::Atomic => self.owner == core,
        };
        has || leaving == core && at < until
    }

    /// Returns the time from which a core that has it can use it. The core that requested it last
    /// has it before its arrival, so the core's other hardware thread, or a load behind its own
    /// buffered store, waits.
    pub(crate) fn usable(&self, core: usize, at: u64) -> u64 {
        let (there, arrival) = self.coming;
        if there == core { at.max(arrival) } else { at }
    }

    /// Adds a copy for a core. If modified lines are kept shared (`owned`), the core that had it
    /// modified supplies it from now on.
    fn join(&mut self, core: usize, owned: bool) {
        if owned && self.dirty {
            self.supplier = self.owner;
        }
        self.owner = if self.sharers.is_empty() { core } else { NOBODY };
        self.dirty = false;
        self.sharers.add(core);
    }

    /// Gives it to a core exclusively; the previous exclusive holder keeps it until then.
    fn take(&mut self, core: usize, kind: Kind, until: u64) {
        self.leaving = (self.owner, until);
        self.owner = core;
        self.supplier = NOBODY;
        self.dirty = kind != Kind::Load;
        self.sharers = Cores::one(core);
    }
}

/// A machine's costs in whole cycles.
pub(crate) struct Cost {
    pub(crate) l1: u64,
    pub(crate) atomic_hit: u64,
    pub(crate) pause: u64,
    pub(crate) reload: u64,
    load: Row,
    store: Row,
    atomic: Row,
}

struct Row {
    modified: Vec<u64>,
    exclusive: Vec<u64>,
    owned: Vec<u64>,
    shared: Vec<u64>,
    memory: Vec<u64>,
}

impl Cost {
    pub(crate) fn new(spec: &Spec) -> Self {
        let whole = |row: &[f64]| row.iter().map(|c| c.round() as u64).collect();
        let row = |states: &States| Row {
            modified: whole(&states.modified),
            exclusive: whole(&states.exclusive),
            owned: whole(&states.owned),
            shared: whole(&states.shared),
            memory: whole(&states.memory),
        };
        let costs = &spec.costs;
        Self {
            l1: costs.l1,
            atomic_hit: costs.atomic_hit,
            pause: costs.pause,
            reload: costs.reload,
            load: row(&costs.load),
            store: row(&costs.store),
            atomic: row(&costs.atomic),
        }
    }

    fn row(&self, kind: Kind) -> &Row {
        match kind {
            Kind::Load => &self.load,
            Kind::Store => &self.store,
            Kind::Atomic => &self.atomic,
        }
    }
}

/// All lines that were accessed, in the order of their first access.
#[derive(Default)]
pub(crate) struct Lines {
    all: Vec<Line>,
    /// The index of each line, by line number.
    place_of: FxHashMap<usize, usize>,
    /// By address.
    pub(crate) misses: FxHashMap<usize, Misses>,
}

impl Lines {
    /// Returns the index of a line by its number. A new line has this socket as its home and this
    /// core as its last holder.
    fn place(&mut self, line: usize, home: usize, core: usize) -> usize {
        let next = self.all.len();
        let place = *self.place_of.entry(line).or_insert(next);
        if place == next {
            self.all.push(Line {
                address: line << 6,
                owner: NOBODY,
                dirty: false,
                supplier: NOBODY,
                leaving: (NOBODY, 0),
                coming: (NOBODY, 0),
                sharers: Cores::NONE,
                home,
                last: core,
                free_at: 0,
                serve_due: false,
                queue: VecDeque::new(),
                watchers: Vec::new(),
            });
        }
        place
    }
}

impl Index<usize> for Lines {
    type Output = Line;
    #[inline(always)]
    fn index(&self, place: usize) -> &Line {
        &self.all[place]
    }
}

impl IndexMut<usize> for Lines {
    #[inline(always)]
    fn index_mut(&mut self, place: usize) -> &mut Line {
        &mut self.all[place]
    }
}

impl World {
    /// Returns the line of an address.
    pub(crate) fn line(&mut self, me: usize, address: usize) -> usize {
        let line = address >> 6;
        let (recent, index) = self.threads[me].recent;
        if recent == line {
            return index;
        }
        let core = self.threads[me].core;
        let index = self.lines.place(line, self.spec.topology.socket_of(core), core);
        self.threads[me].recent = (line, index);
        index
    }

    pub(crate) fn warm(&mut self, start: usize, len: usize, cpus: usize) {
        let topology = &self.spec.topology;
        let cores = (0..cpus.min(topology.cpus())).map(|cpu| topology.core_of(cpu));
        let mut sharers = Cores::NONE;
        cores.for_each(|core| sharers.add(core));
        for line in (start >> 6)..(start + len).div_ceil(64) {
            let index = self.lines.place(line, topology.socket_of(0), 0);
            self.lines[index].sharers = sharers;
        }
    }

    pub(crate) fn ask(&mut self, line: usize, request: Request) {
        if request.itself {
            self.threads[request.thread()].state = State::Missing(line);
        }
        self.lines[line].queue.push_back(request);
        self.serve_by(line, request.arrival);
    }

    /// Records that a core writes to a line that it holds: other threads of the core may watch it.
    pub(crate) fn written(&mut self, line: usize, at: u64) {
        self.lines[line].dirty = true;
        if !self.lines[line].watchers.is_empty() {
            self.invalidate(line, at);
            self.serve_by(line, at);
        }
    }

    /// Schedules the next service of a line with requesters.
    pub(crate) fn serve_by(&mut self, line: usize, at: u64) {
        let l = &mut self.lines[line];
        if !l.serve_due {
            l.serve_due = true;
            let at = l.free_at.max(at);
            self.push(at, Event::Serve(line));
        }
    }

    /// Serves the next requester of a line.
    pub(crate) fn serve(&mut self, line: usize) {
        let now = self.agenda.now;
        self.lines[line].serve_due = false;
        let Some(index) = self.pick(line) else { return };
        // Copied here, because copying the result of `remove` is slow.
        let request = self.lines[line].queue[index];
        self.lines[line].queue.remove(index);
        let core = self.threads[request.thread()].core;
        if self.lines[line].has(core, request.kind, now) {
            // It arrived with another access of the same core.
            let at = self.lines[line].usable(core, now.max(request.arrival));
            self.granted(&request, at + self.cost.l1);
            if !self.lines[line].queue.is_empty() {
                self.serve_by(line, now);
            }
            return;
        }
        let (latency, near) = self.latency(line, core, request.kind);
        // A random variation of a few percent; otherwise threads fall into a lockstep that does not
        // occur on real machines.
        let latency = latency - latency / 32 + self.rng.below(latency / 16 + 1);
        let rules = self.spec.coherence;
        let left = (latency as f64 * rules.overlap) as u64;
        let done = (request.arrival + latency).max(now + left);
        let entry = self.lines.misses.entry(request.address).or_default();
        entry.add(near, done - request.arrival);
        self.lines[line].last = core;
        self.lines[line].coming = (core, done);
        let migrates = self.lines[line].dirty && self.rng.chance(rules.migratory);
        if request.kind == Kind::Load && !migrates {
            self.lines[line].join(core, rules.owned);
            self.lines[line].free_at = now + left;
        } else {
            // A request that found the line idle has its whole way ahead; for a request that has
            // waited, the owner of the line knows it, and only the probe is on its way. A load that
            // takes the line over finds that its owner has finished with it, which is why it takes
            // it over.
            let part = |part: f64| (latency as f64 * part) as u64;
            let probed = match request.kind {
                Kind::Load => now,
                Kind::Store | Kind::Atomic => {
                    (request.arrival + part(rules.travel)).max(now + part(rules.probe))
                }
            };
            self.lines[line].take(core, request.kind, probed.min(done));
            self.lines[line].free_at = done + rules.hold;
            self.invalidate(line, now + latency / 2);
        }
        self.granted(&request, done);
        if !self.lines[line].queue.is_empty() {
            self.serve_by(line, now);
        }
    }

    /// Grants a request at `done`.
    fn granted(&mut self, request: &Request, done: u64) {
        if request.itself {
            // An atomic operation begins after its line has arrived; so do other accesses.
            let atomic = request.kind == Kind::Atomic;
            let work = if atomic { self.cost.atomic_hit } else { RETIRE };
            self.resume(request.thread(), done + work);
        } else {
            self.push(done, Event::Commit(request.thread()));
        }
    }

    /// Returns the index of the requester that is served next.
    fn pick(&mut self, line: usize) -> Option<usize> {
        let l = &self.lines[line];
        if l.queue.len() < 2 {
            return l.queue.len().checked_sub(1);
        }
        let topology = &self.spec.topology;
        let here = topology.socket_of(l.last);
        let stay = self.rng.chance(self.spec.coherence.near_bias);
        let wanted = |r: &Request| (usize::from(self.threads.sockets[r.thread()]) == here) == stay;
        Some(l.queue.iter().position(wanted).unwrap_or(0))
    }

    /// Returns the cost for a core to get a line now, and whether it comes from its own socket.
    fn latency(&self, line: usize, core: usize, kind: Kind) -> (u64, bool) {
        let (l, topology) = (&self.lines[line], self.topology());
        let row = self.cost.row(kind);
        let socket_wide = usize::from(topology.caches > 1);
        if l.owner != NOBODY {
            let distance = topology.between(core, l.owner);
            let states = if l.dirty { &row.modified } else { &row.exclusive };
            return (states[distance], distance <= socket_wide);
        }
        if l.sharers.is_empty() {
            let home = topology.between_sockets(topology.socket_of(core), l.home);
            let distance = if topology.socket_of(core) == l.home { 0 } else { home };
            return (row.memory[distance], distance <= socket_wide);
        }
        // Modified in one cache and copied in others, or clean in several.
        let owned = l.supplier != NOBODY;
        let states = if owned { &row.owned } else { &row.shared };
        if kind == Kind::Load {
            let distance = match owned {
                true => topology.between(core, l.supplier),
                false => topology.nearest(core, &l.sharers),
            };
            return (states[distance], distance <= socket_wide);
        }
        let mut others = l.sharers;
        others.remove(core);
        let (distance, sockets) = topology.farthest(core, &others);
        // A broadcast costs the same regardless of the number of sharers.
        let more = match self.spec.coherence.broadcast {
            true => 0,
            false => self.spec.coherence.invalidate_per_socket * sockets.saturating_sub(1) as u64,
        };
        (states[distance] + more, distance <= socket_wide)
    }

    /// Takes a line from all threads that watch it; they request it again.
    pub(crate) fn invalidate(&mut self, line: usize, arrival: u64) {
        let mut watchers = std::mem::take(&mut self.lines[line].watchers);
        if watchers.is_empty() {
            return;
        }
        // The order in which they notice is random.
        let first = self.rng.below(watchers.len() as u64) as usize;
        watchers.rotate_left(first);
        for thread in watchers.drain(..) {
            let State::Watching(address) = self.threads[thread].state else { continue };
            let t = &mut self.threads[thread];
            t.epoch = t.epoch.wrapping_add(1);
            t.time = t.time.max(arrival);
            t.state = State::Missing(line);
            let request = Request::own(thread, Kind::Load, address, t.time);
            self.lines[line].queue.push_back(request);
        }
        self.lines[line].watchers = watchers;
    }
}
