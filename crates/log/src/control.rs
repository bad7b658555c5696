//! The control file: two blocks of 4,096 bytes, written alternately.
//!
//! | byte | content |
//! |---|---|
//! | 0 | magic number |
//! | 8 | format |
//! | 16 | identity of the log |
//! | 32 | sequence: the block with the higher number is valid |
//! | 40 | bytes of a segment of full size |
//! | 48 | LSN of the last checkpoint's record |
//! | 56 | redo point: recovery reads from this LSN on |
//! | 64 | LSN up to which the log was durable |
//! | 72 | bit 0: the log was closed and needs no redo; bit 1: its end is being cleared; |
//! | | from bit 8 on: size of the first segment in units of 4,096 bytes; zero in format 1, in |
//! | | which all segments have one size |
//! | 80 | CRC32C of the bytes before it |
//!
//! A block is written only after the previous block is durable, so at least one of the two is whole
//! after any crash.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, Open, crc32c};

use crate::record::word_of;
use crate::spans::Spans;
use crate::{Error, Lsn};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"latchlog");
/// The format of the files of a log. Formats 1 and 2 have longer headers of records. They are
/// readable, and what is written next has this format.
pub(crate) const FORMAT: u32 = 3;
pub(crate) const SECOND_FORMAT: u32 = 2;
pub(crate) const FIRST_FORMAT: u32 = 1;
const SUMMED: usize = 80;
/// The unit in which the size of the first segment is stored.
const UNIT: u64 = 4096;

/// The contents of the control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) id: u128,
    pub(crate) sequence: u64,
    pub(crate) spans: Spans,
    pub(crate) checkpoint: Lsn,
    pub(crate) redo: Lsn,
    pub(crate) flushed: Lsn,
    pub(crate) clean: bool,
    /// Whether a recovery was about to overwrite the bytes after the end, and may not have done so.
    pub(crate) clearing: bool,
}

impl Control {
    /// Returns the encoded block, and its position in the file.
    pub(crate) fn encode(&self) -> (u64, Vec<u8>) {
        let mut bytes = Vec::with_capacity(BLOCK);
        let id = [self.id as u64, (self.id >> 64) as u64];
        let first = self.spans.first() / UNIT;
        let words = [
            MAGIC,
            u64::from(FORMAT),
            id[0],
            id[1],
            self.sequence,
            self.spans.size(),
            self.checkpoint.0,
            self.redo.0,
            self.flushed.0,
            u64::from(self.clean) | u64::from(self.clearing) << 1 | first << 8,
        ];
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes.resize(BLOCK, 0);
        (self.sequence % 2 * BLOCK as u64, bytes)
    }

    /// Writes the block once more in the same place. After a failed sync, bytes that can be read
    /// may not be on the disk if the machine did not restart.
    pub(crate) fn write_again(&self, disk: &Arc<dyn Disk>, folder: &Path) -> Result<(), Error> {
        let (at, bytes) = self.encode();
        let file = disk.open(&folder.join("control"), Open::WRITE)?;
        file.write(at, &bytes)?;
        Ok(file.sync()?)
    }

    /// Writes the control file of a new log. The file gets its final name last. The sequence is
    /// even.
    pub(crate) fn write_new(&self, disk: &Arc<dyn Disk>, folder: &Path) -> Result<(), Error> {
        let (_, mut bytes) = self.encode();
        bytes.resize(2 * BLOCK, 0);
        let path = folder.join("control-new");
        let file = disk.open(&path, Open::CREATE)?;
        file.truncate(0)?;
        file.write(0, &bytes)?;
        file.sync()?;
        disk.rename(&path, &folder.join("control"))?;
        Ok(disk.sync_folder(folder)?)
    }

    /// Returns the newer of the whole blocks.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Version`] if a whole block has another format, and [`Error::Corrupt`] if
    /// neither block is whole.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut newest: Option<Self> = None;
        for block in bytes.chunks(BLOCK) {
            if let Some(found) = Self::block(block)?
                && newest.is_none_or(|newest| newest.sequence < found.sequence)
            {
                newest = Some(found);
            }
        }
        newest.ok_or(Error::Corrupt { what: "control file" })
    }

    fn block(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let word = |index: usize| word_of(bytes, index * 8);
        if bytes.len() < SUMMED + 8 || word(0) != MAGIC {
            return Ok(None);
        }
        if word(10) as u32 != crc32c(&bytes[..SUMMED]) {
            return Ok(None);
        }
        let first = match word(1) as u32 {
            FIRST_FORMAT => word(5),
            SECOND_FORMAT | FORMAT => (word(9) >> 8).saturating_mul(UNIT),
            found => return Err(Error::Version { found, known: FORMAT }),
        };
        let spans = Spans::new(first, word(5)).ok_or(Error::Corrupt { what: "control file" })?;
        Ok(Some(Self {
            id: u128::from(word(2)) | u128::from(word(3)) << 64,
            sequence: word(4),
            spans,
            checkpoint: Lsn(word(6)),
            redo: Lsn(word(7)),
            flushed: Lsn(word(8)),
            clean: word(9) & 1 != 0,
            clearing: word(9) & 2 != 0,
        }))
    }
}
