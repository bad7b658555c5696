//! `store sync-test`: how often a disk makes data durable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use latchwork_disk::Buffer;
use latchwork_store::{Kind, file_system};
use serde_json::json;

use super::{Progress, print_json};
use crate::output;

/// A faster sync reaches no device that keeps data without power, or one with its own power supply.
const TOO_QUICK: u64 = 20_000;
/// Bytes of the written file, preallocated like a segment of the log.
const LENGTH: u64 = 8 << 20;

/// Measure how often a folder's disk makes data durable, and whether that is credible
///
/// The result bounds the commits per second of one thread; concurrent threads share a sync.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store sync-test /var/lib/shop
  latchwork store sync-test . --ms 2000 --size 4096,65536 --json

Measures in turn: write and fdatasync, as used by stores; write and fsync; O_DSYNC; O_DIRECT and
O_DSYNC. Unsupported ones are omitted. Exits with 0 if the disk is fit for a store; 1 if other
machines write to it, if it is memory, or if it answers too fast to be durable; 2 if it is not
writable.")]
pub(crate) struct Args {
    /// The folder
    folder: PathBuf,
    /// Milliseconds for each method and size
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    ms: u64,
    /// Bytes of a write: multiples of 512
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "4096", value_parser = size)]
    size: Vec<u64>,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let size = text.parse().ok().filter(|size: &u64| size.is_multiple_of(512));
    size.filter(|size| (512..=1 << 20).contains(size))
        .ok_or_else(|| "must be a multiple of 512, to 1048576".to_owned())
}

/// A method of making data durable.
struct Way {
    name: &'static str,
    flags: i32,
    after: fn(&File) -> io::Result<()>,
}

const WAYS: [Way; 4] = [
    Way { name: "fdatasync", flags: 0, after: File::sync_data },
    Way { name: "fsync", flags: 0, after: File::sync_all },
    Way { name: "O_DSYNC", flags: libc::O_DSYNC, after: |_| Ok(()) },
    Way { name: "O_DIRECT", flags: libc::O_DSYNC | libc::O_DIRECT, after: |_| Ok(()) },
];

/// The durations of the writes of one method, sorted.
struct Took(Vec<u64>);

impl Took {
    fn per_second(&self) -> f64 {
        let sum: u64 = self.0.iter().sum();
        self.0.len() as f64 * 1e9 / sum.max(1) as f64
    }

    fn quantile(&self, part: usize) -> u64 {
        self.0
            .get((self.0.len() * part / 100).min(self.0.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    }
}

/// A file without a name, opened in each way: it disappears with this process, however that ends.
struct Probe([io::Result<File>; WAYS.len()]);

impl Probe {
    fn new(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!("latchwork-sync-test-{}", std::process::id()));
        let file = File::create_new(&path)?;
        let open = |way: &Way| OpenOptions::new().write(true).custom_flags(way.flags).open(&path);
        let opened = WAYS.map(|way| open(&way));
        fs::remove_file(&path)?;
        let zeros = vec![0; 1 << 20];
        (0..LENGTH >> 20).try_for_each(|number| file.write_all_at(&zeros, number << 20))?;
        file.sync_all()?;
        Ok(Self(opened))
    }
}

fn measure(way: &Way, file: &File, size: u64, time: Duration) -> io::Result<Took> {
    let (begin, mut at, mut took) = (Instant::now(), 0, Vec::new());
    let mut bytes = Buffer::new(size as usize);
    while begin.elapsed() < time || took.is_empty() {
        bytes[0] = took.len() as u8;
        let before = Instant::now();
        file.write_all_at(&bytes, at)?;
        (way.after)(file)?;
        took.push(before.elapsed().as_nanos() as u64);
        at = if at + 2 * size <= LENGTH { at + size } else { 0 };
    }
    took.sort_unstable();
    Ok(Took(took))
}

/// The assessment of a disk, and whether it is suitable for a store.
fn note(kind: Kind, median: u64) -> (bool, &'static str) {
    match kind {
        Kind::Network => (false, "other machines write it: a store there is refused"),
        Kind::Memory => (false, "it is memory: nothing there outlives the machine"),
        _ if median < TOO_QUICK => (
            false,
            "it answers too quickly: a cache that a power cut empties, or one with a battery",
        ),
        Kind::Program => {
            (true, "a program serves it: whether what it says is durable is not known")
        }
        _ => (true, "as a disk does"),
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let on = file_system(&args.folder)?;
    let named = |why: io::Error| anyhow::anyhow!("{}: {why}", args.folder.display());
    let probe = Probe::new(&args.folder).map_err(named)?;
    let progress = Progress::new();
    let mut rows = Vec::new();
    for (way, file) in WAYS.iter().zip(probe.0) {
        let time = Duration::from_millis(args.ms);
        for size in &args.size {
            progress.tell(format!("{} of {size} bytes", way.name));
            let measured = match &file {
                Ok(file) => measure(way, file, *size, time),
                Err(why) => Err(why.kind().into()),
            };
            match measured {
                Ok(took) => rows.push((way.name, *size, took)),
                Err(why) if way.flags == 0 => return Err(named(why)),
                // A method that the file system does not support has no row.
                Err(_) => {}
            }
        }
    }
    drop(progress);
    let median = rows.first().map_or(0, |row| row.2.quantile(50));
    let (good, said) = note(on.kind, median);
    let mut table = output::table(&["way", "bytes", "a second", "median", "p99"], 1..5, false);
    for (way, size, took) in &rows {
        let (p50, p99) = (took.quantile(50), took.quantile(99));
        if args.json {
            print_json(&json!({
                "way": way, "bytes": size, "per_s": took.per_second(), "p50_ns": p50,
                "p99_ns": p99, "writes": took.0.len(), "file_system": on.name, "good": good,
            }))?;
        }
        let rate = output::count(took.per_second().round() as u64);
        table.add_row([
            (*way).to_owned(),
            size.to_string(),
            rate,
            output::time(p50),
            output::time(p99),
        ]);
    }
    if !args.json {
        output::print(|out| {
            table.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
            writeln!(out, "\n{}: {said}", on.name)
        })?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_disk() {
        assert!(note(Kind::Local, 1_000_000).0);
        assert!(!note(Kind::Local, 3_000).0 && !note(Kind::Memory, 1_000_000).0);
        assert!(!note(Kind::Network, 1_000_000).0 && note(Kind::Program, 1_000_000).0);
        let took = Took((1..=100).collect());
        assert_eq!((took.quantile(50), took.quantile(99)), (51, 100));
        assert_eq!(Took(vec![1_000_000; 4]).per_second(), 1000.0);
    }
}
