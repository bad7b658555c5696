//! The disk as a subject: a write of 4,096 bytes and an `fdatasync`, one after the other in a
//! preallocated file, as a store's log does for a commit. It is measured in the same run as the
//! stores. Their durable commits are also reported in multiples of its time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use latchwork_rivals::{Reads, Session, Store, StoreError, StoreResult, Writes};

/// Bytes of a write.
const BLOCK: usize = 4096;
/// Blocks of the file, which is written cyclically.
const BLOCKS: u64 = 2048;

/// The file.
pub(super) struct Device(File);

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> StoreError {
    move |why| StoreError::Failed(call, why.to_string())
}

impl Device {
    pub(super) fn open(folder: &Path) -> StoreResult<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(folder.join("device")).map_err(failed("open"))?;
        let length = file.metadata().map_err(failed("stat"))?.len();
        for block in length / BLOCK as u64..BLOCKS {
            file.write_all_at(&[0; BLOCK], block * BLOCK as u64).map_err(failed("pwrite"))?;
        }
        Ok(Self(file))
    }
}

impl Store for Device {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(Blocks { file: &self.0, next: 0 }))
    }

    fn settle(&self) -> StoreResult {
        self.0.sync_all().map_err(failed("fsync"))
    }
}

/// A position in the file.
struct Blocks<'d> {
    file: &'d File,
    next: u64,
}

const NO_READS: StoreError = StoreError::Missing("a device has no records");

impl Session for Blocks<'_> {
    fn get(&mut self, _: usize, _: &[u8], _: &mut Vec<u8>) -> StoreResult<bool> {
        Err(NO_READS)
    }

    fn put(&mut self, _: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let mut block = [0; BLOCK];
        block[..key.len()].copy_from_slice(key);
        block[key.len()..key.len() + value.len()].copy_from_slice(value);
        let at = self.next % BLOCKS * BLOCK as u64;
        self.next += 1;
        self.file.write_all_at(&block, at).map_err(failed("pwrite"))?;
        self.file.sync_data().map_err(failed("fdatasync"))
    }

    fn read(&mut self, _: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        Err(NO_READS)
    }

    fn write(&mut self, _: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        Err(NO_READS)
    }
}
