//! `locks stat`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::list::{colour, say_restless};
use super::print_json;
use super::scene::Scene;
use crate::output;

/// Count what there is, and who is at work
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks stat locks.region
  latchwork locks stat locks.region --json")]
pub(crate) struct Args {
    /// The region
    file: PathBuf,
    /// A JSON line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let picture = scene.look()?;
    let region = scene.view.region();
    let rows = &picture.rows;
    let processes: Vec<_> = region.processes();
    let threads: Vec<_> = region.threads().collect();
    let of = |slot: u32, generation: u32| {
        let its =
            threads.iter().filter(|t| t.process == slot && t.process_generation == generation);
        its.count()
    };
    let dead = threads.iter().filter(|t| !scene.person(Some(t.slot)).is_some_and(|p| p.alive));
    let weak = rows.iter().filter(|row| row.weak).count();
    let held = rows.iter().filter(|row| row.held.is_some()).count();
    let waiting = rows.iter().filter(|row| row.wanted.is_some()).count();
    let longest = rows.iter().map(|row| row.waited_ns).max().unwrap_or(0);
    let orphans = picture.owners.iter().filter(|owner| owner.thread.is_none()).count();
    let doomed = picture.owners.iter().filter(|owner| owner.doomed).count();
    let dead = dead.count();
    let latched = scene.view.latched()?.len();
    if args.json {
        let processes: Vec<_> = processes
            .iter()
            .map(|p| json!({"pid": p.pid, "alive": p.alive, "threads": of(p.slot, p.generation)}))
            .collect();
        print_json(&[json!({
            "modes": scene.modes_name(), "bytes": region.len(), "objects": picture.objects,
            "idle": picture.idle, "held": held, "weak": weak, "waiting": waiting,
            "longest_wait_ns": longest, "owners": picture.owners.len(), "orphans": orphans,
            "doomed": doomed, "threads": threads.len(), "dead_threads": dead, "latched": latched,
            "processes": processes, "restless": picture.restless,
        })])?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        writeln!(out, "modes      {}", scene.modes_name())?;
        writeln!(out, "region     {} kB", region.len() / 1000)?;
        writeln!(out, "objects    {}, and {} idle", picture.objects, picture.idle)?;
        writeln!(out, "held       {held}, {weak} of them in owners' own memory")?;
        writeln!(out, "waiting    {waiting}, the longest for {}", output::time(longest))?;
        writeln!(
            out,
            "owners     {}, {orphans} of them orphaned, {doomed} told to fail",
            picture.owners.len()
        )?;
        writeln!(out, "threads    {}, {dead} of them dead and not met yet", threads.len())?;
        writeln!(out, "latches    {latched} of 1022 held\n")?;
        let mut table = output::table(&["pid", "", "threads"], 2..3, colour());
        for process in &processes {
            let count = of(process.slot, process.generation);
            if process.alive || count != 0 {
                let state = if process.alive { "alive" } else { "dead" };
                table.add_row([process.pid.to_string(), state.to_owned(), count.to_string()]);
            }
        }
        writeln!(out, "{table}")
    })?;
    say_restless(&picture);
    Ok(ExitCode::SUCCESS)
}
