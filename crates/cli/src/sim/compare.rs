//! `latchwork sim sweep`: one latch compared with the best of its rivals, under many loads.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use comfy_table::{Attribute, Cell as Shown};
use latchwork_bench::sim::{Subject, Workload};

use super::row::{self, Row};
use super::sweep::{self, Cells};
use super::threads::{self, Threads};
use super::{Load, Scene, latch, machine, misused, plot, unfit, workload};
use crate::output;

/// Compare a latch with the best of its rivals, by workload, pause and number of threads
///
/// A point is a machine, a workload, a pause between sections and a number of threads. Its ratio is
/// the throughput of the first latch over that of the best rival: below 1 the rival is faster.
/// `sim latches` marks rivals; our other latches are shown and not compared with.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim sweep --quick
  latchwork sim sweep --workload lock1 --outside 0,1500 --threads 24,192
  latchwork sim sweep --machine rome-128 --latch shfl-spin,cna,hmcs --json
  latchwork sim sweep --plot sweep.svg")]
pub(crate) struct SweepArgs {
    /// Machines: names of `sim machines`, `here`, or .toml files [default: broadwell-ex-192 and
    /// rome-128]
    #[arg(long, value_delimiter = ',', value_name = "MACHINE")]
    machine: Vec<String>,

    /// What the threads do [default: create, rename, lock1, hash-table]
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD", value_parser = workload())]
    workload: Vec<Workload>,

    /// Cycles between sections [default: 0,200,1500,5000,20000]
    #[arg(long, value_delimiter = ',', value_name = "CYCLES",
          value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    outside: Vec<u64>,

    /// Numbers of threads; `A..B` doubles from A up to B, and B itself [default: 2, 8, one socket,
    /// half of the processors, all, and 2 and 4 times as many]
    #[arg(long, value_name = "N,..N", value_parser = threads::parse)]
    threads: Option<Threads>,

    /// Latches, the judged one first [default: shfl-mutex, shfl-spin, stock-mutex, cst,
    /// cna, hmcs]
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = latch())]
    latch: Vec<Subject>,

    /// Simulated microseconds to measure; a quarter as many pass before, to warm up [default: 1000,
    /// or 300 if --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    us: Option<u64>,

    /// The seed
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u64).range(0..1 << 40))]
    seed: u64,

    /// Points to simulate at once [default: the host's processors]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    jobs: Option<usize>,

    /// A twentieth of the work: one machine, pauses of 0 and 1500 cycles, one socket and all
    /// processors, unless others are named
    #[arg(long)]
    quick: bool,

    /// JSON lines, one object for each point and latch, as `sim run` prints them
    #[arg(long)]
    json: bool,

    /// Also draw the ratios by threads, a panel for each machine and workload
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

const MACHINES: [&str; 2] = [super::MACHINE, "rome-128"];
const WORKLOADS: [&str; 4] = ["create", "rename", "lock1", "hash-table"];
const LATCHES: [&str; 6] = ["shfl-mutex", "shfl-spin", "stock-mutex", "cst", "cna", "hmcs"];
const OUTSIDE: [u64; 5] = [0, 200, 1500, 5000, 20_000];
const QUICK_OUTSIDE: [u64; 2] = [0, 1500];

/// The best rival's name, and the first latch's throughput over the rival's.
struct Comparison {
    threads: usize,
    rival: &'static str,
    ratio: f64,
}

/// One machine, workload and pause: a row for each latch and number of threads.
struct Part {
    scene: Scene,
    rows: Vec<Row>,
    comparisons: Vec<Comparison>,
}

impl SweepArgs {
    fn machines(&self) -> Vec<String> {
        match self.machine.is_empty() {
            false => self.machine.clone(),
            true => {
                MACHINES[..if self.quick { 1 } else { 2 }].iter().map(|m| (*m).into()).collect()
            }
        }
    }

    fn pauses(&self) -> &[u64] {
        match (self.outside.is_empty(), self.quick) {
            (false, _) => &self.outside,
            (true, true) => &QUICK_OUTSIDE,
            (true, false) => &OUTSIDE,
        }
    }

    fn workloads(&self) -> Vec<Workload> {
        match self.workload.is_empty() {
            false => self.workload.clone(),
            true => WORKLOADS.iter().filter_map(|name| Workload::named(name)).collect(),
        }
    }

    fn latches(&self) -> Vec<Subject> {
        match self.latch.is_empty() {
            false => self.latch.clone(),
            true => LATCHES.iter().filter_map(|name| Subject::named(name)).collect(),
        }
    }

    fn threads(&self, scene: &Scene) -> Threads {
        let topology = &scene.spec.topology;
        let (all, socket) = (topology.cpus(), topology.cpus() / topology.sockets);
        let chosen = || match self.quick {
            true => BTreeSet::from([socket, all]),
            false => BTreeSet::from([2, 8.min(all), socket, all / 2, all, 2 * all, 4 * all]),
        };
        let many = |count: &usize| (1..=threads::MAX).contains(count);
        self.threads.clone().unwrap_or_else(|| Threads(chosen().into_iter().filter(many).collect()))
    }

    /// Everything that is simulated, or what is wrong with the arguments.
    fn scenes(&self) -> anyhow::Result<Result<Vec<Scene>, machine::Misuse>> {
        let us = self.us.unwrap_or(if self.quick { 300 } else { 1000 });
        let mut scenes = Vec::new();
        for machine in self.machines() {
            for workload in self.workloads() {
                for outside in self.pauses() {
                    let load = Load {
                        machine: machine.clone(),
                        workload,
                        us,
                        seed: self.seed,
                        inside: None,
                        outside: Some(*outside),
                        writes: None,
                        objects: None,
                    };
                    match load.scene()? {
                        Ok(scene) => scenes.push(scene),
                        Err(misuse) => return Ok(Err(misuse)),
                    }
                }
            }
        }
        Ok(Ok(scenes))
    }
}

/// `sim sweep`.
pub(super) fn run(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    let scenes = match args.scenes()? {
        Ok(scenes) => scenes,
        Err(misuse) => return misused(&misuse),
    };
    let latches = args.latches();
    if !latches[1..].iter().any(|latch| latch.rival) {
        let first = latches[0].name;
        return misused(&format!("{first} has no rival among the latches: see `sim latches`"));
    }
    if let Some(unfit) = args.workloads().iter().find_map(|workload| unfit(workload, &latches)) {
        return misused(&unfit);
    }
    if let Some(path) = &args.plot
        && let Err(error) = output::writable(path)
    {
        return misused(&format!("{}: {error}", path.display()));
    }
    let jobs =
        args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (count, mut failed, mut parts) = (scenes.len(), false, Vec::new());
    for (at, scene) in scenes.into_iter().enumerate() {
        let threads = args.threads(&scene);
        let cells = Cells { latches: &latches, threads: &threads.0, seeds: 1 };
        let title = format!("{}/{count} {}", at + 1, scene.workload.name);
        let (points, faults) = sweep::run(&scene, &cells, jobs, &title);
        for fault in &faults {
            output::complain(&fault.to_string());
            failed |= fault.is_failure();
        }
        let mut rows = Row::all(&scene, &cells, &points);
        let comparisons = judge(&mut rows, latches[0].name, &threads.0);
        parts.push(Part { scene, rows, comparisons });
    }
    output::print(|out| match args.json {
        true => parts.iter().try_for_each(|part| row::json(&part.rows, out)),
        false => print(&parts, &latches, out),
    })?;
    if let Some(path) = &args.plot {
        let svg = plot::picture(&title(&latches), &panels(&parts))?;
        fs::write(path, svg).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The comparison at each number of threads, which the first latch's row also says.
fn judge(rows: &mut [Row], first: &str, threads: &[usize]) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for threads in threads.iter().copied() {
        let here = |row: &&Row| row.threads == threads;
        let rivals = rows.iter().filter(here).filter(|row| row.rival && row.subject != first);
        let best = rivals.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
        let Some((rival, theirs)) = best.map(|row| (row.subject, row.ops_per_s)) else { continue };
        let ours = rows.iter_mut().find(|row| row.threads == threads && row.subject == first);
        let Some(ours) = ours.filter(|_| theirs > 0.0) else { continue };
        let ratio = row::rounded(ours.ops_per_s / theirs);
        (ours.ratio, ours.ratio_to) = (Some(ratio), Some(rival));
        comparisons.push(Comparison { threads, rival, ratio });
    }
    comparisons
}

fn rivals(latches: &[Subject]) -> String {
    let rivals = latches[1..].iter().filter(|latch| latch.rival).map(|latch| latch.name);
    rivals.collect::<Vec<_>>().join(", ")
}

fn title(latches: &[Subject]) -> String {
    format!("{} over the best of {} (simulated)", latches[0].name, rivals(latches))
}

/// A table for each machine and workload, then the lowest ratio of all.
fn print(parts: &[Part], latches: &[Subject], out: &mut impl Write) -> io::Result<()> {
    let colour = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    writeln!(out, "simulated: million operations a second (higher is better)")?;
    writeln!(out, "ratio: {}", title(latches).replace(" (simulated)", ""))?;
    for group in groups(parts) {
        let scene = &group[0].scene;
        writeln!(out, "\n{} on {}, {} us", scene.workload.name, scene.spec.name, scene.us)?;
        let names = latches.iter().map(|latch| latch.name);
        let header: Vec<_> =
            ["pause", "threads"].into_iter().chain(names).chain(["ratio", "to"]).collect();
        let mut table = output::table(&header, 0..header.len(), colour);
        for part in group {
            for comparison in &part.comparisons {
                let speed = |latch: &Subject| {
                    let is_it =
                        |row: &&Row| row.threads == comparison.threads && row.subject == latch.name;
                    let row = part.rows.iter().find(is_it);
                    Shown::new(row.map_or("-".into(), |row| format!("{:.2}", row.ops_per_s / 1e6)))
                };
                let ratio = Shown::new(format!("{:.2}", comparison.ratio));
                let slower = comparison.ratio < 1.0;
                let ratio = if slower { ratio.add_attribute(Attribute::Bold) } else { ratio };
                let pause = part.scene.workload.shape.outside;
                let line = [Shown::new(pause), Shown::new(comparison.threads)].into_iter();
                let line = line.chain(latches.iter().map(speed));
                table.add_row(line.chain([ratio, Shown::new(comparison.rival)]));
            }
        }
        writeln!(out, "{table}")?;
    }
    let all = || parts.iter().flat_map(|part| part.comparisons.iter().map(move |v| (part, v)));
    let Some((part, lowest)) = all().min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio)) else {
        return Ok(());
    };
    let (below, workload) = (all().filter(|(_, v)| v.ratio < 1.0).count(), &part.scene.workload);
    writeln!(
        out,
        "\nbelow 1 in {below} of {} points; lowest {:.2} of {}: {} on {}, pause {}, {} threads",
        all().count(),
        lowest.ratio,
        lowest.rival,
        workload.name,
        part.scene.spec.name,
        workload.shape.outside,
        lowest.threads,
    )
}

/// Parts of the same machine and workload.
fn groups(parts: &[Part]) -> impl Iterator<Item = &[Part]> {
    let key = |part: &Part| (part.scene.spec.name.clone(), part.scene.workload.name);
    parts.chunk_by(move |a, b| key(a) == key(b))
}

fn panels(parts: &[Part]) -> Vec<plot::Panel> {
    let panel = |group: &[Part]| {
        let scene = &group[0].scene;
        let lines = group.iter().map(|part| plot::Line {
            name: format!("pause {}", part.scene.workload.shape.outside),
            points: part.comparisons.iter().map(|v| (v.threads, v.ratio)).collect(),
        });
        plot::ratios(&format!("{} on {}", scene.workload.name, scene.spec.name), lines.collect())
    };
    groups(parts).map(panel).collect()
}
