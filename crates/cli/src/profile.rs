//! `latchwork profile`: runs a program and reports which latches threads waited for, and where.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::launch::{FAILED, LatchArg};
use crate::session::{self, Plan, Session};
use crate::symbols::Symbols;
use crate::{output, report, watch};

const HELP: &str = "\
Examples:
  latchwork profile -- sort --parallel=4 FILE         which latches were waited for, and where
  latchwork profile --depth 4 -o REPORT -- PROGRAM    and from where; uncut, to a file
  latchwork profile --only mysqld -- ./start.sh       one of the programs that it starts
  latchwork profile --watch                           while it runs, from a second terminal

Profiles are written to a folder in /dev/shm, or in that which LATCHWORK_FOLDER names, and removed
when the program has ended.";

/// Run a program on our latches and report, on stderr, which latches threads waited for, and where
///
/// Exits with the program's code, or like `run` if the program was not started.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    latch: LatchArg,

    /// Print JSON lines: one object per process, latch and call site
    #[arg(long)]
    json: bool,

    /// Report to a file instead of stderr
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Only processes that run this program, or have this name; others run on our latches without
    /// being recorded
    #[arg(long, value_name = "EXE")]
    only: Option<String>,

    /// How many latches and call sites to list
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    top: u32,

    /// How many callers to list for each place with waits, including the place itself; 0 reads no
    /// stack and lists the caller of the lock function
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(0..=16))]
    depth: u32,

    /// Watch a program that is being profiled: the only one; or the one with this process number,
    /// its own or latchwork's; or the one that writes to this folder
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1,
          conflicts_with_all = ["only", "output", "latch", "command"])]
    watch: Option<Option<String>>,

    /// Seconds between two reports
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "watch")]
    interval: f64,

    /// Report once
    #[arg(long, requires = "watch")]
    once: bool,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM ARGS", required_unless_present = "watch")]
    command: Vec<std::ffi::OsString>,
}

/// Runs and reports, or watches.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(target) = &args.watch {
        let options = args.options(output_colour(), output::columns(&io::stdout()));
        return watch::run(target.as_deref(), &options, args.once, args.interval);
    }
    // Before the program runs: a report that cannot be written is an error of latchwork.
    let file = match args.output.as_deref().map(open).transpose() {
        Ok(file) => file,
        Err(error) => {
            let path = args.output.unwrap_or_default();
            output::complain(&format!("{}: {error}", path.display()));
            return Ok(ExitCode::from(FAILED));
        }
    };
    let only = args.only.as_deref();
    let depth = args.depth;
    let plan = Plan { command: &args.command, latch: &args.latch.latch, only, depth };
    let session = match session::run(&plan, |_| ()) {
        Ok(session) => session,
        Err(refusal) => return Ok(refusal.say()),
    };
    let written = match file {
        Some(mut file) => {
            clear(&file).and_then(|()| tell(&session, &args.options(false, None), &mut file))
        }
        None => {
            let width = output::columns(&io::stderr());
            let options = args.options(output::colour_on_stderr(), width);
            tell(&session, &options, &mut io::stderr().lock())
        }
    };
    // The caller expects the program's code, even if the report failed.
    if let Err(error) = written {
        output::complain(&format!("the report: {error}"));
    }
    Ok(session.code())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// An older report is kept until a new one exists. Pipes and devices have no length.
fn clear(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

fn output_colour() -> bool {
    use std::io::IsTerminal;
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

fn tell(session: &Session, options: &report::Options, out: &mut dyn Write) -> io::Result<()> {
    report::print(&session.found, &mut Symbols::default(), options, out)?;
    if let Some(folder) = &session.running
        && !options.json
    {
        writeln!(
            out,
            "Processes that the program left behind still write to {}: profile --watch.",
            folder.display()
        )?;
    }
    out.flush()
}

impl Args {
    fn options(&self, colour: bool, width: Option<usize>) -> report::Options {
        let (top, depth) = (self.top as usize, self.depth as usize);
        let cost = latchwork_profile::cost(depth);
        report::Options { top, depth, json: self.json, colour, width, cost }
    }
}
