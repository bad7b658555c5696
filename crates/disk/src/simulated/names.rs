//! The names of one folder: which are durable, what was done since, and what a crash leaves of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::crash::Loss;
use super::random::Random;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(u64),
    Folder,
    /// Nothing: the name was taken away.
    Gone,
}

/// Something done to a folder since its last sync: names that change together, or not at all.
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

    /// Loses what was not synced, by `random`.
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

/// The path without its root and without `.`; `..` is left out too, for no folder here is a link.
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
