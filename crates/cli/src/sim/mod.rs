//! `latchwork sim`: latches on simulated machines.

mod compare;
mod explain;
mod judge;
mod lists;
mod machine;
mod plot;
mod probe;
mod row;
mod sweep;
mod table;
mod threads;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use latchwork_bench::sim::{ALL, Kind, Pause, Subject, Workload};
use latchwork_sim::Spec;

use crate::output;
use row::Row;
use threads::Threads;

/// The default machine: the one of the published curves at 192 threads.
const MACHINE: &str = "broadwell-ex-192";

/// Simulate machines
#[derive(Subcommand)]
pub(crate) enum What {
    Run(RunArgs),
    Sweep(compare::SweepArgs),
    Explain(ExplainArgs),
    Machines(lists::MachinesArgs),
    Workloads(lists::ListArgs),
    Latches(lists::ListArgs),
    Probe(probe::Args),
    Judge(judge::JudgeArgs),
    Seeds(judge::SeedsArgs),
}

/// Run a workload under some latches, by numbers of threads
///
/// Thread n is pinned to processor n, so sockets fill one after another; more threads than
/// processors share them. The same seed gives the same result on any host, except for the fields
/// host_.., which measure the simulation itself. Exits with 1 if a latch's threads are stuck.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim run --machine broadwell-ex-192 --workload hash-table
  latchwork sim run --machine rome-128 --workload lock1 --latch qspinlock,shfl-mutex --threads 1..512
  latchwork sim run --machine ./mine.toml --threads 1,2,4,..80 --seeds 5 --plot mine.svg
  latchwork sim run --workload lockmgr-disjoint --threads 1,24,192 --objects 1
  latchwork sim run --workload rw-mix --writes 1 --latch shfl-rwlock,biased-rwlock --threads 24,192
  latchwork sim run --workload store-tproc-b --threads 1,24,48,192 --us 500 --seeds 1
  latchwork sim run --machine here --workload lock-loop --threads 1,2 --json")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    load: Load,

    /// Latches, or engines for the workloads lockmgr-.., pool-.., log-.. and store-..; the
    /// first one is the baseline [default: the workload's own; see `sim latches`]
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = latch())]
    latch: Vec<Subject>,

    /// Numbers of threads; `A..B` doubles from A up to B, and includes B [default: 1 up to the
    /// machine's processors]
    #[arg(long, value_name = "N,..N", value_parser = threads::parse)]
    threads: Option<Threads>,

    /// Number of runs, each with another seed; medians are shown
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    seeds: usize,

    /// Points to simulate at once [default: the host's processors]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    jobs: Option<usize>,

    /// Print JSON lines, one object per row
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print comma-separated values, with a header
    #[arg(long)]
    csv: bool,

    /// Also plot throughput, fairness and waits by threads
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Report where the cycles of one run were spent, the most expensive lines first
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim explain --workload hash-table --latch shfl-spin --threads 192
  latchwork sim explain --workload store-put --threads 48 --us 300
  latchwork sim explain --machine rome-128 --workload lwlock --latch lw-spinlock --threads 64 --json")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    load: Load,

    /// The latch, or for the workloads lockmgr-.., pool-.., log-.. and store-.. the engine
    /// [default: the workload's first]
    #[arg(long, value_name = "NAME", value_parser = latch())]
    latch: Option<Subject>,

    /// Number of threads [default: the machine's processors]
    #[arg(long, value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=threads::MAX as u64))]
    threads: Option<usize>,

    /// Lines of the table; the rest is summed
    #[arg(long, value_name = "N", default_value = "12",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    top: usize,

    /// Print JSON lines, one object per line of memory, all of them
    #[arg(long)]
    json: bool,
}

/// The subject of a simulation.
#[derive(clap::Args)]
struct Load {
    /// The machine: a name of `sim machines`, `here`, or a .toml file
    #[arg(long, value_name = "MACHINE", default_value = MACHINE)]
    machine: String,

    /// The workload; see `sim workloads`
    #[arg(long, value_name = "WORKLOAD", default_value = "hash-table", value_parser = workload())]
    workload: Workload,

    /// Simulated microseconds to measure, after a warm-up of a quarter of it
    #[arg(long, value_name = "N", default_value = "1000",
          value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    us: u64,

    /// The first seed
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u64).range(0..1 << 40))]
    seed: u64,

    /// Cycles under the latch, in addition to the accesses, instead of the workload's
    #[arg(long, value_name = "CYCLES", value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    inside: Option<u64>,

    /// Cycles between sections, instead of the workload's
    #[arg(long, value_name = "CYCLES", value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    outside: Option<u64>,

    /// Writes per thousand operations on a table, instead of the workload's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    writes: Option<u32>,

    /// Objects of each thread, or shared (lockmgr-..); pages (pool-..); records or branches
    /// (store-..); instead of the workload's
    #[arg(long, value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    objects: Option<usize>,
}

fn workload() -> impl TypedValueParser<Value = Workload> {
    PossibleValuesParser::new(ALL.iter().map(|workload| workload.name))
        .try_map(|name| Workload::named(&name).ok_or("unknown workload"))
}

fn latch() -> impl TypedValueParser<Value = Subject> {
    PossibleValuesParser::new(Subject::all().iter().map(|subject| subject.name))
        .try_map(|name| Subject::named(&name).ok_or("unknown latch"))
}

/// A machine, a workload and a duration: the common part of all points.
struct Scene {
    spec: Spec,
    workload: Workload,
    ns: f64,
    us: u64,
    seed: u64,
}

impl Load {
    fn scene(self) -> anyhow::Result<Result<Scene, machine::Misuse>> {
        let spec = match machine::named(&self.machine)? {
            Ok(spec) => spec,
            Err(misuse) => return Ok(Err(misuse)),
        };
        let mut workload = self.workload.on_machine(&spec);
        if self.outside.is_some() {
            workload.shape.pause = Pause::None;
        }
        if self.writes.is_some() && workload.writes().is_none() {
            let said = format!("{} has no table under a latch to write to", workload.name);
            return Ok(Err(machine::Misuse(said)));
        }
        workload.shape.writes = self.writes.unwrap_or(workload.shape.writes);
        workload.shape.inside = self.inside.unwrap_or(workload.shape.inside);
        workload.shape.outside = self.outside.unwrap_or(workload.shape.outside);
        if let Some(operations) = &mut workload.engine {
            *operations.outside() = self.outside.unwrap_or(*operations.outside());
        }
        if let Some(objects) = self.objects {
            let with = workload.engine.and_then(|operations| operations.with_objects(objects));
            if with.is_none() {
                let said = format!(
                    "{} has no objects: --objects is for lockmgr-.., pool-.. and store-..",
                    workload.name
                );
                return Ok(Err(machine::Misuse(said)));
            }
            workload.engine = with;
        }
        Ok(Ok(Scene { spec, workload, ns: self.us as f64 * 1e3, us: self.us, seed: self.seed }))
    }
}

/// Returns the latches of a workload.
fn own(workload: &Workload) -> Vec<Subject> {
    workload.locks.iter().filter_map(|name| Subject::named(name)).collect()
}

/// Returns why these latches or engines do not suit a workload.
fn unfit(workload: &Workload, latches: &[Subject]) -> Option<String> {
    let latch = latches.iter().find(|latch| !workload.takes(latch))?;
    let (what, name, own) = (workload.name, latch.name, workload.locks.join(", "));
    let about = workload.engine.map_or(Kind::Latch, |operations| operations.kind());
    Some(format!("{name} is a {}, and {what} is about a {about}: {own}", latch.kind))
}

/// Runs the command.
pub(crate) fn run(what: What) -> anyhow::Result<ExitCode> {
    match what {
        What::Run(args) => run_latches(args),
        What::Sweep(args) => compare::run(&args),
        What::Explain(args) => explain(args),
        What::Machines(args) => lists::machines(args),
        What::Workloads(args) => lists::workloads(&args),
        What::Latches(args) => lists::latches(&args),
        What::Probe(args) => probe::run(args),
        What::Judge(args) => judge::judge(&args),
        What::Seeds(args) => judge::seeds(&args),
    }
}

fn misused(what: &impl std::fmt::Display) -> anyhow::Result<ExitCode> {
    output::complain(&what.to_string());
    Ok(ExitCode::from(2))
}

fn run_latches(args: RunArgs) -> anyhow::Result<ExitCode> {
    let scene = match args.load.scene()? {
        Ok(scene) => scene,
        Err(misuse) => return misused(&misuse),
    };
    let latches = if args.latch.is_empty() { own(&scene.workload) } else { args.latch };
    if let Some(unfit) = unfit(&scene.workload, &latches) {
        return misused(&unfit);
    }
    let threads = args.threads.unwrap_or_else(|| Threads::up_to(scene.spec.topology.cpus()));
    let jobs =
        args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let cells = sweep::Cells { latches: &latches, threads: &threads.0, seeds: args.seeds };
    if let Some(path) = &args.plot
        && let Err(error) = output::writable(path)
    {
        return misused(&format!("{}: {error}", path.display()));
    }
    let (points, faults) = sweep::run(&scene, &cells, jobs, "");
    let rows = Row::all(&scene, &cells, &points);
    for fault in &faults {
        output::complain(&fault.to_string());
    }
    if args.json {
        output::print(|out| row::json(&rows, out))?;
    } else if args.csv {
        output::print(|out| row::csv(&rows, out))?;
    } else if !rows.is_empty() {
        output::print(|out| table::print(&scene, &cells, &rows, out))?;
    }
    if let Some(path) = args.plot
        && !rows.is_empty()
    {
        let svg = plot::draw(&scene, &cells, &rows)?;
        fs::write(&path, svg).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    }
    // A latch that cannot serve so many threads is left out, which is a failure only if all are.
    let stuck = faults.iter().any(sweep::Fault::is_failure) || rows.is_empty();
    Ok(if stuck { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn explain(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let scene = match args.load.scene()? {
        Ok(scene) => scene,
        Err(misuse) => return misused(&misuse),
    };
    let Some(latch) = args.latch.or_else(|| own(&scene.workload).first().copied()) else {
        return misused(&format!("{} has no latch of its own: name one", scene.workload.name));
    };
    if let Some(unfit) = unfit(&scene.workload, &[latch]) {
        return misused(&unfit);
    }
    let threads = args.threads.unwrap_or_else(|| scene.spec.topology.cpus());
    let told = explain::Told::new(&scene, latch, threads)?;
    output::print(|out| if args.json { told.json(out) } else { told.print(args.top, out) })?;
    Ok(ExitCode::SUCCESS)
}
