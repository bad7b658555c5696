//! One profiled run: a private folder of segments, the program, and what they said at its end.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use latchwork_profile::Snapshot;

use crate::launch::{self, FAILED, Refusal};
use crate::{output, signals};

/// The segments of this many processes are read at most.
const PROCESSES_MAX: usize = 10_000;

/// What came of a profiled run.
pub(crate) struct Session {
    /// How the program ended.
    pub(crate) status: ExitStatus,
    /// How long it ran.
    pub(crate) took: Duration,
    /// What its processes said, those that took a latch.
    pub(crate) snapshots: Vec<Snapshot>,
    /// The folder, if processes of the program's still run.
    pub(crate) running: Option<PathBuf>,
}

impl Session {
    /// The program's exit code, or 128+n if signal n killed it.
    pub(crate) fn code(&self) -> ExitCode {
        let code = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => i32::from(FAILED),
        };
        ExitCode::from(code as u8)
    }
}

/// What to profile, and how.
pub(crate) struct Plan<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) latch: &'a str,
    pub(crate) only: Option<&'a str>,
    /// How many callers a report will ask for.
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
    command.env("LATCHWORK_PROFILE", &folder.path);
    command.env("LATCHWORK_DEPTH", plan.depth.to_string());
    if let Some(only) = plan.only {
        command.env("LATCHWORK_ONLY", only);
    }
    adjust(&mut command);
    signals::install();
    let began = Instant::now();
    let mut child =
        command.spawn().map_err(|error| launch::not_started(&plan.command[0], &error))?;
    signals::forward_to(child.id());
    let status = child.wait();
    signals::forward_to_nobody();
    let took = began.elapsed();
    let status = status
        .map_err(|error| Refusal::new(FAILED, format!("waiting for the program: {error}")))?;
    let (snapshots, broken) = read_folder(&folder.path);
    if broken > 0 {
        output::complain(&format!("{broken} profiles of processes could not be read"));
    }
    let running = snapshots.iter().any(is_running).then(|| folder.keep());
    Ok(Session { status, took, snapshots, running })
}

/// Whether the process that wrote this still runs.
pub(crate) fn is_running(snapshot: &Snapshot) -> bool {
    snapshot.pid != 0 && Path::new(&format!("/proc/{}", snapshot.pid)).exists()
}

/// A folder that only this user can look into, removed when dropped.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    fn new() -> std::io::Result<Self> {
        let mut last = std::io::ErrorKind::NotFound.into();
        for root in roots() {
            for n in 0..100u32 {
                let path = root.join(format!("latchwork-{}-{}.{n}", user(), std::process::id()));
                match DirBuilder::new().mode(0o700).create(&path) {
                    Ok(()) => return Ok(Self { path, keep: false }),
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                    Err(error) => {
                        last = error;
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    fn keep(&self) -> PathBuf {
        // The folder stays, for processes that still write to it.
        let path = self.path.clone();
        KEPT.store(true, std::sync::atomic::Ordering::Relaxed);
        path
    }
}

static KEPT: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep && !KEPT.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn user() -> u32 {
    // SAFETY: it only tells.
    unsafe { libc::geteuid() }
}

/// Where such folders are made: memory first, for the segments are written as memory is.
fn roots() -> Vec<PathBuf> {
    vec!["/dev/shm".into(), std::env::temp_dir()]
}

/// The folder in which a process writes its profile.
pub(crate) fn folder_of(process: u32) -> Option<PathBuf> {
    let prefix = format!("latchwork-{}-", user());
    let own = |entry: &fs::DirEntry| {
        // Somebody else's folder may lie in a folder that all may write to.
        entry.file_name().to_string_lossy().starts_with(&prefix)
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user())
    };
    let folders = roots().into_iter().filter_map(|root| fs::read_dir(root).ok());
    let mut folders = folders.flatten().flatten().filter(own).map(|entry| entry.path());
    folders.find(|folder| folder.join(format!("{process}.0")).exists())
}

/// What the processes that wrote to a folder said, and how many files made no sense.
pub(crate) fn read_folder(folder: &Path) -> (Vec<Snapshot>, usize) {
    let (mut snapshots, mut broken) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(PROCESSES_MAX) {
        match read(&entry.path()) {
            Some(Ok(snapshot)) => snapshots.push(snapshot),
            Some(Err(_)) => broken += 1,
            None => {}
        }
    }
    snapshots.retain(|snapshot| snapshot.acquisitions() > 0);
    snapshots.sort_by_key(|snapshot| (snapshot.began, snapshot.pid));
    (snapshots, broken)
}

/// Reads a segment; none if it is not there, or is still being made.
fn read(path: &Path) -> Option<Result<Snapshot, latchwork_profile::FormatError>> {
    let file = File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(Snapshot::SIZE as u64).read_to_end(&mut bytes).ok()?;
    if bytes.iter().take(8).all(|b| *b == 0) {
        return None;
    }
    Some(Snapshot::parse(&bytes))
}
