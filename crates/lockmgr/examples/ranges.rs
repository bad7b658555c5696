//! Measures the cost of the one latch of a keyspace: nanoseconds for locking and unlocking a range
//! with one thread, two threads in one keyspace, two in a keyspace with a stripe for each, and two
//! with a keyspace each. No two threads' ranges overlap.
//!
//! `cargo run --release -p latchwork-lockmgr --example ranges`

use std::sync::Barrier;

use latchwork_lockmgr::{Error, KeyRange, Manager, RangeKind, Stripes, Wait, granular};

const PAIRS: u64 = 200_000;
const RUNS: usize = 9;

/// Returns the first key of a worker.
fn first_key(worker: u64) -> u64 {
    worker << 32
}

/// Runs one thread's pairs, and returns the nanoseconds per pair.
fn work(manager: &Manager, keyspace: &Stripes, worker: u64, begin: &Barrier) -> Result<f64, Error> {
    let session = manager.session()?;
    let owner = session.owner()?;
    begin.wait();
    #[allow(clippy::disallowed_types, reason = "an example measures by the wall")]
    let began = std::time::Instant::now();
    for pair in 0..PAIRS {
        let key = first_key(worker) + pair % 16;
        let [from, to] = [key, key + 1].map(u64::to_be_bytes);
        let range = KeyRange::half_open(&from, &to);
        owner.lock_striped(keyspace, range, RangeKind::WriteRecord, Wait::Never)?;
        owner.unlock_striped(keyspace, range, RangeKind::WriteRecord)?;
    }
    Ok(began.elapsed().as_nanos() as f64 / PAIRS as f64)
}

/// Returns the median over the runs of the mean time: one thread for each keyspace in the list.
fn median<'k>(manager: &Manager, keyspaces: &[&'k Stripes]) -> Result<f64, Error> {
    let mut means = Vec::new();
    for _ in 0..RUNS {
        let begin = Barrier::new(keyspaces.len());
        let times: Result<Vec<f64>, Error> = std::thread::scope(|scope| {
            let begin = &begin;
            let start = |(worker, keyspace): (usize, &&'k Stripes)| {
                let keyspace = *keyspace;
                scope.spawn(move || work(manager, keyspace, worker as u64, begin))
            };
            let threads: Vec<_> = keyspaces.iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        means.push(times?.iter().sum::<f64>() / keyspaces.len() as f64);
    }
    means.sort_by(f64::total_cmp);
    Ok(means[RUNS / 2])
}

fn main() -> Result<(), Error> {
    let manager = Manager::private(granular::modes())?;
    let whole = |name: &[u8]| Stripes::new(name, [[0; 0]; 0]);
    let (one, two) = (whole(b"one")?, whole(b"two")?);
    let striped = Stripes::new(b"striped", [first_key(1).to_be_bytes()])?;
    println!("1 thread                 {:6.0} ns", median(&manager, &[&one])?);
    println!("2 threads, one keyspace  {:6.0} ns", median(&manager, &[&one, &one])?);
    println!("2 threads, two stripes   {:6.0} ns", median(&manager, &[&striped, &striped])?);
    println!("2 threads, one each      {:6.0} ns", median(&manager, &[&one, &two])?);
    Ok(())
}
