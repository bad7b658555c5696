//! Values that are too long for a page behave like other values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Level, Mode, Store, Table, TxnOptions, VALUE_MAX};
use latchwork_tree::{Error as TreeError, Limits};

use crate::stage::begin;

const TABLE: Table<u64, &[u8]> = Table::new("table");

const LOADED: Table<u64, &[u8]> = Table::new("loaded");
const KEYS: Table<&[u8], &[u8]> = Table::new("keys");

type Model = BTreeMap<u64, Vec<u8>>;

/// The size from which a value is long. All keys are from 1 to 255 and take two bytes.
fn most() -> usize {
    Limits::of(4096 / 8).record - TABLE.key(&7).unwrap().len()
}

/// A value that can be checked: its length first, the rest derived from its number.
fn value(number: u64, length: usize) -> Vec<u8> {
    let begin = number.to_le_bytes();
    (0..length).map(|at| begin[at % 8] ^ (at / 8) as u8).collect()
}

/// Lengths of all kinds; those near the limit of long values more often.
fn length(random: &mut Random) -> usize {
    match random.below(10) {
        0..3 => random.below(100) as usize,
        3..6 => most() - 3 + random.below(6) as usize,
        6..9 => random.below(6000) as usize,
        _ => random.below(40_000) as usize,
    }
}

/// Returns the number of pieces; checks that at most `lost` pages belong to no table.
fn pieces(store: &Store<Native>, lost: u64) -> u64 {
    let space = store.space().unwrap();
    assert!(space.lost <= lost, "{space:?}");
    store.pages().unwrap()[1].records
}

/// The expected number of pieces.
fn wanted(model: &Model) -> u64 {
    let (most, piece) = (most(), Limits::of(4096 / 8).record - 40);
    let long = model.values().filter(|value| value.len() >= most);
    long.map(|value| (value.len() - (most - 16)).div_ceil(piece) as u64).sum()
}

/// Reads all records by each kind of call.
fn agrees(store: &Store<Native>, model: &Model) {
    store
        .read(|tx| {
            let all: Vec<_> = tx.range(&TABLE, ..)?.collect::<Result<_, _>>()?;
            assert!(all.iter().map(|(key, value)| (key, value)).eq(model));
            let all: Vec<_> = tx.range(&TABLE, ..)?.rev().collect::<Result<_, _>>()?;
            assert!(all.iter().map(|(key, value)| (key, value)).eq(model.iter().rev()));
            let mut cursor = tx.cursor(&TABLE)?;
            for (key, value) in model {
                assert_eq!(tx.get(&TABLE, *key)?.as_ref(), Some(value), "{key}");
                assert_eq!(cursor.next()?, Some((*key, value.clone())));
                assert_eq!(cursor.seek_exact(*key)?.as_ref().map(|row| &row.1), Some(value));
            }
            Ok(())
        })
        .unwrap();
    let level = TxnOptions { level: Level::ReadCommitted, ..TxnOptions::default() };
    for patience in [TxnOptions::default(), level] {
        let all = store.write_with(&patience, |tx| {
            for (key, value) in model {
                assert_eq!(tx.get(&TABLE, *key)?.as_ref(), Some(value), "{key}");
            }
            tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>()
        });
        assert!(all.unwrap().value.iter().map(|(key, value)| (key, value)).eq(model));
    }
    assert_eq!(pieces(store, 0), wanted(model));
}

/// A transaction of some steps, also applied to the model. Half of them are rolled back, in whole
/// or to a savepoint.
fn change(store: &Store<Native>, random: &mut Random, model: &mut Model) -> Result<(), Error> {
    let seed = random.below(1 << 40);
    let done = store.write(|tx| {
        let (mut random, mut new) = (Random(seed), model.clone());
        for _ in 0..1 + random.below(6) {
            let (key, value) = (1 + random.below(25), value(random.below(99), length(&mut random)));
            let (point, kept) = (tx.savepoint()?, new.clone());
            match random.below(8) {
                0..4 => {
                    tx.put(&TABLE, key, &value)?;
                    new.insert(key, value);
                }
                4 => match tx.insert(&TABLE, key, &value) {
                    Err(Error::Exists { .. }) => assert!(new.contains_key(&key)),
                    done => {
                        done?;
                        assert_eq!(new.insert(key, value), None);
                    }
                },
                5 => {
                    let twice = tx.update(&TABLE, key, |old| old.map(|old| old.repeat(2)))?;
                    assert_eq!(twice.as_ref().map(Vec::len), new.get(&key).map(|v| v.len() * 2));
                    new.extend(twice.map(|value| (key, value)));
                }
                6 => assert_eq!(tx.remove(&TABLE, key)?, new.remove(&key).is_some()),
                _ => {
                    let gone = tx.remove_range(&TABLE, key..key + 3)?;
                    let before = new.len();
                    new.retain(|other, _| !(key..key + 3).contains(other));
                    assert_eq!(gone, (before - new.len()) as u64);
                }
            }
            if random.below(4) == 0 {
                tx.roll_back_to(point)?;
                new = kept;
            }
        }
        if random.below(3) == 0 {
            let (key, value) = (1 + random.below(25), value(random.below(99), length(&mut random)));
            tx.put_final(&TABLE, key, &value)?;
            new.insert(key, value);
        }
        match random.below(3) {
            0 => Err(Error::Rejected(String::new())),
            _ => Ok(new),
        }
    });
    match done {
        Ok(new) => *model = new,
        Err(Error::Rejected(_)) => {}
        Err(other) => return Err(other),
    }
    Ok(())
}

#[test]
fn values_of_every_length_are_written_read_and_removed() {
    let (disk, mut random, mut model) = (Simulated::new(), Random(7), Model::new());
    let mut most = 0;
    for life in 0..4 {
        let store = begin(&disk, Mode::Full).unwrap();
        agrees(&store, &model);
        for round in 0..80 {
            change(&store, &mut random, &mut model).unwrap();
            if round % 20 == 19 {
                agrees(&store, &model);
            }
            most = most.max(wanted(&model));
        }
        drop(store);
        disk.restart(life);
    }
    let store = begin(&disk, Mode::Full).unwrap();
    assert!(most > 20, "no long values: {most} pieces");
    store.write(|tx| tx.remove_range(&TABLE, ..)).unwrap();
    agrees(&store, &Model::new());
    // Leaves emptied before the checkpoint are reused first.
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    let space = store.space().unwrap();
    // Three leaves of the tree of pieces remain, which has three levels: the first child of each
    // of two inner pages, and the last leaf.
    assert!(space.used <= 10, "pages of removed values were not reused: {space:?}");
}

#[test]
fn values_around_the_long_length_are_read_as_written() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut model = Model::new();
    for more in 1..80 {
        model.insert(more as u64, value(3, most() - 40 + more));
    }
    store
        .write(|tx| model.iter().try_for_each(|(key, value)| tx.put(&TABLE, *key, value)))
        .unwrap();
    agrees(&store, &model);
}

#[test]
fn a_snapshot_reads_the_long_values_of_its_time() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let (mut random, mut model) = (Random(5), Model::new());
    for _ in 0..30 {
        change(&store, &mut random, &mut model).unwrap();
    }
    let (mut kept, mut models) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        kept.push(store.snapshot().unwrap());
        models.push(model.clone());
        for _ in 0..6 {
            change(&store, &mut random, &mut model).unwrap();
        }
    }
    for (snapshot, model) in kept.iter().zip(&models) {
        let all = snapshot.range(&TABLE, ..).unwrap();
        let all: Vec<_> = all.collect::<Result<_, _>>().unwrap();
        assert!(all.iter().map(|(key, value)| (key, value)).eq(model));
    }
}

/// Threads write two values of one length in a transaction while others read them.
#[test]
fn no_reader_sees_a_part_of_a_long_value() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let write = |id: u64| {
        let mut random = Random(id + 1);
        for round in 0..150 {
            let (key, length) = (2 + random.below(4) * 2, length(&mut random));
            store
                .write(|tx| {
                    let was = tx.get_for_update(&TABLE, key)?;
                    assert_eq!(tx.get(&TABLE, key + 1)?, was, "round {round}");
                    let value = value(random.below(1 << 40), length);
                    tx.put(&TABLE, key, &value)?;
                    tx.put(&TABLE, key + 1, &value)
                })
                .unwrap();
        }
    };
    let pairs = |all: Vec<(u64, Vec<u8>)>| {
        assert!(all.chunks(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].0 + 1 == pair[1].0));
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3).map(|id| scope.spawn(move || write(id))).collect();
        while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let all = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
            pairs(all.unwrap());
            let all = store.write(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
            pairs(all.unwrap());
            // At this level, a change between two records is visible, but no part of a record.
            let level = TxnOptions { level: Level::ReadCommitted, ..TxnOptions::default() };
            let all =
                store.write_with(&level, |tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
            drop(all.unwrap());
        }
    });
    let all = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Model, _>>()).unwrap();
    assert_eq!(pieces(&store, 0), wanted(&all));
}

/// A run that crashes at a disk call. Returns the acknowledged state and the next one.
fn run(disk: &Simulated) -> (Model, Model) {
    let (mut model, mut next) = (Model::new(), Model::new());
    let Ok(store) = begin(disk, Mode::Full) else { return (model, next) };
    let mut random = Random(11);
    for round in 0..12 {
        next = model.clone();
        let (key, value) = (1 + random.below(5), value(round, length(&mut random)));
        next.insert(key, value.clone());
        if store.put(&TABLE, key, &value).is_err() {
            break;
        }
        model = next.clone();
        if round % 5 == 4 && store.checkpoint().is_err() {
            break;
        }
    }
    (model, next)
}

#[test]
fn a_crash_leaves_the_new_or_the_previous_long_value() {
    let disk = Simulated::new();
    run(&disk);
    let calls = disk.history().len() as u64;
    assert!(calls > 60, "{calls}");
    for number in 0..calls {
        let disk = Simulated::new();
        disk.plan(number, Fault::Crash);
        let (before, after) = run(&disk);
        disk.restart(number);
        let store = begin(&disk, Mode::Full).unwrap();
        let found = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Model, _>>()).unwrap();
        assert!(found == before || found == after, "call {number}");
        store.sweep().unwrap();
        // A page may be lost between its allocation and the record of it.
        assert_eq!(pieces(&store, 1), wanted(&found), "call {number}");
    }
}

/// Four long values have their records on one page, and the cache is too small for all pieces.
#[test]
fn a_scan_reads_only_pieces_of_values_it_returns() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for row in 0..4 {
        store.put(&TABLE, row, &value(row, 1 << 20)).unwrap();
    }
    store.checkpoint().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let calls = |work: &dyn Fn() -> Result<(), Error>| {
        let before = disk.calls().total();
        work().unwrap();
        disk.calls().total() - before
    };
    let all = calls(&|| store.read(|tx| tx.range(&TABLE, ..)?.try_for_each(|row| row.map(drop))));
    assert!(all > 900, "{all}");
    let one = |what: &str, work: &dyn Fn() -> Result<(), Error>| {
        let few = calls(work);
        assert!(few < all / 2, "{what}: {few} calls, {all} for all of them");
    };
    one("first", &|| store.read(|tx| tx.first(&TABLE).map(drop)));
    one("last", &|| store.read(|tx| tx.last(&TABLE).map(drop)));
    one("first of a writer", &|| store.write(|tx| tx.first(&TABLE).map(drop)));
    one("last of a writer", &|| store.write(|tx| tx.last(&TABLE).map(drop)));
    one("read committed", &|| {
        let patience = TxnOptions { level: Level::ReadCommitted, ..TxnOptions::default() };
        store.write_with(&patience, |tx| tx.first(&TABLE).map(drop)).map(drop)
    });
    one("names", &|| store.tables().map(drop));
}

#[test]
fn too_long_values_are_refused() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let too_long = vec![1; VALUE_MAX + 1];
    let why = store.put(&TABLE, 1, &too_long).unwrap_err();
    assert_eq!(why, Error::ValueTooLong { length: VALUE_MAX + 1 });
    drop(too_long);
    // A record of the maximum size would be mistaken for one with a long value.
    for length in [most(), most() + 500] {
        let rows = [(1, &value(1, 10)[..]), (2, &value(2, length)[..])];
        let why = store.load_sorted(&LOADED, rows).unwrap_err();
        assert!(matches!(why, Error::Tree(TreeError::RecordTooLong { .. })), "{why}");
    }
    let value = value(2, most() - 1);
    assert_eq!(store.load_sorted(&LOADED, [(1, &value[..])]), Ok(1));
    assert_eq!(store.get(&LOADED, 1), Ok(Some(value)));
    // Keys too long for these pages; one leaves room for a part of its value. What was written
    // before the error is undone, and the transaction continues.
    for length in [700, 950, 980] {
        let written = store.write(|tx| {
            let key = vec![1; length];
            let put = tx.put(&KEYS, &key, &[2; 5000]);
            tx.put(&TABLE, 3, &[3])?;
            Ok(put)
        });
        let refused = matches!(written.unwrap(), Err(Error::KeyTooLong { limit: 930, .. }));
        assert_eq!(refused, length > 900, "{length}");
    }
    assert_eq!(pieces(&store, 0), 5);
}
