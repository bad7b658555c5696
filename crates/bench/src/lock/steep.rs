//! The cost of a request among many others: the same operation among 1, 100 and 10,000.
//!
//! Each operation is timed alone, in private memory, by one thread with a session and all the
//! owners; a waiting owner needs no thread. The modes are those of granular locks. No rival runs
//! these workloads: a row is compared with its own first line.
//!
//! | workload | timed operation | others |
//! |---|---|---|
//! | `strong-beside` | X on an unused name | owners with IX on another name |
//! | `shared-behind` | S with a timeout of 1 ms, until it gives up | owners with IX on that name |
//! | `release-behind` | one of those releases its lock | the same, after S gave up |
//! | `look-behind` | one run of deadlock detection | owners that wait for X on one name |
//! | `wait-behind` | X with a timeout of 1 ms, until it gives up | the same |
//! | `owner-beside` | an owner, made and dropped | owners of the same session |
//! | `session-beside` | a session with an owner, opened and closed | sessions, 1,500 at most |
//! | `range-beside` | a range of one key, locked and unlocked | ranges of others, all around |

use std::time::Duration;

use latchwork_lockmgr::granular::{self, IX, S, X};
use latchwork_lockmgr::{Error, KeyRange, Manager, Owner, RangeKind, Session, Step, Wait};

use super::Workload;
use super::job::{Job, Outcome};
use super::table::Stop;
use super::timing::{now, timed};

/// The timeout of the requests that give up.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(1);
/// The hot name.
const HOT: &[u8] = b"table";
/// Attempts, at most, until a lock is weak.
const TRIES: usize = 1 << 20;

/// Runs the job. `start` returns the start time.
pub(crate) fn measure(job: &Job, start: impl FnOnce() -> u64) -> Result<Outcome, Stop> {
    let manager = Manager::private(granular::modes())?;
    start();
    let session = manager.session()?;
    let trials = job.trials;
    let times = match job.workload {
        Workload::StrongBeside => strong(&session, job.others, trials * 10)?,
        Workload::SharedBehind => {
            each(trials, || shared(&session, job.others).map(|times| times.0))?
        }
        Workload::ReleaseBehind => {
            each(trials, || shared(&session, job.others).map(|times| times.1))?
        }
        Workload::LookBehind => behind(&session, job.others, || look(&session, trials))?,
        Workload::WaitBehind => behind(&session, job.others, || wait(&session, trials))?,
        Workload::OwnerBeside => owner(&session, job.others, trials * 10)?,
        Workload::RangeBeside => range(&session, job.others, trials * 10)?,
        _ => opened(&manager, job.others.min(1500), trials * 10)?,
    };
    // The counters of the timed sessions were freed with them. This owner adds one that counts.
    session.owner()?.lock(b"one more", X)?;
    let counted = session.stats().requests;
    Ok(Outcome { asked: 1, counted, others: job.others as u64, ..timed(&times) })
}

/// The duration of a call, in nanoseconds.
fn took<R>(act: impl FnOnce() -> Result<R, Error>) -> (f64, Result<R, Error>) {
    let begun = now();
    let end = act();
    ((now() - begun) as f64, end)
}

fn each(trials: usize, act: impl Fn() -> Result<f64, Stop>) -> Result<Vec<f64>, Stop> {
    (0..trials).map(|_| act()).collect()
}

fn owners(session: &Session, count: usize) -> Result<Vec<Owner<'_>>, Stop> {
    (0..count).map(|_| session.owner().map_err(Stop::from)).collect()
}

/// Owners with IX on the hot name. Their locks are weak, as they become where many owners ask.
fn holders(session: &Session, count: usize) -> Result<Vec<Owner<'_>>, Stop> {
    let first = session.owner()?;
    let before = session.stats().weak;
    for _ in 0..TRIES {
        first.lock(HOT, IX)?;
        first.unlock(HOT)?;
        if session.stats().weak != before {
            break;
        }
    }
    drop(first);
    let all = owners(session, count)?;
    for owner in &all {
        owner.lock(HOT, IX)?;
    }
    Ok(all)
}

fn strong(session: &Session, others: usize, trials: usize) -> Result<Vec<f64>, Stop> {
    let holders = holders(session, others)?;
    let mut times = Vec::new();
    for trial in 0..trials {
        let (owner, name) = (session.owner()?, format!("row {trial}"));
        let (time, end) = took(|| owner.lock(name.as_bytes(), X));
        end?;
        times.push(time);
    }
    drop(holders);
    Ok(times)
}

/// Time until the S request gives up, and time until each of the holders has released.
fn shared(session: &Session, others: usize) -> Result<(f64, f64), Stop> {
    let holders = holders(session, others)?;
    let owner = session.owner()?;
    let (waited, end) = took(|| owner.lock_timeout(HOT, S, TIMEOUT));
    if end != Err(Error::TimedOut) {
        return Err(Stop::fault(format!("S beside IX: {end:?}")));
    }
    let (released, end) = took(|| holders.iter().try_for_each(|owner| owner.unlock(HOT)));
    end?;
    Ok((waited, released / others as f64))
}

/// Runs a function while `count` owners wait for one.
fn behind(
    session: &Session,
    others: usize,
    act: impl Fn() -> Result<Vec<f64>, Stop>,
) -> Result<Vec<f64>, Stop> {
    let holder = session.owner()?;
    holder.lock(HOT, X)?;
    let waiters = owners(session, others)?;
    for waiter in &waiters {
        if waiter.request(HOT, X, Wait::Detect)? != Step::Waiting {
            return Err(Stop::fault("two have X"));
        }
    }
    let times = act()?;
    for waiter in &waiters {
        waiter.cancel()?;
    }
    Ok(times)
}

fn look(session: &Session, trials: usize) -> Result<Vec<f64>, Stop> {
    let once = || {
        let (time, broken) = took(|| session.detect());
        if broken? == 0 { Ok(time) } else { Err(Stop::Deadlock) }
    };
    each(trials, once)
}

fn wait(session: &Session, trials: usize) -> Result<Vec<f64>, Stop> {
    let owner = session.owner()?;
    // So that other owners can wait for it and detection has work to do.
    owner.lock(b"its own", X)?;
    let once = || {
        let (time, end) = took(|| owner.lock_timeout(HOT, X, TIMEOUT));
        if end == Err(Error::TimedOut) { Ok(time) } else { Err(Stop::fault(format!("{end:?}"))) }
    };
    each(trials, once)
}

fn owner(session: &Session, others: usize, trials: usize) -> Result<Vec<f64>, Stop> {
    let all = owners(session, others)?;
    let mut times = Vec::new();
    for _ in 0..trials {
        let (time, end) = took(|| session.owner().map(drop));
        end?;
        times.push(time);
    }
    drop(all);
    Ok(times)
}

fn range(session: &Session, others: usize, trials: usize) -> Result<Vec<f64>, Stop> {
    let lock = |owner: &Owner<'_>, key: usize, kind| {
        let [from, to] = [key, key + 1].map(usize::to_be_bytes);
        owner.lock_range(HOT, KeyRange::half_open(&from, &to), kind, Wait::Never)
    };
    let all = owners(session, others)?;
    for (number, owner) in all.iter().enumerate() {
        lock(owner, 2 * number, RangeKind::ReadNext)?;
    }
    let (one, middle) = (session.owner()?, others / 2 * 2 + 1);
    let mut times = Vec::new();
    for _ in 0..trials {
        let (time, end) = took(|| {
            lock(&one, middle, RangeKind::WriteRecord)?;
            let [from, to] = [middle, middle + 1].map(usize::to_be_bytes);
            one.unlock_range(HOT, KeyRange::half_open(&from, &to), RangeKind::WriteRecord)
        });
        end?;
        times.push(time);
    }
    drop(all);
    Ok(times)
}

fn opened(manager: &Manager, others: usize, trials: usize) -> Result<Vec<f64>, Stop> {
    let mut all = Vec::new();
    for _ in 0..others {
        let session = manager.session()?;
        drop(session.owner()?);
        all.push(session);
    }
    let mut times = Vec::new();
    for _ in 0..trials {
        let (time, end) = took(|| manager.session()?.owner().map(drop));
        end?;
        times.push(time);
    }
    Ok(times)
}
