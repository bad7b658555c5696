//! `latchwork demo`: programs that every machine has, on files that it has, with and without.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use crate::session::{self, Plan};
use crate::{output, report};

/// Sort and pack the system's own files, with glibc's locks and with our latches
///
/// Compares what comes out byte for byte, and prints both times and the profile. Exits with 1 if
/// anything differs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many megabytes of files to join
    #[arg(long, value_name = "MB", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    size: u64,
}

/// Where files are taken from, in this order.
const SOURCES: [&str; 3] = ["/usr/share", "/usr/lib", "/usr/bin"];

/// Runs the demonstration.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let scratch = Scratch::new()?;
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(200));
    let input = scratch.0.join("input");
    spinner.set_message("joining files of the system");
    let (files, bytes) = join(&input, args.size << 20)?;
    // xz takes some ten times as long for a byte.
    let packed = scratch.0.join("packed-input");
    fs::write(&packed, read_start(&input, bytes / 8)?)?;
    let mut same = true;
    let mut told = Vec::new();
    for deed in deeds(&input, &packed) {
        if which(deed.program).is_none() {
            writeln!(told, "{}: not installed, left out\n", deed.program)?;
            continue;
        }
        same &= compare(&deed, &scratch.0, &spinner, &mut told)?;
    }
    spinner.finish_and_clear();
    output::print(|out| {
        writeln!(out, "{files} files of the system, {} MB, in name order\n", bytes >> 20)?;
        out.write_all(&told)
    })?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A program, its arguments without the place of its output.
struct Deed<'a> {
    program: &'static str,
    args: Vec<OsString>,
    shown: &'static str,
    input: &'a Path,
}

fn deeds<'a>(input: &'a Path, packed: &'a Path) -> [Deed<'a>; 2] {
    let sort = ["--parallel=4", "-S", "256M"].map(OsString::from).to_vec();
    let xz = ["-T4", "-1", "--block-size=1MiB", "-c"].map(OsString::from).to_vec();
    [
        Deed { program: "sort", args: sort, shown: "sort --parallel=4 -S 256M", input },
        Deed { program: "xz", args: xz, shown: "xz -T4 -1 --block-size=1MiB -c", input: packed },
    ]
}

/// Runs a deed both ways; false if the outputs differ.
fn compare(
    deed: &Deed<'_>,
    scratch: &Path,
    spinner: &ProgressBar,
    told: &mut Vec<u8>,
) -> anyhow::Result<bool> {
    spinner.set_message(format!("{} with glibc's locks", deed.program));
    let (theirs, ours) = (scratch.join("theirs"), scratch.join("ours"));
    let mut command = Command::new(deed.program);
    command.args(&deed.args);
    dress(&mut command, deed, scratch, &theirs)?;
    let began = Instant::now();
    let status = command.status().with_context(|| deed.program.to_owned())?;
    let glibc = began.elapsed();
    if !status.success() {
        bail!("{} with glibc's locks: {status}", deed.program);
    }
    spinner.set_message(format!("{} on our latches, profiled", deed.program));
    let mut line = vec![OsString::from(deed.program)];
    line.extend(deed.args.iter().cloned());
    let mut dressed = Ok(());
    let plan = Plan { command: &line, latch: "shfl", only: None, depth: 1 };
    let session = session::run(&plan, |command| dressed = dress(command, deed, scratch, &ours));
    dressed?;
    let session = session.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
    if !session.status.success() {
        bail!("{} on our latches: {}", deed.program, session.status);
    }
    let same = same_bytes(&theirs, &ours)?;
    let (ratio, seconds) = (session.took.as_secs_f64() / glibc.as_secs_f64(), |d: Duration| {
        format!("{:.2} s", d.as_secs_f64())
    });
    writeln!(
        told,
        "{}: {} with glibc's locks, {} on our latches and profiled ({ratio:.2}x); outputs {}",
        deed.shown,
        seconds(glibc),
        seconds(session.took),
        if same { "are the same" } else { "DIFFER" },
    )?;
    let cost = latchwork_profile::cost_ns();
    let options =
        report::Options { top: 5, depth: 1, json: false, colour: false, width: None, cost };
    report::print(&session.snapshots, &options, told)?;
    writeln!(told)?;
    Ok(same)
}

/// Gives a command its input, output and scratch folder.
fn dress(
    command: &mut Command,
    deed: &Deed<'_>,
    scratch: &Path,
    output: &Path,
) -> anyhow::Result<()> {
    command.env("LC_ALL", "C").env("TMPDIR", scratch);
    command.stdin(Stdio::from(File::open(deed.input)?)).stdout(Stdio::from(File::create(output)?));
    Ok(())
}

fn which(program: &str) -> Option<PathBuf> {
    crate::program::find(program.as_ref()).ok()
}

/// Joins files of the system, in name order, until there are so many bytes.
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
                    // A file that cannot be read is not the demonstration's business.
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

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("latchwork-demo-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
