//! Options of a pool and of a file, and the two callbacks to the upper layer.

use core::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::layout::FRAMES_MIN;
use crate::{Cause, Error};

/// Options for creating a pool. An existing pool keeps its size.
#[derive(Clone)]
pub struct Options {
    /// How many frames it has at first: 16 to `frames_max`.
    pub frames: u32,
    /// The most frames that it may be resized to, up to 2^31. Addresses are reserved for them.
    pub frames_max: u32,
    /// To how many frames it grows by itself before it evicts a page for lack of a frame: up to
    /// `frames_max`. Of several processes that open a pool, the largest value is used. If the
    /// system has no memory for more, pages are evicted.
    pub frames_wanted: u32,
    /// Bytes of a frame, and the most that a page has: a power of two, 512 to 65,536.
    pub frame_bytes: u32,
    /// Whether frames are in huge pages, if the system has them, also for memory in `/dev/shm`
    /// ([`AreaOptions::huge`](latchwork_region::AreaOptions::huge)).
    pub huge: bool,
    /// Makes the log durable before a page is written. Required where pages have LSNs.
    pub write_ahead: Option<Arc<dyn WriteAhead>>,
    /// Rebuilds a page that a death left half changed.
    pub rebuild: Option<Arc<dyn Rebuild>>,
}

impl Default for Options {
    /// Returns 4,096 frames of 8 KiB, at most 2^20; no callbacks, no huge pages.
    fn default() -> Self {
        Self {
            frames: 4096,
            frames_max: 1 << 20,
            frames_wanted: 0,
            frame_bytes: 8192,
            huge: false,
            write_ahead: None,
            rebuild: None,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let size = self.frame_bytes;
        if !size.is_power_of_two() || !(512..=65_536).contains(&size) {
            return Err(Error::Options("bytes of a frame"));
        }
        if self.frames < FRAMES_MIN || self.frames > self.frames_max || self.frames_max > 1 << 31 {
            return Err(Error::Options("frames"));
        }
        // More than an area may have. It is refused here, before the pool gets this configuration
        // for good.
        if u64::from(self.frames_max) * u64::from(size) > 1 << 46 {
            return Err(Error::Options("bytes of all frames"));
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("frames", &self.frames)
            .field("frames_max", &self.frames_max)
            .field("frames_wanted", &self.frames_wanted)
            .field("frame_bytes", &self.frame_bytes)
            .field("huge", &self.huge)
            .field("write_ahead", &self.write_ahead.is_some())
            .field("rebuild", &self.rebuild.is_some())
            .finish()
    }
}

/// A file of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// Its absolute path, which means the same in every process.
    pub path: PathBuf,
    /// Bytes of a page: a power of two, 512 to the pool's `frame_bytes`.
    pub page_bytes: u32,
    /// Whether it is created if it does not exist.
    pub create: bool,
    /// Whether it is read and written without the system's cache; pages then have 4,096 bytes or
    /// more.
    pub direct: bool,
    /// Whether it need not survive a crash: it is not synced, and its pages have no LSNs.
    pub temporary: bool,
    /// Whether the disk has room for a page before it is created, so that it can always be written:
    /// some pages ahead of the last one. Zero pages at the file's end then do not count when it is
    /// opened.
    pub ahead: bool,
    /// Whether its page numbers are sparse: they may be up to 2^40 instead of 2^28, and are found
    /// through a hash table, which all such files share and which is as large as the pool (16 to 32
    /// bytes for each of `frames_max`), instead of an array (8 bytes per page). The caller numbers
    /// its pages: they cannot be [freed](crate::Handle::free_page). Not with `ahead`.
    pub sparse: bool,
}

impl FileSpec {
    /// Creates the options of a file at `path` with pages of 8 KiB, created if it does not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            page_bytes: 8192,
            create: true,
            direct: false,
            temporary: false,
            ahead: false,
            sparse: false,
        }
    }
}

/// The write-ahead rule, implemented by the layer that has the log.
pub trait WriteAhead: Send + Sync {
    /// Makes the log durable up to and including the record at `lsn`.
    ///
    /// The caller holds no latch of the pool except those that the pool's caller holds itself, and
    /// possibly that of the page for which others may wait. So it must not wait for a thread that
    /// may wait for a page, and must not call the pool.
    ///
    /// # Errors
    ///
    /// The reason of the failure. The page stays in the pool, dirty.
    fn flush(&self, lsn: u64) -> Result<(), Cause>;

    /// Returns whether the log's end is behind `lsn`, so that it may have a record there. If not, a
    /// page read from the disk fails with [`Error::Newer`](crate::Error::Newer): no page is written
    /// before its record is durable, so the log is older. Called at each read of a page from the
    /// disk; the default accepts every page.
    fn reaches(&self, lsn: u64) -> bool {
        let _ = lsn;
        true
    }
}

/// A page that was left half changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The file's number.
    pub file: u16,
    /// The page.
    pub page: u64,
    /// The LSN of the page before the incomplete change.
    pub lsn_before: u64,
    /// The LSN of the incomplete change.
    pub lsn: u64,
    /// The thread slot of the thread that died; none if it panicked, or if the slot is no longer
    /// known.
    pub dead_slot: Option<u32>,
}

/// Rebuilds half-changed pages from an image and the page's own log records.
pub trait Rebuild: Send + Sync {
    /// Fills `into` with the page after the change `lost.lsn`, or before it if that change is not
    /// in the log. Returns the page's LSN. Words 0 and 1 belong to the pool.
    ///
    /// `base` is the page's image on disk, if it is readable and matches its checksum. The page's
    /// latch is held, so this must not access that page through the pool. It may be called again
    /// for the same page if its process dies.
    ///
    /// # Errors
    ///
    /// The reason of the failure. The page stays poisoned, and the next thread that requests it
    /// calls again.
    fn rebuild(&self, lost: &Lost, base: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String>;

    /// Fills `into` with the last state of a page whose bytes on disk are unreadable, those of
    /// another page, or not written by the pool. Returns the page's LSN. Words 0 and 1 belong to
    /// the pool.
    ///
    /// Returns none if the page is unknown; then the disk's error is returned, as by the default
    /// implementation. It is not called for pages of zeros, nor for those behind the file's end,
    /// which may never have been written. The page's latch is held, as above. The page is written
    /// and synced before any thread sees it.
    fn rebuild_damaged(&self, file: u16, page: u64, into: &mut [u64]) -> Option<u64> {
        let _ = (file, page, into);
        None
    }
}
