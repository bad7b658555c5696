//! Each call of a transaction does the same on both engines.

use std::collections::BTreeMap;
use std::ops::Bound;

use latchwork_remote::{Database, Postgres};
use latchwork_store::{Error, Multi, ReadOps, Sequence, Table, WriteOps};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("every_call_does_the_same_on_both", every_call),
    ("ranges_of_many_records_go_both_ways", ranges),
    ("savepoints_undo_writes_and_new_tables", savepoints),
    ("types_and_versions_are_compared", types),
    ("a_random_history_is_that_of_a_map", random),
    ("round_trips_are_as_few_as_documented", trips),
    ("a_read_of_some_keys_locks_only_them", some_keys),
    ("an_error_of_the_closure_rolls_back", own_errors),
];

const FRUIT: Table<&str, u64> = Table::new("fruit");
const NUMBERS: Table<u64, Vec<u8>> = Table::new("numbers");
const LINES: Table<(&str, u64), u32> = Table::new("lines");
const TAGS: Multi<&str, u64> = Multi::new("tags");
const JOBS: Sequence = Sequence::new("jobs");

fn rows<T>(rows: impl Iterator<Item = Result<T, Error>>) -> Result<Vec<T>, Error> {
    rows.collect()
}

fn every_call(stage: &mut Stage) {
    stage.both("every_call", |db| {
        assert_eq!(db.get(&FRUIT, "pear").unwrap(), None);
        assert_eq!(db.read(|tx| tx.first(&FRUIT)).unwrap(), None);
        db.write(|tx| {
            tx.put(&FRUIT, "pear", 3)?;
            assert_eq!(tx.get(&FRUIT, "pear")?, Some(3), "it sees its own write");
            tx.insert(&FRUIT, "plum", 4)?;
            let exists = tx.insert(&FRUIT, "plum", 5);
            assert!(matches!(&exists, Err(Error::Exists { table, .. }) if table == "fruit"));
            assert_eq!(tx.update(&FRUIT, "fig", |old| Some(old.unwrap_or(7)))?, Some(7));
            assert_eq!(tx.update(&FRUIT, "fig", |_| None)?, None);
            assert_eq!(tx.update(&FRUIT, "none", |_| None)?, None);
            assert!(!tx.remove(&FRUIT, "fig")?);
            tx.put(&FRUIT, "apple", 1)?;
            assert!(tx.contains(&FRUIT, "apple")?);
            assert_eq!(tx.get_for_update(&FRUIT, "apple")?, Some(1));
            assert_eq!(tx.count(&FRUIT, ..)?, 3);
            // The loop may write: the rows are read.
            for row in tx.range(&FRUIT, ..)? {
                let (name, count) = row?;
                tx.put(&FRUIT, &name, count * 10)?;
            }
            Ok(())
        })
        .unwrap();
        let all = db.read(|tx| rows(tx.range(&FRUIT, "apple"..="plum")?)).unwrap();
        let named = |name: &str, count| (name.to_owned(), count);
        assert_eq!(all, [named("apple", 10), named("pear", 30), named("plum", 40)]);
        let many = db.read(|tx| tx.get_many(&FRUIT, ["plum", "nut", "apple"])).unwrap();
        assert_eq!(many, [Some(40), None, Some(10)]);
        assert_eq!(db.read(|tx| tx.last(&FRUIT)).unwrap(), Some(named("plum", 40)));
        assert_eq!(db.write(|tx| tx.pop_first(&FRUIT)).unwrap(), Some(named("apple", 10)));
        assert_eq!(db.write(|tx| tx.pop_last(&FRUIT)).unwrap(), Some(named("plum", 40)));
        assert_eq!(db.write(|tx| tx.remove_range(&FRUIT, ..)).unwrap(), 1);
        assert_eq!(db.write(|tx| tx.pop_last(&FRUIT)).unwrap(), None);
        multimaps(db);
        assert_eq!(db.next_number(&JOBS).unwrap(), 1);
        assert_eq!(db.next_number(&JOBS).unwrap(), 2);
        db.put(&FRUIT, "kiwi", 1).unwrap();
        assert!(db.remove(&FRUIT, "kiwi").unwrap() && !db.remove(&FRUIT, "kiwi").unwrap());
        let names: Vec<_> = db.table_infos().unwrap().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["fruit", "latchwork sequences", "lines", "tags"]);
        let fruit = &db.table_infos().unwrap()[0];
        assert_eq!((fruit.key.as_deref(), fruit.value.as_deref()), (Some("str"), Some("u64")));
    });
}

fn multimaps(db: &Database) {
    db.write(|tx| {
        for page in [9, 7, 8] {
            assert!(tx.insert_value(&TAGS, "red", page)?);
        }
        assert!(!tx.insert_value(&TAGS, "red", 7)?);
        assert!(tx.has_value(&TAGS, "red", 8)?);
        tx.insert_value(&TAGS, "re", 1)?;
        tx.put(&LINES, ("ann", 1), 5)?;
        tx.put(&LINES, ("ann", 2), 6)?;
        tx.put(&LINES, ("anna", 1), 7)
    })
    .unwrap();
    let red = db.read(|tx| rows(tx.values(&TAGS, "red")?)).unwrap();
    assert_eq!(red, [7, 8, 9]);
    let back = db.read(|tx| rows(tx.values(&TAGS, "red")?.rev())).unwrap();
    assert_eq!(back, [9, 8, 7]);
    assert_eq!(db.read(|tx| Ok(tx.pairs(&TAGS)?.count())).unwrap(), 4);
    let ann = db.write(|tx| rows(tx.prefix::<&str, _, _>(&LINES, "ann")?)).unwrap();
    assert_eq!(ann.len(), 2);
    assert!(db.write(|tx| tx.remove_value(&TAGS, "red", 8)).unwrap());
    assert_eq!(db.write(|tx| tx.remove_values(&TAGS, "red")).unwrap(), 2);
}

fn ranges(stage: &mut Stage) {
    stage.both("ranges", |db| {
        db.write(|tx| {
            (0..1000).try_for_each(|number| tx.put(&NUMBERS, number, &[number as u8; 3]))
        })
        .unwrap();
        db.read(|tx| {
            let keys = |rows: latchwork_store::Rows<'_, u64, Vec<u8>>| {
                rows.map(|row| row.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()
            };
            assert_eq!(keys(tx.range(&NUMBERS, ..)?)?, (0..1000).collect::<Vec<_>>());
            assert_eq!(keys(tx.range(&NUMBERS, ..)?.rev())?, (0..1000).rev().collect::<Vec<_>>());
            assert_eq!(keys(tx.range(&NUMBERS, 10..700)?)?, (10..700).collect::<Vec<_>>());
            let open = (Bound::Excluded(10), Bound::Included(700));
            assert_eq!(keys(tx.range(&NUMBERS, open)?)?, (11..=700).collect::<Vec<_>>());
            assert_eq!(
                keys(tx.range(&NUMBERS, open)?.rev())?,
                (11..=700).rev().collect::<Vec<_>>()
            );
            // Turned in the middle, twice.
            let mut rows = tx.range(&NUMBERS, ..)?;
            for number in 0..300 {
                assert_eq!(rows.next().transpose()?.unwrap().0, number);
            }
            let mut rows = rows.rev();
            for number in (600..1000).rev() {
                assert_eq!(rows.next().transpose()?.unwrap().0, number);
            }
            assert_eq!(keys(rows.rev())?, (300..600).collect::<Vec<_>>());
            Ok(())
        })
        .unwrap();
        let removed = db.write(|tx| tx.remove_range(&NUMBERS, 100..=899)).unwrap();
        assert_eq!((removed, db.read(|tx| tx.count(&NUMBERS, 50..)).unwrap()), (800, 150));
    });
}

fn savepoints(stage: &mut Stage) {
    stage.both("savepoints", |db| {
        let mut outside = None;
        db.write(|tx| {
            tx.put(&FRUIT, "pear", 1)?;
            let first = tx.savepoint()?;
            outside = Some(first);
            tx.put(&FRUIT, "pear", 2)?;
            tx.put(&LINES, ("new", 1), 1)?;
            let second = tx.savepoint()?;
            tx.put(&FRUIT, "pear", 3)?;
            tx.roll_back_to(first)?;
            assert_eq!(tx.get(&FRUIT, "pear")?, Some(1));
            assert!(matches!(tx.roll_back_to(second), Err(Error::Savepoint)));
            tx.put(&FRUIT, "pear", 4)?;
            tx.roll_back_to(first)?;
            tx.put(&LINES, ("new", 2), 2)
        })
        .unwrap();
        assert_eq!(db.get(&FRUIT, "pear").unwrap(), Some(1));
        assert_eq!(db.read(|tx| tx.count(&LINES, ..)).unwrap(), 1);
        assert!(db.table_infos().unwrap().iter().any(|table| table.name == "lines"));
        let other = outside.unwrap();
        assert!(matches!(db.write(|tx| tx.roll_back_to(other)), Err(Error::Savepoint)));
    });
}

fn types(stage: &mut Stage) {
    const WRONG: Table<u64, u64> = Table::new("fruit");
    const NEXT: Table<&str, u64> = Table::new("fruit").with_version(1);
    stage.both("types", |db| {
        db.put(&FRUIT, "pear", 1).unwrap();
        // And a handle that knows nothing yet.
        for other in [db.clone(), stage.reopened(db, "types")] {
            let wrong = other.get(&WRONG, 1);
            assert!(matches!(wrong, Err(Error::TableType { .. })), "{wrong:?}");
            let wrong = other.write(|tx| tx.put(&WRONG, 1, 1));
            assert!(matches!(wrong, Err(Error::TableType { .. })), "{wrong:?}");
            let why = other.write(|tx| tx.put(&NEXT, "pear", 1)).unwrap_err();
            let Error::TableType { stored, requested, .. } = &why else { panic!("{why:?}") };
            assert_eq!((&stored[..], &requested[..]), ("str -> u64", "str -> u64, version 1"));
        }
        let raw: Table<latchwork_store::Raw, latchwork_store::Raw> = Table::new("fruit");
        let all = db.read(|tx| rows(tx.range(&raw, ..)?)).unwrap();
        assert_eq!(all, [(b"\x02pear\0".to_vec(), 1_u64.to_le_bytes().to_vec())]);
        let long = "x".repeat(2000);
        let why = db.put(&FRUIT, &long, 1).unwrap_err();
        assert!(matches!(why, Error::KeyTooLong { length: 2002, limit: 1890, .. }), "{why}");
        let longest = "x".repeat(1888);
        if matches!(db, Database::Postgres(_)) {
            db.put(&FRUIT, &longest, 2).unwrap();
            assert_eq!(db.get(&FRUIT, &longest).unwrap(), Some(2));
        }
        let named = Table::<u64, u64>::named(&"n".repeat(901));
        assert!(matches!(db.put(&named, 1, 1), Err(Error::NameTooLong { .. })));
    });
}

/// Random transactions on both engines, and on a map.
fn random(stage: &mut Stage) {
    stage.both("random", |db| {
        let mut random = StdRng::seed_from_u64(7);
        let mut map: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for _ in 0..60 {
            let mut next = map.clone();
            let seed = random.random::<u64>();
            let fails = random.random_bool(0.2);
            let done = db.write(|tx| {
                let (mut steps, mut model) = (StdRng::seed_from_u64(seed), map.clone());
                for _ in 0..steps.random_range(1..12) {
                    step(tx, &mut steps, &mut model)?;
                }
                next = model;
                if fails { Err(Error::Rejected("no".to_owned())) } else { Ok(()) }
            });
            assert_eq!(done.is_err(), fails, "{done:?}");
            if !fails {
                map = next;
            }
            let all = db.read(|tx| rows(tx.range(&NUMBERS, ..)?)).unwrap();
            assert_eq!(all, map.clone().into_iter().collect::<Vec<_>>());
        }
    });
}

fn step(
    tx: &mut impl WriteOps,
    random: &mut StdRng,
    model: &mut BTreeMap<u64, Vec<u8>>,
) -> Result<(), Error> {
    let key = random.random_range(0..20);
    let value = vec![random.random::<u8>(); random.random_range(0..40)];
    match random.random_range(0..9) {
        0 | 1 => {
            tx.put(&NUMBERS, key, &value)?;
            model.insert(key, value);
        }
        2 => assert_eq!(tx.get(&NUMBERS, key)?.as_ref(), model.get(&key)),
        3 => assert_eq!(tx.remove(&NUMBERS, key)?, model.remove(&key).is_some()),
        4 => {
            let inserted = tx.insert(&NUMBERS, key, &value);
            assert_eq!(inserted.is_ok(), !model.contains_key(&key), "{inserted:?}");
            model.entry(key).or_insert(value);
        }
        5 => assert_eq!(tx.pop_first(&NUMBERS)?, model.pop_first()),
        6 => assert_eq!(tx.last(&NUMBERS)?, model.last_key_value().map(|(k, v)| (*k, v.clone()))),
        7 => {
            let to = key + random.random_range(0..6);
            let removed = tx.remove_range(&NUMBERS, key..to)?;
            let keys: Vec<_> = model.range(key..to).map(|(key, _)| *key).collect();
            assert_eq!(removed, keys.len() as u64);
            keys.iter().for_each(|key| drop(model.remove(key)));
        }
        _ => {
            let all = tx.range(&NUMBERS, key..)?.collect::<Result<Vec<_>, _>>()?;
            assert!(all.into_iter().eq(model.range(key..).map(|(k, v)| (*k, v.clone()))));
        }
    }
    Ok(())
}

fn trips(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("trips")).unwrap();
    db.write(|tx| (0..20).try_for_each(|number| tx.put(&NUMBERS, number, &[1]))).unwrap();
    let cost = |what: &str, wanted: u64, work: &dyn Fn()| {
        let before = db.round_trips();
        work();
        assert_eq!(db.round_trips() - before, wanted, "round trips of {what}");
    };
    cost("a get", 1, &|| drop(db.get(&NUMBERS, 1).unwrap()));
    cost("a read of one key", 1, &|| drop(db.read(|tx| tx.get(&NUMBERS, 1)).unwrap()));
    let keys = || 0..10;
    cost("a read of ten keys", 1, &|| drop(db.read(|tx| tx.get_many(&NUMBERS, keys())).unwrap()));
    cost("a read of two", 3, &|| {
        db.read(|tx| Ok((tx.get(&NUMBERS, 1)?, tx.get(&NUMBERS, 2)?))).unwrap();
    });
    cost("read, modify, write", 2, &|| {
        db.write(|tx| tx.update(&NUMBERS, 1, |old| old)).unwrap();
    });
    cost("a put", 2, &|| db.put(&NUMBERS, 1, &[2]).unwrap());
    cost("a hundred puts", 2, &|| {
        db.write(|tx| (0..100).try_for_each(|key| tx.put(&NUMBERS, key, &[2]))).unwrap();
    });
    cost("a transfer", 3, &|| {
        db.write(|tx| {
            tx.update(&NUMBERS, 1, |old| old)?;
            tx.update(&NUMBERS, 2, |old| old)
        })
        .unwrap();
    });
    cost("a range of 100", 2, &|| {
        assert_eq!(db.read(|tx| Ok(tx.range(&NUMBERS, ..)?.count())).unwrap(), 100);
    });
    cost("nothing", 0, &|| db.write(|_| Ok(())).unwrap());
}

/// A read of some keys must not scan the table, also where the server has no statistics of it: it
/// would be slow, and in conflict with each write.
fn some_keys(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("some_keys")).unwrap();
    db.write(|tx| (0..1500).try_for_each(|number| tx.put(&NUMBERS, number, &[7; 100]))).unwrap();
    // Before a statement has run five times its plan is another one.
    for _ in 0..8 {
        let keys = [1499, 3, 2500, 700, 3];
        let values = db.read(|tx| tx.get_many(&NUMBERS, keys)).unwrap();
        let there = values.iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(there, [true, true, false, true, true]);
    }
    let mut runs = 0;
    db.write(|tx| {
        runs += 1;
        tx.get_many(&NUMBERS, (0..10).map(|at| 500 + at * 60))?;
        if runs == 1 {
            // Far from the keys: on other pages.
            db.write(|tx| {
                tx.get(&NUMBERS, 1499)?;
                tx.put(&NUMBERS, 100, &[8])
            })?;
        }
        tx.put(&NUMBERS, 1499, &[8])
    })
    .unwrap();
    assert_eq!(runs, 1, "the read was in conflict with a write of another record");
}

#[derive(Debug, PartialEq)]
enum Refused {
    Poor,
    Other(Error),
}

impl From<Error> for Refused {
    fn from(why: Error) -> Self {
        Self::Other(why)
    }
}

fn own_errors(stage: &mut Stage) {
    stage.both("own_errors", |db| {
        db.put(&FRUIT, "pear", 1).unwrap();
        let options = latchwork_store::TxnOptions::default();
        let done = db.write_with_as(&options, |tx| {
            tx.put(&FRUIT, "pear", 2)?;
            tx.get(&FRUIT, "pear")?;
            Err::<(), _>(Refused::Poor)
        });
        assert_eq!(done.unwrap_err(), Refused::Poor);
        assert_eq!(db.get(&FRUIT, "pear").unwrap(), Some(1));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            db.write(|tx| -> Result<(), Error> {
                tx.put(&FRUIT, "pear", 3)?;
                tx.get(&FRUIT, "pear")?;
                std::panic::panic_any("of the test")
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(db.get(&FRUIT, "pear").unwrap(), Some(1));
        // A failure that the closure hides still ends the transaction.
        assert_eq!(db.write(|tx| tx.get_for_update(&FRUIT, "pear")).unwrap(), Some(1));
    });
}
