//! `locks list` and `locks who`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_lockmgr::{LockInfo, Snapshot};

use super::print_json;
use super::scene::{ObjectName, OwnerName, Scene, clean, seen_by};
use crate::output::{self, Absent};

/// List held and requested locks
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks list locks.region
  latchwork locks list locks.region --waiting
  latchwork locks list locks.region --owner 12.1 --json

A mode with a + is held in the owner's own memory. An owner is named by its slot and its number in
the slot. `kept` is a prepared transaction, which has no process.
Exits with 1 if there is no such owner.")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Only waiting owners
    #[arg(long)]
    waiting: bool,
    /// Only this owner
    #[arg(long, value_name = "OWNER")]
    owner: Option<OwnerName>,
    /// Print JSON lines, one object per row
    #[arg(long)]
    json: bool,
}

/// List the holders and waiters of one object
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks who locks.region accounts/7
  latchwork locks who /tmp/shop people/ann          # a store: table and key
  latchwork locks who locks.region 'page\\x00\\x07'

Exits with 1 if no owner holds the object or waits for it.")]
pub(crate) struct WhoArgs {
    /// The region, or the folder of a store
    file: PathBuf,
    /// The object's name; any byte can be written as \xNN, \ as \\. In a store: the key, or
    /// table/key
    name: ObjectName,
    /// Print JSON lines, one object per row
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let picture = scene.look()?;
    let asked = |row: &&LockInfo| {
        (!args.waiting || row.wanted.is_some())
            && args.owner.is_none_or(|owner| row.owner == owner.0)
    };
    if let Some(OwnerName(owner)) = args.owner
        && !picture.owners.iter().any(|found| found.owner == owner)
    {
        return Err(Absent(format!("{}: no owner {owner}", args.file.display())).into());
    }
    let rows: Vec<&LockInfo> = picture.rows.iter().filter(asked).collect();
    print(&scene, &picture, &rows, args.json, "no owner holds or waits for anything")
}

pub(super) fn who(args: &WhoArgs) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let picture = scene.look()?;
    let rows: Vec<&LockInfo> =
        picture.rows.iter().filter(|row| scene.is_called(row, &args.name)).collect();
    if rows.is_empty() {
        let none = format!("no owner holds {0} or waits for it", seen_by(&args.name.0));
        return Err(Absent(none).into());
    }
    print(&scene, &picture, &rows, args.json, "")
}

fn print(
    scene: &Scene,
    picture: &Snapshot,
    rows: &[&LockInfo],
    json: bool,
    nobody: &str,
) -> anyhow::Result<ExitCode> {
    if json {
        print_json(&rows.iter().map(|row| scene.line(row)).collect::<Vec<_>>())?;
    } else if rows.is_empty() {
        output::print(|out| writeln!(out, "{nobody}"))?;
    } else {
        output::print(|out| writeln!(out, "{}", table(scene, rows, colour())))?;
    }
    say_restless(picture);
    Ok(ExitCode::SUCCESS)
}

/// Prints on stderr that not all was read at one instant.
pub(super) fn say_restless(picture: &Snapshot) {
    if picture.restless != 0 {
        output::complain(&format!("{} partitions changed while read", picture.restless));
    }
}

/// Returns whether stdout supports colours.
pub(super) fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stdout().is_terminal()
}

/// Returns rows for display.
pub(super) fn table(scene: &Scene, rows: &[&LockInfo], colour: bool) -> comfy_table::Table {
    let header = ["object", "owner", "label", "pid/thread", "held", "wants", "times", "waited"];
    let mut table = output::table(&header, 6..8, colour);
    for row in rows {
        let held = row.held.map_or("-".to_owned(), |mode| {
            format!("{}{}", scene.mode(mode), if row.weak { "+" } else { "" })
        });
        table.add_row([
            output::tail(&scene.of(row), 24),
            row.owner.to_string(),
            output::head(&clean(&row.label), 14),
            scene.place(row.thread),
            output::head(&held, 9),
            output::head(&row.wanted.map_or("-".to_owned(), |mode| scene.mode(mode)), 9),
            row.count.to_string(),
            row.wanted.map_or(String::new(), |_| output::time(row.waited_ns)),
        ]);
    }
    table
}
