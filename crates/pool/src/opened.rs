//! A file's name in a pool, and a file that this process has open.

use core::fmt;
use std::sync::{Arc, Mutex, RwLock};

use latchwork_disk::File;

use crate::Error;
use crate::layout::{FILES, PAGES_MAX, SPARSE_PAGES_MAX, files_before};

/// A file of a pool, which is the same in every process until it is
/// [removed](crate::Handle::remove_file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub(crate) number: u16,
    /// Words of a page.
    pub(crate) words: u32,
    /// Whether its pages are found through the hash table. Not a `bool`, because an `Option` of a
    /// snapshot would use a spare value of it, which each read would then have to check.
    pub(crate) sparse: u8,
}

impl FileId {
    /// Returns its number, which errors and reports show. 256 files have a place at a time. A file
    /// in the place of a removed one has another number; a number recurs after 126 others.
    pub fn number(self) -> u16 {
        self.number
    }

    /// Returns the bytes of its pages.
    pub fn page_bytes(self) -> u32 {
        self.words * 8
    }

    /// Returns how many pages it may have.
    pub fn pages_max(self) -> u64 {
        if self.is_sparse() { SPARSE_PAGES_MAX } else { PAGES_MAX }
    }

    /// Returns whether its pages are found through the hash table.
    #[inline(always)]
    pub fn is_sparse(self) -> bool {
        self.sparse != 0
    }

    /// Returns the error of a page beyond `pages`.
    pub(crate) fn out_of_range(self, page: u64, pages: u64) -> Error {
        Error::OutOfRange { file: self.number, page, pages }
    }
}

/// A file that this process has open.
pub(crate) struct Opened {
    /// How many files had its place before, because a file's number recurs.
    pub(crate) before: u32,
    pub(crate) file: Box<dyn File>,
    /// Held from a sync until its failure is known to all. The system reports a failure once for
    /// each open file: a second thread that syncs it afterwards would see a success. So would the
    /// first sync of a file that was opened after the system reported to another process: the file
    /// is in doubt while this is true.
    pub(crate) syncs: Mutex<bool>,
}

impl Opened {
    /// The file with this word 0 in its entry, and whether another process may have received the
    /// report of a failure of it.
    pub(crate) fn new(kind: u64, file: Box<dyn File>, in_doubt: bool) -> Self {
        Self { before: files_before(kind), file, syncs: Mutex::new(in_doubt) }
    }
}

/// The files that a process has open, by place.
pub(crate) type OpenedFiles = Box<[RwLock<Option<Arc<Opened>>>; FILES as usize]>;

pub(crate) fn opened_none() -> OpenedFiles {
    Box::new([const { RwLock::new(None) }; FILES as usize])
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}
