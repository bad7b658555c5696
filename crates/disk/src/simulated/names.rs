//! The names of one folder: the durable ones, the changes since, and what a crash leaves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::crash::Loss;
use super::random::Random;

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(u64),
    Folder,
    /// None: the name was removed.
    Gone,
}

/// A change of a folder since its last sync: names that change together, or not at all.
type Change = Vec<(OsString, Entry)>;

/// A folder's names.
#[derive(Debug, Default)]
pub(super) struct Folder {
    pub(super) now: BTreeMap<OsString, Entry>,
    durable: BTreeMap<OsString, Entry>,
    changes: Vec<Change>,
}

impl Folder {
    pub(super) fn get(&self, name: &OsString) -> Option<Entry> {
        self.now.get(name).copied().filter(|entry| *entry != Entry::Gone)
    }

    pub(super) fn change(&mut self, change: Change) {
        self.now.extend(change.iter().cloned());
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        self.now.retain(|_, entry| *entry != Entry::Gone);
        self.durable.clone_from(&self.now);
        self.changes.clear();
    }

    /// Loses unsynced changes, by `random`.
    pub(super) fn crash(&mut self, random: &mut Random) {
        let changes = core::mem::take(&mut self.changes);
        let loss = Loss::of(changes.len(), random);
        let kept = changes.into_iter().enumerate().filter(|(index, _)| match loss {
            Loss::All => false,
            Loss::Nothing => true,
            Loss::After(count) => *index < count,
            Loss::Some | Loss::Sectors(_) => random.coin(),
        });
        for (_, change) in kept {
            self.durable.extend(change);
        }
        self.durable.retain(|_, entry| *entry != Entry::Gone);
        self.now.clone_from(&self.durable);
    }
}

/// The path without its root and without `.`; `..` is also omitted, because no folder here is a
/// link.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            _ => {}
        }
    }
    normal
}
