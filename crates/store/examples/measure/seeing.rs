//! Measures how long an inspection of locks and processes takes at full load, and the throughput of
//! the store with and without one inspection a second.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- seeing
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_store::{Mode, Options, Store, StoreView, Table};

use super::Fault;

const ROWS: Table<u64, u64> = Table::new("rows");
const COUNT: u64 = 100_000;
/// Duration of each measurement, alternately with and without inspections.
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: usize = 15;

/// Returns the median.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Makes one inspection, as `latchwork store locks` or `processes` does. Returns its duration in
/// ms.
fn look(path: &Path) -> Result<f64, Fault> {
    let begun = Instant::now();
    let view = StoreView::open(path)?.ok_or("the store is closed")?;
    let found = view.processes()?;
    if found.processes.len() != 1 {
        return Err("there is another process".into());
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

pub(crate) fn run(path: &Path) -> Result<(), Fault> {
    let mut options = Options::default();
    options.sizes.mode = Mode::None;
    let store = Store::open_with(path, &options)?;
    let threads = thread::available_parallelism()?.get() as u64;
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut without, mut with, mut looks) = (Vec::new(), Vec::new(), Vec::new());
    thread::scope(|scope| {
        let (store, done, over) = (&store, &done, &over);
        for thread in 0..threads {
            scope.spawn(move || {
                let mut row = thread;
                while !over.load(Relaxed) {
                    // Fibonacci hashing (Knuth, volume 3, 6.4).
                    row = row.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    store.put(&ROWS, (row >> 32) % COUNT, row).expect("there is room");
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        let mut measured = || {
            thread::sleep(WINDOW);
            for _ in 0..WINDOWS {
                for looked in [false, true] {
                    let (begun, before) = (Instant::now(), done.load(Relaxed));
                    if looked {
                        looks.push(look(path)?);
                    }
                    thread::sleep(WINDOW.saturating_sub(begun.elapsed()));
                    let count = (done.load(Relaxed) - before) as f64;
                    let rate = count / begun.elapsed().as_secs_f64();
                    if looked { with.push(rate) } else { without.push(rate) }
                }
            }
            Ok::<(), Fault>(())
        };
        let measured = measured();
        over.store(true, Relaxed);
        measured
    })?;
    let ratios = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    let longest = looks.iter().copied().fold(0.0, f64::max);
    let (without, with) = (median(without), median(with));
    println!("{threads} threads that put, {WINDOWS} windows of 1 s each way, medians");
    println!("without a look   {without:9.0} puts a second");
    println!("a look a second  {with:9.0} puts a second, {:.3} of that", median(ratios));
    println!("a look           {:9.1} ms, the longest {longest:.1} ms", median(looks));
    Ok(())
}
