//! Measures the cost of one more object when 100, 1,000 or 10,000 of them exist: in one
//! transaction, with one snapshot, in one store. A constant cost scales; a cost that grows tenfold
//! indicates a walk through all objects.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- steep
//! ```

use std::ops::Bound;
use std::path::Path;
use std::time::{Duration, Instant};

use latchwork_store::{Error, Mode, Options, Store, Table};

use super::Fault;

const ROWS: Table<u64, &[u8]> = Table::new("rows");
const COUNTS: [u64; 3] = [100, 1_000, 10_000];

/// Performs a number of operations. Returns the duration and the number of the measured part.
type Row = fn(&Store, u64) -> Result<(Duration, u64), Error>;

const TABLE: &[(&str, Row)] = &[
    ("get, all in one transaction", |store, n| {
        fill(store, n)?;
        in_one(store, n, |tx, row| tx.get(&ROWS, row).map(drop))
    }),
    ("put, all in one transaction", |store, n| {
        fill(store, n)?;
        in_one(store, n, |tx, row| tx.put(&ROWS, row, &[2; 100]))
    }),
    ("put of one row, again and again", |store, n| {
        in_one(store, n, |tx, _| tx.put(&ROWS, 1, &[2; 100]))
    }),
    ("a range of its own, all in one transaction", |store, n| {
        fill(store, 3 * n)?;
        in_one(store, n, |tx, row| tx.count(&ROWS, 3 * row..3 * row + 2).map(drop))
    }),
    ("a page of 10 behind the one before, in one transaction", |store, n| {
        fill(store, 10 * n)?;
        in_one(store, n, |tx, page| {
            let behind = (Bound::Excluded(10 * page), Bound::Unbounded);
            let mut left = 10;
            tx.scan(&ROWS, behind, &mut |_, _| {
                left -= 1;
                Ok(left > 0)
            })
        })
    }),
    ("a range within the one before, in one transaction", |store, n| {
        in_one(store, n, |tx, row| tx.count(&ROWS, row..3 * n - row).map(drop))
    }),
    ("pop_first, all in one transaction", |store, n| {
        fill(store, n)?;
        in_one(store, n, |tx, _| tx.pop_first(&ROWS).map(drop))
    }),
    ("pop_last, all in one transaction", |store, n| {
        fill(store, n)?;
        in_one(store, n, |tx, _| tx.pop_last(&ROWS).map(drop))
    }),
    ("put anywhere and pop_last, all in one transaction", |store, n| {
        fill(store, n)?;
        in_one(store, n, |tx, row| {
            // In arbitrary order.
            let row = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) % n;
            tx.put(&ROWS, row, &[2; 100])?;
            tx.pop_last(&ROWS).map(drop)
        })
    }),
    ("savepoint, put, back to it; behind all puts", |store, n| {
        let mut tx = store.begin()?;
        (0..n).try_for_each(|row| tx.put(&ROWS, row, &[1; 100]))?;
        let spent = timed(100, |_| {
            let here = tx.savepoint()?;
            tx.put(&ROWS, n, &[1; 100])?;
            tx.roll_back_to(here)
        })?;
        tx.commit()?;
        Ok(spent)
    }),
    ("put, back to one savepoint, all in one transaction", |store, n| {
        let mut tx = store.begin()?;
        let here = tx.savepoint()?;
        let spent = timed(n, |_| {
            tx.put(&ROWS, 1, &[1; 100])?;
            tx.roll_back_to(here)
        })?;
        tx.commit()?;
        Ok(spent)
    }),
    ("undoing a put, all of one transaction", |store, n| {
        fill(store, n)?;
        let mut tx = store.begin()?;
        (0..n).try_for_each(|row| tx.put(&ROWS, row, &[2; 100]))?;
        let since = Instant::now();
        tx.roll_back()?;
        Ok((since.elapsed(), n))
    }),
    ("first, behind all that were removed", |store, n| {
        fill(store, 2 * n)?;
        store.write(|tx| tx.remove_range(&ROWS, ..n))?;
        timed(100, |_| store.read(|tx| tx.first(&ROWS).map(drop)))
    }),
    ("first, beside a snapshot that sees all removed", |store, n| {
        fill(store, 2 * n)?;
        let held = store.snapshot()?;
        store.write(|tx| tx.remove_range(&ROWS, ..n))?;
        let spent = timed(100, |_| store.read(|tx| tx.first(&ROWS).map(drop)))?;
        drop(held);
        Ok(spent)
    }),
    ("get of an old version, all put since", |store, n| {
        fill(store, 1)?;
        let held = store.snapshot()?;
        (0..n).try_for_each(|_| store.put(&ROWS, 0, &[2; 100]))?;
        timed(100, |_| held.get(&ROWS, 0).map(drop))
    }),
    ("a long value put in another's place, all of them", |store, n| {
        let value = vec![1; 20_000];
        timed(n, |_| store.put(&ROWS, 1, &value))
    }),
    ("a table made and written, beside all tables", |store, n| {
        (0..n).try_for_each(|number| store.put(&table(number), 0, &[1; 100]))?;
        timed(20, |number| store.put(&table(n + number), 0, &[1; 100]))
    }),
    ("a table of 10 rows cleared, beside all tables", |store, n| {
        (0..n).try_for_each(|number| store.put(&table(number), 0, &[1; 100]))?;
        fill(store, 10)?;
        let since = Instant::now();
        store.drop_table(ROWS.name(), &mut |_| {})?;
        Ok((since.elapsed(), 1))
    }),
    ("pop_first, each of a table of its own, in one transaction", |store, n| {
        (0..n).try_for_each(|number| store.put(&table(number), 0, &[1; 100]))?;
        in_one(store, n, |tx, number| tx.pop_first(&table(number)).map(drop))
    }),
    ("a snapshot object, beside all of them", |store, n| {
        let held = (0..n).map(|_| store.snapshot()).collect::<Result<Vec<_>, _>>()?;
        let spent = timed(100, |_| store.snapshot().map(drop));
        drop(held);
        spent
    }),
    ("begin, put, commit, beside all that are open", |store, n| {
        let held = (0..n).map(|row| begun(store, row)).collect::<Result<Vec<_>, _>>()?;
        let spent = timed(100, |row| begun(store, n + row)?.commit().map(drop));
        held.into_iter().try_for_each(latchwork_store::Transaction::roll_back)?;
        spent
    }),
    ("committing one that is prepared, all of them", |store, n| {
        (0..n).try_for_each(|row| begun(store, row)?.prepare(&row.to_be_bytes()))?;
        timed(n, |row| store.commit_prepared(&row.to_be_bytes()).map(drop))
    }),
    ("deciding an id that nobody has, beside all prepared", |store, n| {
        (0..n).try_for_each(|row| begun(store, row)?.prepare(&row.to_be_bytes()))?;
        let spent = timed(100, |_| match store.roll_back_prepared(b"nobody's") {
            Err(Error::NotPrepared { .. }) => Ok(()),
            other => other,
        });
        (0..n).try_for_each(|row| store.roll_back_prepared(&row.to_be_bytes()))?;
        spent
    }),
];

/// Begins a transaction that has written a row.
fn begun(store: &Store, row: u64) -> Result<latchwork_store::Transaction, Error> {
    let mut tx = store.begin()?;
    tx.put(&ROWS, row, &[1; 100])?;
    Ok(tx)
}

/// Returns the table with this number. Its name stays in memory, like a program's own names.
fn table(number: u64) -> Table<u64, &'static [u8]> {
    Table::new(format!("table {number}").leak())
}

fn fill(store: &Store, rows: u64) -> Result<(), Error> {
    store.write(|tx| (0..rows).try_for_each(|row| tx.put(&ROWS, row, &[1; 100])))
}

fn timed(
    times: u64,
    mut work: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(Duration, u64), Error> {
    let since = Instant::now();
    (0..times).try_for_each(&mut work)?;
    Ok((since.elapsed(), times))
}

/// Performs a number of operations in one transaction; the time includes the commit.
fn in_one(
    store: &Store,
    times: u64,
    work: impl Fn(&mut latchwork_store::WriteTxn<'_, '_>, u64) -> Result<(), Error>,
) -> Result<(Duration, u64), Error> {
    let since = Instant::now();
    store.write(|tx| (0..times).try_for_each(|row| work(tx, row)))?;
    Ok((since.elapsed(), times))
}

pub(crate) fn run(path: &Path) -> Result<(), Fault> {
    println!("{:58}{:>10}{:>10}{:>10}  us each", "one of", 100, 1_000, 10_000);
    let mut options = Options::default();
    options.sizes.mode = Mode::None;
    // Each open transaction and snapshot occupies a slot.
    options.sizes.threads = 12_000;
    for (name, row) in TABLE {
        print!("{name:58}");
        for count in COUNTS {
            let store = Store::open_with(path, &options)?;
            // The first call of a thread takes longer.
            store.put(&Table::<u64, u64>::new("warm"), 1, 1)?;
            let (spent, times) = row(&store, count)?;
            print!("{:10.2}", spent.as_secs_f64() * 1e6 / times as f64);
            store.verify()?;
            drop(store);
            std::fs::remove_dir_all(path)?;
        }
        println!();
    }
    Ok(())
}
