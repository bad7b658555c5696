//! `locks stat`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use latchwork_lockmgr::{PartitionInfo, Waits};
use serde_json::{Value, json};

use super::list::{colour, say_restless};
use super::print_json;
use super::scene::Scene;
use crate::output;

/// Print counts of owners, locks, waits and processes
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks stat locks.region
  latchwork locks stat locks.region --partitions 5
  latchwork locks stat locks.region --json

A session counts its requests, grants and waits in its own memory, where only its program can read
them. This command shows the counts of the region.")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Also list the partitions with the most waiters and requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    partitions: Option<u32>,
    /// Print a JSON line
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
    let aborted = picture.owners.iter().filter(|owner| owner.aborted).count();
    let dead = dead.count();
    let latched = scene.view.latched()?.len();
    let deadlocks = scene.view.deadlocks_ever()?;
    let mut waits = Waits::new();
    for row in rows {
        row.wanted.into_iter().for_each(|mode| waits.add(mode, row.waited_ns));
    }
    let mut partitions = Vec::new();
    if let Some(most) = args.partitions {
        partitions = scene.view.partitions()?;
        partitions.sort_by_key(|p| std::cmp::Reverse((p.waiting, p.requests, p.objects)));
        partitions.truncate(most as usize);
    }
    if args.json {
        let processes: Vec<_> = processes
            .iter()
            .map(|p| json!({"pid": p.pid, "alive": p.alive, "threads": of(p.slot, p.generation)}))
            .collect();
        print_json(&[json!({
            "modes": scene.modes_name(), "bytes": region.len(), "objects": picture.objects,
            "idle": picture.idle, "held": held, "weak": weak, "waiting": waiting,
            "longest_wait_ns": longest, "owners": picture.owners.len(), "orphans": orphans,
            "aborted": aborted, "threads": threads.len(), "dead_threads": dead, "latched": latched,
            "processes": processes, "restless": picture.restless,
            "owners_ever": picture.owners_ever, "waits_ever": picture.waits_ever,
            "deadlocks_ever": deadlocks, "waits": waits_lines(&scene, &waits),
            "partitions": partitions.iter().map(partition_line).collect::<Vec<_>>(),
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
            "owners     {}, {orphans} of them orphaned, {aborted} told to fail",
            picture.owners.len()
        )?;
        writeln!(out, "threads    {}, {dead} dead, not swept", threads.len())?;
        writeln!(out, "latches    {latched} held")?;
        let (owners, ever) = (picture.owners_ever, picture.waits_ever);
        writeln!(out, "so far     {owners} owners, {ever} waits, {deadlocks} deadlocks\n")?;
        if waiting != 0 {
            writeln!(out, "{}\n", waits_table(&scene, &waits))?;
        }
        if !partitions.is_empty() {
            writeln!(out, "{}\n", partitions_table(&partitions))?;
        }
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

/// Current waits by mode, for programs: each class by its lower end in nanoseconds.
fn waits_lines(scene: &Scene, waits: &Waits) -> Vec<Value> {
    let line = |mode| {
        let classes = waits.classes(mode).into_iter().enumerate().filter(|(_, count)| *count != 0);
        let classes =
            classes.map(|(class, count)| json!({"from_ns": 1u64 << class, "count": count}));
        json!({
            "mode": scene.mode(mode), "waiting": waits.count(mode),
            "longest_ns": waits.longest(mode), "classes": classes.collect::<Vec<_>>(),
        })
    };
    waits.modes().map(line).collect()
}

/// Current waits by mode, for display: decades, of classes that end in them.
fn waits_table(scene: &Scene, waits: &Waits) -> comfy_table::Table {
    let header =
        ["waiting for", "owners", "<1 ms", "<8 ms", "<67 ms", "<537 ms", "longer", "longest"];
    let mut table = output::table(&header, 1..8, colour());
    for mode in waits.modes() {
        let classes = waits.classes(mode);
        let ends = [0, 20, 23, 26, 29, classes.len()];
        let mut cells = vec![output::head(&scene.mode(mode), 24), waits.count(mode).to_string()];
        for pair in ends.windows(2) {
            cells.push(classes[pair[0]..pair[1]].iter().sum::<u64>().to_string());
        }
        cells.push(output::time(waits.longest(mode)));
        table.add_row(cells);
    }
    table
}

fn partition_line(p: &PartitionInfo) -> Value {
    json!({
        "partition": p.number, "objects": p.objects, "idle": p.idle, "requests": p.requests,
        "waiting": p.waiting, "latched": p.latched,
    })
}

fn partitions_table(partitions: &[PartitionInfo]) -> comfy_table::Table {
    let header = ["partition", "waiting", "requests", "objects", "idle", "latched by thread"];
    let mut table = output::table(&header, 0..6, colour());
    for p in partitions {
        let counts = [p.waiting, p.requests, p.objects, p.idle].map(|count| count.to_string());
        let latched = p.latched.map_or(String::new(), |thread| thread.to_string());
        table.add_row([p.number.to_string()].into_iter().chain(counts).chain([latched]));
    }
    table
}
