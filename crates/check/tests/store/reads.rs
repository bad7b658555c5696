//! Reads of a writing transaction: they equal those of a snapshot with its writes, and stay locked
//! until it ends.

use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, ReadTxn, Rows, Store, Table, TxnOptions, WriteTxn};

use crate::stage::begin;

type Key = (&'static str, u64);
type Found = Vec<((String, u64), u64)>;

const ROWS: Table<Key, u64> = Table::new("rows");
const NAMES: [&str; 3] = ["a", "ab", "b"];

fn all(rows: Rows<'_, Key, u64>, back: bool) -> Result<Found, Error> {
    if back { rows.rev().collect() } else { rows.collect() }
}

fn bytes(key: &[u8], value: &[u8]) -> Result<((String, u64), u64), Error> {
    Ok((ROWS.key_of(key)?, ROWS.value_of(value)?))
}

/// One call of a snapshot or of a transaction, with comparable results.
macro_rules! answer {
    ($name:ident, $txn:ty) => {
        fn $name(
            tx: $txn,
            call: u64,
            (name, from, to): (&'static str, u64, u64),
        ) -> Result<Found, Error> {
            let one = |value: Option<u64>| value.map(|value| ((name.to_owned(), from), value));
            match call {
                0 => {
                    let of = |value: &[u8]| u64::from_le_bytes(value.try_into().unwrap());
                    Ok(one(tx.get_with(&ROWS, (name, from), of)?).into_iter().collect())
                }
                1 => all(tx.prefix::<&str, _, _>(&ROWS, name)?, from % 2 == 0),
                2 => all(tx.range(&ROWS, (name, from)..=(name, to))?, from % 2 == 0),
                3 => {
                    let mut found = Vec::new();
                    tx.scan(&ROWS, (name, from).., &mut |key, value| {
                        found.push(bytes(key, value)?);
                        Ok((found.len() as u64) < to)
                    })?;
                    Ok(found)
                }
                _ => Ok(vec![((String::new(), 0), tx.count(&ROWS, ..(name, to))?)]),
            }
        }
    };
}
answer!(of_snapshot, &ReadTxn<'_, Native>);
answer!(of_transaction, &mut WriteTxn<'_, '_, Native>);

#[test]
fn a_transaction_reads_like_its_snapshot() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut random = Random(5);
    for _ in 0..60 {
        let mut told = Vec::new();
        let choose = |random: &mut Random| {
            let (from, to) = (random.below(30), 1 + random.below(30));
            (NAMES[random.below(3) as usize], from.min(to), from.max(to))
        };
        store
            .write(|tx| {
                for _ in 0..20 {
                    let (name, key, value) = choose(&mut random);
                    match random.below(3) {
                        0 => drop(tx.remove(&ROWS, (name, key))?),
                        _ => tx.put(&ROWS, (name, key), value)?,
                    }
                }
                for call in 0..20 {
                    let what = choose(&mut random);
                    told.push((call % 5, what, of_transaction(tx, call % 5, what)?));
                }
                Ok(())
            })
            .unwrap();
        for (call, what, found) in told {
            let seen = store.read(|tx| of_snapshot(tx, call, what));
            assert_eq!(seen, Ok(found), "{call} {what:?}");
        }
    }
}

/// Returns whether another transaction may write a row now.
fn may_write(store: &Store<Native>, row: Key) -> bool {
    let short = TxnOptions { time: Duration::ZERO, ..TxnOptions::default() };
    let mut other = store.begin_with(&short).unwrap();
    other.put(&ROWS, row, 1).is_ok()
}

#[test]
fn a_read_locks_its_records_and_no_others() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.write(|tx| NAMES.iter().try_for_each(|name| tx.put(&ROWS, (name, 5), 0))).unwrap();
    store
        .write(|tx| {
            assert_eq!(all(tx.prefix::<&str, _, _>(&ROWS, "ab")?, true)?.len(), 1);
            assert!(!may_write(&store, ("ab", 5)) && !may_write(&store, ("ab", 9)));
            assert!(may_write(&store, ("a", 9)) && may_write(&store, ("b", 0)));
            Ok(())
        })
        .unwrap();
    store
        .write(|tx| {
            assert_eq!(tx.get_with(&ROWS, ("a", 5), <[u8]>::len)?, Some(8));
            assert_eq!(tx.get_with(&ROWS, ("a", 6), <[u8]>::len)?, None);
            // Reads before the first lock are locked by the next other call.
            assert!(tx.reads_at().is_some());
            tx.savepoint()?;
            assert_eq!(tx.reads_at(), None);
            assert!(!may_write(&store, ("a", 5)) && !may_write(&store, ("a", 6)));
            assert!(may_write(&store, ("a", 7)));
            // The scan ends with the first record, but the whole range is locked.
            tx.scan(&ROWS, ("b", 0).., &mut |_, _| Ok(false))?;
            assert!(!may_write(&store, ("b", 8)));
            Ok(())
        })
        .unwrap();
    // An error of the closure ends the scan, and not the transaction.
    let ended = store.write(|tx| {
        let mut refuse = |_: &[u8], _: &[u8]| Err(Error::Rejected("enough".to_owned()));
        let refused = tx.scan(&ROWS, .., &mut refuse);
        assert_eq!(refused, Err(Error::Rejected("enough".to_owned())));
        tx.put(&ROWS, ("a", 5), 7)
    });
    assert_eq!((ended, store.get(&ROWS, ("a", 5))), (Ok(()), Ok(Some(7))));
}

type Mixed = Table<&'static [u8], &'static [u8]>;

/// Compares the records between two keys, read by a range and by a scan that stops somewhere.
fn agrees(
    tx: &ReadTxn<'_, Native>,
    table: &Mixed,
    random: &mut Random,
    key: &dyn Fn(u64) -> Vec<u8>,
) {
    let (from, to) = (random.below(200), random.below(260));
    let (from, to) = (key(from), key(from.max(to)));
    let most = random.below(120) as usize;
    let ranges = [(&from[..], &to[..]), (&[][..], &to[..]), (&from[..], &[255; 90][..])];
    for (from, to) in ranges {
        let range = tx.range(table, from..to).unwrap().take(most);
        let wanted: Vec<_> = range.map(Result::unwrap).collect();
        let mut found = Vec::new();
        let scanned = tx.scan(table, from..to, &mut |key, value| {
            if found.len() < most {
                found.push((table.key_of(key)?, table.value_of(value)?));
            }
            Ok(found.len() < most)
        });
        assert_eq!(scanned, Ok(()));
        assert!(found == wanted, "{} rows of {}", found.len(), wanted.len());
    }
}

/// A scan of records as they lie on the page, with others among them: removed, changed since, long;
/// and with keys that share prefixes of all lengths.
#[test]
fn a_scan_returns_the_rows_of_a_range() {
    const TABLES: [(Mixed, usize); 4] = [
        (Table::new("none"), 0),
        (Table::new("few"), 5),
        (Table::new("some"), 20),
        (Table::new("many"), 80),
    ];
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut random = Random(23);
    for (table, alike) in TABLES {
        let key = |row: u64| [&vec![7; alike], &row.to_be_bytes()[..]].concat();
        let change = |random: &mut Random| {
            let row = random.below(200);
            let length = [0, 3, 30, 30, 300, 3000][random.below(6) as usize];
            match random.below(3) {
                0 => store.write(|tx| tx.remove(&table, &key(row)).map(drop)).unwrap(),
                _ => store.put(&table, &key(row), &vec![row as u8; length]).unwrap(),
            }
        };
        (0..300).for_each(|_| change(&mut random));
        for round in 0..60 {
            let read = store.read(|tx| {
                agrees(tx, &table, &mut random, &key);
                // Some rows are newer than this snapshot from here on.
                (0..round % 7).for_each(|_| change(&mut random));
                agrees(tx, &table, &mut random, &key);
                Ok(())
            });
            read.unwrap();
        }
    }
}

/// Reversed after any number of records, an iterator returns the others, each once. A page with at
/// most about three times the batch size is read in one batch.
#[test]
fn a_scan_changes_direction_in_the_middle() {
    let turned = |rows: Rows<'_, Key, u64>, (all, taken, few): (u64, usize, usize), back: bool| {
        let mut rows = if back { rows.rev() } else { rows };
        let numbers = |rows: &mut Rows<'_, Key, u64>, count: usize| {
            rows.take(count).map(|row| row.unwrap().1).collect::<Vec<_>>()
        };
        let mut expected: Vec<_> = (0..all).collect();
        if back {
            expected.reverse();
        }
        assert_eq!(numbers(&mut rows, taken), expected[..taken]);
        let few = few.min(expected.len() - taken);
        let mut rows = rows.rev();
        let others: Vec<_> = expected[taken..].iter().rev().copied().collect();
        assert_eq!(numbers(&mut rows, few), others[..few], "{taken} of {all} taken, {back}");
        // Reversed again, up to where the first ones were taken.
        let mut rows = rows.rev();
        let rest = numbers(&mut rows, expected.len());
        let told = format!("{taken} of {all} taken, {few} back, {back}");
        assert_eq!(rest, expected[taken..expected.len() - few], "{told}");
    };
    for all in [3, 40, 300] {
        let store = begin(&Simulated::new(), Mode::None).unwrap();
        store.write(|tx| (0..all).try_for_each(|row| tx.put(&ROWS, ("a", row), row))).unwrap();
        let some = [0, 1, 2, 3, 7, 8, 9, 15, 16, 31, 32, 33, 150, 290, 299, 300];
        for taken in some.into_iter().filter(|taken| *taken as u64 <= all) {
            for (few, back) in [(0, false), (0, true), (5, false), (5, true)] {
                let how = (all, taken, few);
                store.read(|tx| tx.range(&ROWS, ..).map(|rows| turned(rows, how, back))).unwrap();
                store.write(|tx| tx.range(&ROWS, ..).map(|rows| turned(rows, how, back))).unwrap();
            }
        }
    }
}
