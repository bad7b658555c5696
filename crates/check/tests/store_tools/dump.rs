//! Stores to dumps and back.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use latchwork_check::dump_bytes::{self, Record};
use latchwork_check::random::Random;
use latchwork_store::{DumpError, DumpReader, Load, Table};

use crate::stage::{ACCOUNTS, COUNT, EACH, Place, ROWS, all, fill, open, transfer};

fn load(store: &latchwork_store::Store, text: &[u8], options: &Load) -> Result<u64, DumpError> {
    Ok(store.load(DumpReader::new(text)?, options, &mut |_| {})?.records)
}

#[test]
fn a_loaded_dump_equals_the_store() {
    let place = Place::new("again");
    let store = open(place.at("one"));
    fill(&store, 3000);
    store.write(|tx| tx.remove_range(&ROWS, 500..600)).unwrap();
    let empty: Table<u64, u64> = Table::new("nothing in it");
    store.write(|tx| tx.get(&empty, 1)).unwrap();
    assert_eq!(store.tables().unwrap(), ["accounts", "rows"]);
    let mut told = 0;
    let (text, written) = store.dump(Vec::new(), None, &mut |_| told += 1).unwrap();
    assert_eq!((written.tables, written.records), (2, 2900 + COUNT));
    let (tables, summary) = dump_bytes::read(&text).unwrap();
    assert_eq!(summary, written);
    assert_eq!(tables.iter().map(|t| &t.0[..]).collect::<Vec<_>>(), ["accounts", "rows"]);
    let copy = open(place.at("two"));
    assert_eq!(load(&copy, &text, &Load::default()), Ok(2900 + COUNT));
    assert_eq!(all(&copy), tables);
    copy.verify().unwrap();
    // One table alone; and a table that does not exist.
    let (one, _) = store.dump(Vec::new(), Some("rows"), &mut |_| {}).unwrap();
    assert_eq!(dump_bytes::read(&one).unwrap().0, tables[1..]);
    let none = store.dump(Vec::new(), Some("row"), &mut |_| {}).unwrap_err();
    assert_eq!(none, DumpError::NoTable { table: "row".to_owned() });
}

#[test]
fn a_dump_during_writes_is_one_snapshot() {
    let place = Place::new("instant");
    let store = open(place.at("one"));
    fill(&store, 400);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (store, over) = (&store, &over);
            scope.spawn(move || {
                let mut random = Random(writer + 1);
                while !over.load(Relaxed) {
                    transfer(store, random.below(COUNT), random.below(COUNT));
                }
            });
        }
        for _ in 0..20 {
            let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
            let (tables, _) = dump_bytes::read(&text).unwrap();
            let values = tables[0].1.iter().map(|(_, value)| value[..].try_into().unwrap());
            assert_eq!(values.map(i64::from_le_bytes).sum::<i64>(), COUNT as i64 * EACH);
        }
        over.store(true, Relaxed);
    });
}

#[test]
fn a_table_with_records_is_loaded_into_only_by_option() {
    let place = Place::new("merge");
    let store = open(place.at("one"));
    fill(&store, 10);
    let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    store.write(|tx| tx.put(&ACCOUNTS, 0, -5)).unwrap();
    store.write(|tx| tx.put(&ACCOUNTS, 99, 7)).unwrap();
    let refused = load(&store, &text, &Load::default()).unwrap_err();
    assert_eq!(refused, DumpError::NotEmpty { table: "accounts".to_owned() });
    assert_eq!(store.read(|tx| tx.get(&ACCOUNTS, 0)).unwrap(), Some(-5), "nothing was loaded");
    let mut merge = Load::default();
    merge.merge = true;
    load(&store, &text, &merge).unwrap();
    assert_eq!(store.read(|tx| tx.get(&ACCOUNTS, 0)).unwrap(), Some(EACH));
    assert_eq!(store.read(|tx| tx.get(&ACCOUNTS, 99)).unwrap(), Some(7));
    // A table whose records were all removed counts as empty.
    store.write(|tx| tx.remove_range(&ACCOUNTS, ..)).unwrap();
    store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
    load(&store, &text, &Load::default()).unwrap();
}

#[test]
fn a_failing_output_leaves_no_complete_dump() {
    /// Has room for this many bytes.
    struct Full(Vec<u8>, usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0.len() + bytes.len() > self.1 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let place = Place::new("full");
    let store = open(place.at("one"));
    fill(&store, 20);
    let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    for room in (0..text.len()).step_by(97) {
        let failed = store.dump(Full(Vec::new(), room), None, &mut |_| {}).err();
        let full =
            matches!(failed, Some(DumpError::Io { kind: std::io::ErrorKind::StorageFull, .. }));
        assert!(full, "{room}: {failed:?}");
    }
}

/// A reader that is slow.
struct Slow<'b>(&'b [u8]);

impl std::io::Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_micros(500));
        self.0.read(into)
    }
}

/// A process that is killed while it loads.
#[test]
fn loads_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let text = std::fs::read(place.at("dump")).unwrap();
    let mut options = Load::default();
    options.records = 7;
    let slow = std::io::BufReader::new(Slow(&text));
    let dump = DumpReader::new(slow).unwrap();
    open(place.at("two")).load(dump, &options, &mut |_| {}).unwrap();
    // Waits to be killed.
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_killed_load_has_loaded_a_prefix_and_is_continued() {
    let place = Place::new("killed");
    let store = open(place.at("one"));
    fill(&store, 4000);
    let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    std::fs::write(place.at("dump"), &text).unwrap();
    let whole: Vec<_> = flat(&dump_bytes::read(&text).unwrap().0);
    let mut random = Random(3);
    let mut in_part = 0;
    for _ in 0..12 {
        let mut child = place.start("dump::loads_until_it_is_killed");
        while !place.at("two").join("region").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(100_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let copy = open(place.at("two"));
        copy.sweep().unwrap();
        copy.verify().unwrap();
        let there = flat(&all(&copy));
        assert_eq!(whole[..there.len()], there, "a beginning");
        in_part += u32::from(!there.is_empty() && there.len() < whole.len());
        let mut merge = Load::default();
        merge.merge = true;
        load(&copy, &text, &merge).unwrap();
        assert_eq!(flat(&all(&copy)), whole);
        drop(copy);
        std::fs::remove_dir_all(place.at("two")).unwrap();
    }
    println!("{in_part} of 12 were killed in the middle");
    assert!(in_part > 0, "no load was killed in the middle");
}

fn flat(tables: &dump_bytes::Tables) -> Vec<(String, Record)> {
    let mut all = Vec::new();
    for (name, records) in tables {
        all.extend(records.iter().map(|record| (name.clone(), record.clone())));
    }
    all
}
