//! `latchwork profile --watch`: the same report, of a program that is still running.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::report::{self, Options};
use crate::{output, session};

/// Prints the report again and again, until the last process has ended.
pub(crate) fn run(
    target: &str,
    options: &Options,
    once: bool,
    interval: f64,
) -> anyhow::Result<ExitCode> {
    let folder = match target.parse::<u32>() {
        Ok(process) => session::folder_of(process).ok_or_else(|| {
            anyhow::anyhow!("process {process} is not being profiled, or not by this user")
        })?,
        Err(_) => PathBuf::from(target),
    };
    anyhow::ensure!(folder.is_dir(), "{} is no folder of profiles", folder.display());
    let interval = Duration::try_from_secs_f64(interval).unwrap_or(Duration::from_secs(1));
    let interval = interval.clamp(Duration::from_millis(50), Duration::from_secs(3600));
    let clear = io::stdout().is_terminal() && !options.json && !once;
    loop {
        let (snapshots, _) = session::read_folder(&folder);
        output::print(|out| {
            if clear {
                out.write_all(b"\x1b[2J\x1b[H")?;
            }
            report::print(&snapshots, options, out)
        })?;
        let over = !folder.is_dir() || !snapshots.iter().any(session::is_running);
        if once || over {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(interval);
    }
}
