//! Transactions and processes of a store, for display and for programs.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use latchwork_store::{Blocked, ProcessState, Processes, StoreView, TransactionInfo};
use serde_json::{Value, json};

use super::rows::escape;
use crate::output;

/// The most characters of a command that are shown.
const COMMAND: usize = 18;

/// Opens a view of the store in a folder: none if no process has it open.
pub(super) fn view(path: &Path) -> anyhow::Result<Option<StoreView>> {
    Ok(StoreView::open(path)?)
}

/// Commands of processes, by their numbers.
pub(super) struct Commands<'p>(HashMap<u32, &'p str>);

impl<'p> Commands<'p> {
    pub(super) fn of(found: &'p Processes) -> Self {
        let commands = found.processes.iter();
        Self(commands.filter_map(|one| Some((one.pid, one.command.as_deref()?))).collect())
    }

    fn get(&self, pid: Option<u32>) -> Option<&'p str> {
        self.0.get(&pid?).copied()
    }

    /// Describes the process of a transaction: number, command, and whether it runs.
    fn party(&self, of: &TransactionInfo) -> String {
        if let Some(gid) = &of.prepared {
            return format!("prepared transaction {}", escape(gid));
        }
        let Some(pid) = of.pid else {
            return "a process that died, not swept yet".to_owned();
        };
        let command = self.get(Some(pid)).map_or(String::new(), |all| format!(" ({})", short(all)));
        let state = match of.state {
            ProcessState::Stopped => ", STOPPED",
            ProcessState::Dead => ", dead and not swept yet",
            _ => "",
        };
        format!("process {pid}{command}{state}")
    }

    /// Describes the process of a transaction, with the transaction's label.
    fn who(&self, of: &TransactionInfo) -> String {
        let label = if of.label.is_empty() { String::new() } else { format!(", {}", label(of)) };
        format!("{}{label}", self.party(of))
    }

    /// Describes a waiting transaction, with a line for each transaction that blocks it.
    pub(super) fn blocked(&self, blocked: &Blocked) -> Vec<String> {
        let mut lines = vec![self.waits(&blocked.waiter)];
        for other in &blocked.blockers {
            let (who, of) = (self.who(&other.transaction), &other.transaction);
            let how = if other.holds { "held by" } else { "behind" };
            let age = ago(of.age);
            lines
                .push(format!("    {how} {who}, to {}, {age} old, owner {}", other.mode, of.owner));
        }
        lines
    }

    /// Describes a waiting transaction.
    pub(super) fn waits(&self, of: &TransactionInfo) -> String {
        format!("{} {}", self.who(of), wait(of))
    }

    /// Returns a transaction for programs.
    pub(super) fn row(&self, of: &TransactionInfo) -> Value {
        let waits = of.waits.as_ref().map(|waits| {
            json!({
                "table": waits.table, "key": waits.key, "mode": waits.mode,
                "since_ns": nanos(waits.since),
            })
        });
        json!({
            "owner": of.owner.to_string(), "pid": of.pid, "command": self.get(of.pid),
            "state": of.state.name(), "thread": of.thread, "label": of.label,
            "age_ns": nanos(of.age), "log_kept": of.log_kept, "locks": of.held, "waits": waits,
            "prepared": of.prepared.as_deref().map(escape),
        })
    }

    /// Returns a waiting transaction and its blockers, for programs.
    pub(super) fn blocked_row(&self, blocked: &Blocked) -> Value {
        let blockers = blocked.blockers.iter().map(|other| {
            let mut row = self.row(&other.transaction);
            (row["mode"], row["holds"]) = (json!(other.mode), json!(other.holds));
            row
        });
        let mut row = self.row(&blocked.waiter);
        row["blockers"] = blockers.collect();
        row
    }
}

/// Describes the lock that a transaction waits for, and the duration.
pub(super) fn wait(of: &TransactionInfo) -> String {
    of.waits.as_ref().map_or(String::new(), |waits| {
        let key = escape(format!("{}/{}", waits.table, waits.key).as_bytes());
        format!("waits {} to {} {key}", ago(waits.since), waits.mode)
    })
}

/// Formats a label in quotes; a dash if there is none.
pub(super) fn label(of: &TransactionInfo) -> String {
    match of.label.is_empty() {
        true => "-".to_owned(),
        false => format!("\"{}\"", escape(of.label.as_bytes())),
    }
}

/// Shortens a command: without its folder, and cut if long.
pub(super) fn short(command: &str) -> String {
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    output::head(&escape(format!("{program} {rest}").trim_end().as_bytes()), COMMAND)
}

/// Formats a time in its usual unit.
pub(super) fn ago(time: Duration) -> String {
    match time.as_secs() {
        0..120 => output::time(nanos(time)),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
