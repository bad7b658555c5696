//! The live table, and the summary.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use comfy_table::{Attribute, Cell, CellAlignment, Color};
use serde::Serialize;

use super::crew::{Crew, Tally};
use super::ledger::expected;
use super::{Args, Left};
use crate::output::{self, count, time};
use crate::terminal::{self, Screen, Stream};

/// The most processes that are shown individually.
const ROWS: usize = 16;

/// The minimum time between two frames.
const FRAME: Duration = Duration::from_millis(80);

/// Output on stderr: a table that changes, or a line per second if it is no terminal.
pub(super) struct Live {
    screen: Option<Screen>,
    plain: bool,
    colour: bool,
    second: u64,
    drawn: Option<Instant>,
}

impl Live {
    pub(super) fn new(json: bool) -> Self {
        let screen = Screen::take(Stream::Err);
        let plain = screen.is_none() && !json;
        Self { screen, plain, colour: output::colour_on_stderr(), second: 0, drawn: None }
    }

    pub(super) fn draw(&mut self, crew: &Crew, accounts: u64, took: Duration, seconds: u64) {
        if let Some(screen) = &self.screen {
            while let Some(key) = screen.key(Duration::ZERO) {
                if matches!(key, b'q' | b'Q' | 3) {
                    return terminal::stop();
                }
            }
            if self.drawn.is_none_or(|then| then.elapsed() >= FRAME) {
                self.drawn = Some(Instant::now());
                let text = frame(crew, accounts, took, seconds, screen.size().1, self.colour);
                let _ = screen.show(&text.lines().map(str::to_owned).collect::<Vec<_>>());
            }
        } else if self.plain && took.as_secs() > self.second {
            self.second = took.as_secs();
            let line = format!("{} s: {}", self.second, totals(&crew.tally));
            let _ = writeln!(io::stderr(), "{line}; {}", found(&crew.tally, expected(accounts)));
        }
    }
}

fn totals(tally: &Tally) -> String {
    format!(
        "{} transfers, {} killed, {} undone, {} deadlocks, {} audits",
        count(tally.done.transfers),
        tally.kills,
        tally.undone,
        count(tally.done.deadlocks),
        count(tally.done.audits),
    )
}

fn found(tally: &Tally, expected: i64) -> String {
    match tally.wrong_sum {
        None => format!("sum {expected}"),
        Some(sum) => format!("WRONG: {sum} found, {expected} expected"),
    }
}

/// Returns at most so many lines, if they suffice for one process.
fn frame(
    crew: &Crew,
    accounts: u64,
    took: Duration,
    seconds: u64,
    rows: usize,
    colour: bool,
) -> String {
    // All lines except those of processes and recent events.
    let room = rows.saturating_sub(9);
    let members = crew.members.len().min(ROWS).min(room.max(1));
    let header = ["process", "pid", "lives", "done", "deadlocks", "longest", "killed", "undid"];
    let mut table = output::table(&header, 1..8, colour);
    for member in crew.members.iter().take(members) {
        table.add_row([
            member.name(),
            member.pid().to_string(),
            time(member.since.elapsed().as_nanos() as u64),
            count(if member.part.audits { member.done.audits } else { member.done.transfers }),
            count(member.done.deadlocks),
            time(member.done.longest),
            member.kills.to_string(),
            member.undid.to_string(),
        ]);
    }
    let mut text = format!(
        "{:.0} of {seconds} s, {} accounts; q quits\n\n{table}\n",
        took.as_secs_f64(),
        accounts
    );
    if crew.members.len() > members {
        text.push_str(&format!("and {} more\n", crew.members.len() - members));
    }
    text.push_str(&format!("\n{}\n", totals(&crew.tally)));
    text.push_str(&format!("{}\n\n", found(&crew.tally, expected(accounts))));
    let last = crew.tally.events.len().saturating_sub(room.saturating_sub(members));
    for event in crew.tally.events.iter().skip(last) {
        text.push_str(event);
        text.push('\n');
    }
    text
}

/// The results of a run.
#[derive(Serialize)]
pub(super) struct Summary {
    seconds: f64,
    processes: usize,
    accounts: u64,
    seed: u64,
    transfers: u64,
    killed: u64,
    /// None if a server rolls them back.
    undone: Option<u64>,
    /// Those of them that a file had half of; a store does not distinguish them.
    half: Option<u64>,
    deadlocks: u64,
    audits: u64,
    wrong_audits: u64,
    expected: i64,
    /// The first wrong sum, or the last one.
    sum: i64,
    longest_ns: u64,
    left: u64,
    sound: bool,
    fault: Option<String>,
    pub(super) right: bool,
}

impl Summary {
    pub(super) fn new(
        args: &Args,
        seconds: f64,
        processes: usize,
        tally: &Tally,
        left: &Left,
        expected: i64,
    ) -> Self {
        let sum = tally.wrong_sum.unwrap_or(left.sum);
        let idle = left.transfers == 0 && tally.fault.is_none();
        let fault = tally.fault.clone().or(idle.then(|| "no money was moved".to_owned()));
        Self {
            seconds,
            processes,
            accounts: args.accounts,
            seed: args.seed,
            transfers: left.transfers,
            killed: tally.kills,
            undone: args.database().is_none().then_some(tally.undone),
            half: args.in_file().then_some(tally.half),
            deadlocks: tally.done.deadlocks,
            audits: tally.done.audits,
            wrong_audits: tally.wrong,
            expected,
            sum,
            longest_ns: tally.done.longest,
            left: left.held,
            sound: left.sound,
            right: sum == expected && fault.is_none() && left.held == 0 && left.sound,
            fault,
        }
    }
}

/// Prints it.
pub(super) fn summary(of: &Summary, colour: bool, out: &mut impl Write) -> io::Result<()> {
    let rate = of.transfers as f64 / of.seconds;
    let mut table = output::table(&["", "", ""], 1..2, colour);
    let mut row = |name: &str, value: String, note: String| {
        table.add_row([name.to_owned(), value, note]);
    };
    row("transfers", count(of.transfers), format!("{} a second", count(rate as u64)));
    row("killed", of.killed.to_string(), "in the middle of something, and replaced".to_owned());
    let mut half = "transfers of the dead, before their locks were released".to_owned();
    if let Some(count) = of.half {
        half.push_str(&format!("; {count} half"));
    }
    if let Some(undone) = of.undone {
        row("undone", undone.to_string(), half);
    }
    row("deadlocks", count(of.deadlocks), "broken, and tried again".to_owned());
    let audits = match of.wrong_audits {
        0 => format!("each found {}", of.expected),
        wrong => format!("{wrong} found another sum than {}", of.expected),
    };
    row("audits", count(of.audits), audits);
    row("longest", time(of.longest_ns), "for a transfer or an audit, waiting included".to_owned());
    let sound = if of.sound { "sound" } else { "NOT SOUND" };
    let left = match of.undone {
        Some(_) => format!("at the end; {} locks left, memory {sound}", of.left),
        None => "at the end".to_owned(),
    };
    row("sum", of.sum.to_string(), left);
    let (result, paint) = if of.right { ("right", Color::Green) } else { ("WRONG", Color::Red) };
    let result = Cell::new(result).set_alignment(CellAlignment::Right);
    let result = if colour { result.fg(paint).add_attribute(Attribute::Bold) } else { result };
    let why = of.fault.clone().unwrap_or_default();
    table.add_row([Cell::new("it was"), result, Cell::new(why)]);
    writeln!(out, "{:.1} s, {} processes, {} accounts", of.seconds, of.processes, of.accounts)?;
    for line in table.lines().skip(1) {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
