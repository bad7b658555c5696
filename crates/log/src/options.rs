//! The options of a log, and the state that was found when it was opened.

use core::time::Duration;

use latchwork_latch::HolderNumber;

use crate::{Error, Lsn};

/// How often a thread that waits for credit or for a claim yields before it naps.
pub(crate) const YIELDS: u32 = 200;
/// How often a thread checks the progress of another thread's append before it yields.
pub(crate) const SPINS: u32 = 128;

/// The options of a log. A log that exists in the region keeps the options it was created with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The maximum size of the buffer in bytes: a power of two, at least 64 KiB. A record takes at
    /// most an eighth of it.
    pub buffer: u64,
    /// Bytes of a segment: a multiple of 4,096, not less than the buffer. A log that exists in
    /// files keeps its own size.
    pub segment: u64,
    /// The initial size of the buffer in bytes: a power of two, at least 64 KiB. The buffer doubles
    /// as the log is written, up to `buffer`. If this is not less than `buffer`, the buffer has its
    /// maximum size from the start.
    pub buffer_first: u64,
    /// Bytes of the first segment of a new log: a multiple of 4,096. The next segments are larger,
    /// up to `segment`.
    pub segment_first: u64,
    /// The identity of a new log, which distinguishes its files from those of other logs. Zero
    /// selects the region's creation number.
    pub id: u128,
    /// The number of thread slots that may append: the region's slots with lower numbers.
    pub threads: u32,
    /// How long a thread sleeps before it checks whether the thread that it waits for is dead.
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

/// The state that was found when the log's files were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Whether the region already had the log. Then nothing is lost, and redo is not needed.
    pub warm: bool,
    /// The place where redo begins.
    pub redo: Lsn,
    /// The last checkpoint's record; [`Lsn::NEVER`] if there is none.
    pub checkpoint: Lsn,
    /// The end of the log.
    pub end: Lsn,
    /// Whether the log was closed so that redo is not needed.
    pub clean: bool,
}
