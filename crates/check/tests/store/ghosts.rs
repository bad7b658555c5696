//! Removed records stay for snapshots that can see them, and are then dropped.

use std::path::Path;

use latchwork_check::random::Random;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Mode, Store};

use crate::stage::{TABLE, begin};
use crate::stuck::{key, value};

fn pages(disk: &Simulated) -> usize {
    disk.peek(Path::new("/home/store/data")).unwrap().len() / 4096
}

/// Removes records and inserts others, so that there are as many as before.
fn churn(store: &Store<Native>, there: &mut Vec<u64>, random: &mut Random, rounds: u64) {
    for _ in 0..rounds {
        let (new, old) = (random.below(90_000), random.roll(there.len()));
        store
            .write(|tx| {
                tx.remove(&TABLE, &key(there[old]))?;
                tx.put(&TABLE, &key(new), &value(new))
            })
            .unwrap();
        there.swap_remove(old);
        if !there.contains(&new) {
            there.push(new);
        }
    }
}

fn begun(random: &mut Random) -> (Simulated, Store<Native>, Vec<u64>) {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let mut there: Vec<u64> = (0..500).map(|_| random.below(90_000)).collect();
    there.sort_unstable();
    there.dedup();
    for number in &there {
        store.write(|tx| tx.put(&TABLE, &key(*number), &value(*number))).unwrap();
    }
    (disk, store, there)
}

fn check(store: &Store<Native>, there: &[u64]) {
    let mut expected: Vec<_> = there.iter().map(|n| (key(*n), value(*n))).collect();
    expected.sort();
    let found = store.read(|tx| crate::stage::all(tx, false)).unwrap();
    assert!(found == expected, "{} records, {} expected", found.len(), expected.len());
    store.verify().unwrap();
}

#[test]
fn the_room_of_removed_records_is_reused() {
    let mut random = Random(11);
    let (disk, store, mut there) = begun(&mut random);
    churn(&store, &mut there, &mut random, 15_000);
    store.checkpoint().unwrap();
    // Five of them fill a page; pages are not merged.
    let pages = pages(&disk);
    println!("{pages} pages");
    assert!(pages < 700, "{pages} pages for 500 records");
    check(&store, &there);
}

#[test]
fn a_snapshot_finds_records_removed_after_it() {
    let mut random = Random(12);
    let (_disk, store, mut there) = begun(&mut random);
    for _ in 0..20 {
        let before = there.clone();
        store
            .read(|tx| {
                churn(&store, &mut there, &mut random, 200);
                for number in &before {
                    assert_eq!(tx.get(&TABLE, &key(*number))?, Some(value(*number)), "{number}");
                }
                assert_eq!(crate::stage::all(tx, true)?.len(), before.len());
                Ok(())
            })
            .unwrap();
        check(&store, &there);
    }
}
