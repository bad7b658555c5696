//! `store top`: a live view of a store.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use latchwork_store::{Activity, ProcessState, Processes, StoreProcess};
use serde_json::{Value, json};

use super::seen::{Commands, view};
use super::{open, print_json};
use crate::output;
use crate::terminal::Pace;

/// The most waiting transactions that are shown with their blockers.
const BLOCKED: usize = 5;

/// Watch commits, log, snapshots, locks, stopped processes and blocked transactions
///
/// The command inspects an open store without opening it, so no stopped process can block it.
///
/// Ends on q and Ctrl-C. Without a terminal it prints one frame, after one interval.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store top /tmp/shop
  latchwork store top /tmp/shop --interval 0.2 --once
  latchwork store top /tmp/shop --json

The oldest snapshot and the oldest write are shown with the bytes of log kept for them. Of the
blocked transactions the five with the longest wait are shown; `store locks` shows all.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    #[command(flatten)]
    pace: Pace,
}

/// The values at one moment.
struct Look {
    at: Instant,
    now: Activity,
    seen: Processes,
}

impl Look {
    fn take(path: &Path) -> anyhow::Result<Self> {
        let closed = || anyhow::anyhow!("{}: all processes have closed the store", path.display());
        let store = view(path)?.ok_or_else(closed)?;
        Ok(Self { at: Instant::now(), now: store.activity()?, seen: store.processes()? })
    }

    /// Returns commits and bytes of log per second since `before`.
    fn rates(&self, before: &Self) -> (f64, f64) {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        (rate(self.now.commits, before.now.commits), rate(self.now.end, before.now.end))
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // A closed store is opened, so that it can be inspected.
    let _opened = match view(&args.path) {
        Ok(Some(_)) => None,
        _ => Some(open(&args.path, false)?),
    };
    let mut before = Look::take(&args.path)?;
    let Some(screen) = args.pace.screen() else {
        std::thread::sleep(args.pace.interval);
        let look = Look::take(&args.path)?;
        let rates = look.rates(&before);
        if args.pace.json {
            print_json(&row(&look, rates))?;
        } else {
            let lines = frame(&look, rates);
            output::print(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    args.pace.watch(&screen, args.pace.interval, |_| {
        let look = Look::take(&args.path)?;
        let lines = frame(&look, look.rates(&before));
        before = look;
        Ok(lines)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn row(look: &Look, (commits, bytes): (f64, f64)) -> Value {
    let (now, commands) = (&look.now, Commands::of(&look.seen));
    let blocked: Vec<_> = look.seen.blocked.iter().map(|one| commands.blocked_row(one)).collect();
    let stopped: Vec<_> = stopped(&look.seen).map(|one| one.pid).collect();
    let pins: Vec<_> =
        now.pins.iter().map(|(name, from)| json!({"name": name, "from": from})).collect();
    json!({
        "commits_per_s": commits, "log_bytes_per_s": bytes, "commits": now.commits,
        "log_end": now.end, "log_written": now.written, "log_flushed": now.flushed,
        "redo": now.redo, "log_oldest": now.oldest, "writing": now.writing,
        "oldest_write": now.oldest_write, "prepared": now.prepared,
        "oldest_prepared": now.oldest_prepared, "snapshots": now.snapshots,
        "oldest_snapshot": now.oldest_snapshot, "locks": now.locks,
        "transactions": now.transactions, "undone": now.undone, "pins": pins,
        "blocked": blocked, "stopped": stopped,
    })
}

/// The processes that a signal has stopped.
fn stopped(seen: &Processes) -> impl Iterator<Item = &StoreProcess> {
    seen.processes.iter().filter(|one| one.state == ProcessState::Stopped)
}

/// Stopped processes with their locks, and waiting transactions with their blockers.
fn blocked(seen: &Processes) -> Vec<String> {
    let commands = Commands::of(seen);
    let mut lines = Vec::new();
    for one in stopped(seen) {
        let holds: Vec<_> = one.holds.iter().map(ToString::to_string).collect();
        let locks: u64 = one.transactions.iter().map(|of| of.held).sum();
        let locks = output::plural(locks, "lock", "locks");
        let all = holds.iter().map(String::as_str).chain([&*locks]).collect::<Vec<_>>().join(", ");
        lines.push(format!("STOPPED    process {}, which holds {all}", one.pid));
    }
    let waiting = seen.blocked.len() as u64;
    lines.push(format!("blocked    {}", output::plural(waiting, "transaction", "transactions")));
    for one in seen.blocked.iter().take(BLOCKED) {
        lines.extend(commands.blocked(one).into_iter().map(|line| format!("  {line}")));
    }
    lines
}

fn frame(look: &Look, (commits, bytes): (f64, f64)) -> Vec<String> {
    let now = &look.now;
    let behind = |from: Option<u64>| {
        from.map_or(String::new(), |from| {
            format!(", the oldest {} kB ago", now.end.saturating_sub(from) / 1000)
        })
    };
    let mut lines = vec![
        format!("commits    {} a second", output::count(commits.round() as u64)),
        format!("log        {:.0} kB a second, ends at {}", bytes / 1000.0, now.end),
        format!(
            "durable    to {}, {} kB to go",
            now.flushed,
            (now.end - now.flushed.min(now.end)) / 1000
        ),
        format!("redo       {} kB after a crash", now.end.saturating_sub(now.redo) / 1000),
        format!("kept       {} kB of log", now.end.saturating_sub(now.oldest) / 1000),
        format!("writing    {} transactions{}", now.writing, behind(now.oldest_write)),
        format!("snapshots  {}{}", now.snapshots, behind(now.oldest_snapshot)),
        format!("locks      {} of {} transactions", now.locks, now.transactions),
        format!("undone     {} transactions of the dead", now.undone),
    ];
    if now.prepared != 0 {
        lines.push(format!("prepared   {} of them{}", now.prepared, behind(now.oldest_prepared)));
    }
    for (name, from) in &now.pins {
        lines.push(format!("pin        {name}{}", behind(Some(*from))));
    }
    lines.extend(blocked(&look.seen));
    lines
}
