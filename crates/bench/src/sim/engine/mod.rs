//! What is more than a latch under a simulated workload: our lock manager, our pool and the one it
//! is judged by, our store.

mod disk;
mod locks;
mod pages;
mod records;

use latchwork_sim::Simulation;

use super::dice::Dice;
use super::operations::Operations;
use super::watch::Watch;

/// One of them, made for a number of threads.
pub(super) trait Engine {
    /// Names the memory, for reports, and says what a long run would have in its caches.
    fn set_up(&self, simulation: &mut Simulation);

    /// What thread `me` does until the watch says that it is over; or what went wrong.
    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String>;

    /// For after the run: that nothing was wrong; of a lock manager, the part of requests that were
    /// granted in their owner's own memory.
    fn judge(&self) -> Result<Option<f64>, String>;
}

/// The engine of this name, with what a long run would have made already. A lock of a lock manager
/// is held for `inside` cycles.
pub(super) fn make(
    name: &str,
    inside: u64,
    operations: Operations,
    threads: usize,
) -> Result<Box<dyn Engine>, String> {
    match operations {
        Operations::Locks(names) => {
            locks::Bank::new(name == "lockmgr", inside, names, threads).map(boxed)
        }
        Operations::Pages(pages) if name == "pool" => pages::Ours::new(pages, threads).map(boxed),
        Operations::Pages(pages) => {
            Ok(boxed(pages::Pinned::new(pages, name == "pinned-isolated", threads)))
        }
        Operations::Records(records) => records::Stores::new(records, threads).map(boxed),
    }
}

fn boxed<E: Engine + 'static>(engine: E) -> Box<dyn Engine> {
    Box::new(engine)
}

/// Between two operations.
fn pause(outside: u64, dice: &mut Dice) {
    latchwork_sim::work(outside - outside / 4 + dice.below(outside as usize / 2 + 1) as u64);
}

/// Zipf's law: object n is asked for as often as the first, divided by n to the power of
/// `exponent`. The parts of requests that go to it or to one before it.
fn zipf(objects: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = (1..=objects).map(|n| {
        sum += (n as f64).powf(-exponent);
        sum
    });
    let sums: Vec<f64> = sums.collect();
    sums.iter().map(|s| s / sum).collect()
}

/// One of them, by chance.
fn drawn(shares: &[f64], dice: &mut Dice) -> usize {
    let at = dice.below(1 << 30) as f64 / f64::from(1 << 30);
    shares.partition_point(|share| *share <= at).min(shares.len() - 1)
}
