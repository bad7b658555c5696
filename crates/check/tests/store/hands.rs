//! Page intents of a thread that dies or fails; the limit of pages freed by a commit; and the cost
//! of creating many tables.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_disk::{Disk, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{FileId, FileSpec, Handle, Options, Pool};
use latchwork_region::{Area, AreaOptions, Region, Thread};
use latchwork_store::{Mode, Sizes, Store, Table};

use crate::stage::{begin_in, begin_with, sizes};

const ROWS: Table<u64, &[u8]> = Table::new("rows");

/// Words of a slot's lines: the pages it intends to change, and the log position since when. See
/// `files/page_intents.rs`.
pub(crate) const SINCE: u64 = 3;
pub(crate) const HANDS: u64 = 8;
/// The number of intent words in a slot.
const MOST: u64 = 8;
pub(crate) const LINES: u64 = 16;
/// The word with the owner of a transaction's rollback, and two of its values: another thread rolls
/// it back, or checks whether it must. See `files/undo_ownership.rs`.
pub(crate) const TURN: u64 = 2;
pub(crate) const TAKEN: u64 = 4;
const LOOKS: u64 = 5;

/// The lines of all slots, and the index of this thread's slot, found by its snapshot.
struct Lines {
    area: Area<Native>,
    mine: u64,
}

/// The area with the lines, for a store with these `sizes`.
pub(crate) fn area(region: &Region<Native>) -> Area<Native> {
    let slots = u64::from(sizes(Mode::None).threads) + 16;
    let bytes = (64 + slots * LINES) * 8;
    let options = AreaOptions { first: bytes, limit: bytes, huge: false };
    region.area("store", &options).unwrap()
}

impl Lines {
    fn of(region: &Region<Native>, store: &Store<Native>) -> Self {
        let slots = u64::from(sizes(Mode::None).threads) + 16;
        let area = area(region);
        let word = |slot: u64| area.word(64 + slot * LINES).unwrap().load(Relaxed);
        let mine = store.read(|_| Ok((0..slots).find(|slot| word(*slot) != 0))).unwrap();
        Self { mine: mine.unwrap(), area }
    }

    fn word(&self, word: u64) -> &AtomicU64 {
        self.area.word(64 + self.mine * LINES + word).unwrap()
    }
}

/// Runs `work` on the store's pool without the store.
fn in_pool<R>(
    region: &Region<Native>,
    disk: &Simulated,
    sizes: &Sizes,
    work: impl FnOnce(&Pool<Native>, &Handle<'_, Native>, FileId) -> R,
) -> R {
    in_pool_as(&region.thread().unwrap(), disk, sizes, work)
}

/// The same as this thread.
fn in_pool_as<R>(
    thread: &Thread<Native>,
    disk: &Simulated,
    sizes: &Sizes,
    work: impl FnOnce(&Pool<Native>, &Handle<'_, Native>, FileId) -> R,
) -> R {
    let frames = (sizes.cache / 4096) as u32;
    let options = Options { frames, frames_max: frames, frame_bytes: 4096, ..Options::default() };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let pool = Pool::open(thread.region(), disk, &options).unwrap();
    let handle = pool.handle(thread).unwrap();
    let spec = FileSpec { page_bytes: 4096, ahead: true, ..FileSpec::new("/home/store/data") };
    let file = handle.file(&spec).unwrap();
    work(&pool, &handle, file)
}

fn emptied(disk: &Simulated) -> (Region<Native>, Store<Native>) {
    let (region, store) = begin_in(disk, sizes(Mode::None)).unwrap();
    (0..100).try_for_each(|row| store.put(&ROWS, row, &[1; 700])).unwrap();
    store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
    store.checkpoint().unwrap();
    (region, store)
}

/// A thread dies with a page of the free list in an intent word; the catalog says that it is free.
#[test]
fn an_unused_page_returns_to_the_free_list() {
    let disk = Simulated::new();
    let (region, store) = emptied(&disk);
    let lines = Lines::of(&region, &store);
    in_pool(&region, &disk, &sizes(Mode::None), |pool, handle, file| {
        let (free, _) = store.free_pages().unwrap();
        assert!(free > 5 && pool.free_pages(file).unwrap() == free, "{free} pages are free");
        let page = handle.take_freed(file).unwrap().unwrap();
        lines.word(SINCE).store(store.log_end(), Relaxed);
        lines.word(HANDS).store(page << 1 | 1, Relaxed);
        store.put(&ROWS, 1, &[1; 7]).unwrap();
        assert_eq!(lines.word(HANDS).load(Relaxed), 0, "the page was not returned");
        assert_eq!(pool.free_pages(file).unwrap(), store.free_pages().unwrap().0);
        store.verify().unwrap();
    });
}

/// A thread whose intent words are all used allocates no further page.
#[test]
fn a_full_page_cache_of_a_slot_takes_no_page() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    (0..20).try_for_each(|row| store.put(&ROWS, row, &[1; 700])).unwrap();
    let lines = Lines::of(&region, &store);
    lines.word(SINCE).store(store.log_end(), Relaxed);
    // Roots of new tables stay in the words until their transaction ends.
    (0..MOST).for_each(|hand| lines.word(HANDS + hand).store(1 << 31 | 1 << 1 | 1, Relaxed));
    let (_, before) = store.free_pages().unwrap();
    let failed = (100..120).filter(|row| store.put(&ROWS, *row, &[1; 700]).is_err()).count();
    assert!(failed > 10, "{failed} writes failed");
    assert_eq!(store.free_pages().unwrap().1, before, "the file has grown");
    (0..MOST).for_each(|hand| lines.word(HANDS + hand).store(0, Relaxed));
    (100..120).try_for_each(|row| store.put(&ROWS, row, &[1; 700])).unwrap();
    assert_eq!(store.space().unwrap().lost, 0);
}

/// A failed load holds its root, two pages, and the page that it frees. The catalog's root can
/// still be split to record that page as free.
#[test]
fn the_catalog_can_be_split_with_four_pages_in_hand() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    store.put(&ROWS, 0, &[1; 7]).unwrap();
    let lines = Lines::of(&region, &store);
    lines.word(SINCE).store(store.log_end(), Relaxed);
    let before = store.verify().unwrap();
    // Roots stay in the words until their transaction ends.
    (0..4).for_each(|hand| lines.word(HANDS + hand).store(1 << 31 | 1 << 1 | 1, Relaxed));
    for number in 0..60 {
        let name: &'static str = format!("{number:0>90}").leak();
        store.put(&Table::<u64, u64>::new(name), 1, 1).unwrap();
    }
    (0..4).for_each(|hand| lines.word(HANDS + hand).store(0, Relaxed));
    assert!(store.verify().unwrap() > before + 60, "the catalog still has one page");
    assert_eq!(store.space().unwrap().lost, 0);
}

/// A thread that dies between marking a page and logging its change has logged nothing of that
/// page: its newest record is of another page. The log is not searched any further.
#[test]
fn an_unlogged_page_of_a_dead_thread_is_not_searched() {
    const OTHER: Table<u64, &[u8]> = Table::new("other");
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, calm()).unwrap();
    store.put(&ROWS, 1, &[1; 700]).unwrap();
    let end = store.log_end();
    (0..5000).try_for_each(|row| store.put(&OTHER, row % 10, &[1; 700])).unwrap();
    // A slot whose last owner has written to the other table.
    let same: Arc<dyn Disk> = Arc::new(disk.clone());
    let other = Store::in_region_with(&region, &same, "/home/store".as_ref(), &calm(), 1).unwrap();
    other.put(&OTHER, 1, &[2; 7]).unwrap();
    drop(other);
    let dies = region.thread().unwrap();
    in_pool_as(&dies, &disk, &calm(), |_, handle, file| {
        // The first page of the first table.
        let mut page = handle.write(file, 2).unwrap();
        assert!((1..end).contains(&page.lsn()));
        page.intend();
        core::mem::forget(page);
    });
    dies.abandon();
    let before = store.disk_calls();
    assert_eq!(store.sweep(), Ok(1));
    assert_eq!(store.get(&ROWS, 1), Ok(Some(vec![1; 700])));
    let read = (store.disk_calls() - before).bytes_read;
    assert!(read < 256 << 10, "{read} bytes were read");
    store.verify().unwrap();
}

/// A thread does not wait forever for the owner that damaged memory names: in an unused slot, in an
/// invalid slot, in its own slot.
#[test]
fn damaged_memory_causes_no_wait_for_its_holders() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    store.put(&ROWS, 0, &[1; 7]).unwrap();
    let lines = Lines::of(&region, &store);
    let turn = lines.word(TURN);
    let free = (0..48).find(|slot| region.is_dead(*slot)).unwrap();
    for (by, what) in [u64::from(free), 10_000, u64::from(u32::MAX), lines.mine]
        .into_iter()
        .flat_map(|by| [TAKEN, LOOKS].map(|what| (by, what)))
    {
        let mut runs = 0;
        let written = store.write(|tx| {
            tx.put(&ROWS, 1, &[2; 7])?;
            if runs == 0 {
                turn.store(by << 8 | what, Relaxed);
            }
            runs += 1;
            Ok(())
        });
        // A transaction that may have been undone in part is undone and retried.
        assert_eq!((written.map(drop), runs), (Ok(()), if what == TAKEN { 2 } else { 1 }), "{by}");
        assert_eq!(turn.load(Relaxed), 0);
        assert_eq!(store.get(&ROWS, 1), Ok(Some(vec![2; 7])));
    }
    assert_eq!(store.counts().unwrap().transactions, 0);
}

/// Memory in the format of another version is not used.
#[test]
fn memory_of_another_version_is_refused() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    let lines = Lines::of(&region, &store);
    let version = lines.area.word(1).unwrap();
    let known = version.load(Relaxed) as u32;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let folder = Path::new("/home/store");
    // Memory from before the first version has zero in this word.
    for (says, found) in [(77, 77), (0, 1)] {
        version.store(says, Relaxed);
        let refused = Store::in_region_with(&region, &disk, folder, &sizes(Mode::None), 1);
        let why = latchwork_region::Error::Version { found, known };
        assert_eq!(refused.map(drop), Err(why.into()));
    }
}

/// No checkpoint is made, and the history is long enough for a snapshot.
fn calm() -> Sizes {
    Sizes { cache: 16 << 20, log_budget: 64 << 20, history: 256 << 20, ..sizes(Mode::None) }
}

/// Leaves become empty from the right while a snapshot keeps them linked. Each later commit frees
/// some of them, and no commit frees all.
#[test]
fn a_commit_unlinks_few_pages() {
    const COUNT: u64 = 100_000;
    let disk = Simulated::new();
    let store = begin_with(&disk, calm()).unwrap();
    for from in (0..COUNT).step_by(500) {
        let rows = from..from + 500;
        store.write(|tx| rows.clone().try_for_each(|row| tx.put(&ROWS, row, &[1; 40]))).unwrap();
    }
    store
        .read(|_| {
            (0..COUNT).rev().try_for_each(|row| store.write(|tx| tx.remove(&ROWS, row)).map(drop))
        })
        .unwrap();
    let (mut pages, mut bytes, mut commits) = (0, 0, 0);
    let (mut free, mut end) = (store.free_pages().unwrap().0, store.log_end());
    let first = free;
    for row in 0..2000 {
        store.put(&ROWS, COUNT + row % 10, &[1; 40]).unwrap();
        let (now, then) = (store.free_pages().unwrap().0, store.log_end());
        commits += u64::from(now > free);
        pages = pages.max(now.saturating_sub(free));
        bytes = bytes.max(then - end);
        (free, end) = (now, then);
    }
    println!("{} pages in {commits} commits; {pages}, {bytes} bytes at most", free - first);
    assert!(free - first > 1000, "only {} pages were unlinked", free - first);
    assert!(pages <= 4 && bytes < 128 << 10, "{pages} pages, {bytes} bytes in one commit");
    assert_eq!(store.space().unwrap().lost, 0);
}

/// A new table's name is found by a search of the catalog, not by reading all of it.
#[test]
fn the_cost_of_a_table_does_not_grow_with_their_count() {
    let disk = Simulated::new();
    let wide = Sizes { cache: 64 << 20, ..calm() };
    let (region, store) = begin_in(&disk, wide).unwrap();
    in_pool(&region, &disk, &wide, |pool, _, _| {
        let reads = || pool.stats().unwrap().reads;
        let quarters = (0..4).map(|quarter| {
            let before = reads();
            for number in quarter * 2500..(quarter + 1) * 2500 {
                let name = format!("table {number:06}");
                let table: Table<u64, u64> = Table::new(name.leak());
                store.put(&table, 1, number).unwrap();
            }
            reads() - before
        });
        let reads = quarters.collect::<Vec<_>>();
        println!("{reads:?} reads of pages, for 2,500 tables each");
        // Handles add their counts to the total only from time to time.
        let all: u64 = reads.iter().sum();
        assert!((1..200_000).contains(&all) && reads[3] <= reads[0] + (1 << 15), "{reads:?}");
    });
    assert_eq!(store.space().unwrap().lost, 0);
}
