//! A disk with a test between it and its user. The test can change or suppress each call.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::{Calls, Disk, Error, File, Open};

/// A test's replacements of the calls of a disk. By default each call does what the disk does.
pub trait Between: Debug + Send + Sync {
    /// Called before a file is opened. An error prevents it.
    ///
    /// # Errors
    ///
    /// The error that the user of the disk receives.
    fn opens(&self, _: &Path, _: Open) -> Result<(), Error> {
        Ok(())
    }

    /// Reads.
    ///
    /// # Errors
    ///
    /// As [`File::read`].
    fn read(&self, file: &dyn File, _: &Path, at: u64, into: &mut [u8]) -> Result<(), Error> {
        file.read(at, into)
    }

    /// Writes.
    ///
    /// # Errors
    ///
    /// As [`File::write`].
    fn write(&self, file: &dyn File, _: &Path, at: u64, from: &[u8]) -> Result<(), Error> {
        file.write(at, from)
    }

    /// Makes written data durable.
    ///
    /// # Errors
    ///
    /// As [`File::sync`].
    fn sync(&self, file: &dyn File, _: &Path) -> Result<(), Error> {
        file.sync()
    }

    /// Reserves space.
    ///
    /// # Errors
    ///
    /// As [`File::allocate`].
    fn allocate(&self, file: &dyn File, _: &Path, at: u64, length: u64) -> Result<(), Error> {
        file.allocate(at, length)
    }
}

/// A disk with a test before it.
#[derive(Debug)]
pub struct Before<B, D> {
    between: Arc<B>,
    disk: D,
}

impl<B, D> Before<B, D> {
    /// `disk`, used through `between`.
    pub fn new(between: Arc<B>, disk: D) -> Self {
        Self { between, disk }
    }
}

#[derive(Debug)]
struct BeforeFile<B> {
    between: Arc<B>,
    file: Box<dyn File>,
    path: PathBuf,
}

impl<B: Between + 'static, D: Disk> Disk for Before<B, D> {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        self.between.opens(path, how)?;
        let file = self.disk.open(path, how)?;
        Ok(Box::new(BeforeFile { between: self.between.clone(), file, path: path.to_owned() }))
    }
    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        self.disk.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.disk.link(from, to)
    }
    fn remove(&self, path: &Path) -> Result<(), Error> {
        self.disk.remove(path)
    }
    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        self.disk.list(folder)
    }
    fn sync_folder(&self, folder: &Path) -> Result<(), Error> {
        self.disk.sync_folder(folder)
    }
    fn calls(&self) -> Calls {
        self.disk.calls()
    }
}

impl<B: Between> File for BeforeFile<B> {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.between.read(&*self.file, &self.path, at, into)
    }
    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        self.between.write(&*self.file, &self.path, at, from)
    }
    fn sync(&self) -> Result<(), Error> {
        self.between.sync(&*self.file, &self.path)
    }
    fn sync_in_doubt(&self) -> Result<(), Error> {
        self.between.sync(&*self.file, &self.path)?;
        self.file.sync_in_doubt()
    }
    fn truncate(&self, length: u64) -> Result<(), Error> {
        self.file.truncate(length)
    }
    fn allocate(&self, at: u64, length: u64) -> Result<(), Error> {
        self.between.allocate(&*self.file, &self.path, at, length)
    }
    fn punch(&self, at: u64, length: u64) -> Result<(), Error> {
        self.file.punch(at, length)
    }
    fn length(&self) -> Result<u64, Error> {
        self.file.length()
    }
    fn allocated(&self) -> Result<u64, Error> {
        self.file.allocated()
    }

    fn links(&self) -> Result<u64, Error> {
        self.file.links()
    }
    fn next_data(&self, at: u64) -> Result<Option<u64>, Error> {
        self.file.next_data(at)
    }
    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error> {
        self.file.lock(byte, exclusive)
    }
}
