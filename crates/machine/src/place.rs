//! The place where a thread runs: a path of locality levels, read from sysfs.
//!
//! A socket number is not enough. On an EPYC Rome a line moves in 25 ns within a core complex, in
//! 110 ns within the socket and in 270 ns across sockets, so a place names every level and its user
//! selects one. Nothing here allocates or changes `errno`, because a waiter may ask inside a mutex
//! of `malloc`.

use core::cell::Cell;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use rustix::fd::IntoRawFd;
use rustix::fs::{Mode, OFlags};

/// A level of locality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Hardware threads of one core.
    Core,
    /// Cores that share a last-level cache.
    Cache,
    /// Cores of one NUMA node.
    Node,
    /// Cores of one package.
    Socket,
}

/// A path through the machine, from the socket down to the core: 8 bytes, zero if unknown.
///
/// ```text
///  63     52 51    40 39        20 19         0
/// ┌─────────┬────────┬────────────┬────────────┐
/// │ socket+1│  node  │ cache      │ core       │   cache and core: their first cpu's number
/// └─────────┴────────┴────────────┴────────────┘
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Place(pub u64);

const CACHE_SHIFT: u32 = 20;
const NODE_SHIFT: u32 = 40;
const SOCKET_SHIFT: u32 = 52;
const SMALL: u64 = (1 << 12) - 1;
const LARGE: u64 = (1 << 20) - 1;

impl Place {
    /// No place is known.
    pub const UNKNOWN: Place = Place(0);

    /// Creates the place of the core `core`, under `cache`, on `node` of `socket`. Numbers that do
    /// not fit are truncated.
    pub const fn new(socket: u32, node: u32, cache: u32, core: u32) -> Self {
        Self(
            ((socket as u64 + 1) & SMALL) << SOCKET_SHIFT
                | (node as u64 & SMALL) << NODE_SHIFT
                | (cache as u64 & LARGE) << CACHE_SHIFT
                | (core as u64 & LARGE),
        )
    }

    /// Returns whether both places agree in everything from `level` upwards.
    #[inline]
    pub const fn near(self, other: Place, level: Level) -> bool {
        let shift = match level {
            Level::Core => 0,
            Level::Cache => CACHE_SHIFT,
            Level::Node => NODE_SHIFT,
            Level::Socket => SOCKET_SHIFT,
        };
        (self.0 ^ other.0) >> shift == 0
    }

    /// Returns the package's number, if known.
    pub const fn socket(self) -> Option<u32> {
        ((self.0 >> SOCKET_SHIFT) as u32).checked_sub(1)
    }

    /// Returns the NUMA node's number; zero if unknown.
    pub const fn node(self) -> u32 {
        (self.0 >> NODE_SHIFT & SMALL) as u32
    }

    /// Returns the first cpu that shares this one's last-level cache; zero if unknown.
    pub const fn cache(self) -> u32 {
        (self.0 >> CACHE_SHIFT & LARGE) as u32
    }

    /// Returns the first cpu of this one's core; zero if unknown.
    pub const fn core(self) -> u32 {
        (self.0 & LARGE) as u32
    }
}

impl core::fmt::Debug for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.socket() {
            None => f.write_str("somewhere"),
            Some(s) => {
                write!(
                    f,
                    "socket {s} node {} cache {} core {}",
                    self.node(),
                    self.cache(),
                    self.core()
                )
            }
        }
    }
}

/// Cpus whose place is cached. The places of further cpus are read from the system each time.
const CPUS: usize = 4096;

/// The system's topology, as sysfs describes it.
///
/// Each cpu is read when a thread first runs there, so hot-plugged cpus are found. A level whose
/// file is missing or malformed has one member: a system without sysfs is one socket.
pub struct Topology {
    root: &'static str,
    places: [AtomicU64; CPUS],
    /// One bit for each level that has been read, and four bits higher whether the cpus differ at
    /// it.
    spread: AtomicU8,
}

/// The topology that this program runs on.
pub(crate) static HERE: Topology = Topology::at("/sys/devices/system");

impl Topology {
    /// Creates the topology described below `root`, laid out as `/sys/devices/system` is.
    pub const fn at(root: &'static str) -> Self {
        Self { root, places: [const { AtomicU64::new(0) }; CPUS], spread: AtomicU8::new(0) }
    }

    /// Returns the place of a cpu. Costs about 50 us the first time, then one load.
    pub fn place_of(&self, cpu: usize) -> Place {
        let Some(cell) = self.places.get(cpu) else { return self.read(cpu) };
        // Relaxed: the value itself is all there is.
        let known = cell.load(Relaxed);
        if known != 0 {
            return Place(known);
        }
        let place = self.read(cpu);
        cell.store(place.0, Relaxed);
        place
    }

    /// Returns whether the cpus differ at `level`.
    pub fn spread(&self, level: Level) -> bool {
        let (asked, yes) = (1 << level as u8, 16 << level as u8);
        // Relaxed: the value itself is all there is.
        let known = self.spread.load(Relaxed);
        if known & asked != 0 {
            return known & yes != 0;
        }
        let spread = self.read_spread(level);
        self.spread.fetch_or(if spread { asked | yes } else { asked }, Relaxed);
        spread
    }

    fn read_spread(&self, level: Level) -> bool {
        let mut buffer = [0; 256];
        let mut mine = [0; 256];
        let online = self.file(format_args!("cpu/online"), &mut buffer);
        if !online.contains(&b'-') && !online.contains(&b',') {
            return false;
        }
        // Nodes share no cache, even if the system does not list the nodes.
        if level == Level::Cache && self.spread(Level::Node) {
            return true;
        }
        let siblings = match level {
            Level::Node => {
                let nodes = self.file(format_args!("node/online"), &mut mine);
                return nodes.contains(&b'-') || nodes.contains(&b',');
            }
            Level::Core => "topology/thread_siblings_list",
            Level::Cache => "cache/index3/shared_cpu_list",
            Level::Socket => "topology/core_siblings_list",
        };
        let first = number(online).unwrap_or(0);
        let near = self.file(format_args!("cpu/cpu{first}/{siblings}"), &mut mine);
        !near.is_empty() && near != online
    }

    fn read(&self, cpu: usize) -> Place {
        let mut buffer = [0; 256];
        let mut first = |file: core::fmt::Arguments<'_>| number(self.file(file, &mut buffer));
        let socket = first(format_args!("cpu/cpu{cpu}/topology/physical_package_id")).unwrap_or(0);
        let core = first(format_args!("cpu/cpu{cpu}/topology/thread_siblings_list"));
        let cache = first(format_args!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"));
        Place::new(socket, self.node_of(cpu), cache.unwrap_or(0), core.unwrap_or(cpu as u32))
    }

    /// The node that lists `cpu`. A machine with one node, or without the files, has node 0.
    fn node_of(&self, cpu: usize) -> u32 {
        if !self.spread(Level::Node) {
            return 0;
        }
        let (mut nodes, mut cpus) = ([0; 256], [0; 1024]);
        let online = self.file(format_args!("node/online"), &mut nodes);
        ranges(online)
            .flat_map(|(from, to)| from..=to)
            .take(1 << 12)
            .find(|node| {
                let list = self.file(format_args!("node/node{node}/cpulist"), &mut cpus);
                ranges(list).any(|(from, to)| (from..=to).contains(&(cpu as u32)))
            })
            .unwrap_or(0)
    }

    /// A small file's bytes, without the newline; none if it cannot be read.
    fn file<'b>(&self, name: core::fmt::Arguments<'_>, buffer: &'b mut [u8]) -> &'b [u8] {
        let mut path = Line::new();
        if write!(path, "{}/{name}", self.root).is_err() {
            return &[];
        }
        let Ok(fd) = crate::open(path.bytes(), OFlags::RDONLY, Mode::empty()) else { return &[] };
        let read = rustix::io::read(&fd, &mut *buffer);
        // The system call itself, because the C library's `close` is a cancellation point and no
        // frame here can be unwound. See `interpose`. SAFETY: no other value owns the descriptor,
        // which is given up here.
        unsafe { rustix::io::close(fd.into_raw_fd()) };
        match read {
            Ok(length) => buffer[..length].trim_ascii_end(),
            Err(_) => &[],
        }
    }
}

/// The ranges of a list such as `0-3,8,10-11`. Text that is no number ends it.
fn ranges(list: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    list.split(|b| *b == b',').map_while(|part| {
        let from = number(part)?;
        let to = match part.iter().position(|b| *b == b'-') {
            Some(dash) => number(&part[dash + 1..])?,
            None => from,
        };
        Some((from, to))
    })
}

/// The number that `text` begins with.
fn number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    core::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// A line of text on the stack.
struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; 256], length: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// After how many calls a thread asks the system again, where asking is expensive.
const ASKS: u32 = 32;

/// Returns the cpu that this thread runs on. A hint.
///
/// glibc 2.35 and later keep it in the thread's rseq area (2 ns). Older versions call into the vDSO
/// (20 ns and more), so the answer is reused for 32 calls.
pub(crate) fn cpu() -> usize {
    thread_local! {
        static LAST: Cell<(u32, usize)> = const { Cell::new((0, 0)) };
    }
    if asking_is_cheap() {
        return ask();
    }
    LAST.with(|last| {
        let (left, cpu) = last.get();
        let (left, cpu) = if left == 0 { (ASKS, ask()) } else { (left - 1, cpu) };
        last.set((left, cpu));
        cpu
    })
}

fn ask() -> usize {
    // SAFETY: sched_getcpu takes no argument and only reads.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// Whether the C library is glibc 2.35 or later, which registers rseq for each thread.
fn asking_is_cheap() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    // Relaxed: the value itself is all there is.
    match KNOWN.load(Relaxed) {
        0 => {
            // SAFETY: glibc returns a static string.
            let text = unsafe { libc::gnu_get_libc_version() };
            // SAFETY: glibc's version ends with a zero byte.
            let text = unsafe { core::ffi::CStr::from_ptr(text) }.to_bytes();
            let minor = text.strip_prefix(b"2.").and_then(number).unwrap_or(0);
            KNOWN.store(if minor >= 35 { 1 } else { 2 }, Relaxed);
            minor >= 35
        }
        known => known == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a new folder and returns it.
    fn tree(name: &str, files: &[(&str, &str)]) -> &'static str {
        let root =
            std::env::temp_dir().join(format!("latchwork-place-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root.to_string_lossy().into_owned().leak()
    }

    #[test]
    fn a_path_has_four_levels() {
        let (a, b) = (Place::new(1, 2, 8, 10), Place::new(1, 2, 8, 11));
        assert!(a.near(b, Level::Cache) && !a.near(b, Level::Core));
        assert!(!a.near(Place::new(1, 3, 8, 10), Level::Node));
        assert!(a.near(Place::new(1, 3, 8, 10), Level::Socket));
        assert_eq!((a.socket(), a.node(), a.cache(), a.core()), (Some(1), 2, 8, 10));
        assert_eq!(Place::UNKNOWN.socket(), None);
    }

    #[test]
    fn no_sysfs_is_one_socket() {
        let nowhere: &'static Topology = Box::leak(Box::new(Topology::at("/nonexistent")));
        assert!(!nowhere.spread(Level::Node) && !nowhere.spread(Level::Cache));
        assert_eq!(nowhere.place_of(3), Place::new(0, 0, 0, 3));
        assert!(nowhere.place_of(0).near(nowhere.place_of(7), Level::Cache));
    }

    #[test]
    fn two_nodes_with_two_caches_each_and_a_cpu_plugged_in_later() {
        let root = tree(
            "two",
            &[
                ("cpu/online", "0-5\n"),
                ("node/online", "0-1\n"),
                ("node/node0/cpulist", "0-3\n"),
                ("node/node1/cpulist", "4-7\n"),
                ("cpu/cpu2/topology/physical_package_id", "0\n"),
                ("cpu/cpu2/topology/thread_siblings_list", "2-3\n"),
                ("cpu/cpu2/cache/index3/shared_cpu_list", "2-3\n"),
                ("cpu/cpu0/cache/index3/shared_cpu_list", "0-1\n"),
            ],
        );
        let topology: &'static Topology = Box::leak(Box::new(Topology::at(root)));
        assert!(topology.spread(Level::Node) && topology.spread(Level::Cache));
        assert_eq!(topology.place_of(2), Place::new(0, 0, 2, 2));
        tree("two", &[("cpu/cpu6/topology/physical_package_id", "1\n")]);
        assert_eq!(topology.place_of(6), Place::new(1, 1, 0, 6));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn nodes_are_apart_where_no_cache_is_known() {
        let root = tree("bare", &[("cpu/online", "0-3\n"), ("node/online", "0-1\n")]);
        let topology: &'static Topology = Box::leak(Box::new(Topology::at(root)));
        assert!(topology.spread(Level::Node) && topology.spread(Level::Cache));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn senseless_files_are_no_panic() {
        let root = tree(
            "senseless",
            &[
                ("cpu/online", "-,-\n"),
                ("node/online", "9-99999999999,x\n"),
                ("cpu/cpu0/topology/physical_package_id", "-1\n"),
                ("cpu/cpu0/topology/thread_siblings_list", "4294967295\n"),
            ],
        );
        let topology: &'static Topology = Box::leak(Box::new(Topology::at(root)));
        assert_eq!(topology.place_of(0).node(), 0);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn here_is_somewhere() {
        let place = HERE.place_of(cpu());
        assert!(place.socket().is_some(), "{place:?}");
    }
}
