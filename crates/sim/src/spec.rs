//! Machines as data: the files under `machines/`.
//!
//! Latencies are the costs of one access as the requesting core sees them, one figure for each
//! distance. Every section may be omitted if `like` names another machine: then that machine's
//! constants are used, and its latencies in proportion to this machine's `atomic.modified`.

use std::fmt;

use serde::Deserialize;

use crate::topology::Topology;

/// The machines that are included in the program: name and file.
pub const SHIPPED: &[(&str, &str)] = &[
    ("westmere-ex-80", include_str!("../machines/westmere-ex-80.toml")),
    ("opteron-48", include_str!("../machines/opteron-48.toml")),
    ("e5-4620-64", include_str!("../machines/e5-4620-64.toml")),
    ("broadwell-ex-192", include_str!("../machines/broadwell-ex-192.toml")),
    ("xeon-24t", include_str!("../machines/xeon-24t.toml")),
    ("rome-128", include_str!("../machines/rome-128.toml")),
    ("graviton-64", include_str!("../machines/graviton-64.toml")),
];

/// A machine: its shape and its costs.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The name that commands use.
    pub name: String,
    /// A description of the machine.
    pub title: String,
    /// The source of its figures.
    pub source: String,
    /// Clock rate in cycles per nanosecond.
    pub ghz: f64,
    /// The arrangement of its cores.
    pub topology: Topology,
    /// Costs of accesses, in cycles.
    pub costs: Costs,
    /// The rules for contended lines.
    pub coherence: Coherence,
    /// Costs of the operating system.
    pub os: Os,
}

/// Costs of accesses in cycles. The arrays have an entry for each distance.
#[derive(Clone, Debug)]
pub struct Costs {
    /// A load that hits.
    pub l1: u64,
    /// An atomic operation on a line that this core owns.
    pub atomic_hit: u64,
    /// One PAUSE.
    pub pause: u64,
    /// A load that hits the line of this thread's last atomic operation.
    pub reload: u64,
    /// The factor by which a core's hardware threads slow each other.
    pub smt_share: f64,
    /// Loads, by the state of the line elsewhere.
    pub load: States,
    /// Plain stores.
    pub store: States,
    /// Atomic read-modify-writes.
    pub atomic: States,
}

/// A cost for each state that the line may have elsewhere, and each distance.
#[derive(Clone, Debug)]
pub struct States {
    /// Modified in one cache.
    pub modified: Vec<f64>,
    /// Exclusive and clean in one cache.
    pub exclusive: Vec<f64>,
    /// Modified in one cache and copied in others: only on machines with `owned`.
    pub owned: Vec<f64>,
    /// In several caches.
    pub shared: Vec<f64>,
    /// In no cache: from memory, by the distance of its home.
    pub memory: Vec<f64>,
}

/// The rules for contended lines: the same constants for every lock and every workload.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coherence {
    /// The probability that the next requester is in the owner's socket, if there are requesters
    /// there and elsewhere: sockets take turns, approximately.
    pub near_bias: f64,
    /// The fraction of a transfer that remains after the line's last transfer has ended, because
    /// the request had time to travel.
    pub overlap: f64,
    /// Cycles for which a core keeps a received line, so that it can complete its access.
    pub hold: u64,
    /// The fraction of a transfer's latency that a request takes to reach the line's owner, which
    /// uses the line until then. Two threads on one line gain by it over three.
    #[serde(default)]
    pub travel: f64,
    /// The same fraction for a request that had to wait: the owner already knows it, and the probe
    /// is sent when the previous transfer has ended.
    #[serde(default)]
    pub probe: f64,
    /// Whether a modified line that is read stays dirty with its owner, which supplies it.
    #[serde(default)]
    pub owned: bool,
    /// Whether a store to a shared line is broadcast to all caches, so that its cost does not
    /// depend on the number of sharers.
    #[serde(default)]
    pub broadcast: bool,
    /// The probability that a load takes a modified line over, as a store would, instead of sharing
    /// it.
    pub migratory: f64,
    /// Cycles for each further socket in which a line must be invalidated.
    pub invalidate_per_socket: u64,
    /// The number of plain stores that a core may have in progress.
    pub store_buffer: usize,
}

/// Costs of the operating system.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Os {
    /// A thread's time slice while others want the processor, in microseconds.
    pub slice_us: f64,
    /// The time from the waking call to the woken thread's first instruction, in microseconds.
    pub wake_us: f64,
    /// A switch from one thread to another, in microseconds.
    pub switch_us: f64,
    /// A minimal system call, in nanoseconds.
    pub syscall_ns: f64,
}

/// Why a machine's file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// The machine does not exist. The message lists the existing ones.
    Unknown(String),
    /// The file is not TOML, or a key is missing, unknown or of the wrong type.
    Syntax {
        /// The line, counted from one.
        line: usize,
        /// The error, with the key.
        message: String,
    },
    /// A key has an invalid value.
    Value {
        /// The line, counted from one; zero if the key is not in the file.
        line: usize,
        /// The key with its section.
        key: &'static str,
        /// The error.
        message: String,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "no machine {name:?}; there are")?;
                SHIPPED.iter().try_for_each(|(name, _)| write!(f, " {name}"))
            }
            Self::Syntax { line, message } => write!(f, "line {line}: {message}"),
            Self::Value { line: 0, key, message } => write!(f, "{key}: {message}"),
            Self::Value { line, key, message } => write!(f, "line {line}: {key}: {message}"),
        }
    }
}

impl std::error::Error for SpecError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    title: String,
    source: String,
    like: Option<String>,
    ghz: f64,
    topology: FileTopology,
    latency: FileLatency,
    core: Option<FileCore>,
    coherence: Option<Coherence>,
    os: Option<Os>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTopology {
    sockets: usize,
    #[serde(default = "one")]
    caches: usize,
    cores: usize,
    #[serde(default = "one")]
    smt: usize,
    #[serde(default)]
    hops: Vec<Vec<u8>>,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileCore {
    l1: u64,
    atomic_hit: u64,
    pause: u64,
    reload: Option<u64>,
    smt_share: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLatency {
    unit: Unit,
    scale: Option<f64>,
    #[serde(default)]
    load: FileStates,
    #[serde(default)]
    store: FileStates,
    atomic: FileStates,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Cycles,
    Ns,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileStates {
    modified: Option<Vec<f64>>,
    exclusive: Option<Vec<f64>>,
    owned: Option<Vec<f64>>,
    shared: Option<Vec<f64>>,
    memory: Option<Vec<f64>>,
}

impl Spec {
    /// Returns a machine that is included in the program.
    pub fn shipped(name: &str) -> Result<Self, SpecError> {
        let found = SHIPPED.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| SpecError::Unknown(name.to_owned()))?;
        Self::parse(text)
    }

    /// Parses the description of a machine.
    ///
    /// # Errors
    ///
    /// [`SpecError`] with line and key, if `text` is not a valid description.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let file: File = toml::from_str(text).map_err(|error| SpecError::Syntax {
            line: error.span().map_or(1, |span| line_of(text, span.start)),
            message: match error.span().and_then(|span| key_at(text, span.start)) {
                Some(key) => format!("{key}: {}", error.message()),
                None => error.message().to_owned(),
            },
        })?;
        let wrong = |key: &'static str, message: &str| SpecError::Value {
            line: find_key(text, key),
            key,
            message: message.to_owned(),
        };
        let shape = &file.topology;
        for (key, n) in [
            ("topology.sockets", shape.sockets),
            ("topology.caches", shape.caches),
            ("topology.cores", shape.cores),
            ("topology.smt", shape.smt),
        ] {
            if n == 0 || n > 256 {
                return Err(wrong(key, "must be from 1 to 256"));
            }
        }
        if shape.sockets * shape.caches * shape.cores > crate::topology::MAX_CORES {
            return Err(wrong("topology.cores", "more than 256 cores in all"));
        }
        if !(0.1..=10.0).contains(&file.ghz) {
            return Err(wrong("ghz", "must be from 0.1 to 10"));
        }
        let topology =
            Topology::new(shape.sockets, shape.caches, shape.cores, shape.smt, &shape.hops)
                .map_err(|message| wrong("topology.hops", message))?;
        let like = match file.like.as_deref() {
            Some(name) if name == file.name => {
                return Err(wrong("like", "a machine cannot be like itself"));
            }
            Some(name) => Some(Self::shipped(name).map_err(|e| wrong("like", &e.to_string()))?),
            None => None,
        };
        let like = like.as_ref();
        let costs = costs(&file, &topology, like, &wrong)?;
        let coherence = file.coherence.or(like.map(|l| l.coherence));
        let coherence = coherence.ok_or_else(|| wrong("coherence", "missing, and no `like`"))?;
        for (key, part) in [
            ("coherence.near_bias", coherence.near_bias),
            ("coherence.overlap", coherence.overlap),
            ("coherence.travel", coherence.travel),
            ("coherence.probe", coherence.probe),
            ("coherence.migratory", coherence.migratory),
        ] {
            if !(0.0..=1.0).contains(&part) {
                return Err(wrong(key, "must be from 0 to 1"));
            }
        }
        for (key, n, least, most) in [
            ("core.l1", costs.l1, 1, 1000),
            ("core.atomic_hit", costs.atomic_hit, 1, 1000),
            ("core.pause", costs.pause, 1, 10_000),
            ("core.reload", costs.reload, 1, 1000),
            ("coherence.hold", coherence.hold, 0, 1_000_000),
            ("coherence.invalidate_per_socket", coherence.invalidate_per_socket, 0, 1_000_000),
            ("coherence.store_buffer", coherence.store_buffer as u64, 1, 10_000),
        ] {
            if !(least..=most).contains(&n) {
                return Err(wrong(key, &format!("must be from {least} to {most}")));
            }
        }
        if coherence.broadcast && coherence.invalidate_per_socket > 0 {
            let message = "must be 0 with `broadcast`, which reaches all caches at one cost";
            return Err(wrong("coherence.invalidate_per_socket", message));
        }
        let rows = [
            ("latency.load.owned", &file.latency.load.owned),
            ("latency.store.owned", &file.latency.store.owned),
            ("latency.atomic.owned", &file.latency.atomic.owned),
        ];
        if let Some((key, _)) = rows.iter().find(|(_, row)| row.is_some() && !coherence.owned) {
            return Err(wrong(key, "needs `owned = true` in [coherence]"));
        }
        if !(1.0..=16.0).contains(&costs.smt_share) {
            return Err(wrong("core.smt_share", "must be from 1 to 16"));
        }
        let os = file.os.or(like.map(|l| l.os));
        let os = os.ok_or_else(|| wrong("os", "missing, and no `like`"))?;
        for (key, time) in [
            ("os.slice_us", os.slice_us),
            ("os.wake_us", os.wake_us),
            ("os.switch_us", os.switch_us),
            ("os.syscall_ns", os.syscall_ns),
        ] {
            if !(time > 0.0 && time < 1e9) {
                return Err(wrong(key, "must be a time above 0"));
            }
        }
        Ok(Self {
            name: file.name,
            title: file.title,
            source: file.source,
            ghz: file.ghz,
            topology,
            costs,
            coherence,
            os,
        })
    }

    /// Returns this machine with every miss `factor` times as expensive: the only scale that a fit
    /// may use.
    pub fn scaled(mut self, factor: f64) -> Self {
        for states in [&mut self.costs.load, &mut self.costs.store, &mut self.costs.atomic] {
            for row in [
                &mut states.modified,
                &mut states.exclusive,
                &mut states.owned,
                &mut states.shared,
                &mut states.memory,
            ] {
                row.iter_mut().for_each(|cost| *cost *= factor);
            }
        }
        self
    }

    /// Returns the cycles of an atomic operation on a modified line at the largest distance between
    /// two of the first `cpus` processors; zero if they belong to one core.
    pub fn largest_latency(&self, cpus: usize) -> f64 {
        let shape = &self.topology;
        let mut cores: Vec<usize> =
            (0..cpus.min(shape.cpus())).map(|cpu| shape.core_of(cpu)).collect();
        cores.sort_unstable();
        cores.dedup();
        // Not only from the first core: two others may be farther apart than either is from it.
        let pairs = cores
            .iter()
            .enumerate()
            .flat_map(|(at, one)| cores[at + 1..].iter().map(|other| shape.between(*one, *other)));
        pairs.map(|distance| self.costs.atomic.modified[distance]).fold(0.0, f64::max)
    }

    /// Converts nanoseconds to cycles.
    pub fn cycles(&self, ns: f64) -> u64 {
        (ns * self.ghz).round() as u64
    }
}

type Wrong<'a> = &'a dyn Fn(&'static str, &str) -> SpecError;

fn costs(
    file: &File,
    topology: &Topology,
    like: Option<&Spec>,
    wrong: Wrong<'_>,
) -> Result<Costs, SpecError> {
    let latency = &file.latency;
    let fitted = latency.scale.unwrap_or(1.0);
    if !(0.1..=10.0).contains(&fitted) {
        return Err(wrong("latency.scale", "must be from 0.1 to 10"));
    }
    let scale = match latency.unit {
        Unit::Cycles => fitted,
        Unit::Ns => fitted * file.ghz,
    };
    let distances = topology.distances();
    let own =
        |given: &Option<Vec<f64>>, key: &'static str| -> Result<Option<Vec<f64>>, SpecError> {
            let Some(row) = given else { return Ok(None) };
            if row.len() != distances {
                let message = format!("has {} figures for {distances} distances", row.len());
                return Err(wrong(key, &message));
            }
            if !row.iter().all(|cost| (1.0..1e6).contains(cost)) {
                return Err(wrong(key, "a latency must be from 1 to 1,000,000"));
            }
            Ok(Some(row.iter().map(|cost| cost * scale).collect()))
        };
    let anchor = own(&latency.atomic.modified, "latency.atomic.modified")?
        .ok_or_else(|| wrong("latency.atomic.modified", "missing"))?;
    // The other machine's cost at its most similar distance.
    let borrow = |pick: &dyn Fn(&Costs) -> &Vec<f64>, key: &'static str| {
        let like = like.ok_or_else(|| wrong(key, "missing, and no `like`"))?;
        let theirs = pick(&like.costs);
        Ok((0..distances)
            .map(|at| {
                let there = topology.matching(at, &like.topology);
                theirs[there] * anchor[at] / like.costs.atomic.modified[there]
            })
            .collect::<Vec<f64>>())
    };
    macro_rules! row {
        ($op:ident, $state:ident) => {{
            let key = concat!("latency.", stringify!($op), ".", stringify!($state));
            match own(&latency.$op.$state, key)? {
                Some(row) => row,
                None => borrow(&|costs| &costs.$op.$state, key)?,
            }
        }};
    }
    let core = |own: fn(&FileCore) -> u64, theirs: fn(&Costs) -> u64| match (&file.core, like) {
        (Some(core), _) => Ok(own(core)),
        (None, Some(like)) => Ok(theirs(&like.costs)),
        (None, None) => Err(wrong("core", "missing, and no `like`")),
    };
    // A state without figures in the file costs as much as the most similar state.
    let or = |given: &Option<Vec<f64>>, key: &'static str, instead: &[f64]| {
        own(given, key).map(|row| row.unwrap_or_else(|| instead.to_vec()))
    };
    let load = row!(load, modified);
    let (store, atomic) = (row!(store, shared), row!(atomic, shared));
    let smt_share = file.core.as_ref().map(|c| c.smt_share).or(like.map(|l| l.costs.smt_share));
    Ok(Costs {
        l1: core(|c| c.l1, |c| c.l1)?,
        atomic_hit: core(|c| c.atomic_hit, |c| c.atomic_hit)?,
        pause: core(|c| c.pause, |c| c.pause)?,
        reload: core(|c| c.reload.unwrap_or(c.l1), |c| c.reload)?,
        smt_share: smt_share.unwrap_or(1.0),
        load: States {
            owned: or(&latency.load.owned, "latency.load.owned", &load)?,
            modified: load,
            exclusive: row!(load, exclusive),
            shared: row!(load, shared),
            memory: row!(load, memory),
        },
        store: States {
            modified: row!(store, modified),
            exclusive: row!(store, exclusive),
            owned: or(&latency.store.owned, "latency.store.owned", &store)?,
            shared: store,
            memory: row!(load, memory),
        },
        atomic: States {
            modified: anchor.clone(),
            exclusive: anchor.clone(),
            owned: or(&latency.atomic.owned, "latency.atomic.owned", &atomic)?,
            shared: atomic,
            memory: row!(load, memory),
        },
    })
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// Returns the section that a line opens.
fn section(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or("").trim();
    line.strip_prefix('[')?
        .strip_suffix(']')
        .map(str::trim)
        .filter(|name| !name.contains([',', '[']))
}

/// Returns the key that is set at a byte of the text, with its section.
fn key_at(text: &str, at: usize) -> Option<String> {
    let line = line_of(text, at);
    let (mut inside, mut key) = (None, None);
    for line in text.lines().take(line) {
        if let Some(name) = section(line) {
            (inside, key) = (Some(name), None);
        } else if let Some((name, _)) = line.split_once('=') {
            key = Some(name.trim());
        }
    }
    match (inside, key) {
        (Some(inside), Some(key)) => Some(format!("{inside}.{key}")),
        (inside, key) => key.or(inside).map(str::to_owned),
    }
}

/// Returns the line that sets `section.key`, for an error found after parsing; zero if none does.
fn find_key(text: &str, path: &str) -> usize {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let mut inside = String::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(name) = self::section(line) {
            inside = name.to_owned();
            if section.is_empty() && inside == key {
                return number + 1;
            }
        } else if let Some((name, _)) = line.split_once('=') {
            let name = name.trim();
            let full = if inside.is_empty() { name.to_owned() } else { format!("{inside}.{name}") };
            if full == path || (inside == section && name == key) {
                return number + 1;
            }
        }
    }
    0
}
