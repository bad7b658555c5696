//! The arrangement of cores, and the distances between them.

use latchwork_machine::{Level, Place};

/// The largest number of cores of a machine: the capacity of a set of sharers.
pub const MAX_CORES: usize = 256;

/// A set of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cores([u64; MAX_CORES / 64]);

impl Cores {
    /// The empty set.
    pub const NONE: Self = Self([0; MAX_CORES / 64]);

    /// Creates a set of one core.
    pub fn one(core: usize) -> Self {
        let mut set = Self::NONE;
        set.add(core);
        set
    }
    /// Adds a core.
    pub fn add(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }
    /// Removes a core.
    pub fn remove(&mut self, core: usize) {
        self.0[core / 64] &= !(1 << (core % 64));
    }
    /// Returns whether the core is in the set.
    pub fn has(&self, core: usize) -> bool {
        self.0[core / 64] >> (core % 64) & 1 != 0
    }
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; MAX_CORES / 64]
    }
    /// Returns whether a core is in both sets.
    pub fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
}

/// The shape of a machine.
///
/// Distances are small numbers, in this order: under the same last-level cache, in the same socket
/// (if a socket has several such caches), and one, two.. hops between sockets.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Packages, each a NUMA node.
    pub sockets: usize,
    /// Last-level caches in a socket.
    pub caches: usize,
    /// Cores under a cache.
    pub cores: usize,
    /// Hardware threads of a core.
    pub smt: usize,
    hops: Vec<Vec<u8>>,
    far: u8,
    in_socket: Vec<Cores>,
    in_cache: Vec<Cores>,
    /// The socket and the cache of each core, precomputed because divisions are slow.
    positions: Vec<(u16, u16)>,
}

impl Topology {
    pub(crate) fn new(
        sockets: usize,
        caches: usize,
        cores: usize,
        smt: usize,
        hops: &[Vec<u8>],
    ) -> Result<Self, &'static str> {
        let hops = match (sockets, hops.len()) {
            (1, 0) => vec![vec![0]],
            (2, 0) => vec![vec![0, 1], vec![1, 0]],
            (_, 0) => return Err("missing, for more than two sockets"),
            _ => hops.to_vec(),
        };
        if hops.len() != sockets || hops.iter().any(|row| row.len() != sockets) {
            return Err("must have a row and a column for each socket");
        }
        for (a, row) in hops.iter().enumerate() {
            for (b, hop) in row.iter().enumerate() {
                if (*hop == 0) != (a == b) || *hop != hops[b][a] || *hop > 8 {
                    return Err("must be symmetric, 0 to itself and 1 to 8 to others");
                }
            }
        }
        let far = hops.iter().flatten().copied().max().unwrap_or(0);
        let group = |of: usize| -> Vec<Cores> {
            let total = sockets * caches * cores;
            let mut sets = vec![Cores::NONE; total / of];
            (0..total).for_each(|core| sets[core / of].add(core));
            sets
        };
        let (in_socket, in_cache) = (group(caches * cores), group(cores));
        let position = |core| ((core / (caches * cores)) as u16, (core / cores) as u16);
        let positions = (0..sockets * caches * cores).map(position).collect();
        Ok(Self { sockets, caches, cores, smt, hops, far, in_socket, in_cache, positions })
    }

    /// Returns the number of cores.
    pub fn total_cores(&self) -> usize {
        self.sockets * self.caches * self.cores
    }

    /// Returns the number of hardware threads. They are numbered socket by socket; within a socket
    /// the first threads of all cores come first, then the second ones.
    pub fn cpus(&self) -> usize {
        self.total_cores() * self.smt
    }

    /// Returns the core of a cpu.
    pub fn core_of(&self, cpu: usize) -> usize {
        let per_socket = self.caches * self.cores;
        let (socket, within) = (cpu / (per_socket * self.smt), cpu % (per_socket * self.smt));
        socket * per_socket + within % per_socket
    }

    /// Returns the socket of a core.
    pub fn socket_of(&self, core: usize) -> usize {
        usize::from(self.positions[core].0)
    }

    /// Returns the last-level cache of a core.
    pub fn cache_of(&self, core: usize) -> usize {
        usize::from(self.positions[core].1)
    }

    /// Returns the place of a cpu, as latches see it.
    pub fn place_of(&self, cpu: usize) -> Place {
        let core = self.core_of(cpu);
        let socket = self.socket_of(core) as u32;
        let cache = (self.cache_of(core) * self.cores) as u32;
        Place::new(socket, socket, cache, core as u32)
    }

    /// Returns whether there is more than one group at `level`.
    pub fn spread(&self, level: Level) -> bool {
        match level {
            Level::Core => self.total_cores() > 1,
            Level::Cache => self.sockets * self.caches > 1,
            Level::Node | Level::Socket => self.sockets > 1,
        }
    }

    /// Returns the number of distances.
    pub fn distances(&self) -> usize {
        1 + usize::from(self.caches > 1) + usize::from(self.far)
    }

    /// Returns the distance between two sockets.
    pub fn between_sockets(&self, a: usize, b: usize) -> usize {
        match self.hops[a][b] {
            0 => usize::from(self.caches > 1),
            hops => usize::from(self.caches > 1) + usize::from(hops),
        }
    }

    /// Returns the distance between two cores.
    pub fn between(&self, a: usize, b: usize) -> usize {
        if self.cache_of(a) == self.cache_of(b) {
            return 0;
        }
        self.between_sockets(self.socket_of(a), self.socket_of(b))
    }

    /// Returns the distance from a core to the nearest one of a set.
    pub fn nearest(&self, core: usize, set: &Cores) -> usize {
        if set.meets(&self.in_cache[self.cache_of(core)]) {
            return 0;
        }
        let socket = self.socket_of(core);
        let there = (0..self.sockets).filter(|s| set.meets(&self.in_socket[*s]));
        there.map(|s| self.between_sockets(socket, s)).min().unwrap_or(0)
    }

    /// Returns the distance from a core to the farthest one of a set, and the number of other
    /// sockets that contain one.
    pub fn farthest(&self, core: usize, set: &Cores) -> (usize, usize) {
        let socket = self.socket_of(core);
        let (mut far, mut others) = (0, 0);
        for there in (0..self.sockets).filter(|s| set.meets(&self.in_socket[*s])) {
            let near = there == socket && !self.leaves_cache(core, set);
            far = far.max(if near { 0 } else { self.between_sockets(socket, there) });
            others += usize::from(there != socket);
        }
        (far, others)
    }

    fn leaves_cache(&self, core: usize, set: &Cores) -> bool {
        let (socket, mine) = (self.socket_of(core), self.cache_of(core));
        let caches = socket * self.caches..(socket + 1) * self.caches;
        caches.filter(|cache| *cache != mine).any(|cache| set.meets(&self.in_cache[cache]))
    }

    /// Returns the distance of another machine that is most similar to this one's `distance`.
    pub(crate) fn matching(&self, distance: usize, other: &Topology) -> usize {
        let mine = usize::from(self.caches > 1);
        let theirs = usize::from(other.caches > 1);
        if distance <= mine {
            return distance.min(theirs);
        }
        (distance - mine + theirs).min(other.distances() - 1)
    }
}
