//! The engines of simulated workloads: our lock manager, our pool, our log and what they are
//! compared with, our store.

mod disk;
mod locks;
mod logs;
mod pages;
mod records;

use latchwork_sim::Simulation;

use super::dice::Dice;
use super::operations::Operations;
use super::watch::Watch;

/// An engine for a number of threads.
pub(super) trait Engine {
    /// Names the memory for reports and sets the cache contents of a long run.
    fn set_up(&self, simulation: &mut Simulation);

    /// The work of thread `me` until the end of the watch.
    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String>;

    /// Checks after the run that no error occurred. Of a lock manager, returns the fraction of
    /// requests granted in their owner's own memory.
    fn judge(&self) -> Result<Option<f64>, String>;
}

/// The engine of this name in the state of a long run. A lock of a lock manager is held for
/// `inside` cycles.
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
        Operations::Appends(appends) if name == "log" => {
            logs::Ours::new(appends, threads).map(boxed)
        }
        Operations::Appends(appends) => {
            Ok(boxed(logs::Unprotected::new(appends, name == "log-latched")))
        }
        Operations::Records(records) => records::Stores::new(records, threads).map(boxed),
    }
}

fn boxed<E: Engine + 'static>(engine: E) -> Box<dyn Engine> {
    Box::new(engine)
}

/// The pause between two operations.
fn pause(outside: u64, dice: &mut Dice) {
    latchwork_sim::work(outside - outside / 4 + dice.below(outside as usize / 2 + 1) as u64);
}

/// Zipf's law: the frequency of object n is that of the first, divided by n to the power of
/// `exponent`. Returns the cumulative distribution.
fn zipf(objects: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = (1..=objects).map(|n| {
        sum += (n as f64).powf(-exponent);
        sum
    });
    let sums: Vec<f64> = sums.collect();
    sums.iter().map(|s| s / sum).collect()
}

/// Draws an object from the distribution.
fn drawn(shares: &[f64], dice: &mut Dice) -> usize {
    let at = dice.below(1 << 30) as f64 / f64::from(1 << 30);
    shares.partition_point(|share| *share <= at).min(shares.len() - 1)
}
