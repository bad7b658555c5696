//! The pool compared with a map, on a disk that fails at each call in turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_check::between::{Before, Between};
use latchwork_check::random::Random;
use latchwork_disk::{Disk, Error as DiskError, Fault, File, Operation, Simulated, Subject};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileId, FileSpec, Handle, Options, Pool};
use latchwork_region::{Options as RegionOptions, Region};

const PAGES: u64 = 40;
const ROUNDS: u64 = 400;

fn options() -> Options {
    Options { frames: 16, frames_max: 16, frame_bytes: 512, ..Options::default() }
}

fn region() -> Region<Native> {
    let few = RegionOptions { threads: 16, waiters: 16, processes: 8, limit: 4 << 20, mode: 0o600 };
    Region::private(&few).unwrap()
}

fn spec() -> FileSpec {
    FileSpec { page_bytes: 512, ..FileSpec::new(PathBuf::from("/data/pages")) }
}

fn disk() -> Simulated {
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    disk
}

/// The value of a page, which all of its words have. A mixture of two pages has none.
fn value(handle: &Handle<'_>, file: FileId, page: u64) -> Result<u64, Error> {
    handle.read(file, page, |view| {
        let first = view.word(2)?;
        (3..view.len()).all(|index| view.word(index) == Some(first)).then_some(first)
    })
}

fn change(
    handle: &Handle<'_>,
    file: FileId,
    page: u64,
    value: u64,
    known: bool,
) -> Result<(), Error> {
    let mut held = if known { handle.write(file, page)? } else { handle.create(file, page)? };
    held.begin(0);
    (2..held.len()).for_each(|index| assert!(held.set(index, value)));
    held.commit();
    Ok(())
}

/// Whether a disk fault may cause this error.
fn is_about_the_disk(error: &Error) -> bool {
    let of_page = matches!(error, Error::Checksum { .. } | Error::Misdirected { .. });
    // A lost write at its end leaves a file short.
    of_page || matches!(error, Error::Disk(_) | Error::Shrank { .. })
}

/// The result of a run: failed calls, and pages that differ from the map.
#[derive(Debug, Default)]
struct Outcome {
    errors: u64,
    strange: u64,
    older: u64,
}

/// Runs the same operations on a pool and on a map. Whatever the disk does, a read returns a page
/// that was stored there or an error about it.
fn run(disk: &Simulated) -> Outcome {
    let region = region();
    let pool = Pool::open(&region, Arc::new(disk.clone()), &options()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    // If opening fails, it is repeated.
    let file = handle.file(&spec()).or_else(|_| handle.file(&spec()));
    let file = file.or_else(|_| handle.file(&spec())).unwrap();
    let mut map: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut random, mut outcome) = (Random(99), Outcome::default());
    for round in 1..=ROUNDS {
        let page = random.below(PAGES);
        if random.below(2) == 0 {
            match change(&handle, file, page, page << 32 | round, map.contains_key(&page)) {
                Ok(()) => drop(map.insert(page, page << 32 | round)),
                Err(error) => {
                    assert!(is_about_the_disk(&error), "{error}");
                    outcome.errors += 1;
                }
            }
        } else if let Some(known) = map.get(&page) {
            compare(value(&handle, file, page), *known, page, &mut outcome);
        }
    }
    disk.heal();
    for (page, known) in &map {
        compare(value(&handle, file, *page), *known, *page, &mut outcome);
    }
    assert!(pool.list().unwrap().all(|frame| frame.holder.is_none()), "a frame is half claimed");
    outcome
}

fn compare(found: Result<u64, Error>, known: u64, page: u64, outcome: &mut Outcome) {
    match found {
        Ok(found) if found == known => {}
        Ok(found) => {
            assert_eq!(found >> 32, page, "another page's bytes");
            assert!(found < known, "a value that was not stored");
            outcome.older += 1;
        }
        Err(error) => {
            assert!(is_about_the_disk(&error), "{error}");
            outcome.strange += 1;
        }
    }
}

#[test]
fn a_disk_that_fails_once_costs_that_call_and_nothing_else() {
    let whole = disk();
    let before = whole.history().len() as u64;
    let calm = run(&whole);
    assert_eq!((calm.errors, calm.strange, calm.older), (0, 0, 0), "without a fault");
    let calls = whole.history().len() as u64;
    assert!(calls > 150, "{calls} calls: the pool is larger than the pages");
    for fault in [Fault::Device, Fault::NoSpace, Fault::ShortRead] {
        let mut fired = 0;
        for number in before..calls {
            let disk = disk();
            disk.plan(number, fault);
            let outcome = run(&disk);
            fired += disk.fired();
            assert!(outcome.errors + outcome.strange <= 1, "{fault:?} {number}: {outcome:?}");
            assert_eq!(outcome.older, 0, "{fault:?} {number}: a change was lost");
        }
        assert!(fired > 20, "{fault:?} fired {fired} times");
    }
}

#[test]
fn the_checksum_detects_wrong_data_from_the_disk() {
    let calls = {
        let whole = disk();
        run(&whole);
        whole.history().len() as u64
    };
    let mut told = 0;
    for fault in [Fault::FlippedBit, Fault::Misdirected] {
        for number in 2..calls {
            let disk = disk();
            disk.plan(number, fault);
            // `run` itself asserts that no page belongs to another place or was never stored.
            let outcome = run(&disk);
            told += u64::from(outcome.errors + outcome.strange > 0);
        }
    }
    assert!(told > 40, "the checksum told {told} faults");
    // The control: a disk that loses a whole write has an older page with a valid checksum. Only
    // the layer above, which knows LSNs, can detect this.
    let lost = (2..calls).any(|number| {
        let disk = disk();
        disk.plan(number, Fault::LostWrite);
        run(&disk).older > 0
    });
    assert!(lost, "the comparison with the map cannot fail");
}

#[test]
fn a_failed_sync_is_final_and_reported_to_every_thread() {
    [Fault::Device, Fault::NoSpace, Fault::Dropped].into_iter().for_each(sync_that_fails);
}

fn sync_that_fails(fault: Fault) {
    let disk = disk();
    let region = region();
    let pool = Pool::open(&region, Arc::new(disk.clone()), &options()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&spec()).unwrap();
    (0..PAGES).for_each(|page| change(&handle, file, page, page << 32, false).unwrap());
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert!(disk.history().contains(&Operation::Sync));
    change(&handle, file, 3, 3 << 32 | 1, true).unwrap();
    // The next calls are the write of page 3 and the sync.
    let next = disk.history().len() as u64;
    disk.plan(next + 1, fault);
    let failed = handle.sync(u64::MAX, &mut |_| {});
    assert!(matches!(failed, Err(Error::Disk(_))), "{failed:?}");
    disk.heal();
    let failed = Err(Error::SyncFailed { file: 0 });
    assert_eq!(handle.sync(u64::MAX, &mut |_| {}), failed, "never retried into success");
    let another = region.another().unwrap();
    let peer = Pool::open(&another, Arc::new(disk.clone()), &options()).unwrap();
    let thread = another.thread().unwrap();
    let peer = peer.handle(&thread).unwrap();
    assert_eq!(peer.sync(u64::MAX, &mut |_| {}), failed, "another process has the error");
    assert_eq!(value(&peer, file, 3), Ok(3 << 32 | 1), "reading continues");
}

/// A disk that cannot read from this offset of a file on.
#[derive(Debug)]
struct Unreadable(u64);

impl Between for Unreadable {
    fn read(
        &self,
        file: &dyn File,
        path: &Path,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), DiskError> {
        if at == self.0 {
            let (operation, path) = (Operation::Read, path.to_owned());
            return Err(DiskError::Device(Subject { operation, path, at }));
        }
        file.read(at, into)
    }
}

/// Preallocated space at the end of a file contains no page. If it cannot be read, it may contain
/// one.
#[test]
fn a_last_page_that_cannot_be_read_is_a_page() {
    let disk = disk();
    let spec = FileSpec { ahead: true, ..spec() };
    let open = |at| {
        let disk = Arc::new(Before::new(Arc::new(Unreadable(at)), disk.clone()));
        let region = region();
        let pool: Pool<Native> = Pool::open(&region, disk, &options()).unwrap();
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&spec).unwrap();
        let mut held = handle.new_page(file).unwrap();
        held.begin(0);
        let page = held.page();
        held.commit();
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        page
    };
    assert_eq!(open(u64::MAX), 0);
    assert_eq!(open(u64::MAX), 1);
    let length = disk.peek(Path::new("/data/pages")).unwrap().len() as u64;
    assert!(length > 3 * 512, "no room was made");
    assert_eq!(open(length - 512), length / 512);
}
