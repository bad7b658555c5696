//! Salvage of damaged stores.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_check::dump_bytes::Tables;
use latchwork_check::random::Random;
use latchwork_store::{Error, Mode, Refusal, Salvaged, Store, TxnOptions, read_log, salvage};

use crate::left::{killed, memory};
use crate::stage::{ACCOUNTS, COUNT, EACH, Place, ROWS, all, fill, open, options};

const PAGE: u64 = 8192;

fn again(place: &Place) -> (Salvaged, Tables) {
    let _ = fs::remove_dir_all(place.at("again"));
    let found = salvage(place.at("one"), place.at("again")).unwrap();
    let store = open(place.at("again"));
    store.verify().unwrap();
    let records = all(&store);
    // Tables that have lost all records are listed with a count of 0.
    let told = found.tables.iter().filter(|table| table.1 > 0);
    let told: Vec<_> = told.map(|(name, count)| (&name[..], *count)).collect();
    let there: Vec<_> = records.iter().map(|(name, rows)| (&name[..], rows.len() as u64)).collect();
    assert_eq!(told, there, "reported and salvaged records differ");
    (found, records)
}

fn spoil(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    if file.read_exact_at(&mut byte, at).is_ok() {
        file.write_all_at(&[byte[0] ^ 0x5a], at).unwrap();
    }
}

/// A process that is killed with an open transaction.
#[test]
fn writes_and_is_killed() {
    let Some(place) = Place::told() else { return };
    let mut large = options();
    large.sizes.log_budget = 1 << 30;
    let store = Store::open_with(place.at("one"), &large).unwrap();
    fill(&store, 1500);
    store
        .write(|tx| {
            tx.put(&ACCOUNTS, 3, -77)?;
            tx.put(&ROWS, 9999, b"not committed")?;
            std::thread::scope(|scope| {
                let flushed = || store.write(|tx| tx.put(&ACCOUNTS, 100, 0)).unwrap();
                scope.spawn(flushed).join().unwrap();
            });
            fs::write(place.at("ready"), "").unwrap();
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
            #[allow(unreachable_code, reason = "the closure's type")]
            Ok(())
        })
        .unwrap();
}

/// A store after a crash of the machine: without memory, and with a log to redo.
fn crashed(name: &str) -> Place {
    let place = Place::new(name);
    let mut child = place.start("salvage::writes_and_is_killed");
    while !place.at("ready").exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let region = fs::read_to_string(place.at("one/region")).unwrap();
    fs::remove_dir_all(region.lines().nth(1).unwrap()).unwrap();
    // `region` names the boot id; after a real crash it would be another one.
    fs::remove_file(place.at("one/region")).unwrap();
    place
}

fn segments(place: &Place) -> Vec<PathBuf> {
    let files = fs::read_dir(place.at("one/log")).unwrap().map(|file| file.unwrap().path());
    let mut segments: Vec<_> = files.filter(|path| path.file_name().unwrap().len() == 16).collect();
    segments.sort();
    segments
}

#[test]
fn a_sound_store_is_salvaged_completely() {
    let place = Place::new("sound");
    let store = open(place.at("one"));
    fill(&store, 800);
    let records = all(&store);
    let used = salvage(place.at("one"), place.at("again")).unwrap_err();
    assert!(matches!(used, Error::Open { why: Refusal::InUse, .. }), "{used}");
    drop(store);
    let (found, there) = again(&place);
    assert!(found.is_whole(), "{found:?}");
    assert_eq!(there, records);
    let taken = salvage(place.at("one"), place.at("again")).unwrap_err();
    assert!(matches!(taken, Error::Open { why: Refusal::Taken, .. }), "{taken}");
}

#[test]
fn salvage_redoes_the_log_and_undoes_uncommitted_changes() {
    let place = crashed("redone");
    let (found, there) = again(&place);
    assert!(found.is_whole() && found.undone >= 1, "{found:?}");
    // The same as opening it.
    assert_eq!(there, all(&open(place.at("one"))));
    let accounts: BTreeMap<_, _> = there[0].1.iter().cloned().collect();
    assert_eq!(accounts[&ACCOUNTS.key(&3).unwrap()], EACH.to_le_bytes());
    assert_eq!(accounts.len() as u64, COUNT + 1);
}

#[test]
fn a_damaged_log_is_reported_and_the_rest_is_salvaged() {
    let place = crashed("log");
    let segment = &segments(&place)[0];
    let used = fs::read(segment).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64;
    spoil(segment, used / 2);
    let refused = Store::open_with(place.at("one"), &options()).map(drop).unwrap_err();
    let damaged = matches!(refused, Error::Log(latchwork_log::Error::LogDamaged { .. }));
    assert!(damaged, "{refused}");
    let (found, there) = again(&place);
    assert_eq!(found.gaps.len(), 1, "{found:?}");
    let rows = there.iter().find(|table| table.0 == "rows").map_or(0, |table| table.1.len());
    assert!(rows > 100, "{rows} rows, {found:?}");
    // The same without any log, once the pages are on disk.
    fs::remove_dir_all(place.at("one/log")).unwrap();
    let (found, _) = again(&place);
    assert!(found.no_log.is_some() && !found.is_whole());
}

/// Records identify themselves; the control file only says where to begin.
#[test]
fn a_log_without_its_control_file_is_read() {
    let place = crashed("control");
    let (whole, expected) = again(&place);
    assert!(whole.is_whole(), "{whole:?}");
    let control = place.at("one/log/control");
    for lost in [false, true] {
        match lost {
            true => fs::remove_file(&control).unwrap(),
            false => fs::write(&control, vec![7; 8192]).unwrap(),
        }
        let (found, there) = again(&place);
        assert!(found.no_control.is_some() && !found.is_whole(), "{found:?}");
        assert_eq!((found.no_log, found.gaps), (None, Vec::new()));
        assert_eq!(there, expected);
    }
}

/// A missing part of the log after the redo point is reported, even if it is the beginning.
#[test]
fn a_log_without_its_beginning_is_reported() {
    let place = Place::new("beginning");
    let source = open(place.at("source"));
    fill(&source, 200);
    // A copy records up to where its log was durable.
    let mut row = 10_000..;
    let mut told = |_: &_| row.next().map_or((), |row| source.put(&ROWS, row, b"later").unwrap());
    source.backup(place.at("one"), &mut told).unwrap();
    let whole = read_log(place.at("one"), 0, &mut |_| true).unwrap();
    assert!(whole.gaps.is_empty() && whole.redo < whole.flushed, "{whole:?}");
    // The record at the redo point is damaged.
    spoil(&segments(&place)[0], 4096 + whole.redo + 9);
    let (found, _) = again(&place);
    assert!(!found.is_whole() && found.gaps[0].0 == whole.redo, "{found:?}");
    // All files that contain it are missing.
    for path in segments(&place) {
        fs::remove_file(path).unwrap();
    }
    let read = read_log(place.at("one"), 0, &mut |_| true).unwrap();
    assert_eq!(read.gaps, [(whole.redo, whole.flushed)]);
    let (found, _) = again(&place);
    assert!(!found.is_whole() && found.gaps == read.gaps, "{found:?}");
}

/// Memory that may contain more than the files is reported as missing.
#[test]
fn unknown_memory_is_reported() {
    let place = Place::new("memory");
    fill(&open(place.at("one")), 100);
    fs::write(place.at("one/region"), "").unwrap();
    let (found, _) = again(&place);
    assert!(found.no_memory.is_some() && !found.is_whole(), "{found:?}");
    // The memory may be in another container.
    let place = Place::new("unseen");
    killed(&place);
    fs::remove_dir_all(memory(&place.at("one"))).unwrap();
    let (found, _) = again(&place);
    assert!(found.no_memory.is_some() && !found.is_whole(), "{found:?}");
}

#[test]
fn a_lost_page_loses_only_its_own_records() {
    let place = Place::new("page");
    let store = open(place.at("one"));
    fill(&store, 1500);
    let (records, tables) = (all(&store), store.pages().unwrap());
    drop(store);
    let data = place.at("one/data");
    let whole = fs::read(&data).unwrap();
    let root = |name: &str| u64::from(tables.iter().find(|t| t.name == name).unwrap().root);
    // A leaf: only its own records are lost.
    let leaf = (1..whole.len() as u64 / PAGE)
        .find(|page| ![root("rows"), root("accounts")].contains(page) && *page > 20)
        .unwrap();
    spoil(&data, leaf * PAGE + 100);
    let (found, there) = again(&place);
    assert_eq!(found.lost, [leaf]);
    let (rows, left) = (&records[1].1, &there[1].1);
    assert!(left.len() < rows.len() && left.len() + 40 > rows.len(), "{}", left.len());
    assert!(left.iter().all(|row| rows.contains(row)));
    assert_eq!(there[0], records[0]);
    fs::write(&data, &whole).unwrap();
    // The root of a table: no page leads to its leaves.
    spoil(&data, root("rows") * PAGE + 100);
    let (found, there) = again(&place);
    assert_eq!(found.lost, [root("rows")]);
    assert!(found.orphans > 20, "{found:?}");
    assert_eq!(there, records, "the leaves belong to the only table without a root");
    fs::write(&data, &whole).unwrap();
    // The catalog with the names of all tables.
    spoil(&data, 100);
    let (found, there) = again(&place);
    assert_eq!(found.lost, [0]);
    assert!(there.iter().all(|(name, _)| name.starts_with("salvaged-")));
    let count = |tables: &Tables| tables.iter().map(|table| table.1.len()).sum::<usize>();
    assert_eq!(count(&there), count(&records));
    fs::write(&data, &whole).unwrap();
    // The identity: the page size is found by inspection.
    fs::write(place.at("one/identity"), "").unwrap();
    let (found, there) = again(&place);
    assert!(found.is_whole());
    assert_eq!(there, records);
}

/// A store without an identity cannot be opened with the memory of its processes: the memory is not
/// read, and this is reported.
#[test]
fn memory_of_a_store_without_an_identity_is_reported() {
    for spoilt in ["identity", "region"] {
        let place = Place::new("nameless");
        killed(&place);
        let identity = place.at("one/identity");
        fs::remove_file(&identity).unwrap();
        let region = fs::read(place.at("one/region")).unwrap();
        if spoilt == "region" {
            fs::write(place.at("one/region"), "nothing").unwrap();
        }
        let (found, there) = again(&place);
        assert!(found.no_memory.is_some() && !found.is_whole(), "{spoilt}: {found:?}");
        let rows = &there.iter().find(|table| table.0 == "rows").unwrap().1;
        assert!(rows.len() < 101, "{spoilt}: unsynced rows were read from memory");
        fs::write(place.at("one/region"), region).unwrap();
    }
}

/// If no page shows its size, the default size is assumed: the log matches it.
#[test]
fn a_file_without_a_sound_page_has_the_default_page_size() {
    let place = crashed("sizeless");
    let (_, expected) = again(&place);
    fs::remove_file(place.at("one/identity")).unwrap();
    fs::File::options().write(true).open(place.at("one/data")).unwrap().set_len(0).unwrap();
    let (found, there) = again(&place);
    assert_eq!(there, expected, "{found:?}");
}

/// Random bytes of any files are changed: every salvaged record has existed once.
#[test]
fn salvage_survives_any_damage() {
    let place = crashed("any");
    let files: Vec<_> = segments(&place)
        .into_iter()
        .chain([place.at("one/data"), place.at("one/log/control"), place.at("one/identity")])
        .map(|path| (fs::read(&path).unwrap(), path))
        .collect();
    let (_, expected) = again(&place);
    let known: BTreeSet<_> = expected.iter().flat_map(|table| table.1.iter().cloned()).collect();
    let mut random = Random(29);
    let mut missing = 0;
    for round in 0..40 {
        for _ in 0..=random.below(6) {
            let (bytes, path) = &files[random.roll(files.len())];
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
            spoil(path, random.below(used));
            if random.below(8) == 0 {
                fs::File::options()
                    .write(true)
                    .open(path)
                    .unwrap()
                    .set_len(random.below(used))
                    .unwrap();
            }
        }
        let (found, there) = again(&place);
        for record in there.iter().flat_map(|table| &table.1) {
            // An older version, or an uncommitted one if the log is damaged.
            assert!(known.contains(record) || !found.is_whole(), "round {round}: {found:?}");
        }
        missing += u32::from(!found.is_whole());
        files.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
    }
    assert!(missing > 20, "{missing}");
}

#[test]
fn a_store_becomes_smaller() {
    let place = Place::new("compact");
    let store = open(place.at("one"));
    fill(&store, 100);
    let mut random = Random(5);
    for _ in 0..60 {
        let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
        store
            .write_with(&patience, |tx| {
                (0..60).try_for_each(|_| tx.put(&ROWS, random.below(1 << 40), &[9; 200]))
            })
            .unwrap();
    }
    // Three of four rows, so that most leaves keep some.
    let keys = store
        .read(|tx| tx.range(&ROWS, 100..)?.map(|row| Ok(row?.0)).collect::<Result<Vec<_>, Error>>())
        .unwrap();
    let (_, gone): (Vec<_>, Vec<_>) =
        keys.iter().enumerate().partition(|(at, _)| at.is_multiple_of(4));
    store
        .write(|tx| gone.iter().try_for_each(|(_, key)| tx.remove(&ROWS, **key).map(drop)))
        .unwrap();
    let records = all(&store);
    let mut told = 0;
    let count = store.compact_into(place.at("small"), &mut |count| told = count).unwrap();
    assert_eq!(count as usize, records.iter().map(|table| table.1.len()).sum::<usize>());
    assert!(told <= count);
    let small = open(place.at("small"));
    assert_eq!(all(&small), records);
    let bytes = |store: &Store| store.pages().unwrap().iter().map(|t| t.bytes).sum::<u64>();
    assert!(bytes(&small) * 2 < bytes(&store), "{} of {}", bytes(&small), bytes(&store));
}
