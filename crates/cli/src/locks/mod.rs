//! `latchwork locks`: holders and waiters in a region that is in use or was left by its processes.
//!
//! All commands except `kill` and `demo` read a view of the file, which takes no slot and stores
//! nothing. The counters of sessions (requests, grants, wait times) are not available, because they
//! are in the memory of their processes.

mod deadlocks;
mod demo;
mod graph;
mod layers;
mod list;
mod scene;
mod stat;
mod svg;
mod top;
mod verify;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;

use crate::output;
use scene::Scene;

/// Inspect locks
#[derive(Subcommand)]
pub(crate) enum What {
    Stat(stat::Args),
    List(list::Args),
    Who(list::WhoArgs),
    Graph(graph::Args),
    Deadlocks(deadlocks::Args),
    Top(top::Args),
    Kill(KillArgs),
    Verify(verify::Args),
    Demo(demo::Args),
}

/// Abort an owner: its wait and each later request fail; this command changes the region
///
/// The owner keeps its locks until its thread releases them. An aborted transaction of a store is
/// rolled back and not repeated, and its caller gets the error "ended by an operator". The command
/// opens the region for writing, with a process slot and a thread slot for a moment. If the owner
/// does not exist it changes nothing and exits with 1.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork locks list locks.region --waiting       # shows the owners
  latchwork locks kill locks.region 12.1")]
pub(crate) struct KillArgs {
    /// The region, or the folder of a store
    file: PathBuf,
    /// The owner, as `list` shows it: slot and generation
    owner: scene::OwnerName,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(what: What) -> anyhow::Result<ExitCode> {
    match what {
        What::Stat(args) => stat::run(&args),
        What::List(args) => list::run(&args),
        What::Who(args) => list::who(&args),
        What::Graph(args) => graph::run(&args),
        What::Deadlocks(args) => deadlocks::run(&args),
        What::Top(args) => top::run(&args),
        What::Kill(args) => kill(&args),
        What::Verify(args) => verify::run(&args),
        What::Demo(args) => demo::run(&args),
    }
}

fn kill(args: &KillArgs) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let owner = args.owner.0;
    let picture = scene.look()?;
    if !picture.owners.iter().any(|found| found.owner == owner && found.thread.is_some()) {
        return Err(output::Absent(format!("{}: no owner {owner}", args.file.display())).into());
    }
    let waits = picture.rows.iter().find(|row| row.owner == owner && row.wanted.is_some());
    scene::kill(&scene, owner)?;
    let object = waits.map(|row| scene.of(row));
    if args.json {
        print_json(&[serde_json::json!({"owner": owner.to_string(), "waited_for": object})])?;
    } else {
        let end = object.map_or("its next request fails".to_owned(), |object| {
            format!("its wait for {object} fails")
        });
        output::print(|out| writeln!(out, "{owner}: {end}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws which owner waits for which, in the store of a folder.
pub(crate) fn draw_waits(path: &Path, to: &Path) -> anyhow::Result<()> {
    graph::draw_into(&Scene::open(path)?, to)
}

/// Prints a line for each.
fn print_json(rows: &[impl Serialize]) -> std::io::Result<()> {
    output::print(|out| {
        for row in rows {
            serde_json::to_writer(&mut *out, row)?;
            writeln!(out)?;
        }
        Ok(())
    })
}
