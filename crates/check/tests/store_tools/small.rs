//! The space that a small store takes, and a store whose memory cannot grow.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use latchwork_store::{MemoryPlace as Memory, Mode, Options, Sizes, Store, Table, TxnOptions};

use crate::mounts::{in_namespace, runs};
use crate::stage::Place;

const FRUIT: Table<&str, u64> = Table::new("fruit");
const ROWS: Table<u64, &[u8]> = Table::new("rows");

/// Bytes that a folder takes, as `du` counts them.
fn used(path: &Path) -> u64 {
    let own = fs::metadata(path).unwrap().blocks() * 512;
    if !path.is_dir() {
        return own;
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.fold(own, |sum, entry| sum + used(&entry))
}

fn memory(path: &Path) -> String {
    fs::read_to_string(path.join("region")).unwrap().lines().nth(1).unwrap().to_owned()
}

#[test]
fn a_store_with_one_record_is_small_and_grows_with_use() {
    let place = Place::new("small");
    let store = Store::open(place.at("one")).unwrap();
    store.put(&FRUIT, "pear", 3).unwrap();
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(3)));
    let shared = memory(&place.at("one"));
    let (disk, memory) = (used(&place.at("one")), used(Path::new(&shared)));
    assert!(disk <= 1 << 20, "{disk} bytes on disk");
    assert!(memory <= 8 << 20, "{memory} bytes of shared memory");
    // 40 MB of rows and the log for them do not fit into that.
    let none = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    for from in (0..40_000).step_by(500) {
        let put = store.write_with(&none, |tx| {
            (from..from + 500).try_for_each(|row| tx.put(&ROWS, row, &[7; 1000]))
        });
        put.unwrap();
    }
    let grown = used(Path::new(&shared));
    assert!(grown > 40 << 20, "{grown} bytes of shared memory");
    assert_eq!(store.sizes().unwrap().cache, Sizes::default().cache);
    store.verify().unwrap();
    drop(store);
    let store = Store::open_with(place.at("one"), &Options::small()).unwrap();
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(3)));
    assert_eq!(store.get(&ROWS, 39_999), Ok(Some(vec![7; 1000])));
}

/// A tool that opens a store first does not limit the cache of a later program.
#[test]
fn the_largest_requested_cache_size_is_used() {
    let place = Place::new("larger");
    let mut options = Options::default();
    options.sizes.cache = 2 << 20;
    let tool = Store::open_with(place.at("one"), &options).unwrap();
    assert_eq!(tool.sizes().unwrap().cache, 2 << 20);
    options.sizes.cache = 32 << 20;
    options.sizes.log_buffer = 4 << 20;
    let program = Store::open_with(place.at("one"), &options).unwrap();
    assert_eq!([&tool, &program].map(|store| store.sizes().unwrap().cache), [32 << 20; 2]);
    let differs = &program.opened().differs;
    assert!(matches!(differs[..], [only] if only.name == "log_buffer"), "{differs:?}");
    assert_eq!((differs[0].asked, differs[0].in_force), (4 << 20, 16 << 20));
    assert!(differs[0].to_string().contains("when no process has the store open"));
    assert!(tool.opened().differs.is_empty());
    // Beyond the address range that the first open reserved.
    options.sizes.cache = 8 << 30;
    options.sizes.cache_max = 8 << 30;
    let more = Store::open_with(place.at("one"), &options).unwrap();
    assert_eq!(more.sizes().unwrap().cache, 4 << 30);
    assert!(more.opened().differs.iter().any(|it| it.name == "cache"));
}

/// A process whose `/dev/shm` has room for part of what it requests.
#[test]
fn grows_until_there_is_no_memory() {
    let Some(place) = Place::told() else { return };
    assert!(runs("mount", &["-t", "tmpfs", "-o", "size=12m", "none", "/dev/shm"]));
    let options = Options { place: Memory::Memory, ..Options::default() };
    let store = Store::open_with(place.at("one"), &options).unwrap();
    let none = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    for from in (0..30_000).step_by(100) {
        let put = store.write_with(&none, |tx| {
            (from..from + 100).try_for_each(|row| tx.put(&ROWS, row, &[row as u8; 1000]))
        });
        put.unwrap_or_else(|why| panic!("row {from}: {why}"));
        if from % 1000 == 0 {
            let mut open = store.begin().unwrap();
            (0..100).try_for_each(|row| open.remove(&ROWS, row).map(drop)).unwrap();
            open.roll_back().unwrap();
        }
    }
    for row in 0..30_000 {
        assert_eq!(store.get(&ROWS, row), Ok(Some(vec![row as u8; 1000])), "{row}");
    }
    store.verify().unwrap();
    store.close().unwrap();
    fs::write(place.at("done"), "").unwrap();
}

#[test]
fn a_store_works_when_its_cache_cannot_grow() {
    let place = Place::new("no-memory");
    in_namespace(&place, "small::grows_until_there_is_no_memory");
}
