//! Writing while a snapshot is held: the measuring process.
//!
//! ```text
//! write half of the bytes | take a snapshot, write all of them, read in it | write the other half
//! ```
//!
//! The result is compared with both halves, so that a slow machine or a cold cache affects both
//! sides. A store that grows beyond a limit is stopped, since other programs of the machine need
//! memory and disk; its writes up to that point count.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use latchwork_rivals::{Reads, Session, Store, StoreError, StoreResult};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::data::Data;
use super::files::{self, Bytes};
use super::job::{Job, Outcome};
use super::keys::{self, VALUE};
use crate::times::{histogram, now};

/// Bytes of a record.
const RECORD: u64 = (16 + VALUE) as u64;
/// Every how many updates one updates the first record, which the snapshot reads at its beginning
/// and its end.
const HOT: u64 = 100;

/// The writer.
struct Writer<'s> {
    session: Box<dyn Session + 's>,
    rng: SmallRng,
    rows: u64,
    times: Histogram<u64>,
}

/// The amount written.
struct Written {
    updates: u64,
    per_s: f64,
}

impl Writer<'_> {
    /// Updates records of `bytes` bytes in total, or fewer if it is stopped.
    fn write(&mut self, bytes: u64, stop: &AtomicBool) -> StoreResult<Written> {
        let mut value = [0; VALUE];
        let updates = (bytes / RECORD).max(HOT);
        let begun = now();
        let (mut last, mut done) = (begun, 0);
        // Relaxed: a few more updates do not matter.
        while done < updates && !stop.load(Relaxed) {
            let any = self.rng.random_range(0..self.rows);
            let number = if done % HOT == 0 { 0 } else { any };
            keys::fill(&mut value, number, &mut self.rng);
            self.session.put(0, &keys::record(number), &value)?;
            let at = now();
            self.times.saturating_record(at - last);
            (last, done) = (at, done + 1);
        }
        Ok(Written { updates: done, per_s: done as f64 * 1e9 / (last - begun).max(1) as f64 })
    }
}

/// Reads the first record at the beginning and at the end of one snapshot. Returns whether the
/// second read was refused. Both values must be equal.
fn hold(store: &dyn Store, begun: &SyncSender<()>, end: &Receiver<()>) -> StoreResult<bool> {
    let (mut first, mut again) = (Vec::new(), Vec::new());
    let mut session = store.session()?;
    let key = keys::record(0);
    let read = session.read(&mut |txn: &mut dyn Reads| {
        txn.get(0, &key, &mut first)?;
        // Without a receiver, the writer has ended with an error of its own.
        let _ = begun.send(());
        let _ = end.recv();
        txn.get(0, &key, &mut again)?;
        Ok(())
    });
    match read {
        Err(StoreError::TooOld) => Ok(true),
        Ok(()) if first != again => {
            let what = "a snapshot read two values of one record".to_owned();
            Err(StoreError::Failed("get", what))
        }
        result => result.map(|()| false),
    }
}

/// Watches the files.
struct Watch<'w> {
    folder: &'w Path,
    /// Bytes of all files at which the writer is stopped.
    limit: u64,
    full: AtomicBool,
    over: AtomicBool,
}

impl Watch<'_> {
    /// Watches until the end and returns the maxima.
    fn run(&self) -> Bytes {
        let mut most = Bytes::default();
        loop {
            // Relaxed: one more iteration does not matter.
            let last = self.over.load(Relaxed);
            if let Ok(now) = files::bytes(self.folder) {
                most = Bytes { data: most.data.max(now.data), log: most.log.max(now.log) };
                if now.all() > self.limit {
                    // Relaxed, as at the load.
                    self.full.store(true, Relaxed);
                }
            }
            if last {
                return most;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Writes while a snapshot is held and the files are watched. Returns whether the snapshot was
/// lost.
fn write_beside(
    store: &dyn Store,
    writer: &mut Writer<'_>,
    bytes: u64,
    watch: &Watch<'_>,
) -> StoreResult<(Written, bool, Bytes)> {
    let (begun, wait) = sync_channel(1);
    let (end, ended) = sync_channel::<()>(1);
    thread::scope(|threads| {
        let holder = threads.spawn(move || hold(store, &begun, &ended));
        let watcher = threads.spawn(|| watch.run());
        // A failed holder reports its error below.
        let _ = wait.recv();
        let written = writer.write(bytes, &watch.full);
        drop(end);
        let too_old = holder.join().expect("it does not panic");
        // Relaxed, as at the load.
        watch.over.store(true, Relaxed);
        let most = watcher.join().expect("it does not panic");
        Ok((written?, too_old?, most))
    })
}

/// Measures writing with and without a snapshot.
pub(super) fn measure(store: &dyn Store, job: &Job) -> StoreResult<Outcome> {
    let Data::History { bytes, rows } = job.data else {
        return Err(StoreError::Failed("measure", "not this data".to_owned()));
    };
    let rng = SmallRng::seed_from_u64(bytes);
    let mut writer =
        Writer { session: store.session()?, rng, rows: rows as u64, times: histogram() };
    let (never, folder) = (AtomicBool::new(false), &job.folder);
    let before = writer.write(bytes / 2, &never)?;
    let alone = core::mem::replace(&mut writer.times, histogram());
    let failed = |why: std::io::Error| StoreError::Failed("the files", why.to_string());
    let start = files::bytes(folder).map_err(failed)?;
    // More than the history that our store keeps.
    let limit = start.all() + bytes / 2 + (1 << 30);
    let (full, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let watch = Watch { folder, limit, full, over };
    let (held, too_old, most) = write_beside(store, &mut writer, bytes, &watch)?;
    let times = core::mem::replace(&mut writer.times, histogram());
    let after = writer.write(bytes - bytes / 2, &never)?;
    // One rate, over the time of both halves.
    let without = 2.0 / (1.0 / before.per_s + 1.0 / after.per_s);
    let mut outcome = Outcome { ops_per_s: held.per_s, ..Outcome::default() };
    outcome.p50_ns = times.value_at_quantile(0.5) as f64;
    outcome.p99_ns = times.value_at_quantile(0.99) as f64;
    let mut add = |name: &str, number: f64| outcome.figures.insert(name.to_owned(), number);
    add("held_kept", held.per_s / without);
    add("p99_over_alone", outcome.p99_ns / alone.value_at_quantile(0.99).max(1) as f64);
    add("held_bytes", (held.updates * RECORD) as f64);
    add("data_growth_bytes", most.data.saturating_sub(start.data) as f64);
    add("log_bytes", most.log as f64);
    add("too_old", f64::from(u8::from(too_old)));
    Ok(outcome)
}
