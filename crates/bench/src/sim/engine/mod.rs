//! What is more than a latch under a simulated workload: our lock manager, our pool and the one it
//! is judged by, our store.

mod disk;
mod locks;
mod pages;
mod records;

use latchwork_sim::Simulation;

pub use locks::Names;
pub use pages::Pages;
pub use records::Records;

use super::lock::{Kind, Subject};
use super::run::{RunError, Watch};
use super::workload::{Dice, Workload};

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

/// What a thread does in one operation on one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operations {
    /// Locks an object of a lock manager, and unlocks it.
    Locks(Names),
    /// Reads a page of a pool.
    Pages(Pages),
    /// Runs a transaction of a store.
    Records(Records),
}

impl Operations {
    /// Of what kind the engine is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Locks(_) => Kind::Manager,
            Self::Pages(_) => Kind::Pool,
            Self::Records(_) => Kind::Store,
        }
    }

    /// How many objects there are, and what they are.
    pub fn objects(&self) -> (usize, &'static str) {
        match self {
            Self::Locks(names) if names.common > 0 => (names.common, "objects that all lock"),
            Self::Locks(names) => (names.own, "objects of each thread"),
            Self::Pages(pages) => (pages.pages, "pages"),
            Self::Records(Records { transfers: true, objects, .. }) => (*objects, "branches"),
            Self::Records(records) => (records.objects, "records"),
        }
    }

    /// The same with so many.
    pub fn with_objects(self, objects: usize) -> Self {
        match self {
            Self::Locks(names) => Self::Locks(names.with_objects(objects)),
            Self::Pages(pages) => Self::Pages(Pages { pages: objects, ..pages }),
            Self::Records(records) => Self::Records(Records { objects, ..records }),
        }
    }

    /// Cycles between two operations; vary at random by a quarter. What the engine's own code
    /// computes is not in it: each of its accesses to shared memory is charged, one after the other,
    /// which is more than a real core would take for all of them.
    pub fn outside(&mut self) -> &mut u64 {
        match self {
            Self::Locks(names) => &mut names.outside,
            Self::Pages(pages) => &mut pages.outside,
            Self::Records(records) => &mut records.outside,
        }
    }
}

/// The engine that is asked for, with what a long run would have made already.
pub(super) fn make(
    subject: &Subject,
    workload: &Workload,
    operations: Operations,
    threads: usize,
) -> Result<Box<dyn Engine>, RunError> {
    let made = match operations {
        Operations::Locks(names) => {
            let inside = workload.shape.inside;
            locks::Bank::new(subject.name == "lockmgr", inside, names, threads).map(boxed)
        }
        Operations::Pages(pages) => match subject.name {
            "pool" => pages::Ours::new(pages, threads).map(boxed),
            _ => Ok(boxed(pages::Pinned::new(pages, subject.name == "pinned-isolated", threads))),
        },
        Operations::Records(records) => records::Shop::new(records, threads).map(boxed),
    };
    made.map_err(|why| RunError::Engine(subject.name, why))
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
