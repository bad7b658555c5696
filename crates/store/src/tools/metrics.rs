//! Metrics of a store for monitoring systems, in the text format of Prometheus.

use core::fmt;

use latchwork_machine::ConstMachine;
use latchwork_pool::{TIME_CLASSES, Timed, Times};

use crate::files::meter::{BOUNDS, Count, REASONS};
use crate::{Error, Store};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A counter, which only grows. It restarts at zero when the store's shared memory is created
    /// again.
    Counter,
    /// A current value.
    Gauge,
    /// A histogram: how many events took at most a given time, with their count and sum.
    Histogram,
}

impl MetricKind {
    /// Its name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// The suffix of the metric's name: empty, or `_bucket`, `_sum`, `_count` of a histogram.
    pub suffix: &'static str,
    /// A label and its value, if any.
    pub label: Option<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// A metric with its values.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name: `latchwork_`, the subject, the unit, and `_total` for counters.
    pub name: &'static str,
    /// Its meaning, in one sentence.
    pub help: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its values, one for each label.
    pub samples: Vec<Sample>,
}

/// All metrics of a store, at about the same moment. `Display` writes the Prometheus text
/// exposition format 0.0.4. `docs/metrics.md` describes each metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<Metric>);

impl Metrics {
    /// Returns the metrics, in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = &Metric> {
        self.0.iter()
    }

    /// Returns the value of a metric without a label.
    pub fn value(&self, name: &str) -> Option<f64> {
        let metric = self.0.iter().find(|metric| metric.name == name)?;
        metric.samples.iter().find(|one| one.label.is_none()).map(|one| one.value)
    }

    /// Returns the value of a metric whose label has this value.
    pub fn labelled(&self, name: &str, label: &str) -> Option<f64> {
        let metric = self.0.iter().find(|metric| metric.name == name)?;
        let is_it = |one: &&Sample| one.label.as_ref().is_some_and(|(_, value)| value == label);
        metric.samples.iter().find(is_it).map(|one| one.value)
    }

    fn add(&mut self, name: &'static str, help: &'static str, kind: MetricKind) -> &mut Metric {
        self.0.push(Metric { name, help, kind, samples: Vec::new() });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, MetricKind::Counter).push("", None, value as f64);
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, MetricKind::Gauge).push("", None, value as f64);
    }
}

impl Metric {
    fn push(&mut self, suffix: &'static str, label: Option<(&'static str, String)>, value: f64) {
        self.samples.push(Sample { suffix, label, value });
    }

    fn labelled(&mut self, label: &'static str, value: &str, count: f64) {
        self.push("", Some((label, value.to_owned())), count);
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Metric { name, help, kind, samples } in &self.0 {
            writeln!(f, "# HELP {name} {help}")?;
            writeln!(f, "# TYPE {name} {}", kind.name())?;
            for Sample { suffix, label, value } in samples {
                write!(f, "{name}{suffix}")?;
                if let Some((label, of)) = label {
                    write!(f, "{{{label}=\"{of}\"}}")?;
                }
                writeln!(f, " {value}")?;
            }
        }
        Ok(())
    }
}

/// Converts nanoseconds to seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the approximate sum of all times, each taken as the middle of its class.
fn sum_of(times: &Times) -> f64 {
    let middle = |class: usize| 1.5 * (1_u64 << class.min(TIME_CLASSES - 1)) as f64 / 1e9;
    times.0.iter().enumerate().map(|(class, count)| middle(class) * *count as f64).sum()
}

impl<M: ConstMachine> Store<M> {
    /// Collects counts of all processes since the store's memory was created, and current values.
    /// Takes no lock that a transaction holds. O(threads + free pages / 512). A call every second
    /// has no measurable cost for the store.
    ///
    /// A thread publishes its counts after 16 to 48 of its commits, at a rollback, at a checkpoint,
    /// and when it leaves the store. A killed process loses the counts that it had not published.
    ///
    /// # Errors
    ///
    /// Errors of the region in the child of a fork, and of the file of pages if it cannot be
    /// measured.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-metrics-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&FRUIT, "pear", 3)?;
    /// let metrics = store.metrics()?;
    /// assert!(metrics.value("latchwork_commits_total") >= Some(1.0));
    /// assert!(metrics.to_string().contains("# TYPE latchwork_commit_seconds histogram\n"));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn metrics(&self) -> Result<Metrics, Error> {
        self.session()?.worker.publish();
        let sums = self.home().shared.metered()?;
        let mut all = Metrics::default();
        self.of_transactions(&mut all, &sums)?;
        self.of_waits(&mut all, &sums)?;
        self.of_log(&mut all, &sums)?;
        self.of_pages(&mut all, &sums)?;
        Ok(all)
    }

    fn of_transactions(&self, all: &mut Metrics, sums: &[u64]) -> Result<(), Error> {
        let activity = self.activity()?;
        all.counter(
            "latchwork_commits_total",
            "Transactions that committed and wrote something.",
            activity.commits,
        );
        let aborts = all.add(
            "latchwork_aborts_total",
            "Transactions and attempts that were rolled back, by reason.",
            MetricKind::Counter,
        );
        for (at, reason) in REASONS.iter().enumerate() {
            aborts.labelled("reason", reason, sums[Count::Aborts as usize + at] as f64);
        }
        let commits = all.add(
            "latchwork_commit_seconds",
            "Time that a commit waited to be as durable as its mode says; not in mode none.",
            MetricKind::Histogram,
        );
        let mut count = 0;
        for (at, one) in sums.iter().take(BOUNDS.len() + 1).enumerate() {
            count += one;
            let bound = BOUNDS.get(at).map(|us| seconds(us * 1000).to_string());
            let bound = bound.unwrap_or_else(|| "+Inf".to_owned());
            commits.push("_bucket", Some(("le", bound)), count as f64);
        }
        commits.push("_sum", None, seconds(sums[Count::CommitNs as usize]));
        commits.push("_count", None, count as f64);
        all.gauge(
            "latchwork_transactions_writing",
            "Transactions that have written something and have not ended.",
            activity.writing,
        );
        all.gauge(
            "latchwork_transactions_prepared",
            "Prepared transactions that wait for a decision.",
            activity.prepared,
        );
        all.counter(
            "latchwork_undone_total",
            "Transactions of killed processes that were rolled back.",
            activity.undone,
        );
        all.gauge("latchwork_snapshots", "Snapshots that are open.", activity.snapshots);
        let kept = activity.oldest_snapshot.map_or(0, |from| activity.end.saturating_sub(from));
        all.gauge("latchwork_snapshot_log_bytes", "Bytes of log behind the oldest snapshot.", kept);
        all.gauge("latchwork_locks", "Locks that are held or waited for.", activity.locks);
        all.gauge(
            "latchwork_lock_owners",
            "Transactions that hold locks or wait for them.",
            activity.transactions,
        );
        let processes = self.home().manager.region().processes();
        let alive = processes.iter().filter(|process| process.alive).count();
        all.gauge(
            "latchwork_processes",
            "Processes that have the store open, including the one that asks.",
            alive as u64,
        );
        Ok(())
    }

    fn of_waits(&self, all: &mut Metrics, sums: &[u64]) -> Result<(), Error> {
        let (sync, lock) = (Count::CommitNs as usize, Count::LockNs as usize);
        let commits: u64 = sums.iter().take(BOUNDS.len() + 1).sum();
        let page = self.home().pool.times(Timed::Wait)?;
        let (fault, write) =
            (self.home().pool.times(Timed::Fault)?, self.home().pool.times(Timed::Write)?);
        let waits = [
            ("lock", sums[Count::LockWaits as usize], seconds(sums[lock])),
            ("commit", commits, seconds(sums[sync])),
            ("page_latch", page.count(), sum_of(&page)),
            ("page_read", fault.count(), sum_of(&fault)),
            ("page_write", write.count(), sum_of(&write)),
        ];
        let counts = all.add(
            "latchwork_waits_total",
            "Waits that have ended, by kind.",
            MetricKind::Counter,
        );
        waits.iter().for_each(|(kind, count, _)| counts.labelled("kind", kind, *count as f64));
        let times = all.add(
            "latchwork_wait_seconds_total",
            "Time spent in waits that have ended, by kind; of pages an estimate.",
            MetricKind::Counter,
        );
        waits.iter().for_each(|(kind, _, seconds)| times.labelled("kind", kind, *seconds));
        Ok(())
    }

    fn of_log(&self, all: &mut Metrics, sums: &[u64]) -> Result<(), Error> {
        let log = &self.home().log;
        let (end, oldest, redo) = (log.end().0, log.oldest().0, log.redo().0);
        all.counter(
            "latchwork_log_appended_bytes_total",
            "Bytes appended to the log since the store was created.",
            end,
        );
        all.gauge(
            "latchwork_log_kept_bytes",
            "Bytes of log that are kept, from the oldest on.",
            end.saturating_sub(oldest),
        );
        all.gauge(
            "latchwork_log_redo_bytes",
            "Bytes of log that a recovery would read.",
            end.saturating_sub(redo),
        );
        all.gauge(
            "latchwork_log_unsynced_bytes",
            "Bytes of log that are not durable.",
            end.saturating_sub(log.flushed().0),
        );
        let of = |count: Count| sums[count as usize];
        all.counter(
            "latchwork_syncs_total",
            "Syncs of the log and of the file of pages.",
            of(Count::Syncs),
        );
        all.counter("latchwork_disk_reads_total", "Reads from files.", of(Count::Reads));
        all.counter(
            "latchwork_disk_read_bytes_total",
            "Bytes read from files.",
            of(Count::BytesRead),
        );
        all.counter("latchwork_disk_writes_total", "Writes to files.", of(Count::Writes));
        all.counter(
            "latchwork_disk_written_bytes_total",
            "Bytes written to files.",
            of(Count::BytesWritten),
        );
        all.counter("latchwork_checkpoints_total", "Checkpoints made.", of(Count::Checkpoints));
        all.counter(
            "latchwork_checkpoints_failed_total",
            "Checkpoints that failed.",
            of(Count::CheckpointsFailed),
        );
        all.add(
            "latchwork_checkpoint_seconds_total",
            "Time spent in checkpoints.",
            MetricKind::Counter,
        )
        .push("", None, seconds(of(Count::CheckpointNs)));
        Ok(())
    }

    fn of_pages(&self, all: &mut Metrics, sums: &[u64]) -> Result<(), Error> {
        let home = self.home();
        let (pool, file) = (home.pool.file_stats(home.file)?, self.data_file()?);
        all.gauge("latchwork_cache_frames", "Pages that memory has room for.", {
            u64::from(home.pool.active()?)
        });
        all.counter(
            "latchwork_cache_hits_total",
            "Reads that found their page in memory.",
            pool.reads,
        );
        all.counter(
            "latchwork_cache_faults_total",
            "Pages read from the file because a thread wanted them.",
            pool.faults,
        );
        all.counter("latchwork_cache_evictions_total", "Pages evicted.", pool.evicted);
        all.counter("latchwork_cache_writes_total", "Pages written out.", pool.written);
        all.counter("latchwork_cache_failed_total", "Pages that could not be read.", pool.failed);
        all.gauge("latchwork_data_pages", "Pages of the file.", file.pages);
        all.gauge("latchwork_data_free_pages", "Pages of the file that are free.", file.free);
        all.gauge("latchwork_data_file_bytes", "Length of the file of pages.", file.length);
        all.gauge(
            "latchwork_data_disk_bytes",
            "Bytes that the file of pages takes on the disk, as du reports them.",
            file.on_disk,
        );
        all.counter(
            "latchwork_data_punched_bytes_total",
            "Bytes of free pages that were returned to the file system.",
            sums[Count::Punched as usize],
        );
        Ok(())
    }
}
