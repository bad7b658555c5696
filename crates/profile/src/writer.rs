//! The writer's side: no allocation, no lock, no `errno`, and failures are ignored.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};

use latchwork_machine::{Clock, Machine, Native};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::layout::{Chain, Class, Entry, Header, MAGIC, Segment, bucket, store_bytes};
use crate::maps;
use crate::place::Place;
use crate::stack::{self, Caller, Piece};

/// The segment of this process, or the parent's until the first record after a fork.
static SEGMENT: AtomicPtr<Segment> = AtomicPtr::new(core::ptr::null_mut());
/// Whether this process is a child that has no segment of its own yet.
static INHERITED: AtomicBool = AtomicBool::new(false);

/// The folder of the segments, and the latch's name, for children.
static FOLDER: Text<512> = Text::new();
static LATCH: Text<16> = Text::new();

/// How many words of a waiter's stack are copied.
static WORDS: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are written before a second thread starts.
struct Text<const N: usize> {
    bytes: [AtomicU8; N],
    length: AtomicUsize,
}

impl<const N: usize> Text<N> {
    const fn new() -> Self {
        Self { bytes: [const { AtomicU8::new(0) }; N], length: AtomicUsize::new(0) }
    }

    fn set(&self, text: &[u8]) -> bool {
        let fits = text.len() <= N;
        if fits {
            store_bytes(&self.bytes, text);
            self.length.store(text.len(), Relaxed);
        }
        fits
    }

    fn get<'b>(&self, buffer: &'b mut [u8; N]) -> &'b [u8] {
        for (to, from) in buffer.iter_mut().zip(&self.bytes) {
            *to = from.load(Relaxed);
        }
        &buffer[..self.length.load(Relaxed).min(N)]
    }
}

/// Begins a segment for this process in `folder`; false if that is not possible. `depth` is the
/// number of callers that a report will show for each wait.
///
/// Call it before a second thread starts.
pub fn start(folder: &[u8], latch: &[u8], depth: usize) -> bool {
    WORDS.store(words(depth), Relaxed);
    if !FOLDER.set(folder) || !LATCH.set(&latch[..latch.len().min(16)]) {
        return false;
    }
    let segment = create();
    // Release: synchronizes with the Acquire in `segment`.
    SEGMENT.store(segment, Release);
    !segment.is_null()
}

/// How many words of a stack `depth` callers take: half a kilobyte each, and for the wrappers below
/// the first.
fn words(depth: usize) -> usize {
    if depth == 0 { 0 } else { 64 + 64 * depth.min(100) }
}

/// Must be called in the child of a fork: its first record begins a new segment. If that fails (the
/// child may have changed its root or its user), it continues with its parent's.
pub fn forked() {
    maps::forked();
    INHERITED.store(true, Relaxed);
}

/// Returns whether this process runs the program `name`, a path or the last part of one: compared
/// with its file and with its invoked name.
pub fn is_this_program(name: &[u8], called: &[u8]) -> bool {
    let mut buffer = [0; 4096];
    let is_name = |path: &[u8]| path == name || path.rsplit(|b| *b == b'/').next() == Some(name);
    is_name(executable(&mut buffer)) || is_name(called)
}

/// Records in `folder` that this program ran and was not selected: its file's path.
///
/// Call it before a second thread starts.
pub fn passed_over(folder: &[u8]) {
    let mut buffer = [0; 4096];
    let exe = executable(&mut buffer);
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    if FOLDER.set(folder)
        && let Some(file) = create_file(pid, b".other")
    {
        let _ = rustix::io::write(&file, exe);
    }
}

fn executable(buffer: &mut [u8; 4096]) -> &[u8] {
    let length = rustix::fs::readlinkat_raw(CWD, c"/proc/self/exe", &mut buffer[..]);
    length.map_or(&[], |length| &buffer[..length])
}

/// Creates and maps a segment; null if that fails.
fn create() -> *mut Segment {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    let Some(file) = create_file(pid, b"") else { return core::ptr::null_mut() };
    // A full file system would kill the program at its first write to a page without space.
    let room = rustix::fs::fstatvfs(&file)
        .is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) >= 4 * size_of::<Segment>() as u64);
    if !room {
        return core::ptr::null_mut();
    }
    if rustix::fs::ftruncate(&file, size_of::<Segment>() as u64).is_err() {
        return core::ptr::null_mut();
    }
    // SAFETY: a new mapping of a new file of this length.
    let mapped = unsafe {
        rustix::mm::mmap(
            core::ptr::null_mut(),
            size_of::<Segment>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    let Ok(mapped) = mapped else { return core::ptr::null_mut() };
    let segment: *mut Segment = mapped.cast();
    // SAFETY: zero is a value of all its fields, and it is never unmapped.
    fill(unsafe { &*segment }, pid);
    segment
}

/// Creates the file `PID.N` in the folder, followed by `suffix`. `N` counts the programs that one
/// process became by `exec`.
fn create_file(pid: u32, suffix: &[u8]) -> Option<rustix::fd::OwnedFd> {
    let mut buffer = [0; 512];
    let folder = FOLDER.get(&mut buffer);
    for n in 0..1000u32 {
        let mut path = maps::Line::new();
        path.push(folder);
        path.push(b"/");
        path.push_number(u64::from(pid), 10);
        path.push(b".");
        path.push_number(u64::from(n), 10);
        path.push(suffix);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match latchwork_machine::open(path.bytes(), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Some(file),
            Err(rustix::io::Errno::EXIST) => {}
            Err(_) => return None,
        }
    }
    None
}

fn fill(segment: &Segment, pid: u32) {
    let header = &segment.header;
    header.pid.store(pid, Relaxed);
    header.began.store(Native::now(Clock::Realtime), Relaxed);
    let mut name = [0; 16];
    store_bytes(&header.latch_name, LATCH.get(&mut name));
    let mut buffer = [0; 4096];
    let exe = executable(&mut buffer);
    // The end of a long path says more than its beginning.
    store_bytes(&header.exe, &exe[exe.len().saturating_sub(header.exe.len())..]);
    maps::write(segment);
    // Release: a reader that sees it sees the rest. (It reads the file, so this is for form.)
    header.magic.store(MAGIC, Release);
}

fn segment() -> Option<&'static Segment> {
    if INHERITED.load(Relaxed) && INHERITED.swap(false, Relaxed) {
        let own = create();
        if !own.is_null() {
            maps::forget();
            // Release: synchronizes with the Acquire below.
            SEGMENT.store(own, Release);
        }
    }
    // Acquire: synchronizes with the Release of its creator. SAFETY: null, or mapped for good.
    unsafe { SEGMENT.load(Acquire).as_ref() }
}

/// Counts an acquisition that did not wait.
pub fn record(class: Class, object: usize, caller: Caller) {
    if let Some(segment) = segment() {
        record_in(segment, class, object, caller, None);
    }
}

/// Counts a failed try.
pub fn refused(_: Class, _: usize, _: usize) {
    if let Some(segment) = segment() {
        segment.header.refused.fetch_add(1, Relaxed);
    }
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    began: u64,
    /// Its duration; zero until it has ended.
    took: u64,
    /// The `Place` where the latch's holder took it.
    holder: u64,
    chain: Option<usize>,
}

/// Records the caller's stack and the latch's holder. Call it when a wait begins.
pub fn wait_begins(class: Class, object: usize, caller: Caller) -> Wait {
    let (mut holder, mut chain) = (0, None);
    if let Some(segment) = segment() {
        // Relaxed: set before a second thread started.
        chain = chain_of(segment, class, caller, WORDS.load(Relaxed));
        // The last thread that took the latch. Of several readers it stands for all.
        if let Some((latch, _)) = find(&segment.latches, object as u64) {
            holder = latch.holder.load(Relaxed);
            latch.blocked.fetch_add(1, Relaxed);
        }
    }
    // Last: the work above is not part of the wait.
    Wait { began: Native::now(Clock::Monotonic), took: 0, holder, chain }
}

/// Counts an acquisition after a wait, or a wait that timed out.
pub fn wait_ended(class: Class, object: usize, caller: Caller, mut wait: Wait, taken: bool) {
    wait.took = Native::now(Clock::Monotonic).saturating_sub(wait.began);
    let Some(segment) = segment() else { return };
    blame(segment, wait.holder, wait.took);
    if taken {
        record_in(segment, class, object, caller, Some(&wait));
    } else {
        segment.header.refused.fetch_add(1, Relaxed);
    }
}

/// Adds a wait to the place from which the latch was held when it began.
fn blame(segment: &Segment, holder: u64, waited: u64) {
    let entry = match Place::from_word(holder) {
        Some(Place::Chain(index)) => segment.chains.get(index).map(|chain| &chain.entry),
        Some(Place::Site(..)) => find(&segment.sites, holder).map(|(entry, _)| entry),
        None => None,
    };
    if let Some(entry) = entry {
        // Relaxed: as in `count`.
        entry.blocked.fetch_add(1, Relaxed);
        entry.blocked_total.fetch_add(waited, Relaxed);
    }
}

/// The index of the caller's chain, identified by so many words of the stack; none if unknown.
fn chain_of(segment: &Segment, class: Class, caller: Caller, words: usize) -> Option<usize> {
    if words == 0 || caller.sp == 0 {
        return None;
    }
    let mut piece = Piece::empty();
    let found = if piece.copy(caller, words) {
        let key = piece.key(caller, class);
        chain_with(segment, key, |chain| piece.store(chain, caller))
    } else {
        None
    };
    if found.is_none() {
        segment.header.lost_chains.fetch_add(1, Relaxed);
    }
    found
}

/// The index of the chain of a thread that did not wait; none without frame pointers.
fn quick_chain_of(segment: &Segment, class: Class, caller: Caller) -> Option<usize> {
    // Relaxed: set before a second thread started.
    let words = WORDS.load(Relaxed);
    if words == 0 || caller.sp == 0 {
        return None;
    }
    // As many frames as requested callers, and three of wrappers.
    let key = stack::quick_key(caller, class, words / 64 + 2)?;
    chain_with(segment, key, |chain| copy_to(chain, caller, words))
}

/// Copies the caller's stack to a chain. Separate, because a new chain is rare and other calls need
/// no room for a piece.
#[cold]
#[inline(never)]
fn copy_to(chain: &Chain, caller: Caller, words: usize) {
    let mut piece = Piece::empty();
    if piece.copy(caller, words) {
        piece.store(chain, caller);
    }
}

/// The index of the chain with this key; a new one gets its piece.
fn chain_with(segment: &Segment, key: u64, fill: impl FnOnce(&Chain)) -> Option<usize> {
    let (index, fresh) = find_by(&segment.chains, key, |chain: &Chain| &chain.entry)?;
    let chain = &segment.chains[index];
    if fresh {
        fill(chain);
    }
    // A chain without a piece could not be named. Relaxed: a hint.
    (chain.length.load(Relaxed) > 0).then_some(index)
}

fn record_in(segment: &Segment, class: Class, object: usize, caller: Caller, wait: Option<&Wait>) {
    let Header { lost_latches, lost_sites, lost_chains, .. } = &segment.header;
    let latch = find(&segment.latches, object as u64);
    let place = Place::Site(caller.address as u64, class).word();
    let site = find(&segment.sites, place);
    if site.is_some_and(|(_, fresh)| fresh) {
        maps::see(segment, caller.address);
    }
    let mut chain = wait.and_then(|wait| wait.chain);
    if let Some((latch, _)) = latch {
        // Not where the entry is created: a thread that waits also creates it, and takes the latch
        // later.
        if latch.first_caller.load(Relaxed) == 0 {
            let address = caller.address as u64;
            // Relaxed: of two simultaneous first callers either will do.
            let _ = latch.first_caller.compare_exchange(0, address, Relaxed, Relaxed);
        }
        // The holder of a latch for which no thread waits is not recorded, which costs nothing.
        if wait.is_none() && latch.blocked.load(Relaxed) > 0 {
            chain = quick_chain_of(segment, class, caller);
        }
        let holder = chain.map_or(place, |index| Place::Chain(index).word());
        // Relaxed: a hint. A waiting thread may still see the previous holder.
        latch.holder.store(holder, Relaxed);
    }
    let waited = wait.map(|wait| wait.took);
    if count(latch, lost_latches, class, caller.address, waited)
        && let (Some((latch, _)), Some(wait)) = (latch, wait)
    {
        latch.peer_holder.store(wait.holder, Relaxed);
    }
    count(site, lost_sites, class, object, waited);
    if let Some(index) = chain {
        let chain = &segment.chains[index].entry;
        count(Some((chain, false)), lost_chains, class, object, waited);
    }
}

/// The entry with this key, and whether it is new; none if the table has no room near its place.
fn find(table: &[Entry], key: u64) -> Option<(&Entry, bool)> {
    find_by(table, key, |entry| entry).map(|(index, fresh)| (&table[index], fresh))
}

/// `find` in a table of things that have an entry.
fn find_by<T>(table: &[T], key: u64, entry: impl Fn(&T) -> &Entry) -> Option<(usize, bool)> {
    // Fibonacci hashing: the top bits of the product depend on all bits of the key.
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - table.len().ilog2());
    for probe in 0..64 {
        let index = (hash as usize + probe) & (table.len() - 1);
        let entry = entry(&table[index]);
        // Relaxed: counters next to the key need no order; a reader takes what it finds.
        let seen = entry.key.load(Relaxed);
        if seen == key {
            return Some((index, false));
        }
        if seen == 0 {
            match entry.key.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => {
                    entry.first_seen.store(Native::now(Clock::Monotonic), Relaxed);
                    return Some((index, true));
                }
                Err(now) if now == key => return Some((index, false)),
                Err(_) => {}
            }
        }
    }
    None
}

/// Counts; returns whether it was the longest wait so far.
fn count(
    found: Option<(&Entry, bool)>,
    lost: &AtomicU64,
    class: Class,
    peer: usize,
    wait: Option<u64>,
) -> bool {
    // Relaxed, all: counters that order nothing.
    let Some((entry, _)) = found else {
        lost.fetch_add(1, Relaxed);
        return false;
    };
    if entry.class.load(Relaxed) != class as u64 {
        entry.class.store(class as u64, Relaxed);
    }
    entry.acquisitions.fetch_add(1, Relaxed);
    let Some(wait) = wait else { return false };
    entry.contended.fetch_add(1, Relaxed);
    entry.wait_total.fetch_add(wait, Relaxed);
    entry.waits[bucket(wait)].fetch_add(1, Relaxed);
    let longest = entry.wait_max.fetch_max(wait, Relaxed) < wait;
    if longest {
        entry.peer.store(peer as u64, Relaxed);
    }
    longest
}

/// The cost of recording on this machine, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Per acquisition.
    pub record: f64,
    /// Additional cost of a wait: copying a piece of the stack.
    pub wait: f64,
}

/// Measures the cost of recording with `depth` callers.
pub fn cost(depth: usize) -> Cost {
    // SAFETY: a new mapping of fresh memory.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            size_of::<Segment>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(mapped) = mapped else { return Cost::default() };
    // SAFETY: zero is a value of all its fields; it is unmapped below, after its last use.
    let segment = unsafe { &*mapped.cast::<Segment>() };
    let record = |n: u64| {
        let caller = Caller { address: 4096 + (n & 7) as usize, sp: 0, fp: 0 };
        record_in(segment, Class::Mutex, 64, caller, None);
    };
    let here = &raw const mapped as usize;
    let caller = Caller { address: 4096, sp: here & !7, fp: 0 };
    let words = words(depth);
    let wait = |_: u64| {
        chain_of(segment, Class::Mutex, caller, words);
    };
    let cost = Cost { record: took(5_000, record), wait: took(200, wait) };
    // SAFETY: mapped above, with this length, and no longer used.
    let _ = unsafe { rustix::mm::munmap(mapped, size_of::<Segment>()) };
    cost
}

/// The duration of one call, in nanoseconds.
fn took(times: u64, mut call: impl FnMut(u64)) -> f64 {
    let mut round = || {
        let began = Native::now(Clock::Monotonic);
        (0..times).for_each(&mut call);
        Native::now(Clock::Monotonic) - began
    };
    // The first round pays for the memory; the fastest of the others counts.
    let least = (0..5).map(|_| round()).min().unwrap_or(0);
    least as f64 / times as f64
}
