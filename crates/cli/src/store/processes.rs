//! `store processes`: the processes that have a store open, and their work.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_store::{ProcessState, Processes, StoreProcess, TransactionInfo};
use serde_json::{Value, json};

use super::print_json;
use super::rows::escape;
use super::seen::{Commands, ago, label, nanos, short, view, wait};
use crate::output;

/// Show the processes that have the store open, their work, and what keeps the log
///
/// The command inspects the store without opening it: it takes no slot and writes nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store processes /tmp/shop
  latchwork store processes /tmp/shop --json | jq 'select(.state == \"stopped\")'

States: running; STOPPED, by a signal or a debugger: it keeps what it holds until `kill -CONT PID`;
dead and not swept: the next process that waits for what it held repairs it; unknown: alive, in
another pid namespace. For a process that does not run, what it holds is shown, also pages. The last
lines say what the log is kept for. JSON: a line each process, and a last one with `log_kept`.
Exits with 0; 2 if the store cannot be looked at.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(store) = view(&args.path)? else {
        if !args.json {
            output::print(|out| writeln!(out, "closed: no process has the store open"))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let found = store.processes()?;
    if args.json {
        let commands = Commands::of(&found);
        found.processes.iter().try_for_each(|one| print_json(&row(&commands, one)))?;
        print_json(&rest(&commands, &found))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = lines(&found);
    output::print(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(ExitCode::SUCCESS)
}

fn row(commands: &Commands<'_>, of: &StoreProcess) -> Value {
    let snapshots = of.snapshots.iter();
    let snapshots = snapshots.map(|one| json!({"thread": one.thread, "log_kept": one.log_kept}));
    let holds = of.holds.iter().map(ToString::to_string);
    json!({
        "pid": of.pid, "state": of.state.name(), "command": of.command,
        "age_ns": of.age.map(nanos), "threads": of.threads,
        "transactions": of.transactions.iter().map(|one| commands.row(one)).collect::<Vec<_>>(),
        "snapshots": snapshots.collect::<Vec<_>>(), "holds": holds.collect::<Vec<_>>(),
    })
}

/// The last line: everything that belongs to no process.
fn rest(commands: &Commands<'_>, found: &Processes) -> Value {
    let rows =
        |all: &[TransactionInfo]| all.iter().map(|one| commands.row(one)).collect::<Vec<_>>();
    let pins = found.pins.iter().map(|(name, kept)| json!({"name": name, "log_kept": kept}));
    json!({
        "prepared": rows(&found.prepared), "orphans": rows(&found.orphans),
        "log_kept": found.log_kept, "redo": found.redo, "pins": pins.collect::<Vec<_>>(),
    })
}

fn lines(found: &Processes) -> Vec<String> {
    let mut lines = Vec::new();
    for one in &found.processes {
        lines.push(head(one));
        let holds: Vec<_> = one.holds.iter().map(ToString::to_string).collect();
        if !holds.is_empty() && one.state != ProcessState::Running {
            lines.push(format!("    holds {}", holds.join(", ")));
        }
        lines.extend(one.transactions.iter().map(|of| format!("    transaction {}", about(of))));
        lines.extend(one.snapshots.iter().map(|of| format!("    snapshot, {}", kept(of.log_kept))));
    }
    for of in &found.prepared {
        let gid = of.prepared.as_deref().map_or(String::new(), |gid| format!(" {}", escape(gid)));
        lines.push(format!("prepared transaction{gid} {}", about(of)));
    }
    lines.extend(found.orphans.iter().map(|of| format!("of a dead process: {}", about(of))));
    lines.push(format!(
        "log: {} kept, {} of it for recovery after a crash, until the next checkpoint",
        size(found.log_kept),
        size(found.redo)
    ));
    lines.extend(longest(found));
    lines
}

/// The first line of a process.
fn head(of: &StoreProcess) -> String {
    let state = match of.state {
        ProcessState::Stopped => "STOPPED",
        ProcessState::Dead => "dead and not swept",
        state => state.name(),
    };
    let threads = output::plural(of.threads, "thread", "threads");
    let age = of.age.map_or(String::new(), |age| format!(", began {} ago", ago(age)));
    let command = of.command.as_deref().map_or(String::new(), |all| format!(": {}", short(all)));
    format!("process {}, {state}, {threads}{age}{command}", of.pid)
}

/// A transaction, after its kind.
fn about(of: &TransactionInfo) -> String {
    let name = if of.label.is_empty() { String::new() } else { format!("{}, ", label(of)) };
    let age = ago(of.age);
    let mut text = format!("{name}{age} old, owner {}", of.owner);
    if let Some(bytes) = of.log_kept {
        text += &format!(", {}", kept(bytes));
    }
    if of.held != 0 {
        text += &format!(", holds {}", output::plural(of.held, "lock", "locks"));
    }
    if of.waits.is_some() {
        text += &format!(", {}", wait(of));
    }
    text
}

/// The transaction, snapshot or pin that keeps the oldest part of the log.
fn longest(found: &Processes) -> Option<String> {
    let mut all: Vec<(u64, String)> = Vec::new();
    for one in &found.processes {
        let by = |what: &str| format!("{what} of process {}", one.pid);
        for of in &one.transactions {
            all.extend(of.log_kept.map(|kept| (kept, by(&format!("transaction {}", label(of))))));
        }
        all.extend(one.snapshots.iter().map(|of| (of.log_kept, by("a snapshot"))));
    }
    for of in found.prepared.iter().chain(&found.orphans) {
        let gid = of.prepared.as_deref().map_or(String::new(), escape);
        all.extend(of.log_kept.map(|kept| (kept, format!("prepared transaction {gid}"))));
    }
    all.extend(
        found.pins.iter().map(|(name, kept)| (*kept, format!("pin {}", escape(name.as_bytes())))),
    );
    let (bytes, what) = all.into_iter().max()?;
    Some(format!("     {} for {what}, which needs the oldest part", size(bytes)))
}

fn size(bytes: u64) -> String {
    output::bytes(bytes)
}

fn kept(bytes: u64) -> String {
    format!("{} of log kept", size(bytes))
}
