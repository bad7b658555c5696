//! A disk in memory that has every fault a disk can have, planned or random by seed.
//!
//! The idea is that of ALICE (Pillai and others, OSDI 2014), of LazyFS (Ramos and others, VLDB
//! 2024) and of the simulators of FoundationDB and TigerBeetle: the same program runs on it and on
//! files, and everything that a file system does not exclude happens.
//!
//! ```text
//!            write, truncate                sync                      restart(seed)
//!   program -----------------> what all see ----> what is durable ----------------> what all see
//!                              + changes since    (changes applied)   durable + any part of the
//!                                the last sync                        changes since the last sync
//! ```
//!
//! Names are handled in the same way, by folder: a name is durable when its folder was synced. At a
//! crash each file and each folder keeps, chosen by the seed, none of its changes, all, a prefix
//! with the last one torn, each change or not, or each sector (of 512 or 4,096 bytes) or not, and
//! any length that it had since its last sync. So an unsynced write can survive although an older
//! one does not.
//!
//! A sync that fails leaves the same of that file's changes, and counts the rest as clean: it is
//! readable until the machine crashes, or until the system [drops](Simulated::drop_cache) it. The
//! failure is reported once, and to no other open file; Linux does that, and not every system.
//!
//! Calls are numbered from 0; [`plan`](Simulated::plan) sets a [`Fault`] for one. All clones are
//! one disk; one lock guards it.

mod crash;
mod fault;
mod file;
mod names;
mod random;
mod world;

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::names::{Entry, normal};
use self::random::Random;
use self::world::World;
use crate::calls::Counters;
use crate::error::Subject;
use crate::{Calls, Disk, Error, File, Open, Operation};

pub use self::fault::Fault;

/// A disk in memory: see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Simulated {
    world: Arc<Mutex<World>>,
    counters: Arc<Counters>,
}

impl Simulated {
    /// Creates an empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty disk with a seed for what a failed sync leaves before the first
    /// [`restart`](Self::restart).
    pub fn with_seed(seed: u64) -> Self {
        let disk = Self::new();
        disk.world().seed = seed;
        disk
    }

    /// Plans `fault` for the call of this number. One call has one fault, the last one planned. A
    /// fault that does not apply to the call has no effect: see [`fired`](Self::fired).
    pub fn plan(&self, number: u64, fault: Fault) {
        self.world().faults.insert(number, fault);
    }

    /// Removes all planned faults.
    pub fn heal(&self) {
        self.world().faults.clear();
    }

    /// Returns how many planned faults have happened.
    pub fn fired(&self) -> u64 {
        self.world().fired
    }

    /// Limits the bytes of all files together; none is no limit. A call that would exceed it fails
    /// with [`Error::NoSpace`].
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world().capacity = bytes;
    }

    /// Returns the operations of all calls so far: the call of number `n` is at index `n`.
    pub fn history(&self) -> Vec<Operation> {
        self.world().history.clone()
    }

    /// Stops the machine: from now on every call fails with [`Error::Crashed`].
    pub fn crash(&self) {
        self.world().down = true;
    }

    /// Returns whether the machine is stopped.
    pub fn is_down(&self) -> bool {
        self.world().down
    }

    /// Stops the machine if it runs, loses unsynced changes by `seed`, and starts it again. Open
    /// files become unusable; planned faults are removed; numbering continues.
    pub fn restart(&self, seed: u64) {
        let mut world = self.world();
        world.faults.clear();
        world.seed = seed;
        world.restart(&mut Random::new(seed));
    }

    /// Drops what failed syncs have left for readers: from now on they see the disk's content and
    /// later writes.
    pub fn drop_cache(&self) {
        self.world().inodes.values_mut().for_each(crash::Inode::drop_cache);
    }

    /// Returns the content of the file without a call; none if it does not exist.
    pub fn peek(&self, path: &Path) -> Option<Vec<u8>> {
        let world = self.world();
        let file = world.file(&normal(path))?;
        world.inodes.get(&file).map(|inode| inode.now.clone())
    }

    /// Changes bytes of a file, on the disk and for readers, like a failing device. False if the
    /// file does not exist or is shorter.
    pub fn damage(&self, path: &Path, at: u64, bytes: &[u8]) -> bool {
        let mut world = self.world();
        let Some(file) = world.file(&normal(path)) else { return false };
        let Some(inode) = world.inodes.get_mut(&file) else { return false };
        let (from, to) = (at as usize, at as usize + bytes.len());
        if to > inode.now.len() {
            return false;
        }
        inode.now[from..to].copy_from_slice(bytes);
        let durable = inode.durable.len().min(to);
        if from < durable {
            inode.durable[from..durable].copy_from_slice(&bytes[..durable - from]);
        }
        true
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and applies planned faults that any operation can have.
    fn begin(
        &self,
        operation: Operation,
        path: &Path,
    ) -> Result<(MutexGuard<'_, World>, Option<Fault>), Error> {
        self.counters.count(operation);
        let mut world = self.world();
        let fault = world.begin(operation, Subject::new(operation, path, 0))?;
        Ok((world, fault))
    }
}

impl Disk for Simulated {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        let (mut world, _) = self.begin(Operation::Open, path)?;
        let file = world.open(path, how)?;
        Ok(Box::new(file::SimulatedFile::new(self.clone(), file, path, how, &mut world)))
    }

    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        let (mut world, _) = self.begin(Operation::MakeFolder, path)?;
        world.make_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let (mut world, _) = self.begin(Operation::Rename, from)?;
        world.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let (mut world, _) = self.begin(Operation::Link, from)?;
        world.link(from, to)
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        let (mut world, _) = self.begin(Operation::Remove, path)?;
        world.remove(path)
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        let (world, _) = self.begin(Operation::List, folder)?;
        let subject = || Subject::new(Operation::List, folder, 0);
        let found = world.folders.get(&normal(folder)).ok_or_else(|| Error::NotFound(subject()))?;
        Ok(found.now.iter().filter(|(_, e)| **e != Entry::Gone).map(|(n, _)| n.clone()).collect())
    }

    fn sync_folder(&self, folder: &Path) -> Result<(), Error> {
        let (mut world, fault) = self.begin(Operation::SyncFolder, folder)?;
        let subject = || Subject::new(Operation::SyncFolder, folder, 0);
        let lost = world.meets(fault, Fault::LostSync);
        let found = world.folders.get_mut(&normal(folder));
        let found = found.ok_or_else(|| Error::NotFound(subject()))?;
        if !lost {
            found.sync();
        }
        Ok(())
    }

    fn calls(&self) -> Calls {
        self.counters.get()
    }
}
