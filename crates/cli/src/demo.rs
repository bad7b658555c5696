//! `latchwork demo`: standard programs on the system's own files, with and without our latches.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use crate::session::{self, Plan, Session};
use crate::symbols::Symbols;
use crate::{launch, output, report};

/// Sort and pack the system's own files, with glibc's locks and with our latches
///
/// The runs are interleaved. Compares the outputs byte for byte, and prints the times, and a
/// profile of one more run. Exits with 1 if any output differs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Megabytes of files to join
    #[arg(long, value_name = "MB", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    size: u64,

    /// Number of runs with each
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
}

/// Folders from which files are taken, in this order.
const SOURCES: [&str; 3] = ["/usr/share", "/usr/lib", "/usr/bin"];

/// Runs the demonstration.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let temporary = std::env::temp_dir();
    let scratch = latchwork_bench::Dir::named(&temporary, "latchwork-demo-")
        .with_context(|| temporary.display().to_string())?;
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(200));
    let input = scratch.path().join("input");
    spinner.set_message("joining files of the system");
    let (files, bytes) = join(&input, args.size << 20)?;
    // xz takes about ten times as long per byte.
    let packed = scratch.path().join("packed-input");
    fs::write(&packed, read_start(&input, bytes / 8)?)?;
    let mut same = true;
    let mut told = Vec::new();
    for task in tasks(&input, &packed) {
        if which(task.program).is_none() {
            writeln!(told, "{}: not installed, left out\n", task.program)?;
            continue;
        }
        same &= Demo { task: &task, scratch: scratch.path(), spinner: &spinner, runs: args.runs }
            .run(&mut told)?;
    }
    spinner.finish_and_clear();
    output::print(|out| {
        writeln!(out, "{files} files of the system, {} MB, in name order\n", bytes >> 20)?;
        out.write_all(&told)
    })?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A program, and its arguments without the output path.
struct Task<'a> {
    program: &'static str,
    args: Vec<OsString>,
    shown: &'static str,
    input: &'a Path,
}

fn tasks<'a>(input: &'a Path, packed: &'a Path) -> [Task<'a>; 2] {
    let sort = ["--parallel=4", "-S", "256M"].map(OsString::from).to_vec();
    let xz = ["-T4", "-1", "--block-size=1MiB", "-c"].map(OsString::from).to_vec();
    [
        Task { program: "sort", args: sort, shown: "sort --parallel=4 -S 256M", input },
        Task { program: "xz", args: xz, shown: "xz -T4 -1 --block-size=1MiB -c", input: packed },
    ]
}

/// A program run both ways.
struct Demo<'a> {
    task: &'a Task<'a>,
    scratch: &'a Path,
    spinner: &'a ProgressBar,
    runs: u32,
}

const GLIBC: &str = "with glibc's locks";
const OURS: &str = "on our latches";

impl Demo<'_> {
    /// Runs the program both ways; false if the outputs differ.
    fn run(&self, told: &mut Vec<u8>) -> anyhow::Result<bool> {
        let (theirs, ours) = (self.scratch.join("theirs"), self.scratch.join("ours"));
        let line = self.line();
        let (mut times, mut same) = ([Vec::new(), Vec::new()], true);
        for run in 0..self.runs {
            // They take turns in being first, so that warming up or slowing down affects both
            // alike.
            for side in [run % 2, 1 - run % 2] {
                let (how, command, output) = match side {
                    0 => (GLIBC, self.plain(), &theirs),
                    _ => (OURS, launch::prepare(&line, "shfl").map_err(refused)?, &ours),
                };
                self.spinner.set_message(format!(
                    "{} {how}, run {} of {}",
                    self.task.program,
                    run + 1,
                    self.runs
                ));
                times[side as usize].push(self.time(command, how, output)?);
            }
            same &= same_bytes(&theirs, &ours)?;
        }
        self.spinner.set_message(format!("{} {OURS}, profiled", self.task.program));
        let session = self.profile(&line, &ours)?;
        same &= same_bytes(&theirs, &ours)?;
        let [glibc, ours] = &mut times;
        let outputs = if same { "are the same" } else { "DIFFER" };
        writeln!(told, "{}: {}; outputs {outputs}", self.task.shown, compared(glibc, ours))?;
        let cost = latchwork_profile::cost(1);
        let width = output::columns(&std::io::stdout());
        let options = report::Options { top: 5, depth: 1, json: false, colour: false, width, cost };
        report::print(&session.found, &mut Symbols::default(), &options, told)?;
        writeln!(told)?;
        Ok(same)
    }

    fn line(&self) -> Vec<OsString> {
        let mut line = vec![OsString::from(self.task.program)];
        line.extend(self.task.args.iter().cloned());
        line
    }

    fn plain(&self) -> Command {
        let mut command = Command::new(self.task.program);
        command.args(&self.task.args);
        command
    }

    /// Returns how many seconds a run takes.
    fn time(&self, mut command: Command, how: &str, output: &Path) -> anyhow::Result<f64> {
        self.dress(&mut command, output)?;
        let began = Instant::now();
        let status = command.status().with_context(|| self.task.program.to_owned())?;
        let took = began.elapsed().as_secs_f64();
        if !status.success() {
            bail!("{} {how}: {status}", self.task.program);
        }
        Ok(took)
    }

    fn profile(&self, line: &[OsString], output: &Path) -> anyhow::Result<Session> {
        let mut dressed = Ok(());
        let plan = Plan { command: line, latch: "shfl", only: None, depth: 1 };
        let session = session::run(&plan, |command| dressed = self.dress(command, output));
        dressed?;
        let session = session.map_err(refused)?;
        if !session.status.success() {
            bail!("{} {OURS}, profiled: {}", self.task.program, session.status);
        }
        Ok(session)
    }

    /// Sets a command's input, output and scratch folder.
    fn dress(&self, command: &mut Command, output: &Path) -> anyhow::Result<()> {
        command.env("LC_ALL", "C").env("TMPDIR", self.scratch);
        let (input, output) = (File::open(self.task.input)?, File::create(output)?);
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output));
        Ok(())
    }
}

fn refused(refusal: launch::Refusal) -> anyhow::Error {
    anyhow::anyhow!("{refusal:?}")
}

/// The medians of both, and whether one is significantly faster.
fn compared(glibc: &mut [f64], ours: &mut [f64]) -> String {
    let (theirs, their_spread) = median(glibc);
    let (median, our_spread) = median(ours);
    let (ratio, spread) = (median / theirs, their_spread.max(our_spread));
    let runs = output::plural(glibc.len() as u64, "run", "runs");
    let times = format!(
        "{theirs:.2} s {GLIBC}, {median:.2} s {OURS} ({ratio:.2}x)\n{}{runs} each, spread {:.0} %",
        if glibc.len() == 1 { "" } else { "medians of " },
        100.0 * spread
    );
    let difference = (ratio - 1.0).abs();
    if glibc.len() == 1 {
        return format!("{times}; one run is too few to tell");
    }
    if difference <= spread {
        return format!("{times}: too noisy to tell the {:.0} % between them", 100.0 * difference);
    }
    times
}

/// The median, and the relative spread of the runs.
fn median(runs: &mut [f64]) -> (f64, f64) {
    runs.sort_by(f64::total_cmp);
    let (first, last) = (runs.first().copied(), runs.last().copied());
    let middle = (runs[(runs.len() - 1) / 2] + runs[runs.len() / 2]) / 2.0;
    (middle, (last.unwrap_or(0.0) - first.unwrap_or(0.0)) / middle.max(f64::MIN_POSITIVE))
}

fn which(program: &str) -> Option<PathBuf> {
    crate::program::find(program.as_ref()).ok()
}

/// Joins files of the system, in name order, up to so many bytes.
fn join(to: &Path, size: u64) -> anyhow::Result<(usize, u64)> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(to)?);
    let (mut files, mut bytes) = (0, 0);
    for source in SOURCES {
        let mut folders = vec![PathBuf::from(source)];
        while let Some(folder) = folders.pop() {
            let mut entries: Vec<_> =
                fs::read_dir(&folder).into_iter().flatten().flatten().collect();
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in &entries {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_file() && bytes < size {
                    // Unreadable files are skipped.
                    let Ok(file) = File::open(entry.path()) else { continue };
                    bytes += std::io::copy(&mut file.take(size - bytes), &mut out)?;
                    files += 1;
                }
            }
            let inner = entries.iter().rev().filter(|e| e.file_type().is_ok_and(|k| k.is_dir()));
            folders.extend(inner.map(fs::DirEntry::path));
            if bytes >= size {
                break;
            }
        }
    }
    out.flush()?;
    if bytes == 0 {
        bail!("no files below {}", SOURCES.join(", "));
    }
    Ok((files, bytes))
}

fn read_start(file: &Path, length: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(length.max(1 << 20)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn same_bytes(left: &Path, right: &Path) -> anyhow::Result<bool> {
    if fs::metadata(left)?.len() != fs::metadata(right)?.len() {
        return Ok(false);
    }
    let mut files = [File::open(left)?, File::open(right)?];
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    loop {
        let read = files[0].read(&mut buffers[0])?;
        if read == 0 {
            return Ok(true);
        }
        let [first, second] = &mut buffers;
        files[1].read_exact(&mut second[..read])?;
        if first[..read] != second[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::compared;

    #[test]
    fn what_the_runs_cannot_tell_is_said() {
        let said = compared(&mut [1.0, 1.2, 1.1], &mut [1.15, 1.0, 1.2]);
        assert!(
            said.contains("too noisy to tell the 5 %") && said.contains("spread 18 %"),
            "{said}"
        );
        let said = compared(&mut [1.0, 1.01, 1.02], &mut [2.0, 2.02, 2.04]);
        assert!(said.contains("(2.00x)") && !said.contains("noisy"), "{said}");
        let said = compared(&mut [1.0], &mut [2.0]);
        assert!(said.contains("1 run each") && said.contains("too few"), "{said}");
    }
}
