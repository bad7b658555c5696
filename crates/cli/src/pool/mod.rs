//! `latchwork pool`: the content of a buffer pool that is in use or was left by its processes.
//!
//! All commands read a view of the region, which takes no slot and stores nothing.

mod show;
mod stat;
mod top;
mod verify;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Subcommand;
use latchwork_machine::Shared;
use latchwork_pool::{FileId, Pool};
use latchwork_region::{Options, Region};
use serde_json::Value;

use crate::output;
use crate::store::region_of;

/// Inspect a buffer pool
#[derive(Subcommand)]
pub(crate) enum What {
    Stat(stat::Args),
    List(show::ListArgs),
    Page(show::PageArgs),
    Top(top::Args),
    Verify(verify::Args),
}

/// Runs the command.
pub(crate) fn run(what: What) -> anyhow::Result<ExitCode> {
    match what {
        What::Stat(args) => stat::run(&args),
        What::List(args) => show::list(&args),
        What::Page(args) => show::page(&args),
        What::Top(args) => top::run(&args),
        What::Verify(args) => verify::run(&args),
    }
}

/// A viewed pool.
struct Scene {
    pool: Pool<Shared>,
    files: Vec<(FileId, PathBuf)>,
}

impl Scene {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let path = &region_of(path)?;
        let name = || path.display().to_string();
        let region = Region::<Shared>::view(path, &Options::default()).with_context(name)?;
        let disk = Arc::new(latchwork_disk::System::new());
        let Some(pool) = Pool::look(&region, disk).with_context(name)? else {
            bail!("{}: a region, but no pool lies beside it", name());
        };
        let files = pool.files().with_context(name)?;
        Ok(Self { pool, files })
    }

    /// A file's path, by its number.
    fn path(&self, file: u16) -> String {
        let known = self.files.iter().find(|(id, _)| id.number() == file);
        known.map_or(format!("file {file}"), |(_, path)| path.display().to_string())
    }

    /// Describes the process of a thread slot.
    fn place(&self, slot: u32) -> String {
        let region = self.pool.region();
        let thread = region.threads().find(|thread| thread.slot == slot);
        let process = thread.and_then(|thread| {
            region.processes().into_iter().find(|process| {
                (process.slot, process.generation) == (thread.process, thread.process_generation)
            })
        });
        match process {
            Some(process) if process.alive => format!("{}/{slot}", process.pid),
            Some(process) => format!("{}/{slot} dead", process.pid),
            None => format!("?/{slot} dead"),
        }
    }
}

/// Prints a line for each.
fn print_json(rows: impl IntoIterator<Item = Value>) -> std::io::Result<()> {
    output::print(|out| rows.into_iter().try_for_each(|row| writeln!(out, "{row}")))
}

/// Returns whether stdout supports colours.
fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::IsTerminal::is_terminal(&std::io::stdout())
}
