//! `store locks`: transactions that wait for locks, and the transactions that block them.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use latchwork_store::{Blocked, StoreLock, StoreView, TransactionInfo};
use serde_json::json;

use super::print_json;
use super::rows::escape;
use super::seen::{Commands, ago, label, nanos, view};
use crate::terminal::{Pace, seconds};
use crate::{locks, output};

/// Show transactions that wait for locks, and the transactions that block them
///
/// The command inspects the store without opening it: it takes no slot and writes nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store locks /tmp/shop
  latchwork store locks /tmp/shop --all             # all locks, also those that nobody waits for
  latchwork store locks /tmp/shop --graph           # blockers first, waiters below them
  latchwork store locks /tmp/shop --svg waits.svg
  latchwork store locks /tmp/shop --watch --interval 0.5
  latchwork store locks /tmp/shop --json | jq '.blockers[].pid'

The longest wait comes first. `locks kill /tmp/shop OWNER` ends a transaction; `kill -CONT PID`
continues a stopped process. Of a key of more than 12 bytes the first four are known.
Exits with 0, also if no transaction waits; 2 if the store cannot be read.")]
pub(crate) struct Args {
    /// The store's folder
    path: PathBuf,
    /// Show all held and requested locks
    #[arg(long, conflicts_with_all = ["graph", "svg", "watch"])]
    all: bool,
    /// Show blocking transactions first, and below each the transactions that it blocks
    #[arg(long, conflicts_with_all = ["json", "svg"])]
    graph: bool,
    /// Draw which transaction waits for which
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["json", "watch"])]
    svg: Option<PathBuf>,
    /// Repeat until q or Ctrl-C; once without a terminal
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Seconds between two frames
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print JSON lines, one object per waiting transaction or lock
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(svg) = &args.svg {
        locks::draw_waits(&args.path, svg)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(store) = view(&args.path)? else {
        if !args.json {
            output::print(|out| writeln!(out, "closed: no process has the store open"))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    if args.all {
        return all(&store, args.json);
    }
    let pace = Pace::live(args.interval);
    if let Some(screen) = pace.screen().filter(|_| args.watch) {
        pace.watch(&screen, Duration::ZERO, |_| lines(&store, args.graph))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        let found = store.processes()?;
        let commands = Commands::of(&found);
        found.blocked.iter().try_for_each(|one| print_json(&commands.blocked_row(one)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = lines(&store, args.graph)?;
    output::print(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(ExitCode::SUCCESS)
}

fn lines(store: &StoreView, graph: bool) -> anyhow::Result<Vec<String>> {
    let found = store.processes()?;
    let commands = Commands::of(&found);
    if found.blocked.is_empty() {
        return Ok(vec!["no transaction waits for a lock".to_owned()]);
    }
    if graph {
        return Ok(tree(&commands, &found.blocked));
    }
    Ok(found.blocked.iter().flat_map(|one| commands.blocked(one)).collect())
}

/// Blockers first, and below each blocker its waiters.
fn tree(commands: &Commands<'_>, blocked: &[Blocked]) -> Vec<String> {
    let waits: HashSet<_> = blocked.iter().map(|one| one.waiter.owner).collect();
    let mut tree = Tree { commands, blocked, lines: Vec::new(), shown: HashSet::new() };
    let blockers = || blocked.iter().flat_map(|one| &one.blockers).map(|one| &one.transaction);
    // Roots are blockers that do not wait; deadlocks that are not broken yet have none.
    for root in blockers().filter(|one| !waits.contains(&one.owner)).chain(blockers()) {
        tree.add(root, 0);
    }
    tree.lines
}

struct Tree<'t> {
    commands: &'t Commands<'t>,
    blocked: &'t [Blocked],
    lines: Vec<String>,
    shown: HashSet<String>,
}

impl Tree<'_> {
    fn add(&mut self, of: &TransactionInfo, depth: usize) {
        if !self.shown.insert(of.owner.to_string()) {
            return;
        }
        let (indent, age) = ("    ".repeat(depth), ago(of.age));
        let who = self.commands.waits(of);
        let line = format!("{indent}{}, {age} old, owner {}", who.trim_end(), of.owner);
        self.lines.push(line);
        for one in self.blocked {
            if one.blockers.iter().any(|other| other.transaction.owner == of.owner) {
                self.add(&one.waiter, depth + 1);
            }
        }
    }
}

fn all(store: &StoreView, json: bool) -> anyhow::Result<ExitCode> {
    let (found, locks) = (store.processes()?, store.locks()?);
    let commands = Commands::of(&found);
    if json {
        for lock in &locks {
            print_json(&json!({
                "table": lock.table, "key": lock.key, "mode": lock.mode, "held": lock.held,
                "waited_ns": lock.waited.map(nanos), "transaction": commands.row(&lock.transaction),
            }))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["table", "key", "mode", "", "pid", "state", "label", "owner", "age"];
    let mut table = output::table(&header, 8..9, false);
    for lock in &locks {
        table.add_row(cells(lock));
    }
    output::print(|out| match locks.is_empty() {
        true => writeln!(out, "no transaction holds a lock"),
        false => table.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end())),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn cells(lock: &StoreLock) -> [String; 9] {
    let of = &lock.transaction;
    let waited = lock.waited.map(|time| format!("waits {}", ago(time)));
    [
        output::head(&escape(lock.table.as_bytes()), 16),
        output::head(&escape(lock.key.as_bytes()), 20),
        lock.mode.to_owned(),
        waited.unwrap_or_else(|| "held".to_owned()),
        of.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        of.state.name().to_owned(),
        output::head(&label(of), 16),
        of.owner.to_string(),
        ago(of.age),
    ]
}
