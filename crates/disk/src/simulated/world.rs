//! The state of the disk: files by number, folders by path, planned faults.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::crash::Inode;
use super::fault::Fault;
use super::names::{Entry, Folder, normal};
use super::random::Random;
use crate::error::Subject;
use crate::{Error, Open, Operation};

#[derive(Debug)]
pub(super) struct World {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) folders: BTreeMap<PathBuf, Folder>,
    /// Locked bytes: file, byte, open file; whether exclusively.
    pub(super) locks: BTreeMap<(u64, u64, u64), bool>,
    pub(super) faults: BTreeMap<u64, Fault>,
    pub(super) fired: u64,
    pub(super) capacity: Option<u64>,
    pub(super) history: Vec<Operation>,
    pub(super) down: bool,
    /// How often the machine was started: files opened before are unusable.
    pub(super) life: u64,
    /// Determines, with the number of the call, what a failed sync leaves.
    pub(super) seed: u64,
    /// How many syncs of files have failed, and how many of those a `sync_in_doubt` has reported.
    pub(super) failures: u64,
    pub(super) failures_told: u64,
    /// The last number given to a file or an open file.
    numbers: u64,
}

impl Default for World {
    fn default() -> Self {
        Self {
            inodes: BTreeMap::new(),
            // The root always exists.
            folders: BTreeMap::from([(PathBuf::new(), Folder::default())]),
            locks: BTreeMap::new(),
            faults: BTreeMap::new(),
            fired: 0,
            capacity: None,
            history: Vec::new(),
            down: false,
            life: 0,
            seed: 0,
            failures: 0,
            failures_told: 0,
            numbers: 0,
        }
    }
}

/// Splits a path into the folder and the name in it.
fn split(path: &Path) -> Option<(PathBuf, OsString)> {
    let path = normal(path);
    Some((path.parent()?.to_owned(), path.file_name()?.to_owned()))
}

impl World {
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The random numbers of this call.
    pub(super) fn random(&self) -> Random {
        // Shifted, so that neighbouring seeds and calls share no run of choices.
        Random::new(self.seed ^ (self.history.len() as u64) << 32)
    }

    /// Counts a call. Returns its planned fault, unless that ends the call.
    pub(super) fn begin(
        &mut self,
        operation: Operation,
        subject: Subject,
    ) -> Result<Option<Fault>, Error> {
        if self.down {
            return Err(Error::Crashed(subject));
        }
        let fault = self.faults.remove(&(self.history.len() as u64));
        self.history.push(operation);
        let changes = matches!(operation, Operation::Write | Operation::Sync);
        let grows = changes || matches!(operation, Operation::Allocate | Operation::Truncate);
        let makes = matches!(
            operation,
            Operation::Open | Operation::MakeFolder | Operation::Rename | Operation::Link
        );
        match fault {
            Some(Fault::Crash) if !grows => {
                self.fired += 1;
                self.down = true;
                Err(Error::Crashed(subject))
            }
            Some(Fault::Device) if !changes => {
                self.fired += 1;
                Err(Error::Device(subject))
            }
            Some(Fault::NoSpace) if makes => {
                self.fired += 1;
                Err(Error::NoSpace(subject))
            }
            other => Ok(other),
        }
    }

    /// Makes all files durable.
    pub(super) fn sync_all(&mut self) {
        self.inodes.values_mut().for_each(Inode::sync);
    }

    /// Returns whether the planned fault is this one, and then counts it as fired.
    pub(super) fn meets(&mut self, planned: Option<Fault>, fault: Fault) -> bool {
        let met = planned == Some(fault);
        self.fired += u64::from(met);
        met
    }

    pub(super) fn entry(&self, path: &Path) -> Option<Entry> {
        let (folder, name) = split(path)?;
        self.folders.get(&folder)?.get(&name)
    }

    /// Returns how many names lead to a file.
    pub(super) fn names_of(&self, file: u64) -> u64 {
        let names = self.folders.values().flat_map(|folder| folder.now.values());
        names.filter(|entry| **entry == Entry::File(file)).count() as u64
    }

    pub(super) fn file(&self, path: &Path) -> Option<u64> {
        match self.entry(path)? {
            Entry::File(number) => Some(number),
            Entry::Folder | Entry::Gone => None,
        }
    }

    /// Changes names of one folder together.
    fn name(&mut self, subject: Subject, change: &[(&Path, Entry)]) -> Result<(), Error> {
        let Some((folder, _)) = change.first().and_then(|(path, _)| split(path)) else {
            return Err(Error::NotRegular(subject));
        };
        let mut names = Vec::new();
        for (path, entry) in change {
            match split(path) {
                Some((other, name)) if other == folder => names.push((name, *entry)),
                _ => return Err(Error::Unsupported(subject)),
            }
        }
        let Some(folder) = self.folders.get_mut(&folder) else {
            return Err(Error::NotFound(subject));
        };
        folder.change(names);
        Ok(())
    }

    pub(super) fn open(&mut self, path: &Path, how: Open) -> Result<u64, Error> {
        let subject = Subject::new(Operation::Open, path, 0);
        match self.entry(path) {
            Some(Entry::File(_)) if how.fresh => Err(Error::Exists(subject)),
            Some(Entry::File(number)) => Ok(number),
            Some(_) => Err(Error::NotRegular(subject)),
            None if how.create || how.fresh => {
                let number = self.number();
                self.name(subject, &[(path, Entry::File(number))])?;
                self.inodes.insert(number, Inode::default());
                Ok(number)
            }
            None => Err(Error::NotFound(subject)),
        }
    }

    pub(super) fn make_folder(&mut self, path: &Path) -> Result<(), Error> {
        let subject = Subject::new(Operation::MakeFolder, path, 0);
        match self.entry(path) {
            Some(Entry::File(_)) => Err(Error::Exists(subject)),
            Some(_) => Ok(()),
            None if self.folders.contains_key(&normal(path)) => Ok(()),
            None => {
                self.name(subject, &[(path, Entry::Folder)])?;
                self.folders.insert(normal(path), Folder::default());
                Ok(())
            }
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        let subject = Subject::new(Operation::Rename, from, 0);
        let Some(file) = self.file(from) else { return Err(Error::NotFound(subject)) };
        if self.entry(to) == Some(Entry::Folder) {
            return Err(Error::NotRegular(subject));
        }
        if self.file(to) == Some(file) {
            return Ok(());
        }
        self.name(subject, &[(from, Entry::Gone), (to, Entry::File(file))])
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        let subject = Subject::new(Operation::Link, from, 0);
        let Some(file) = self.file(from) else { return Err(Error::NotFound(subject)) };
        if self.entry(to).is_some() {
            return Err(Error::Exists(subject));
        }
        self.name(subject, &[(to, Entry::File(file))])
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<(), Error> {
        let subject = Subject::new(Operation::Remove, path, 0);
        match self.entry(path) {
            Some(Entry::File(_)) => self.name(subject, &[(path, Entry::Gone)]),
            Some(_) => Err(Error::NotRegular(subject)),
            None => Err(Error::NotFound(subject)),
        }
    }

    /// Returns how many more bytes the files may have.
    pub(super) fn room(&self) -> u64 {
        let used: u64 = self.inodes.values().map(|inode| inode.now.len() as u64).sum();
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used))
    }

    /// Loses unsynced changes and restarts.
    pub(super) fn restart(&mut self, random: &mut Random) {
        self.life += 1;
        self.down = false;
        self.locks.clear();
        self.folders.values_mut().for_each(|folder| folder.crash(random));
        self.inodes.values_mut().for_each(|inode| inode.crash(random));
        // Files without a durable name are removed. Folders come after the folders around them.
        let mut folders = BTreeSet::from([PathBuf::new()]);
        let mut files = BTreeSet::new();
        for (path, folder) in &self.folders {
            if !folders.contains(path) {
                continue;
            }
            for (name, entry) in &folder.now {
                match entry {
                    Entry::Folder => drop(folders.insert(path.join(name))),
                    Entry::File(number) => drop(files.insert(*number)),
                    Entry::Gone => {}
                }
            }
        }
        self.folders.retain(|path, _| folders.contains(path));
        self.inodes.retain(|number, _| files.contains(number));
    }
}
