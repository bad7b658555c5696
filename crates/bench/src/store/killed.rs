//! Processes that are killed, and processes that reopen their store.

use latchwork_rivals::{Store, StoreResult};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::job::{Job, Outcome};
use super::ledger::{self, Acks, BATCH};
use crate::child;
use crate::times::now;

/// Commits until killed. The first commit precedes the report that the process is ready.
///
/// # Errors
///
/// Those of the store. It does not return otherwise.
pub(super) fn commit(store: &dyn Store, job: &Job, client: u64) -> StoreResult {
    let (mut rng, mut session) = (SmallRng::seed_from_u64(client), store.session()?);
    let mut client = Acks::of(&job.folder).client(client)?;
    client.commit(session.as_mut(), job.data.commits(), &mut rng)?;
    child::start();
    child::end_with_parent();
    let mut last = now();
    loop {
        client.commit(session.as_mut(), job.data.commits(), &mut rng)?;
        let at = now();
        client.paused(last, at)?;
        last = at;
    }
}

/// Writes until recovery would replay `bytes` bytes of log, then waits to be killed. For a store
/// that does not report this, twice the bytes written count.
///
/// # Errors
///
/// Those of the store. It does not return otherwise.
pub(super) fn log(store: &dyn Store, job: &Job, client: u64, bytes: u64) -> StoreResult {
    let (mut rng, mut session) = (SmallRng::seed_from_u64(client), store.session()?);
    let mut client = Acks::of(&job.folder).client(client)?;
    let mut batches = 0;
    let left = loop {
        client.commit(session.as_mut(), job.data.commits(), &mut rng)?;
        batches += 1;
        let left = store.to_redo().unwrap_or(batches * BATCH * 2 * 116);
        if left >= bytes {
            break left;
        }
    };
    let mut outcome = Outcome::default();
    outcome.figures.insert("redo_bytes".to_owned(), left as f64);
    child::done_and_wait(&outcome)
}

/// Commits once in the store opened since `begun` and counts missing commits.
pub(super) fn reopen(
    store: &dyn Store,
    job: &Job,
    client: u64,
    begun: u64,
) -> StoreResult<Outcome> {
    let opened = now();
    let mut session = store.session()?;
    let session = session.as_mut();
    ledger::touch(session, client)?;
    let mut outcome = Outcome { samples: vec![now() - begun], ..Outcome::default() };
    let lost = ledger::lost(session, job.data.commits(), &Acks::of(&job.folder))?;
    outcome.figures.insert("open_ns".to_owned(), (opened - begun) as f64);
    outcome.figures.insert("lost".to_owned(), lost as f64);
    Ok(outcome)
}
