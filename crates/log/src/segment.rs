//! Segments: consecutive files that hold the log. `spans.rs` defines which bytes each file holds.
//!
//! Segment `n` is the file named by `n` in 16 hexadecimal digits. It has a header of 4,096 bytes
//! and then its bytes of the log; a record may continue in the next segment. The file is filled
//! with zeros and synced before it gets its name, so that a flush changes no metadata and never
//! fails for lack of space.
//!
//! | byte | of the header |
//! |---|---|
//! | 0 | magic number |
//! | 8 | format |
//! | 16 | identity of the log |
//! | 32 | number |
//! | 40 | LSN up to which the log was durable when the segment was created |
//! | 48 | bytes of the log's first segment; not in format 1 |
//! | 56 | bytes of a segment of full size; not in format 1 |
//! | 64 | CRC32C of the bytes before it; at 48 in format 1, in which all segments have one size |
//!
//! A segment of full size that is no longer needed is renamed to `spare-N`. It is renamed to its
//! next number after its new header is durable. The bytes after the header are then old, but no
//! record of another place passes for a record of this one. A file whose header has a different
//! number than its name results from a crash between two renames.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use latchwork_disk::{Buffer, Disk, File, Open, crc32c};

use crate::control::{BLOCK, FIRST_FORMAT, FORMAT, SECOND_FORMAT};
use crate::point::point;
use crate::record::{RECORD_MAX, decode_view, extent_at, word_of};
use crate::spans::Spans;
use crate::{Error, Lsn};

const MAGIC: u64 = u64::from_le_bytes(*b"latchseg");
const SUMMED: usize = 64;
const FIRST_SUMMED: usize = 48;
/// How many open segments a process keeps.
const OPEN_MAX: usize = 8;
/// How many spare segments are kept.
const SPARE_MAX: usize = 4;
/// Bytes of zeros per write.
const FILL: usize = 256 << 10;
/// Bytes read at a time to be written once more: a record of any length fits.
const AGAIN: usize = RECORD_MAX;

/// The segments of a log, as seen by one process.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) folder: PathBuf,
    pub(crate) id: u128,
    pub(crate) spans: Spans,
    how: Open,
    open: Mutex<BTreeMap<u64, Arc<dyn File>>>,
}

/// The contents of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u128,
    pub(crate) number: u64,
    pub(crate) flushed: Lsn,
    /// `None` in format 1, which does not state it.
    pub(crate) spans: Option<Spans>,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        let (low, high) = (self.id as u64, (self.id >> 64) as u64);
        let format = if self.spans.is_some() { FORMAT } else { FIRST_FORMAT };
        let words = [MAGIC, u64::from(format), low, high, self.number, self.flushed.0];
        let sizes = self.spans.iter().flat_map(|spans| [spans.first(), spans.size()]);
        words.into_iter().chain(sizes).for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes.resize(BLOCK, 0);
        bytes
    }

    /// Decodes a header; `None` if the bytes are no header.
    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < SUMMED + 8 {
            return None;
        }
        let word = |index: usize| word_of(bytes, index * 8);
        let (summed, spans) = match word(1) as u32 {
            FIRST_FORMAT => (FIRST_SUMMED, None),
            SECOND_FORMAT | FORMAT => (SUMMED, Some(Spans::new(word(6), word(7))?)),
            _ => return None,
        };
        let sum = word_of(bytes, summed) as u32;
        let whole = word(0) == MAGIC && word(1) >> 32 == 0 && sum == crc32c(&bytes[..summed]);
        whole.then(|| Self {
            id: u128::from(word(2)) | u128::from(word(3)) << 64,
            number: word(4),
            flushed: Lsn(word(5)),
            spans,
        })
    }
}

/// Returns the number in a segment's name.
fn number_of(name: &OsString) -> Option<u64> {
    let name = name.to_str().filter(|name| name.len() == 16)?;
    u64::from_str_radix(name, 16).ok()
}

/// Returns the length in bytes of the whole records at the beginning of `bytes`.
fn whole_records(seed: u32, at: Lsn, bytes: &[u8]) -> usize {
    let mut done = 0;
    let record = |from: usize| {
        let (lsn, rest) = (Lsn(at.0 + from as u64), bytes.get(from..)?);
        let record = rest.get(..extent_at(lsn, rest)?)?;
        decode_view(seed, lsn, record).map(|_| record.len())
    };
    while let Some(count) = record(done) {
        done += count;
    }
    done
}

impl Segments {
    pub(crate) fn new(disk: Arc<dyn Disk>, folder: &Path, id: u128, spans: Spans) -> Self {
        let (folder, how) = (folder.to_owned(), Open::WRITE);
        Self { disk, folder, id, spans, how, open: Mutex::default() }
    }

    /// Creates the segments of files that are never written to.
    pub(crate) fn to_read(disk: Arc<dyn Disk>, folder: &Path, id: u128, spans: Spans) -> Self {
        Self { how: Open::READ, ..Self::new(disk, folder, id, spans) }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}"))
    }

    /// Returns the numbers of all segments that have a name, in order.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>, Error> {
        let mut numbers: Vec<_> =
            self.disk.list(&self.folder)?.iter().filter_map(number_of).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Returns the header of a segment; `None` if its bytes are no header.
    pub(crate) fn header(&self, number: u64) -> Result<Option<Header>, Error> {
        let mut bytes = [0; SUMMED + 8];
        match self.disk.open(&self.path(number), Open::READ)?.read(0, &mut bytes) {
            Err(latchwork_disk::Error::ShortRead { .. }) => Ok(None),
            other => Ok(other.map(|()| Header::decode(&bytes))?),
        }
    }

    /// Returns how many bytes of the log the file of a segment has.
    pub(crate) fn bytes(&self, number: u64) -> Result<u64, Error> {
        let length = self.disk.open(&self.path(number), Open::READ)?.length()?;
        Ok(length.saturating_sub(BLOCK as u64))
    }

    /// Returns whether the file of a segment is shorter than a segment. An undamaged file has its
    /// full length before its name.
    pub(crate) fn is_short(&self, number: u64) -> Result<bool, Error> {
        Ok(self.bytes(number)? < self.spans.length(number))
    }

    /// Returns the open file of a segment.
    pub(crate) fn file(&self, number: u64) -> Result<Arc<dyn File>, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(file.clone());
        }
        let file: Arc<dyn File> = self.disk.open(&self.path(number), self.how)?.into();
        let mut bytes = [0; SUMMED + 8];
        // A reader that changes nothing also reads the records after a damaged header.
        if self.how.write {
            file.read(0, &mut bytes)?;
        }
        match Header::decode(&bytes) {
            _ if !self.how.write => {}
            Some(header) if header.id != self.id => return Err(Error::Foreign),
            Some(header) if header.number == number => {}
            _ => return Err(Error::Corrupt { what: "header of a segment" }),
        }
        open.insert(number, file.clone());
        if open.len() > OPEN_MAX {
            open.pop_first();
        }
        Ok(file)
    }

    /// Writes bytes of the log at their place. The bytes around them stay unchanged.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        for (number, place, range) in self.pieces(at, bytes.len()) {
            self.file(number)?.write(place, &bytes[range])?;
        }
        Ok(())
    }

    /// Writes the records from `from` on once more, up to the first record that begins at `to` or
    /// later. They are read below `end`. After a failed sync the system still returns these bytes
    /// to readers, but has no record that they are not on the disk.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the system has not kept the records: the bytes read must not
    /// replace them.
    pub(crate) fn write_again(&self, from: u64, to: u64, end: u64) -> Result<(), Error> {
        let (mut bytes, mut at) = (Vec::new(), from);
        while at < to {
            bytes.resize((end - at).min(AGAIN as u64) as usize, 0);
            self.read(at, &mut bytes)?;
            let whole = whole_records(self.id as u32, Lsn(at), &bytes);
            if whole == 0 {
                return Err(Error::Corrupt { what: "a record that was not durable yet" });
            }
            self.write(at, &bytes[..whole])?;
            at += whole as u64;
        }
        Ok(())
    }

    /// Reads bytes of the log from their place.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        for (number, place, range) in self.pieces(at, into.len()) {
            self.file(number)?.read(place, &mut into[range])?;
        }
        Ok(())
    }

    /// Returns the location of each part of a range of the log: segment, byte of its file, and
    /// range of the bytes.
    fn pieces(
        &self,
        at: u64,
        count: usize,
    ) -> impl Iterator<Item = (u64, u64, std::ops::Range<usize>)> + use<> {
        let (spans, mut done) = (self.spans, 0);
        std::iter::from_fn(move || {
            let now = at + done as u64;
            let number = spans.number(now);
            let piece = ((count - done) as u64).min(spans.end(number) - now) as usize;
            let range = done..done + piece;
            done += piece;
            (piece > 0).then_some((number, BLOCK as u64 + now - spans.start(number), range))
        })
    }

    /// Makes the bytes from `from` to `to` durable.
    pub(crate) fn sync(&self, from: u64, to: u64) -> Result<(), Error> {
        self.spans.of(from, to).try_for_each(|number| Ok(self.file(number)?.sync()?))
    }

    /// Creates segment `number` from a spare segment or as a new file. A partial file that a dead
    /// thread left is created again.
    pub(crate) fn make(&self, number: u64, flushed: Lsn) -> Result<(), Error> {
        let header = Header { id: self.id, number, flushed, spans: Some(self.spans) }.encode();
        let names = self.disk.list(&self.folder)?;
        if names.contains(&format!("{number:016x}").into()) {
            // The thread that gave it its name may have died or failed before the name was durable.
            return Ok(self.disk.sync_folder(&self.folder)?);
        }
        let length = self.spans.length(number);
        let spare = match length == self.spans.size() {
            true => self.own_spare(&names)?,
            false => None,
        };
        let path = match spare {
            Some(name) => {
                let path = self.folder.join(name);
                let file = self.disk.open(&path, Open::WRITE)?;
                file.write(0, &header)?;
                file.sync()?;
                path
            }
            None => {
                let path = self.folder.join("new");
                if let Err(why) = self.fill(&path, &header, length) {
                    // The file may occupy the last space of a disk that other programs also write.
                    let _ = self.disk.remove(&path);
                    return Err(why);
                }
                path
            }
        };
        point("make: filled");
        self.disk.rename(&path, &self.path(number))?;
        point("make: named");
        Ok(self.disk.sync_folder(&self.folder)?)
    }

    /// Returns a spare segment that has no other name. If a program has linked a spare into a copy
    /// of the folder, the file belongs to that copy, and its name here is removed.
    fn own_spare<'n>(&self, names: &'n [OsString]) -> Result<Option<&'n OsString>, Error> {
        for name in names.iter().filter(|name| name.to_string_lossy().starts_with("spare-")) {
            let path = self.folder.join(name);
            if self.disk.open(&path, Open::READ)?.links()? <= 1 {
                return Ok(Some(name));
            }
            self.disk.remove(&path)?;
        }
        Ok(None)
    }

    /// Creates a segment under a temporary name and allocates its space, so that no later write to
    /// it fails for lack of space.
    fn fill(&self, path: &Path, header: &[u8], end: u64) -> Result<(), Error> {
        let file = self.disk.open(path, Open::CREATE)?;
        let zeros = Buffer::new(FILL.min(end as usize));
        file.truncate(0)?;
        file.write(0, header)?;
        let mut at = 0;
        while at < end {
            let count = (end - at).min(zeros.len() as u64) as usize;
            file.write(BLOCK as u64 + at, &zeros[..count])?;
            at += count as u64;
        }
        file.sync()?;
        Ok(())
    }

    /// Removes the names of all segments below `number`. Some of the files become spare segments.
    pub(crate) fn recycle_below(&self, number: u64) -> Result<u64, Error> {
        let names = self.disk.list(&self.folder)?;
        let mut spare =
            names.iter().filter(|name| name.to_string_lossy().starts_with("spare-")).count();
        let mut count = 0;
        for old in names.iter().filter_map(number_of).filter(|old| *old < number) {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&old);
            if spare < SPARE_MAX && self.spans.length(old) == self.spans.size() {
                let name = self.folder.join(format!("spare-{old:x}"));
                self.disk.rename(&self.path(old), &name)?;
                spare += 1;
            } else {
                self.disk.remove(&self.path(old))?;
            }
            point("recycle: one");
            count += 1;
        }
        if count > 0 {
            self.disk.sync_folder(&self.folder)?;
        }
        Ok(count)
    }

    /// Removes all files except the segments from `first` to `last`: crashes leave such files.
    pub(crate) fn tidy(&self, first: u64, last: u64) -> Result<(), Error> {
        let mut removed = false;
        for name in self.disk.list(&self.folder)? {
            let text = name.to_string_lossy();
            let keep = match number_of(&name) {
                Some(number) => {
                    (first..=last).contains(&number)
                        && self.header(number)?.is_some_and(|header| header.number == number)
                }
                None => text != "new" && !text.starts_with("spare-"),
            };
            if !keep {
                self.disk.remove(&self.folder.join(&name))?;
                removed = true;
            }
        }
        if removed {
            self.disk.sync_folder(&self.folder)?;
        }
        Ok(())
    }
}
