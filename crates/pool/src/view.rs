//! A page as a reader sees it: words that may be torn, until they are validated.
//!
//! A page consists of atomic words of 8 bytes in all accesses, so a reader that meets a writer
//! causes no race in Rust's sense. The words may be torn. So every access is checked against the
//! page's end, none panics, and a result is valid only after validation.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use latchwork_latch::Version;
use latchwork_machine::{ConstMachine, Native, Word};

use crate::FileId;
use crate::layout::Desc;

/// A page's words, possibly torn. Nothing borrowed from it leaves the closure that receives it.
pub struct PageView<'v, M: ConstMachine = Native> {
    pub(crate) words: &'v [M::AtomicU64],
}

impl<M: ConstMachine> PageView<'_, M> {
    /// Returns how many words the page has.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns a word; none beyond the end. Word 0 belongs to the pool, word 1 is the page's LSN.
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        // Relaxed: `validate` orders.
        Some(self.words.get(index)?.load(Relaxed))
    }

    /// Returns `count` words from `at` on; none beyond the end.
    #[inline(always)]
    pub fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        // Relaxed: as in `word`.
        Some(self.words.get(at..at.checked_add(count)?)?.iter().map(|word| word.load(Relaxed)))
    }

    /// Prefetches the word at `index`.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        if let Some(word) = self.words.get(index) {
            M::prefetch(word);
        }
    }

    /// Appends `count` words from `at` on to `to`, as little-endian bytes; none beyond the end, and
    /// `to` is then unchanged.
    #[inline(always)]
    pub fn append(&self, at: usize, count: usize, to: &mut Vec<u8>) -> Option<()> {
        M::append_words(self.words.get(at..at.checked_add(count)?)?, to);
        Some(())
    }

    /// Copies words from `index` on; none beyond the end, and `into` is then unchanged.
    #[inline]
    pub fn copy(&self, index: usize, into: &mut [u64]) -> Option<()> {
        let from = self.words.get(index..index.checked_add(into.len())?)?;
        for (word, place) in from.iter().zip(into) {
            // Relaxed: as in `word`.
            *place = word.load(Relaxed);
        }
        Some(())
    }

    /// Copies bytes from byte `at` on, in little-endian order; none beyond the end.
    #[inline]
    pub fn bytes(&self, at: usize, into: &mut [u8]) -> Option<()> {
        if at.checked_add(into.len())? > self.words.len() * 8 {
            return None;
        }
        let (mut at, mut rest) = (at, into);
        if at.is_multiple_of(8) {
            let (words, end) = rest.as_chunks_mut();
            M::copy_words(self.words.get(at / 8..)?, words);
            (at, rest) = (at + words.len() * 8, end);
        }
        while !rest.is_empty() {
            let word = self.word(at / 8)?.to_le_bytes();
            let part = &word[at % 8..];
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len();
            rest = later;
        }
        Some(())
    }
}

impl<M: ConstMachine> fmt::Debug for PageView<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageView({} words)", self.words.len())
    }
}

/// A page that a reader has begun to read, to be validated later: a version, and the address of the
/// words.
///
/// It holds no latch: the page may be changed or evicted, and its frame may get another page. Then
/// [`validate`](Self::validate) returns false, and what was read must be discarded. The memory
/// stays valid in any case, because frames are never unmapped.
pub struct Snapshot<'h, M: ConstMachine = Native> {
    pub(crate) words: &'h [M::AtomicU64],
    pub(crate) desc: &'h Desc<M>,
    pub(crate) version: Version,
    pub(crate) file: FileId,
    pub(crate) page: u64,
    pub(crate) frame: u32,
}

impl<M: ConstMachine> Clone for Snapshot<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for Snapshot<'_, M> {}

impl<'h, M: ConstMachine> Snapshot<'h, M> {
    /// Returns the page's words, possibly torn.
    #[inline(always)]
    pub fn view(&self) -> PageView<'h, M> {
        PageView { words: self.words }
    }

    /// Returns a word, like [`PageView::word`].
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        self.view().word(index)
    }

    /// Returns how many words the page has.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the page's LSN, which must be validated like its words.
    #[inline(always)]
    pub fn lsn(&self) -> u64 {
        // Relaxed: `validate` orders.
        self.desc.lsn.load(Relaxed)
    }

    /// Returns the file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Returns the page's number.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Returns the frame that has the page, if it validates.
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// Returns the frame's version, which changes whenever the page is changed, evicted or read
    /// from disk.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns whether everything that was read so far belongs to one state of the page. Stores
    /// nothing.
    #[inline(always)]
    pub fn validate(&self) -> bool {
        self.desc.latch.validate(self.version)
    }
}

impl<M: ConstMachine> fmt::Debug for Snapshot<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("file", &self.file.number)
            .field("page", &self.page)
            .field("frame", &self.frame)
            .field("version", &self.version.get())
            .finish()
    }
}
