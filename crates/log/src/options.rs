//! How a log is made, and what was found when it was opened.

use core::time::Duration;

use latchwork_latch::HolderNumber;

use crate::{Error, Lsn};

/// How often a thread that waits for credit, or for a claim, lets others run before it naps.
pub(crate) const YIELDS: u32 = 200;

/// How a log is made. One that exists in the region keeps what it was made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the buffer, a power of two, 64 KiB at least. A record has an eighth of it at
    /// most.
    pub buffer: u64,
    /// Bytes of a segment, a multiple of 4,096, not less than the buffer. A log that exists in
    /// files keeps its own.
    pub segment: u64,
    /// Bytes that the buffer has at first, a power of two, 64 KiB at least: it doubles as the log
    /// is written, up to `buffer`. It is as large as that from the start if this is not less.
    pub buffer_first: u64,
    /// Bytes of the first segment of a log that is made anew, a multiple of 4,096. The next ones
    /// are larger, up to `segment`.
    pub segment_first: u64,
    /// The identity of a log that is made anew: what tells its files from those of others. Zero
    /// is the region's creation number.
    pub id: u128,
    /// How many thread slots of the region may append: those with lower numbers.
    pub threads: u32,
    /// How long a thread sleeps before it looks whether the one it waits for is dead.
    pub nap: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            buffer: 16 << 20,
            segment: 64 << 20,
            buffer_first: 1 << 20,
            segment_first: 512 << 10,
            id: 0,
            threads: 1024,
            nap: Duration::from_millis(1),
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.buffer.is_power_of_two() || !(1 << 16..=1 << 34).contains(&self.buffer) {
            return Err(Error::Options("buffer"));
        }
        if !self.buffer_first.is_power_of_two() || self.buffer_first < 1 << 16 {
            return Err(Error::Options("buffer_first"));
        }
        if self.segment_first < 4096 || !self.segment_first.is_multiple_of(4096) {
            return Err(Error::Options("segment_first"));
        }
        let suits = self.segment.is_multiple_of(4096) && self.segment >= self.buffer;
        if !suits || self.segment > 1 << 40 {
            return Err(Error::Options("segment"));
        }
        if !(1..=HolderNumber::MAX).contains(&self.threads) {
            return Err(Error::Options("threads"));
        }
        Ok(())
    }
}

/// What was found when the log's files were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Whether the region had the log already: then nothing is lost, and nothing is to be
    /// redone.
    pub warm: bool,
    /// Where redo begins.
    pub redo: Lsn,
    /// The last checkpoint's record; [`Lsn::NEVER`] if there is none.
    pub checkpoint: Lsn,
    /// Where the log ended.
    pub end: Lsn,
    /// Whether the log was closed so that nothing is to be redone.
    pub clean: bool,
}
