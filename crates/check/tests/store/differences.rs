//! Values that change in a part only: they are rolled back, redone, and seen by snapshots, although
//! the log has only the parts.

use std::collections::BTreeMap;

use latchwork_check::random::Random;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Sizes, Store, Table, Transaction, WriteTxn};
use latchwork_tree::Limits;

use crate::stage::{begin_with, sizes};

const TABLE: Table<u64, &[u8]> = Table::new("table");
const KEYS: u64 = 30;

type Model = BTreeMap<u64, Vec<u8>>;

fn start(disk: &Simulated) -> Store<Native> {
    let calm = Sizes { log_budget: 16 << 20, history: 64 << 20, ..sizes(Mode::Full) };
    begin_with(disk, calm).unwrap()
}

/// The value that replaces one: with another part at any place, which may have another length.
fn next(random: &mut Random, old: &[u8]) -> Vec<u8> {
    // A value of this length is the first one that is stored in pieces.
    let most = Limits::of(4096 / 8).record - TABLE.key(&7).unwrap().len();
    let from = random.roll(old.len() + 1);
    let to = from + random.roll(old.len() - from + 1).min(random.roll(40));
    let part = |length: usize, byte: u64| vec![byte as u8; length];
    let byte = random.below(3);
    match random.below(12) {
        0 => old.to_vec(),
        1 => Vec::new(),
        2 => part(most - 2 + random.roll(4), byte),
        3 => [old, &part(random.roll(9), byte)].concat(),
        4 => old[from..].to_vec(),
        5 => [&old[..from], &old[to..]].concat(),
        6 => [&old[..from], &part(random.roll(60), byte), &old[to..]].concat(),
        _ => [&old[..from], &part(to - from, byte), &old[to..]].concat(),
    }
}

/// Some writes of a transaction, also of one record again and again, and rollbacks to savepoints.
fn write(
    tx: &mut WriteTxn<'_, '_, Native>,
    random: &mut Random,
    keys: core::ops::Range<u64>,
    model: &mut Model,
) -> Result<(), Error> {
    for _ in 0..1 + random.below(5) {
        let (point, before) = (tx.savepoint()?, model.clone());
        for _ in 0..1 + random.below(4) {
            let key = keys.start + random.below(keys.end - keys.start);
            if random.below(9) == 0 {
                tx.remove(&TABLE, key)?;
                model.remove(&key);
                continue;
            }
            let value = next(random, model.get(&key).map_or(&[], |value| value));
            tx.put(&TABLE, key, &value)?;
            model.insert(key, value);
        }
        if random.below(3) == 0 {
            tx.roll_back_to(point)?;
            *model = before;
        }
    }
    Ok(())
}

fn change(store: &Store<Native>, random: &mut Random, model: &mut Model) {
    let ends = random.below(4);
    let done = store.write(|tx| {
        let mut new = model.clone();
        write(tx, random, 0..KEYS, &mut new)?;
        match ends {
            0 => return Err(Error::Rejected(String::new())),
            1 => {
                let key = random.below(KEYS);
                let value = next(random, new.get(&key).map_or(&[], |value| value));
                tx.put_final(&TABLE, key, &value)?;
                new.insert(key, value);
            }
            _ => {}
        }
        Ok(new)
    });
    match done {
        Ok(new) => *model = new,
        Err(why) => assert_eq!((why, ends), (Error::Rejected(String::new()), 0)),
    }
}

fn agrees(store: &Store<Native>, model: &Model) {
    let all: Vec<_> = store.read(|tx| tx.range(&TABLE, ..)?.collect()).unwrap();
    let of_keys = all.iter().filter(|(key, _)| *key < KEYS);
    assert!(of_keys.map(|(key, value)| (key, value)).eq(model));
}

#[test]
fn snapshots_see_the_values_of_their_time() {
    let (disk, mut random, mut model) = (Simulated::new(), Random(3), Model::new());
    let store = start(&disk);
    let mut kept = Vec::new();
    for round in 0..400 {
        change(&store, &mut random, &mut model);
        if round % 7 == 0 {
            kept.push((store.snapshot().unwrap(), model.clone()));
        }
        if round % 50 == 49 {
            store.checkpoint().unwrap();
        }
        if kept.len() > 6 {
            kept.remove(random.roll(kept.len()));
        }
        for (snapshot, model) in &kept {
            let key = random.below(KEYS);
            assert_eq!(snapshot.get(&TABLE, key).unwrap().as_ref(), model.get(&key));
            if random.below(5) == 0 {
                let all: Vec<_> =
                    snapshot.range(&TABLE, ..).unwrap().collect::<Result<_, _>>().unwrap();
                assert!(all.iter().map(|(key, value)| (key, value)).eq(model));
            }
        }
    }
    agrees(&store, &model);
    store.verify().unwrap();
}

/// Also transactions that the crash finds open, in pages that a checkpoint has written or not.
#[test]
fn a_crash_keeps_what_was_committed_and_nothing_else() {
    let (disk, mut random, mut model) = (Simulated::new(), Random(9), Model::new());
    for life in 0..24 {
        let store = start(&disk);
        agrees(&store, &model);
        // Its keys are above those of the others.
        let mut open: Vec<Transaction<Native>> = Vec::new();
        for round in 0..30 {
            change(&store, &mut random, &mut model);
            if random.below(8) == 0 {
                let (from, mut own) = (KEYS * (1 + open.len() as u64), Model::new());
                store
                    .write(|tx| (from..from + 5).try_for_each(|key| tx.put(&TABLE, key, &[1; 90])))
                    .unwrap();
                own.extend((from..from + 5).map(|key| (key, vec![1; 90])));
                let mut tx = store.begin().unwrap();
                tx.with(|tx| write(tx, &mut random, from..from + 5, &mut own)).unwrap();
                open.push(tx);
            }
            if round == life {
                store.checkpoint().unwrap();
            }
        }
        let (left, found) = (open.len() as u64, life);
        disk.crash();
        drop((open, store));
        disk.restart(found);
        let store = start(&disk);
        agrees(&store, &model);
        store.sweep().unwrap();
        for key in (1..=left).flat_map(|of| of * KEYS..of * KEYS + 5) {
            assert_eq!(store.get(&TABLE, key).unwrap(), Some(vec![1; 90]), "{key} in life {life}");
        }
        store.verify().unwrap();
        drop(store);
        disk.restart(found);
    }
}
