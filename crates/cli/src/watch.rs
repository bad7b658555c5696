//! `latchwork profile --watch`: the report of a program that is still running.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::report::{self, Options};
use crate::symbols::Symbols;
use crate::{folders, found, output, places};

/// Prints the report repeatedly, until the last process or the reader has ended.
pub(crate) fn run(
    target: Option<&str>,
    options: &Options,
    once: bool,
    interval: f64,
) -> anyhow::Result<ExitCode> {
    let folder = find(target)?;
    let interval = Duration::try_from_secs_f64(interval).unwrap_or(Duration::from_secs(1));
    let interval = interval.clamp(Duration::from_millis(50), Duration::from_secs(3600));
    let clear = io::stdout().is_terminal() && !options.json && !once;
    // The files are read once.
    let mut symbols = Symbols::default();
    loop {
        // Checked first: a program that ends in between has already recorded everything.
        let is_held = folders::is_held(&folder);
        let found = found::read(&folder);
        let is_read = output::is_read(|out| {
            if clear {
                out.write_all(b"\x1b[2J\x1b[H")?;
            }
            report::print(&found, &mut symbols, options, out)
        })?;
        if once || !is_read || !is_held && !found.is_running() {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(interval);
    }
}

/// Finds the folder of a process, of the only program that is being profiled, or a given one.
fn find(target: Option<&str>) -> anyhow::Result<PathBuf> {
    let Some(target) = target else { return find_only() };
    if let Ok(process) = target.parse::<u32>() {
        return folders::of_process(process).ok_or_else(|| {
            let none = format!("process {process} is not being profiled, or not by this user");
            output::Absent(none).into()
        });
    }
    let folder = PathBuf::from(target);
    if !folder.is_dir() {
        bail!("{target} is no folder of profiles");
    }
    if !folders::is_held(&folder) && found::read(&folder).is_empty() {
        bail!("there is no profile in {target}");
    }
    Ok(folder)
}

fn find_only() -> anyhow::Result<PathBuf> {
    match &folders::live()[..] {
        [] => bail!("no program of this user's is being profiled"),
        [one] => Ok(one.clone()),
        many => {
            let names: Vec<_> = many.iter().map(|folder| described(folder)).collect();
            bail!("several programs are being profiled, say which: {}", names.join(", "))
        }
    }
}

/// Describes the first process that writes to a folder, or the folder.
fn described(folder: &Path) -> String {
    let found = found::read(folder);
    let mut all: Vec<_> = found.snapshots.iter().chain(&found.idle).collect();
    all.sort_by_key(|snapshot| snapshot.began);
    match all.first() {
        Some(first) => format!("{} ({})", first.pid, places::program(first)),
        None => folder.display().to_string(),
    }
}
