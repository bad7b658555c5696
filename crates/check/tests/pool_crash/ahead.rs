//! The write-ahead rule, checked at the disk: no page is written with an LSN that is not durable in
//! the log. The durable position and the number of violations are words that all processes share.

use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use latchwork_check::between::Between;
use latchwork_disk::{Error, File};
use latchwork_machine::Shared;
use latchwork_pool::{Cause, WriteAhead};
use latchwork_region::Area;

use super::place::PAGES;

/// After the words of the pages: the newest record, the newest durable one, and violations.
const NEWEST: u64 = PAGES;
const DURABLE: u64 = PAGES + 1;
const BROKEN: u64 = PAGES + 2;
const CHECKED: u64 = PAGES + 3;
/// From here on, the rounds of each peer.
const BEATS: u64 = PAGES + 4;
/// Words of the log's area.
pub(super) const WORDS: u64 = BEATS + 8;

/// LSNs are this far apart.
pub(super) const RECORD: u64 = 16;

/// The log, as used by the pool and the disk.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) area: Area<Shared>,
    /// The control: a log that reports records as durable when they are not.
    pub(super) lies: bool,
}

impl Log {
    fn word(&self, index: u64) -> &<Shared as latchwork_machine::Machine>::AtomicU64 {
        self.area.word(index).unwrap()
    }

    /// Appends a record and returns its number.
    pub(super) fn append(&self) -> u64 {
        self.word(NEWEST).fetch_add(1, AcqRel) + 1
    }

    /// How many pages were written before their records, and how many were checked.
    pub(super) fn breaches(&self) -> (u64, u64) {
        (self.word(BROKEN).load(Acquire), self.word(CHECKED).load(Acquire))
    }

    /// Counts a round of a peer.
    pub(super) fn beat(&self, peer: u64) {
        self.word(BEATS + peer).fetch_add(1, AcqRel);
    }

    /// The number of rounds of a peer, including those of earlier peers with its number.
    pub(super) fn beats(&self, peer: u64) -> u64 {
        self.word(BEATS + peer).load(Acquire)
    }

    /// Checks a page that is written.
    fn look(&self, bytes: &[u8]) {
        let mut lsn = [0; 8];
        lsn.copy_from_slice(&bytes[8..16]);
        if u64::from_le_bytes(lsn) > self.word(DURABLE).load(Acquire) {
            self.word(BROKEN).fetch_add(1, AcqRel);
        }
        self.word(CHECKED).fetch_add(1, AcqRel);
    }
}

impl WriteAhead for Log {
    fn flush(&self, lsn: u64) -> Result<(), Cause> {
        let newest = self.word(NEWEST).load(Acquire) * RECORD;
        if lsn > newest {
            return Err(Cause::new(format!("the log ends at {newest}, asked for {lsn}")));
        }
        let durable = self.word(DURABLE);
        let mut known = durable.load(Acquire);
        while !self.lies && known < lsn {
            match durable.compare_exchange(known, lsn, AcqRel, Acquire) {
                Ok(_) => break,
                Err(other) => known = other,
            }
        }
        Ok(())
    }
}

/// Between the pool and the disk: every write to the file of this name is a page.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) log: Log,
    pub(super) file: &'static str,
}

impl Between for Watch {
    fn write(&self, file: &dyn File, path: &Path, at: u64, from: &[u8]) -> Result<(), Error> {
        if path.file_name() == Some(self.file.as_ref()) {
            self.log.look(from);
        }
        file.write(at, from)
    }
}
