//! The content of a folder of profiles.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use latchwork_profile::{FormatError, Snapshot};

/// The most processes whose segments are read.
const PROCESSES_MAX: usize = 10_000;

/// The segments of the processes that wrote to a folder.
#[derive(Default)]
pub(crate) struct Found {
    /// Processes that took a latch, in the order of their start.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Processes that took none.
    pub(crate) idle: Vec<Snapshot>,
    /// Programs that `--only` excluded.
    pub(crate) others: Vec<String>,
    /// How many files were invalid.
    pub(crate) broken: usize,
}

impl Found {
    /// Returns whether one of the processes still runs.
    pub(crate) fn is_running(&self) -> bool {
        let all = self.snapshots.iter().chain(&self.idle);
        all.filter(|snapshot| snapshot.pid != 0)
            .any(|snapshot| Path::new(&format!("/proc/{}", snapshot.pid)).exists())
    }

    /// Returns whether no process wrote anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.snapshots.is_empty() && self.idle.is_empty() && self.others.is_empty()
    }
}

/// Reads a folder.
pub(crate) fn read(folder: &Path) -> Found {
    let mut found = Found::default();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(PROCESSES_MAX) {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "other") {
            found.others.extend(fs::read(path).ok().map(|exe| name_of(&exe)));
            continue;
        }
        match snapshot(&path) {
            Some(Ok(snapshot)) if snapshot.acquisitions() > 0 => found.snapshots.push(snapshot),
            Some(Ok(snapshot)) => found.idle.push(snapshot),
            Some(Err(_)) => found.broken += 1,
            None => {}
        }
    }
    for list in [&mut found.snapshots, &mut found.idle] {
        list.sort_by_key(|snapshot| (snapshot.began, snapshot.pid));
    }
    found
}

/// The last part of a path that a program wrote, without terminal control characters.
fn name_of(path: &[u8]) -> String {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect()
}

/// Reads a segment; none if it does not exist or is incomplete.
fn snapshot(path: &Path) -> Option<Result<Snapshot, FormatError>> {
    let file = File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(Snapshot::SIZE as u64).read_to_end(&mut bytes).ok()?;
    if bytes.iter().take(8).all(|b| *b == 0) {
        return None;
    }
    Some(Snapshot::parse(&bytes))
}
