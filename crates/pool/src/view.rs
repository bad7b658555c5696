//! What a reader sees of a page: words, and whether they were of one state.
//!
//! A page is atomic words of 8 bytes, on both sides and everywhere: so a reader may meet a writer
//! and Rust calls it no race. What a reader finds may be torn. So every access is checked against
//! the page's end, none panics, and a result is worth something only when it is validated.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use latchwork_latch::Version;
use latchwork_machine::{ConstMachine, Native, Word};

use crate::FileId;
use crate::layout::Desc;

/// A page's words, perhaps torn: nothing borrowed from it leaves the closure that is given it.
pub struct PageView<'v, M: ConstMachine = Native> {
    pub(crate) words: &'v [M::AtomicU64],
}

impl<M: ConstMachine> PageView<'_, M> {
    /// How many words the page has.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// A word; none beyond the end. Word 0 is the pool's, word 1 the page's LSN.
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        // Relaxed: `validate` orders.
        Some(self.words.get(index)?.load(Relaxed))
    }

    /// So many words from `at` on; none beyond the end.
    #[inline(always)]
    pub fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        // Relaxed: as in `word`.
        Some(self.words.get(at..at.checked_add(count)?)?.iter().map(|word| word.load(Relaxed)))
    }

    /// Says that the word at `index` will be read soon.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        if let Some(word) = self.words.get(index) {
            M::prefetch(word);
        }
    }

    /// Adds so many words from `at` on to `to`, as bytes in the order of a little-endian machine;
    /// none beyond the end, `to` is then as it was.
    #[inline(always)]
    pub fn append(&self, at: usize, count: usize, to: &mut Vec<u8>) -> Option<()> {
        M::append_words(self.words.get(at..at.checked_add(count)?)?, to);
        Some(())
    }

    /// Copies words from `index` on; none beyond the end, `into` is then as it was.
    #[inline]
    pub fn copy(&self, index: usize, into: &mut [u64]) -> Option<()> {
        let from = self.words.get(index..index.checked_add(into.len())?)?;
        for (word, place) in from.iter().zip(into) {
            // Relaxed: as in `word`.
            *place = word.load(Relaxed);
        }
        Some(())
    }

    /// Copies bytes from byte `at` on, in the order of a little-endian machine; none beyond the
    /// end.
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

/// A page as a reader began to read it, to be validated later: a version, and where the words are.
///
/// It holds nothing: the page may be changed, evicted, and its frame be another page's. Then
/// [`validate`](Self::validate) says so, and what was read is to be thrown away. The memory stays
/// memory whatever happens, for frames are never unmapped.
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
    /// The page's words, perhaps torn.
    #[inline(always)]
    pub fn view(&self) -> PageView<'h, M> {
        PageView { words: self.words }
    }

    /// As [`PageView::word`].
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        self.view().word(index)
    }

    /// How many words the page has.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// The page's LSN, to be validated as its words are.
    #[inline(always)]
    pub fn lsn(&self) -> u64 {
        // Relaxed: `validate` orders.
        self.desc.lsn.load(Relaxed)
    }

    /// The file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The page's number.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// The frame that has the page, if it validates.
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// The version of the frame: another one each time that the page is changed, evicted or read.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether all that was read so far is one state of the page. Stores nothing.
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
