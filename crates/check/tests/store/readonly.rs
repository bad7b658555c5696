//! A reader stores nothing in shared memory except in its own slot's line. A process removes its
//! write permission from all shared memory except that line's page, and reads in snapshots: records
//! that others have changed since, records that they have not changed, and while others write.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use latchwork_check::again;
use latchwork_check::random::Random;
use latchwork_store::{Error, Mode, Options, ReadTxn, Store, Table};

use crate::dialogue_stages::{options, region_of};

const ROWS: Table<u64, u64> = Table::new("rows");
const COUNT: u64 = 2000;
const EACH: u64 = 100;
const PAGE: usize = 4096;
/// Bytes of an area before its first word; bytes of a slot's line.
const HEAD: usize = 1 << 16;
const LINE: usize = 64;
/// Thread slots: 200, and 16 for sweepers.
const SLOTS: usize = 216;
/// Offset in a line of the word that belongs to writers.
const TURN: usize = 16;

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static WHERE: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

fn sizes() -> Options {
    let mut options = options();
    // All pages fit into memory.
    options.sizes.cache = 8 << 20;
    options.sizes.threads = 200;
    options.sizes.mode = Mode::None;
    options
}

/// The handler of a store to protected memory: counts it and lets it pass.
extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes a description of the signal ...
    let info = unsafe { &*info };
    // SAFETY: ... which has an address.
    let at = unsafe { info.si_addr() }.addr();
    WHERE[FAULTS.fetch_add(1, Relaxed) % WHERE.len()].store(at, Relaxed);
    let page = core::ptr::without_provenance_mut(at & !(PAGE - 1));
    // SAFETY: it changes the protection of a page. If the page is not mapped, the process ends.
    if unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(9) };
    }
}

fn count_faults() {
    // SAFETY: all zero is a valid value.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler makes only calls that are allowed in a signal handler.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()) }, 0);
}

/// Writable shared memory of this process: its bounds, offset and file.
struct Mapping {
    from: usize,
    to: usize,
    offset: usize,
    file: String,
}

fn shared_memory(folder: &Path) -> Vec<Mapping> {
    let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = Vec::new();
    for line in maps.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let (Some(file), "rw-s") = (words.get(5), words[1]) else { continue };
        if Path::new(file).starts_with(folder) {
            let (from, to) = words[0].split_once('-').unwrap();
            let (from, to, offset) = (hex(from), hex(to), hex(words[2]));
            found.push(Mapping { from, to, offset, file: (*file).to_owned() });
        }
    }
    found
}

/// Describes an address: the file, and the offset in it.
fn place(mappings: &[Mapping], at: usize) -> String {
    let of = mappings.iter().find(|one| (one.from..one.to).contains(&at));
    of.map_or("elsewhere".to_owned(), |one| {
        format!("{} at {:x}", one.file, at - one.from + one.offset)
    })
}

/// The nonzero lines of slots in the store's area.
fn told(area: &Mapping) -> Vec<usize> {
    let first = area.from + HEAD - area.offset + 512;
    // Each slot has two lines; the threads' counters follow them.
    let lines = (first..first + SLOTS * 2 * LINE).step_by(LINE);
    let says = |at: &usize| {
        // SAFETY: it lies in the mapping and is read as an atomic word.
        let word =
            unsafe { &*core::ptr::with_exposed_provenance::<core::sync::atomic::AtomicU64>(*at) };
        word.load(Relaxed) != 0
    };
    lines.filter(says).collect()
}

/// The words of a page without one line, and without the words of writers in other lines.
fn others_on(page: usize, line: usize) -> Vec<u64> {
    let words = (page..page + PAGE).step_by(8).filter(|at| !(line..line + LINE).contains(at));
    words
        .filter(|at| at % LINE != TURN)
        // SAFETY: the page is mapped and consists of words.
        .map(|at| unsafe {
            (*core::ptr::with_exposed_provenance::<core::sync::atomic::AtomicU64>(at)).load(Relaxed)
        })
        .collect()
}

/// Reads some rows, and then all rows, whose sum never changes.
fn look(tx: &ReadTxn<'_, latchwork_machine::Shared>, random: &mut Random) -> Result<(), Error> {
    for _ in 0..10 {
        assert!(tx.get(&ROWS, random.below(COUNT))?.is_some());
    }
    let sum = tx.range(&ROWS, ..)?.try_fold(0, |sum, row| Ok::<_, Error>(sum + row?.1))?;
    assert_eq!(sum, COUNT * EACH);
    Ok(())
}

/// Waits for a line on standard input.
fn listen() {
    let mut line = String::new();
    assert!(std::io::stdin().read_line(&mut line).unwrap() > 0);
}

/// The reading process. Does nothing when run as a test.
#[test]
fn reader() {
    let Some(path) = std::env::var_os("LATCHWORK_READER") else { return };
    let path = Path::new(&path);
    let store = Store::open_with(path, &sizes()).unwrap();
    let mut random = Random(5);
    store.read(|tx| look(tx, &mut random)).unwrap();
    let folder = region_of(path).parent().unwrap().to_owned();
    let mappings = shared_memory(&folder);
    assert!(mappings.len() >= 4, "region, log, pool and store");
    let area = mappings.iter().find(|one| one.file.ends_with("store")).unwrap();
    // No other thread reads yet.
    let line = store.read(|_| Ok(told(area))).unwrap();
    assert!(line.len() == 1 && told(area).is_empty(), "{line:x?}");
    let (line, page) = (line[0], line[0] & !(PAGE - 1));
    let words = area.from + HEAD - area.offset;
    assert!(page > words, "the line is on the page of the words that all threads read");
    count_faults();
    let mut bytes = 0;
    for one in &mappings {
        for (from, to) in [
            (one.from, page.clamp(one.from, one.to)),
            ((page + PAGE).clamp(one.from, one.to), one.to),
        ] {
            let at = core::ptr::without_provenance_mut(from);
            // SAFETY: it removes a permission; the handler counts the writes that need it.
            assert_eq!(unsafe { libc::mprotect(at, to - from, libc::PROT_READ) }, 0);
            bytes += to - from;
        }
    }
    let before = others_on(page, line);
    println!("\n> ready");
    listen();
    let faults = |what: &str| {
        let faults = FAULTS.load(Relaxed);
        let places: Vec<_> = WHERE[..faults.min(WHERE.len())]
            .iter()
            .map(|at| place(&mappings, at.load(Relaxed)))
            .collect();
        println!("> {what}: {faults} faults {places:?}; {bytes} bytes");
    };
    // Older versions must be read from the log, because all records have changed since.
    let aged = store.read(|tx| {
        println!("> snapshot");
        listen();
        (0..5).try_for_each(|_| look(tx, &mut random))
    });
    aged.unwrap();
    (0..50).for_each(|_| store.read(|tx| look(tx, &mut random)).unwrap());
    faults("old and new");
    listen();
    for _ in 0..200 {
        store.read(|tx| look(tx, &mut random)).unwrap();
    }
    assert_eq!(others_on(page, line), before, "a word outside the line has changed");
    faults("beside a writer");
    // The control: a write is detected.
    store.write(|tx| tx.put(&ROWS, 0, EACH)).unwrap();
    println!("> {}", FAULTS.load(Relaxed));
}

#[test]
fn snapshots_write_only_their_own_cache_line() {
    let path = std::env::temp_dir().join(format!("latchwork-readonly-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    let store = Store::open_with(&path, &sizes()).unwrap();
    store.write(|tx| (0..COUNT).try_for_each(|row| tx.put(&ROWS, row, EACH))).unwrap();
    // Other threads take the slots whose lines are on the page of the shared words.
    let (taken, over) = (Barrier::new(101), Barrier::new(101));
    let told = thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                store.read(|tx| tx.get(&ROWS, 0)).unwrap();
                taken.wait();
                over.wait();
            });
        }
        taken.wait();
        let told = converse(&store, &path);
        over.wait();
        told
    });
    println!("{told:#?}");
    let [_, quiet, busy, written] = &told[..] else { panic!("the reader ended early") };
    assert!(quiet.starts_with("old and new: 0 faults"));
    // After three disturbances by a writer a read takes the page's latch, as documented. The latch
    // is in the pool's descriptors; waiting for it uses the region.
    let places = busy.split('"').skip(1).step_by(2);
    assert!(
        places.into_iter().all(|place| place.contains("pool-desc") || place.contains("/region "))
    );
    assert!(written != "0", "a write was not detected");
    drop(store);
    fs::remove_dir_all(&path).unwrap();
}

/// Moves an amount from one row to another.
fn transfer(store: &Store, (from, to): (u64, u64)) {
    let moved = store.write(|tx| {
        let has = tx.get_for_update(&ROWS, from)?.unwrap();
        tx.put(&ROWS, from, has - has.min(3))?;
        let other = tx.get_for_update(&ROWS, to)?.unwrap();
        tx.put(&ROWS, to, other + has.min(3))
    });
    moved.unwrap();
}

/// Lets the reader read what this process wrote, then read while it writes. Returns its output.
fn converse(store: &Store, path: &Path) -> Vec<String> {
    let mut child = again(module_path!(), "reader")
        .env("LATCHWORK_READER", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let mut tell = || drop(writeln!(to, "go on"));
    let from = BufReader::new(child.stdout.take().unwrap());
    let lines = from.lines().map_while(Result::ok);
    let mut said = lines.filter_map(|line| line.strip_prefix("> ").map(str::to_owned));
    let mut all: Vec<_> = said.next().into_iter().collect();
    tell();
    assert_eq!(said.next().as_deref(), Some("snapshot"));
    (0..COUNT).for_each(|row| transfer(store, (row, (row + 7) % COUNT)));
    tell();
    all.extend(said.next());
    tell();
    let (stop, mut random) = (AtomicUsize::new(0), Random(3));
    thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Relaxed) == 0 {
                transfer(store, (random.below(COUNT), random.below(COUNT)));
            }
        });
        all.extend(said.next());
        stop.store(1, Relaxed);
    });
    all.extend(said);
    child.wait().unwrap();
    all
}
