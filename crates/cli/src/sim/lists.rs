//! Lists of machines, workloads and latches.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use comfy_table::{ContentArrangement, Table};
use latchwork_bench::sim::{ALL, Kind, Subject};
use latchwork_sim::{SHIPPED, Spec};
use serde_json::{Value, json};

use super::machine::{self, HERE};
use super::{misused, row};
use crate::output;

/// List the machines, or print one's file
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim machines
  latchwork sim machines rome-128 > mine.toml     # a file to begin one's own with")]
pub(crate) struct MachinesArgs {
    /// Print this machine's file
    name: Option<String>,

    /// Print JSON lines, one object per machine
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

/// List them
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// Returns a table that breaks long cells.
fn table(header: &[&str], right: std::ops::Range<usize>) -> Table {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut table = output::table(header, right, io::stdout().is_terminal() && !refused);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(output::WIDTH as u16);
    table
}

fn printed(json: bool, rows: &[Value], table: &Table, after: &str) -> anyhow::Result<ExitCode> {
    output::print(|out| match json {
        true => row::json(rows, out),
        false => {
            writeln!(out, "{table}")?;
            if after.is_empty() { Ok(()) } else { writeln!(out, "\n{after}") }
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `sim machines`.
pub(super) fn machines(args: MachinesArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = args.name {
        return match machine::text(&name)? {
            Ok(text) => {
                output::print(|out| out.write_all(text.text.as_bytes()))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(misuse) => misused(&misuse),
        };
    }
    let mut specs = Vec::new();
    for (name, text) in SHIPPED {
        specs.push(Spec::parse(text).with_context(|| (*name).to_owned())?);
    }
    let here = machine::kept()?;
    if let Some(here) = &here {
        let place = here.path.as_deref().map_or(String::new(), |path| path.display().to_string());
        match Spec::parse(&here.text) {
            Ok(spec) => specs.push(spec),
            Err(error) => output::complain(&machine::told(&place, &here.text, &error)),
        }
    }
    let header = ["machine", "sockets x cores x threads", "GHz", "CAS, near", "one hop", "source"];
    let mut table = table(&header, 1..5);
    let mut rows = Vec::new();
    for spec in &specs {
        let shape = &spec.topology;
        let ns: Vec<f64> =
            spec.costs.atomic.modified.iter().map(|cycles| cycles / spec.ghz).collect();
        let hop = (shape.sockets > 1).then(|| ns[1 + usize::from(shape.caches > 1)]);
        let cores = shape.caches * shape.cores;
        table.add_row([
            spec.name.clone(),
            format!("{} x {cores} x {}", shape.sockets, shape.smt),
            spec.ghz.to_string(),
            format!("{:.0} ns", ns[0]),
            hop.map_or("-".to_owned(), |hop| format!("{hop:.0} ns")),
            spec.source.clone(),
        ]);
        rows.push(json!({
            "machine": spec.name, "title": spec.title, "source": spec.source, "ghz": spec.ghz,
            "sockets": shape.sockets, "caches": shape.caches, "cores": shape.cores,
            "smt": shape.smt, "cpus": shape.cpus(),
            "cas_ns": ns.iter().map(|ns| row::rounded(*ns)).collect::<Vec<_>>(),
            "hop_ns": hop.map(row::rounded),
        }));
    }
    let after = match here {
        Some(_) => String::new(),
        None => format!(
            "{HERE}: this host, measured when it is used; `latchwork sim probe` keeps it in a file"
        ),
    };
    printed(args.json, &rows, &table, &after)
}

/// `sim workloads`.
pub(super) fn workloads(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut table =
        table(&["workload", "what it stands for", "inside", "outside", "latches"], 2..4);
    let mut rows = Vec::new();
    for workload in ALL {
        // Its own first: a lock manager's, or those of latches.
        let first = workload.locks.first().and_then(|name| Subject::named(name));
        let first = first.expect("a workload has latches of its own, which there are");
        let (inside, outside) = (workload.inside(&first), workload.outside(&first));
        table.add_row([
            workload.name.to_owned(),
            workload.title.to_owned(),
            inside.to_string(),
            outside.to_string(),
            workload.locks.join(" "),
        ]);
        rows.push(json!({
            "workload": workload.name, "title": workload.title, "inside": inside,
            "outside": outside, "latches": workload.locks,
            "objects": workload.engine.map(|operations| operations.objects().0),
        }));
    }
    let after = "inside, outside: cycles of computing under the latch, and between sections";
    printed(args.json, &rows, &table, after)
}

/// `sim latches`.
pub(super) fn latches(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut table = table(&["latch", "whose", "kind", "what it is"], 0..0);
    let mut rows = Vec::new();
    for latch in Subject::all() {
        let whose = if latch.rival { "rival" } else { "ours" };
        let kind = match (latch.kind, latch.shared) {
            (Kind::Latch, true) => "reader-writer".to_owned(),
            (Kind::Latch, false) => "exclusive".to_owned(),
            (kind, _) => kind.to_string(),
        };
        table.add_row([latch.name, whose, &kind, latch.title]);
        rows.push(json!({
            "subject": latch.name, "rival": latch.rival, "shared": latch.shared,
            "kind": latch.kind.to_string(), "title": latch.title,
        }));
    }
    printed(args.json, &rows, &table, "")
}
