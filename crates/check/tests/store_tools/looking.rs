//! Tools that read logs and pages.

use std::fs;
use std::os::unix::fs::FileExt;

use latchwork_check::random::Random;
use latchwork_store::{Error, Mode, Store, TxnOptions, read_log};

use crate::stage::{ACCOUNTS, COUNT, Place, ROWS, fill, length, open, options, transfer};

#[test]
fn a_log_has_what_transactions_did() {
    let place = Place::new("log");
    let store = open(place.at("one"));
    fill(&store, 50);
    let from = store.log_end();
    store.write(|tx| tx.put(&ACCOUNTS, 1, 5)).unwrap();
    let rejected = store.write(|tx| {
        tx.put(&ACCOUNTS, 2, 5)?;
        tx.put(&ACCOUNTS, 500, 5)?;
        Err::<(), _>(Error::Rejected(String::new()))
    });
    assert!(rejected.is_err());
    store.write(|tx| tx.remove(&ACCOUNTS, 3)).unwrap();
    let mut seen = Vec::new();
    let read = read_log(place.at("one"), from, &mut |record| {
        seen.push(record.clone());
        true
    });
    let read = read.unwrap();
    assert_eq!((read.end, &read.gaps[..]), (store.log_end(), &[][..]));
    let kinds: Vec<_> = seen.iter().map(|record| record.kind).collect();
    let of = |kind: &str| kinds.iter().filter(|known| **known == kind).count();
    assert_eq!((of("replace"), of("insert"), of("delete")), (2, 1, 1), "{kinds:?}");
    assert_eq!((of("restore"), of("ghost")), (1, 1), "the records that undo them: {kinds:?}");
    assert_eq!(seen.iter().filter(|record| record.commits).count(), 2);
    let first = &seen[0];
    assert_eq!((first.at, first.kind), (from, "replace"));
    assert_eq!(first.key, Some(ACCOUNTS.key(&1).unwrap()));
    // The part of the value that differs.
    let parts = (first.offset, first.before.as_deref(), first.after.as_deref());
    assert_eq!(parts, (Some(0), Some(&1000u16.to_le_bytes()[..]), Some(&5u16.to_le_bytes()[..])));
    let restored = seen.iter().find(|record| record.kind == "restore").unwrap();
    assert_eq!((&restored.before, &restored.after), (&first.after, &first.before));
    let removed = seen.iter().find(|record| record.kind == "delete").unwrap();
    let whole = 1000i64.to_le_bytes();
    assert_eq!((removed.offset, removed.before.as_deref()), (None, Some(&whole[..])));
    assert!(seen.windows(2).all(|pair| pair[0].next == pair[1].at));
    // From a position inside a record, reading begins with the next record; it ends on request.
    let mut next = Vec::new();
    read_log(place.at("one"), first.at + 16, &mut |record| {
        next.push(record.at);
        next.len() < 2
    })
    .unwrap();
    assert_eq!(next, [seen[1].at, seen[2].at]);
    // The created tables.
    let all = read_log(place.at("one"), 0, &mut |_| true).unwrap();
    assert!(all.tables.values().any(|name| name == "accounts"), "{all:?}");
}

/// Segments that are freed while the log is read are not reported as damage.
#[test]
fn a_growing_log_is_read() {
    let place = Place::new("goes-on");
    let mut small = options();
    (small.sizes.log_budget, small.sizes.history) = (16 << 20, 32 << 20);
    small.sizes.mode = Mode::None;
    let store = Store::open_with(place.at("one"), &small).unwrap();
    let end = store.log_end() + (6 << 20);
    for row in (0..50).cycle().take_while(|_| store.log_end() < end) {
        store.put(&ROWS, row, &[1; 1000]).unwrap();
    }
    let mut records = 0;
    let read = read_log(place.at("one"), 0, &mut |_| {
        records += 1;
        if records == 1 {
            // All segments but the last are freed.
            store.checkpoint().unwrap();
        }
        true
    });
    let read = read.unwrap();
    assert!(records > 100 && read.gaps.is_empty(), "{records} records, {read:?}");
}

#[test]
fn a_damaged_log_is_read_around_the_damage() {
    let place = Place::new("damage");
    let store = open(place.at("one"));
    fill(&store, 50);
    let mut seen = Vec::new();
    let mut all = |path| {
        seen.clear();
        let read = read_log(path, 0, &mut |record| {
            seen.push(record.at);
            true
        });
        (read.unwrap(), seen.clone())
    };
    (0..40).for_each(|n| transfer(&store, n % COUNT, (n + 1) % COUNT));
    let (_, before) = all(place.at("one"));
    let mut segments: Vec<_> = fs::read_dir(place.at("one/log")).unwrap().collect();
    segments.retain(|file| file.as_ref().unwrap().file_name().len() == 16);
    let segment = fs::File::options().write(true).open(segments[0].as_ref().unwrap().path());
    let lost = before[before.len() / 2];
    // The log begins after a header of 4,096 bytes, at the segment's number; here it is the first.
    segment.unwrap().write_all_at(b"rubbish", 4096 + lost + 20).unwrap();
    // A checkpoint records the durable end; the lost record is before it, and so a gap.
    store.checkpoint().unwrap();
    let (read, after) = all(place.at("one"));
    assert_eq!(read.gaps.len(), 1, "{read:?}");
    assert_eq!(read.gaps[0].0, lost);
    let left: Vec<_> = before.iter().filter(|at| **at != lost).collect();
    assert!(left.iter().all(|at| after.contains(at)), "other records were lost");
    drop(store);
    assert!(read_log(place.at("none"), 0, &mut |_| true).is_err());
}

#[test]
fn pages_are_counted() {
    let place = Place::new("pages");
    let mut small = options();
    small.sizes.page = 4096;
    let store = Store::open_with(place.at("one"), &small).unwrap();
    fill(&store, 2000);
    let tables = store.pages().unwrap();
    let names: Vec<_> = tables.iter().map(|table| &table.name[..]).collect();
    assert_eq!(names, ["", "(long values)", "accounts", "rows"]);
    let (pieces, rows) = (&tables[1], &tables[3]);
    // A long value has 16 bytes in addition to its own, wherever they are.
    let lengths: u64 = (0..2000).map(|row| length(row) as u64).sum();
    let long = (0..2000).filter(|row| length(*row) > 300).count() as u64;
    assert_eq!(pieces.value_bytes + rows.value_bytes, lengths + 16 * long);
    assert_eq!(rows.records, 2000);
    assert!(rows.depth >= 2 && rows.inner >= 1 && rows.leaves > 150, "{rows:?}");
    assert_eq!(rows.bytes, (rows.inner + rows.leaves) * 4096);
    assert!(rows.bytes - rows.free > rows.key_bytes + rows.value_bytes);
    // The catalog has the names of two tables, and the signature.
    assert_eq!((tables[0].records, tables[2].records), (3, COUNT));
    let counted: u64 = tables.iter().map(|table| table.inner + table.leaves).sum();
    assert_eq!(counted, store.verify().unwrap());
    let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    store.write_with(&patience, |tx| tx.remove_range(&ROWS, 0..1000)).unwrap();
    assert_eq!(store.pages().unwrap()[3].records, 1000);
}

/// The short form of the fuzz target `log_files`.
#[test]
fn files_of_any_bytes_are_a_log_or_an_error() {
    let sound = latchwork_check::log_bytes::sound();
    let records = latchwork_check::log_bytes::exercise(&sound);
    assert_eq!(records, 40);
    let mut random = Random(31);
    let mut fewer = 0;
    for _ in 0..60 {
        let mut files = sound.clone();
        for _ in 0..=random.below(5) {
            let file = &mut files[random.roll(2)];
            // Where records and control blocks are; the rest is zeros.
            let at = random.below((file.len() as u64).min(4096 + 5000)) as usize;
            file[at] = random.below(256) as u8;
            if random.below(10) == 0 {
                file.truncate(at);
                file.resize(at + random.below(64) as usize + 1, 0);
            }
        }
        let found = latchwork_check::log_bytes::exercise(&files);
        assert!(found <= records);
        fewer += u32::from(found < records);
    }
    assert!(fewer > 10, "{fewer}");
}

/// The first fault in a table does not hide faults of other tables.
#[test]
fn faults_of_all_tables_are_reported() {
    let place = Place::new("faults");
    let store = open(place.at("one"));
    fill(&store, 50);
    // The copy's log has no full page from which they could be rebuilt.
    store.backup(place.at("two"), &mut |_| {}).unwrap();
    drop(store);
    let data = fs::File::options().write(true).open(place.at("two/data")).unwrap();
    for page in 2..data.metadata().unwrap().len() / 8192 {
        data.write_all_at(b"damage", page * 8192 + 4000).unwrap();
    }
    let store = open(place.at("two"));
    assert!(store.space().unwrap_err().is_damage());
    let faults = store.faults().unwrap();
    let tables: Vec<_> = faults.iter().map(|fault| fault.table.as_deref()).collect();
    assert_eq!(tables, [Some("accounts"), Some("rows")], "{faults:?}");
    let told = faults[0].to_string();
    assert!(faults.iter().all(|fault| fault.why.is_damage()), "{faults:?}");
    assert!(told.starts_with("table accounts: page ") && told.contains("`data`"), "{told}");
}
