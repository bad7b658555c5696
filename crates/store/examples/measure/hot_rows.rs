//! Many threads that change the same one or two rows: how often they do, and how often they have
//! to begin again.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- hot-rows
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_store::{Error, Mode, Options, Patience, Store, Table};

use super::Fault;

const ROWS: Table<u64, u64> = Table::new("rows");
const TIME: Duration = Duration::from_secs(2);

/// Transactions a second, and runs of each: one row, or two in either order; read first to write
/// them, or not.
fn measure(store: &Store, threads: u64, rows: u64, for_update: bool) -> Result<(f64, f64), Error> {
    for row in 0..rows {
        store.put(&ROWS, row, 0)?;
    }
    let (done, runs) = (AtomicU64::new(0), AtomicU64::new(0));
    let since = Instant::now();
    let change = |number: u64| {
        store.write_with(&Patience::default(), |tx| {
            for row in (0..rows).map(|row| (row + number) % rows) {
                let value = match for_update {
                    true => tx.get_for_update(&ROWS, row)?,
                    false => tx.get(&ROWS, row)?,
                };
                tx.put(&ROWS, row, value.unwrap_or(0) + 1)?;
            }
            Ok(())
        })
    };
    thread::scope(|scope| {
        let (done, runs, change) = (&done, &runs, &change);
        let work = move |thread: u64| {
            for number in thread.. {
                if since.elapsed() > TIME {
                    break;
                }
                runs.fetch_add(change(number)?.runs.into(), Relaxed);
                done.fetch_add(1, Relaxed);
            }
            Ok::<(), Error>(())
        };
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("no thread panics"))
    })?;
    let (done, runs) = (done.into_inner(), runs.into_inner());
    for row in 0..rows {
        assert_eq!(store.get(&ROWS, row)?, Some(done), "row {row}");
    }
    Ok((done as f64 / since.elapsed().as_secs_f64(), runs as f64 / done as f64))
}

pub(crate) fn run(path: &std::path::Path) -> Result<(), Fault> {
    let mut options = Options::default();
    options.sizes.mode = Mode::None;
    let store = Store::open_with(path, &options)?;
    for (rows, for_update) in [(1, false), (2, false), (1, true), (2, true)] {
        for threads in [1, 2, 8, 16, 64] {
            let (rate, runs) = measure(&store, threads, rows, for_update)?;
            let read = if for_update { "get_for_update" } else { "get" };
            println!("{read}, put; rows {rows}, threads {threads:2}: {rate:7.0}/s, {runs:.1} runs");
        }
    }
    Ok(())
}
