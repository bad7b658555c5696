//! Arbitrary bytes as the files of a store for the fuzz target and the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::{Disk, Open, Simulated};
use latchwork_machine::Native;
use latchwork_region::{Options as RegionOptions, Region};
use latchwork_store::{Error, Mode, Sizes, Store, Table};

const FOLDER: &str = "/home/store";
const ROWS: Table<u64, &[u8]> = Table::new("rows");
const COUNT: u64 = 300;
/// The most writes of each row.
const TIMES: u8 = 4;

/// A file and its contents.
pub type FileBytes = (PathBuf, Vec<u8>);

/// The result for a store with changed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// The store did not open.
    Refused,
    /// Some operations fail.
    Damaged,
    /// Everything can be read and written.
    Whole,
}

fn sizes() -> Sizes {
    Sizes {
        cache: 1 << 20,
        cache_max: 0,
        page: 4096,
        log_buffer: 1 << 20,
        log_segment: 1 << 20,
        log_budget: 1 << 20,
        history: 4 << 20,
        threads: 16,
        locks: 64 << 20,
        mode: Mode::Full,
    }
}

fn open(disk: &Simulated) -> Result<Store<Native>, Error> {
    let options = RegionOptions {
        threads: 16,
        processes: 2,
        waiters: 16,
        limit: 64 << 20,
        ..RegionOptions::default()
    };
    let region = Region::private(&options).expect("memory");
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Store::in_region_with(&region, &disk, Path::new(FOLDER), &sizes(), 1)
}

/// The value of a row after its write number `time`.
fn value(row: u64, time: u8) -> Vec<u8> {
    let mut value = row.to_be_bytes().to_vec();
    value.resize(40 + (row % 7 * 30) as usize, time);
    value
}

/// Whether the row ever had this value.
fn is_value(row: u64, bytes: &[u8]) -> bool {
    (0..TIMES).any(|time| bytes == value(row, time))
}

fn files_in(disk: &Simulated, folder: &Path, found: &mut Vec<FileBytes>) {
    for name in disk.list(folder).expect("a folder") {
        let path = folder.join(name);
        match disk.peek(&path) {
            Some(bytes) => found.push((path, bytes)),
            None => files_in(disk, &path, found),
        }
    }
}

/// The files of a store after a machine crash: a checkpoint, later changes, and an unfinished
/// transaction.
///
/// # Panics
///
/// If the store cannot be created.
pub fn sound() -> Vec<FileBytes> {
    let disk = Simulated::new();
    disk.make_folder(Path::new("/home")).unwrap();
    let store = open(&disk).unwrap();
    for time in 0..TIMES - 1 {
        for part in 0..3 {
            let rows = (part..COUNT).step_by(3);
            let put = |tx: &mut latchwork_store::WriteTxn<'_, '_, Native>| {
                rows.clone().try_for_each(|row| tx.put(&ROWS, row, &value(row, time)))
            };
            store.write(put).unwrap();
        }
        if time == 1 {
            store.checkpoint().unwrap();
        }
    }
    let mut open = store.begin().unwrap();
    (0..20).for_each(|row| open.put(&ROWS, row * 9, &value(row * 9, TIMES - 1)).unwrap());
    store.put(&ROWS, 1, &value(1, TIMES - 1)).unwrap();
    disk.crash();
    drop(open);
    drop(store);
    disk.restart(3);
    let mut found = Vec::new();
    files_in(&disk, Path::new(FOLDER), &mut found);
    found
}

/// Opens a store of these files, reads all of it, writes to it and opens it again. Each row must be
/// a former value or an error. No call may panic or run forever.
///
/// # Panics
///
/// If one of this fails.
pub fn exercise(files: &[FileBytes]) -> Used {
    let disk = Simulated::new();
    for (path, bytes) in files {
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        folders.pop();
        for folder in folders.into_iter().rev() {
            // It may exist.
            let _ = disk.make_folder(folder);
        }
        disk.open(path, Open::CREATE).unwrap().write(0, bytes).unwrap();
    }
    let Ok(store) = open(&disk) else { return Used::Refused };
    let mut used = Used::Whole;
    let mut rows = 0;
    for row in 0..COUNT {
        match store.read(|tx| tx.get(&ROWS, row)) {
            Ok(Some(bytes)) => {
                assert!(is_value(row, &bytes), "row {row} was never so");
                rows += 1;
            }
            Ok(None) => {}
            Err(_) => used = Used::Damaged,
        }
    }
    let all = store.read(|tx| {
        tx.range(&ROWS, ..)?.try_fold(0, |count, found| {
            let (row, bytes) = found?;
            assert!(is_value(row, &bytes), "row {row} was never so");
            Ok::<_, Error>(count + 1)
        })
    });
    match all {
        Ok(all) if used == Used::Whole => assert_eq!(all, rows, "gets and a scan differ"),
        Ok(_) => {}
        Err(_) => used = Used::Damaged,
    }
    for row in [0, COUNT / 2, COUNT + 7] {
        used = if store.put(&ROWS, row, &value(row, 0)).is_ok() { used } else { Used::Damaged };
    }
    used = if store.checkpoint().is_ok() { used } else { Used::Damaged };
    let sound = store.verify().is_ok();
    drop(store);
    match open(&disk) {
        Ok(store) if used == Used::Whole && sound => {
            let there = store.read(|tx| tx.get(&ROWS, COUNT / 2)).unwrap();
            assert_eq!(there, Some(value(COUNT / 2, 0)), "a written value is lost");
            Used::Whole
        }
        Ok(_) => Used::Damaged,
        Err(why) => {
            assert!(used != Used::Whole || !sound, "a sound store is not opened again: {why}");
            Used::Damaged
        }
    }
}
