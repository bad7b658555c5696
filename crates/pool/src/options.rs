//! What a pool and a file are made with, and the two questions that a pool asks the layer above.

use core::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::layout::FRAMES_MIN;
use crate::{Cause, Error};

/// How a pool is made. One that exists keeps its size.
#[derive(Clone)]
pub struct Options {
    /// How many frames it has at first: 16 to `frames_max`.
    pub frames: u32,
    /// The most frames that it may be resized to, up to 2^31. Addresses are set aside for them.
    pub frames_max: u32,
    /// To how many frames it grows by itself, before a page is evicted for want of a frame: up to
    /// `frames_max`. Of several processes that open a pool the one that asks for most counts. Where
    /// the system has no memory for more, pages are evicted.
    pub frames_wanted: u32,
    /// Bytes of a frame, and the most that a page has: a power of two, 512 to 65,536.
    pub frame_bytes: u32,
    /// Whether frames are in huge pages, where the system has them: of memory in `/dev/shm`, too
    /// ([`AreaOptions::huge`](latchwork_region::AreaOptions::huge)).
    pub huge: bool,
    /// Makes the log durable before a page goes out. Needed where pages have LSNs.
    pub write_ahead: Option<Arc<dyn WriteAhead>>,
    /// Makes a page anew that a death left half changed.
    pub rebuild: Option<Arc<dyn Rebuild>>,
}

impl Default for Options {
    /// 4,096 frames of 8 KiB, which may become 2^20; no callbacks, no huge pages.
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
        // More than an area may have. It is refused here, before the pool has this configuration
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
    /// Where it is: an absolute path, which means the same in every process.
    pub path: PathBuf,
    /// Bytes of a page: a power of two, 512 to the pool's `frame_bytes`.
    pub page_bytes: u32,
    /// Whether it is made if there is none.
    pub create: bool,
    /// Whether it is read and written around the system's cache; pages then have 4,096 bytes or
    /// more.
    pub direct: bool,
    /// Whether nobody needs it after a crash: it is not synced, and its pages have no LSNs.
    pub temporary: bool,
    /// Whether the disk has room for a page before it is made, so that it can always be written
    /// out: some pages ahead of the last one. Pages of zeros at the file's end do not count then
    /// when it is opened.
    pub ahead: bool,
    /// Whether its pages lie far apart: they may have numbers up to 2^40, not 2^28, and are found
    /// through a hash table, which all such files share and which is as large as the pool (16 to 32
    /// bytes for each of `frames_max`), not through an array (8 bytes a page). Its pages are the
    /// caller's to number: they cannot be [freed](crate::Handle::free_page). Not with `ahead`.
    pub sparse: bool,
}

impl FileSpec {
    /// A file at `path` with pages of 8 KiB, made if there is none.
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

/// The write-ahead rule, asked of the layer that has the log.
pub trait WriteAhead: Send + Sync {
    /// Makes the log durable up to the record at `lsn`, that record included.
    ///
    /// It is called while no latch of the pool is held by the caller but those that the caller of
    /// the pool holds itself, and perhaps that of the page, which others may wait for: so it waits
    /// for no thread that may wait for a page. It must not call the pool.
    ///
    /// # Errors
    ///
    /// Why it could not. The page stays in the pool, dirty.
    fn flush(&self, lsn: u64) -> Result<(), Cause>;

    /// Whether the log's end is behind `lsn`, so that it may have a record there. A page from the
    /// disk for which it is not is [`Error::Newer`](crate::Error::Newer): no page is written before
    /// its record is durable, so the log is of an earlier time. It is asked at each read of a page
    /// from the disk; without one of its own, every page is believed.
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
    /// The LSN that the page had before the change that was not finished.
    pub lsn_before: u64,
    /// The LSN of the change that was not finished.
    pub lsn: u64,
    /// The thread slot of the thread that died; none if it panicked, or if that is long ago.
    pub dead_slot: Option<u32>,
}

/// Makes half-changed pages anew: from an image and the page's own log records.
pub trait Rebuild: Send + Sync {
    /// Fills `into` with the page as it is after the change `lost.lsn`, or as it was before it if
    /// that change is not in the log. Returns the page's LSN. Words 0 and 1 are the pool's.
    ///
    /// `base` is the page's image on disk, if it can be read and fits its checksum. The page's
    /// latch is held meanwhile, so this must not touch that page through the pool. It may be
    /// called again for the same page, if the process that runs it dies.
    ///
    /// # Errors
    ///
    /// Why it could not. The page stays poisoned, and the next thread that meets it asks again.
    fn rebuild(&self, lost: &Lost, base: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String>;

    /// Fills `into` with a page whose bytes on disk are another page's or none that the pool wrote,
    /// or that the disk cannot read: as its last change left it. Returns the page's LSN. Words 0
    /// and 1 are the pool's.
    ///
    /// None if that is not known: then what the disk said is the error of that page, as it always
    /// is if this is not implemented. It is not asked for pages of zeros, nor for those behind the
    /// file's end: nobody may have written them. The page's latch is held, as above. What is made
    /// is written, and synced, before anybody sees it.
    fn rebuild_damaged(&self, file: u16, page: u64, into: &mut [u64]) -> Option<u64> {
        let _ = (file, page, into);
        None
    }
}
