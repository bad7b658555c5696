//! Measures many threads that change the same one or two rows, or rows of a range that they have
//! read: throughput, and number of attempts.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- hot-rows
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_store::{Error, Mode, Options, Store, Table, TxnOptions};

use super::Fault;

const ROWS: Table<u64, u64> = Table::new("rows");
const TIME: Duration = Duration::from_secs(2);

/// Returns transactions per second and attempts per transaction. A transaction gets a number, and
/// returns its number of attempts.
fn measure(
    threads: u64,
    change: impl Fn(u64) -> Result<u32, Error> + Sync,
) -> Result<(f64, f64, u64), Error> {
    let (done, runs) = (AtomicU64::new(0), AtomicU64::new(0));
    let since = Instant::now();
    thread::scope(|scope| {
        let (done, runs, change) = (&done, &runs, &change);
        let work = move |thread: u64| {
            for number in thread.. {
                if since.elapsed() > TIME {
                    break;
                }
                runs.fetch_add(change(number)?.into(), Relaxed);
                done.fetch_add(1, Relaxed);
            }
            Ok::<(), Error>(())
        };
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("no thread panics"))
    })?;
    let (done, runs) = (done.into_inner(), runs.into_inner());
    Ok((done as f64 / since.elapsed().as_secs_f64(), runs as f64 / done as f64, done))
}

/// Changes one row, or two in either order, with or without reading them for update first.
fn rows(store: &Store, threads: u64, rows: u64, for_update: bool) -> Result<(f64, f64), Error> {
    for row in 0..rows {
        store.put(&ROWS, row, 0)?;
    }
    let (rate, runs, done) = measure(threads, |number| {
        let done = store.write_with(&TxnOptions::default(), |tx| {
            for row in (0..rows).map(|row| (row + number) % rows) {
                let value = match for_update {
                    true => tx.get_for_update(&ROWS, row)?,
                    false => tx.get(&ROWS, row)?,
                };
                tx.put(&ROWS, row, value.unwrap_or(0) + 1)?;
            }
            Ok(())
        });
        Ok(done?.runs)
    })?;
    for row in 0..rows {
        assert_eq!(store.get(&ROWS, row)?, Some(done), "row {row}");
    }
    Ok((rate, runs))
}

/// Counts a hundred rows, and adds or removes one.
fn range(store: &Store, threads: u64) -> Result<(f64, f64), Error> {
    let (rate, runs, _) = measure(threads, |number| {
        let row = 1_000 + number % 100;
        let done = store.write_with(&TxnOptions::default(), |tx| {
            let count = tx.count(&ROWS, 1_000..1_100)?;
            match number / 100 % 2 {
                0 => tx.put(&ROWS, row, count),
                _ => tx.remove(&ROWS, row).map(drop),
            }
        });
        Ok(done?.runs)
    })?;
    Ok((rate, runs))
}

pub(crate) fn run(path: &std::path::Path) -> Result<(), Fault> {
    let mut options = Options::default();
    options.sizes.mode = Mode::None;
    let store = Store::open_with(path, &options)?;
    for (rows, for_update) in [(1, false), (2, false), (1, true), (2, true)] {
        for threads in [1, 2, 8, 16, 64] {
            let (rate, runs) = self::rows(&store, threads, rows, for_update)?;
            let read = if for_update { "get_for_update" } else { "get" };
            println!("{read}, put; rows {rows}, threads {threads:2}: {rate:7.0}/s, {runs:.1} runs");
        }
    }
    for threads in [1, 2, 8, 16, 64] {
        let (rate, runs) = range(&store, threads)?;
        println!("a range, put or remove; threads {threads:2}: {rate:7.0}/s, {runs:.1} runs");
    }
    Ok(())
}
