//! `latchwork sim probe`: this host as a simulated machine.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use latchwork_sim::Spec;
use std::io::Write;

use crate::output;

/// Measure this host, and write it as a machine named `here`
///
/// Takes a few seconds. It measures the cost of an access whose line is in another core's cache, by
/// distance, and the costs within a core. What it cannot measure is scaled from another machine,
/// and the file says so. A loaded host gives too slow a machine.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork sim probe -o here.toml     # `--machine here` finds it in this directory
  latchwork sim probe -o ~/.config/latchwork/here.toml     # or, from anywhere, there
  latchwork sim probe | less")]
pub(crate) struct Args {
    /// Write the machine's file here instead of stdout
    #[arg(short, long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
}

/// Measures and writes.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = latchwork_sim::probe::probe().context("this host cannot be measured")?;
    let text = found.toml();
    Spec::parse(&text).context("what was measured makes no machine")?;
    match args.output {
        Some(path) => {
            fs::write(&path, text).with_context(|| path.display().to_string())?;
            output::print(|out| writeln!(out, "{found}\nwritten to {}", path.display()))?;
        }
        None => {
            output::print(|out| out.write_all(text.as_bytes()))?;
            eprintln!("{found}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
