//! One profiled run: the program, and the segments of its processes at the end.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use crate::folders::Folder;
use crate::found::{self, Found};
use crate::launch::{self, FAILED, Refusal};
use crate::{output, signals};

/// The result of a profiled run.
pub(crate) struct Session {
    /// The exit status of the program.
    pub(crate) status: ExitStatus,
    /// The segments of its processes.
    pub(crate) found: Found,
    /// The folder, if processes of the program still run.
    pub(crate) running: Option<PathBuf>,
}

impl Session {
    /// Returns the program's exit code, or 128+n if signal n killed it.
    pub(crate) fn code(&self) -> ExitCode {
        let code = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => i32::from(FAILED),
        };
        ExitCode::from(code as u8)
    }
}

/// The program to profile, and the options.
pub(crate) struct Plan<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) latch: &'a str,
    pub(crate) only: Option<&'a str>,
    /// How many callers a report will show.
    pub(crate) depth: u32,
}

/// Runs a program to its end.
pub(crate) fn run(
    plan: &Plan<'_>,
    adjust: impl FnOnce(&mut std::process::Command),
) -> Result<Session, Refusal> {
    let mut command = launch::prepare(plan.command, plan.latch)?;
    let folder = Folder::new()
        .map_err(|error| Refusal::new(FAILED, format!("no folder for the profile: {error}")))?;
    command.env("LATCHWORK_PROFILE", folder.path());
    command.env("LATCHWORK_DEPTH", plan.depth.to_string());
    if let Some(only) = plan.only {
        command.env("LATCHWORK_ONLY", only);
    }
    adjust(&mut command);
    signals::install();
    let mut child =
        command.spawn().map_err(|error| launch::not_started(&plan.command[0], &error))?;
    signals::forward_to(child.id());
    let status = child.wait();
    signals::forward_to_nobody();
    let status = status
        .map_err(|error| Refusal::new(FAILED, format!("waiting for the program: {error}")))?;
    let found = found::read(folder.path());
    if found.broken > 0 {
        let broken = output::plural(found.broken as u64, "profile", "profiles");
        output::complain(&format!("{broken} could not be read"));
    }
    let running = found.is_running().then(|| folder.keep());
    Ok(Session { status, found, running })
}
