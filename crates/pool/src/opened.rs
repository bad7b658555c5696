//! A file's name in a pool, and a file that this process has open.

use core::fmt;
use std::sync::{Arc, Mutex, RwLock};

use latchwork_disk::File;

use crate::Error;
use crate::layout::{FILES, PAGES_MAX, SPARSE_PAGES_MAX, files_before};

/// A file of a pool: the same in every process, until it is [removed](crate::Handle::remove_file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub(crate) number: u16,
    /// Words of a page.
    pub(crate) words: u32,
    /// Whether its pages are found through the hash table. No `bool`, whose spare values an
    /// `Option` of a snapshot would use for its none, to be looked at in each read.
    pub(crate) sparse: u8,
}

impl FileId {
    /// Its number: what errors and reports say. 256 files have a place at a time; a file that has
    /// the place of one that was removed has another number, and has it back after 126 others.
    pub fn number(self) -> u16 {
        self.number
    }

    /// Bytes of its pages.
    pub fn page_bytes(self) -> u32 {
        self.words * 8
    }

    /// How many pages it may have.
    pub fn pages_max(self) -> u64 {
        if self.is_sparse() { SPARSE_PAGES_MAX } else { PAGES_MAX }
    }

    /// Whether its pages are found through the hash table.
    #[inline(always)]
    pub fn is_sparse(self) -> bool {
        self.sparse != 0
    }

    /// The error of a page beyond `pages`.
    pub(crate) fn out_of_range(self, page: u64, pages: u64) -> Error {
        Error::OutOfRange { file: self.number, page, pages }
    }
}

/// A file that this process has open.
pub(crate) struct Opened {
    /// How many files had its place before: a file's number comes back one day.
    pub(crate) before: u32,
    pub(crate) file: Box<dyn File>,
    /// Held from a sync until its failure is told to all. The system tells a failure once for each
    /// opened file: a second thread that syncs it after that would hear of a success. So would the
    /// first one of a file that was opened after the system told another process: it is in doubt
    /// while this is true.
    pub(crate) syncs: Mutex<bool>,
}

impl Opened {
    /// The file that has this word 0 in its entry, and whether another process may have been told
    /// of a failure of it.
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
