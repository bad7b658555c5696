//! An open file of the simulated disk.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

use super::Simulated;
use super::crash::{Change, Inode};
use super::fault::Fault;
use super::world::World;
use crate::buffer::is_aligned;
use crate::error::Subject;
use crate::{Error, File, Open, Operation};

/// The distance of a misdirected write from its target.
const ASTRAY: usize = 4096;

/// More than any test writes: a larger write would exhaust the memory of the test.
const LENGTH_MAX: u64 = 1 << 32;
/// A full disk stops the growth of a file at a multiple of this.
const SECTOR: u64 = 512;

#[derive(Debug)]
pub(super) struct SimulatedFile {
    disk: Simulated,
    file: u64,
    /// The number of this open file, which identifies its locks.
    handle: u64,
    life: u64,
    path: PathBuf,
    how: Open,
    /// How many failed syncs, of any file, its `sync_in_doubt` does not report any more: it has
    /// reported them, or another open file had before this one was opened. Stored with the disk's
    /// lock.
    told: AtomicU64,
}

impl SimulatedFile {
    pub(super) fn new(
        disk: Simulated,
        file: u64,
        path: &Path,
        how: Open,
        world: &mut World,
    ) -> Self {
        let (handle, life) = (world.number(), world.life);
        let told = world.failures_told.into();
        Self { disk, file, handle, life, path: path.to_owned(), how, told }
    }

    fn subject(&self, operation: Operation, at: u64) -> Subject {
        Subject::new(operation, &self.path, at)
    }

    /// Begins a call; `bytes` must be aligned for a direct one.
    fn begin(
        &self,
        operation: Operation,
        at: u64,
        bytes: &[u8],
    ) -> Result<(MutexGuard<'_, World>, Option<Fault>), Error> {
        let subject = self.subject(operation, at);
        let mut world = self.disk.world();
        if world.life != self.life {
            return Err(Error::Crashed(subject));
        }
        let writes =
            matches!(operation, Operation::Write | Operation::Truncate | Operation::Allocate)
                || operation == Operation::Punch;
        if writes && !(self.how.write || self.how.create || self.how.fresh) {
            return Err(Error::ReadOnly(subject));
        }
        let moves = matches!(operation, Operation::Read | Operation::Write);
        if self.how.direct && moves && !is_aligned(at, bytes) {
            return Err(Error::Misaligned(subject));
        }
        if writes && at.saturating_add(bytes.len() as u64) > LENGTH_MAX {
            return Err(Error::NoSpace(subject));
        }
        let fault = world.begin(operation, subject)?;
        Ok((world, fault))
    }

    /// Applies a change; a crash at it leaves it among the unsynced changes.
    fn change(
        &self,
        world: &mut World,
        fault: Option<Fault>,
        subject: Subject,
        change: Option<Change>,
    ) -> Result<(), Error> {
        if let Some(change) = change {
            self.inode(world).change(change);
        }
        if world.meets(fault, Fault::Crash) {
            world.down = true;
            return Err(Error::Crashed(subject));
        }
        Ok(())
    }

    /// Applies a change for which the file may need to become `length` bytes long. On a full disk,
    /// a planned crash still happens.
    fn resize(
        &self,
        world: &mut World,
        fault: Option<Fault>,
        subject: Subject,
        length: u64,
        change: Option<Change>,
    ) -> Result<(), Error> {
        let full = world.meets(fault, Fault::NoSpace) || !self.has_room(world, length);
        self.change(world, fault, subject.clone(), change.filter(|_| !full))?;
        if full { Err(Error::NoSpace(subject)) } else { Ok(()) }
    }

    fn inode<'w>(&self, world: &'w mut World) -> &'w mut Inode {
        world.inodes.entry(self.file).or_default()
    }

    /// Whether the file may become `length` bytes long.
    fn has_room(&self, world: &mut World, length: u64) -> bool {
        let room = world.room();
        length.saturating_sub(self.inode(world).now.len() as u64) <= room && length <= LENGTH_MAX
    }
}

impl File for SimulatedFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let (mut world, fault) = self.begin(Operation::Read, at, into)?;
        let (short, flip) =
            (world.meets(fault, Fault::ShortRead), world.meets(fault, Fault::FlippedBit));
        let now = &self.inode(&mut world).now;
        let from = usize::try_from(at).map_or(now.len(), |at| at.min(now.len()));
        let mut got = into.len().min(now.len() - from);
        if short {
            got = got.min(into.len() / 2);
        }
        into[..got].copy_from_slice(&now[from..from + got]);
        if flip && got > 0 {
            into[got / 2] ^= 1;
        }
        self.disk.counters.read(got);
        if got < into.len() {
            let (wanted, got) = (into.len() as u64, got as u64);
            return Err(Error::ShortRead {
                subject: self.subject(Operation::Read, at),
                wanted,
                got,
            });
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        let (mut world, fault) = self.begin(Operation::Write, at, from)?;
        let subject = || self.subject(Operation::Write, at);
        self.disk.counters.wrote(from.len());
        let full = !self.has_room(&mut world, at.saturating_add(from.len() as u64));
        let planned = world.meets(fault, Fault::NoSpace);
        let device = world.meets(fault, Fault::Device);
        let (mut place, mut bytes) = (at as usize, from.to_vec());
        if planned || device {
            bytes.truncate(from.len() / 2);
        }
        if world.meets(fault, Fault::Misdirected) {
            place += ASTRAY;
        }
        if world.meets(fault, Fault::FlippedBit) && !bytes.is_empty() {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        let lost = world.meets(fault, Fault::LostWrite) || (full && !planned && !device);
        let nothing = lost || bytes.is_empty();
        let change = (!nothing).then_some(Change::Write { at: place, bytes });
        self.change(&mut world, fault, subject(), change)?;
        if full || planned {
            return Err(Error::NoSpace(subject()));
        }
        if device { Err(Error::Device(subject())) } else { Ok(()) }
    }

    fn sync(&self) -> Result<(), Error> {
        self.disk.counters.count(Operation::Sync);
        let (mut world, fault) = self.begin(Operation::Sync, 0, &[])?;
        let subject = || self.subject(Operation::Sync, 0);
        self.change(&mut world, fault, subject(), None)?;
        let full = world.meets(fault, Fault::NoSpace);
        let drops = world.meets(fault, Fault::Dropped);
        if full || drops || world.meets(fault, Fault::Device) {
            let mut random = world.random();
            let inode = self.inode(&mut world);
            inode.fail_sync(&mut random);
            if drops {
                inode.drop_cache();
            }
            world.failures += 1;
            return Err(if full { Error::NoSpace(subject()) } else { Error::Device(subject()) });
        }
        if !world.meets(fault, Fault::LostSync) {
            self.inode(&mut world).sync();
        }
        Ok(())
    }

    fn sync_in_doubt(&self) -> Result<(), Error> {
        self.sync()?;
        self.disk.counters.count(Operation::SyncSystem);
        let (mut world, _) = self.begin(Operation::SyncSystem, 0, &[])?;
        world.sync_all();
        world.failures_told = world.failures;
        let told = self.told.swap(world.failures, Relaxed) == world.failures;
        if told { Ok(()) } else { Err(Error::Device(self.subject(Operation::SyncSystem, 0))) }
    }

    fn truncate(&self, length: u64) -> Result<(), Error> {
        self.disk.counters.count(Operation::Truncate);
        let (mut world, fault) = self.begin(Operation::Truncate, 0, &[])?;
        let change = Some(Change::Length(length as usize));
        self.resize(&mut world, fault, self.subject(Operation::Truncate, 0), length, change)
    }

    fn allocate(&self, at: u64, length: u64) -> Result<(), Error> {
        self.disk.counters.count(Operation::Allocate);
        let (mut world, fault) = self.begin(Operation::Allocate, 0, &[])?;
        let (end, now) = (at.saturating_add(length), self.inode(&mut world).now.len() as u64);
        let grows = |end: u64| (end > now).then_some(Change::Length(end as usize));
        // A file system keeps what it had allocated when it found no more.
        let room =
            if fault == Some(Fault::NoSpace) { (end - now.min(end)) / 2 } else { world.room() };
        let part = now.saturating_add(room) / SECTOR * SECTOR;
        if part < end && end <= LENGTH_MAX {
            grows(part).into_iter().for_each(|change| self.inode(&mut world).change(change));
        }
        self.resize(&mut world, fault, self.subject(Operation::Allocate, 0), end, grows(end))
    }

    fn punch(&self, at: u64, length: u64) -> Result<(), Error> {
        self.disk.counters.count(Operation::Punch);
        let (mut world, fault) = self.begin(Operation::Punch, at, &[])?;
        let end = at.saturating_add(length).min(self.inode(&mut world).now.len() as u64);
        let bytes = vec![0; end.saturating_sub(at) as usize];
        let device = world.meets(fault, Fault::Device);
        let nothing = device || bytes.is_empty();
        let change = (!nothing).then_some(Change::Write { at: at as usize, bytes });
        self.change(&mut world, fault, self.subject(Operation::Punch, at), change)?;
        if device { Err(Error::Device(self.subject(Operation::Punch, at))) } else { Ok(()) }
    }

    fn length(&self) -> Result<u64, Error> {
        self.disk.counters.count(Operation::Length);
        let (mut world, _) = self.begin(Operation::Length, 0, &[])?;
        Ok(self.inode(&mut world).now.len() as u64)
    }

    fn links(&self) -> Result<u64, Error> {
        self.disk.counters.count(Operation::Length);
        let (world, _) = self.begin(Operation::Length, 0, &[])?;
        Ok(world.names_of(self.file))
    }

    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error> {
        self.disk.counters.count(Operation::Lock);
        let (mut world, _) = self.begin(Operation::Lock, 0, &[])?;
        let mut others = world.locks.range((self.file, byte, 0)..=(self.file, byte, u64::MAX));
        if others.any(|((_, _, handle), strong)| *handle != self.handle && (exclusive || *strong)) {
            return Ok(false);
        }
        world.locks.insert((self.file, byte, self.handle), exclusive);
        Ok(true)
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let handle = self.handle;
        self.disk.world().locks.retain(|(_, _, holder), _| *holder != handle);
    }
}
