//! Kills writing processes and measures the effect on the others.
//!
//! | workload | a trial | what is timed |
//! |---|---|---|
//! | `kill-one` | one is killed, another takes its place | the others' longest pause |
//! | `kill-all` | all are killed at once | from opening the store to the first commit |
//! | `crash` | a process with this much log is killed, memory and cache are dropped | the same |
//!
//! A pause is the time between two commits of a process, from the kill until all processes have
//! committed twice. The same time without a kill is measured as a control.
//!
//! Each trial ends with a count of acknowledged commits that are missing. Our store fails if there
//! is one or if a surviving process stops. For rivals the count is reported.

use std::thread::sleep;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::data::Data;
use super::job::{Outcome, Task};
use super::ledger::{Acks, LEAST_PAUSE};
use super::parent::Stores;
use super::{Cell, Fault, Subject, Workload, files};
use crate::child::{DONE, READY, Worker};
use crate::times::now;

/// Least time of observation, after a kill and without one.
const WATCH: Duration = Duration::from_millis(50);
/// Interval of the checks whether all have committed.
const LOOK: Duration = Duration::from_millis(2);
/// A process that has not committed for this long after a kill is stuck.
const STUCK: Duration = Duration::from_secs(10);

/// The processes of a trial. Dropping it kills them.
struct Crew<'c> {
    stores: &'c Stores<'c>,
    subject: Subject,
    acks: Acks,
    /// Each process with its client.
    workers: Vec<(Worker, u64)>,
}

impl<'c> Crew<'c> {
    fn start(stores: &'c Stores<'c>, subject: Subject, procs: usize) -> Result<Self, Fault> {
        let acks = Acks::of(stores.folder(subject)?);
        acks.clear()?;
        let mut crew = Self { stores, subject, acks, workers: Vec::new() };
        for _ in 0..procs {
            crew.join()?;
        }
        Ok(crew)
    }

    /// Adds a process. It has committed once when this returns.
    fn join(&mut self) -> Result<(), Fault> {
        let client = self.stores.next_client();
        let mut worker = self.stores.start(self.subject, Task::Commit { client })?;
        worker.hear(READY).map_err(Fault::Failed)?;
        worker.begin(0)?;
        self.workers.push((worker, client));
        Ok(())
    }

    fn done(&self) -> Vec<u64> {
        self.workers.iter().map(|(_, client)| self.acks.done(*client)).collect()
    }

    /// Waits until each process has committed twice, because a first commit may have begun before.
    /// Returns false if one is stuck or has ended.
    fn all_commit(&mut self) -> bool {
        let (before, begun) = (self.done(), now());
        loop {
            sleep(LOOK);
            let has = self.done().iter().zip(&before).all(|(done, before)| *done >= before + 2);
            if has || self.workers.iter_mut().any(|(worker, _)| worker.has_ended()) {
                return has;
            }
            if now() - begun > STUCK.as_nanos() as u64 {
                return false;
            }
        }
    }

    /// Kills all processes at once. Their acknowledgements remain.
    fn kill(mut self) -> Result<Acks, Fault> {
        for (worker, _) in &mut self.workers {
            worker.kill()?;
        }
        Ok(self.acks)
    }
}

/// A period of time and the clients that continued in it.
struct Stretch {
    from: u64,
    to: u64,
    clients: Vec<u64>,
    /// Whether a client never committed again.
    stuck: bool,
}

impl Stretch {
    /// The longest time between two commits of one client that overlaps the period. For a stuck
    /// client, the time waited.
    fn longest_pause(&self, acks: &Acks) -> u64 {
        let pauses = self.clients.iter().flat_map(|client| acks.pauses(*client));
        let within = pauses.filter(|(from, to)| *from < self.to && *to > self.from);
        let least = if self.stuck { STUCK.as_nanos() as u64 } else { LEAST_PAUSE };
        within.map(|(from, to)| to - from).fold(least, u64::max)
    }
}

/// Opens the store of killed processes in a new process.
fn reopen(stores: &Stores<'_>, subject: Subject) -> Result<Outcome, Fault> {
    let client = stores.next_client();
    let outcome = stores.told(subject, Task::Reopen { client })?;
    match outcome.figures.get("lost") {
        Some(lost) if subject == Subject::Ours && *lost > 0.0 => {
            Err(Fault::Failed(format!("{lost} commits that were acknowledged are lost")))
        }
        _ => Ok(outcome),
    }
}

/// Runs one measurement.
pub(super) fn measure(
    stores: &Stores<'_>,
    subject: Subject,
    cell: &Cell,
) -> Result<Outcome, Fault> {
    let mut outcome = match cell.workload {
        Workload::KillOne => kill_one(stores, subject, cell.procs)?,
        Workload::KillAll => kill_all(stores, subject, cell.procs)?,
        _ => crash(stores, subject)?,
    };
    outcome.figures.entry("trials".to_owned()).or_insert(1.0);
    Ok(outcome)
}

fn kill_one(stores: &Stores<'_>, subject: Subject, procs: usize) -> Result<Outcome, Fault> {
    let mut rng = SmallRng::seed_from_u64(now());
    let mut crew = Crew::start(stores, subject, procs)?;
    let (mut kills, mut quiet) = (Vec::new(), Vec::new());
    // All have committed by now and continue at once.
    let (mut outcome, mut stuck) = (Outcome::default(), 0);
    let (before, begun) = (crew.acks.all_done()?, now());
    while kills.len() < stores.kills() && stuck == 0 {
        sleep(Duration::from_micros(rng.random_range(0..20_000)));
        let clients = crew.workers.iter().map(|(_, client)| *client).collect();
        let from = now();
        sleep(WATCH);
        quiet.push(Stretch { from, to: now(), clients, stuck: false });
        let at = rng.random_range(0..procs);
        let (mut worker, _) = crew.workers.swap_remove(at);
        let from = now();
        worker.kill()?;
        sleep(WATCH);
        let goes_on = crew.all_commit();
        stuck += usize::from(!goes_on);
        let clients = crew.workers.iter().map(|(_, client)| *client).collect();
        kills.push(Stretch { from, to: now(), clients, stuck: !goes_on });
        drop(worker);
        if stuck == 0 {
            crew.join()?;
        }
    }
    let took = now() - begun;
    let acks = crew.kill()?;
    outcome.ops_per_s = per_second(before, acks.all_done()?, took);
    outcome.samples = kills.iter().map(|stretch| stretch.longest_pause(&acks)).collect();
    outcome.controls = quiet.iter().map(|stretch| stretch.longest_pause(&acks)).collect();
    let left = reopen(stores, subject)?;
    let longest = outcome.samples.iter().max().copied().unwrap_or(0);
    let add = [
        ("trials", kills.len() as f64),
        ("longest_ns", longest as f64),
        ("stuck", stuck as f64),
        ("lost", left.figures.get("lost").copied().unwrap_or(0.0)),
    ];
    outcome.figures.extend(add.map(|(name, number)| (name.to_owned(), number)));
    if stuck > 0 && subject == Subject::Ours {
        let what = "after a kill another process commits no more".to_owned();
        return Err(Fault::Failed(what));
    }
    Ok(outcome)
}

/// Commits per second, given `before` commits before and `after` commits after `ns` nanoseconds.
fn per_second(before: u64, after: u64, ns: u64) -> f64 {
    (after - before) as f64 * 1e9 / ns.max(1) as f64
}

fn kill_all(stores: &Stores<'_>, subject: Subject, procs: usize) -> Result<Outcome, Fault> {
    let mut rng = SmallRng::seed_from_u64(now());
    let crew = Crew::start(stores, subject, procs)?;
    sleep(Duration::from_millis(rng.random_range(50..150)));
    crew.kill()?;
    opened(reopen(stores, subject)?)
}

fn crash(stores: &Stores<'_>, subject: Subject) -> Result<Outcome, Fault> {
    let folder = stores.folder(subject)?;
    Acks::of(folder).clear()?;
    let Data::Crash { log, .. } = stores.data() else {
        return Err(Fault::Failed("not this data".to_owned()));
    };
    let task = Task::Log { client: stores.next_client(), bytes: log };
    let mut worker = stores.start(subject, task)?;
    let text = worker.hear(DONE).map_err(Fault::Failed)?;
    let wrote: Outcome = serde_json::from_str(&text).map_err(std::io::Error::from)?;
    drop(worker);
    files::crash(subject, folder)?;
    let mut outcome = opened(reopen(stores, subject)?)?;
    outcome.figures.extend(wrote.figures);
    Ok(outcome)
}

/// The timed operation is opening the store and committing once.
fn opened(mut outcome: Outcome) -> Result<Outcome, Fault> {
    let took = outcome.samples.first().copied().ok_or(Fault::Nothing("opening"))?;
    outcome.ops_per_s = 1e9 / took.max(1) as f64;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_committed_before_the_clock_starts_is_not_counted() {
        assert_eq!(per_second(900, 1_000, 2_000_000_000), 50.0);
        assert_eq!(per_second(7, 7, 0), 0.0);
    }
}
