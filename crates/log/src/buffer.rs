//! The buffer: the log's newest bytes, in memory that all processes share.
//!
//! The byte at `lsn` lies at `(lsn - base)` modulo the buffer's size. To save memory in a small
//! store, the buffer starts with a part of its size and doubles as the log is written, up to the
//! requested size.
//!
//! | state | positions | credit | next |
//! |---|---|---|---|
//! | growing | below the size: no byte was overwritten | half of the size, see below | both |
//! | final | modulo the size | as described in `append.rs` | none |
//!
//! While the buffer grows, credit is given only for bytes below `base` + size. The buffer is
//! doubled under the latch, while every byte since `base` is at its distance from `base`. Therefore
//! no byte moves, and a reader that uses the old size finds the same place. The memory is reserved
//! first. If the system has no more memory, the current size becomes final and writing continues,
//! because rollback must never fail for lack of memory. Half of the buffer is then not credit of
//! threads that may be idle for a long time.
//!
//! Size and state are one word. Memory order: `end` passes `base` + size only after the word says
//! so, so a thread that has loaded `end` (Acquire), and then the word, has a size that fits.

use core::sync::atomic::Ordering::Release;

use latchwork_machine::{ConstMachine, Machine};
use latchwork_region::Area;

use crate::{Error, Options};

/// The bit of the size word that marks the size as final.
const FINAL: u64 = 1;

/// The size of the buffer, and whether it is final.
#[derive(Clone, Copy)]
pub(crate) struct Size(u64);

impl Size {
    /// Creates the size of a new buffer.
    pub(crate) fn first(options: &Options) -> Self {
        match options.buffer <= options.buffer_first {
            true => Self(options.buffer | FINAL),
            false => Self(options.buffer_first),
        }
    }

    /// Decodes the size word.
    pub(crate) fn of(word: u64) -> Self {
        Self(word)
    }

    /// Returns the same size, marked as final.
    pub(crate) fn made_final(self) -> Self {
        Self(self.0 | FINAL)
    }

    /// Returns twice the size, at most `most` bytes.
    pub(crate) fn doubled(self, most: u64) -> Self {
        match (self.bytes() * 2).min(most) {
            bytes if bytes == most => Self(bytes | FINAL),
            bytes => Self(bytes),
        }
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn bytes(self) -> u64 {
        self.0 & !FINAL
    }

    pub(crate) fn is_final(self) -> bool {
        self.0 & FINAL != 0
    }

    /// Returns whether `bytes` never fit, even after everything is written out.
    pub(crate) fn can_never_hold(self, bytes: u64) -> bool {
        self.is_final() && bytes > self.bytes() / 4
    }

    /// Returns how many bytes may be granted as credit, if the log ends at `end`, `used` bytes are
    /// not yet written and `all` bytes are credit.
    pub(crate) fn room(self, base: u64, (end, used, all): (u64, u64, u64)) -> u64 {
        let room = self.bytes().saturating_sub(used + all);
        match self.is_final() {
            true => room,
            false => {
                let ahead = (base + self.bytes()).saturating_sub(end + all);
                room.min(ahead).min((self.bytes() / 2).saturating_sub(all))
            }
        }
    }
}

/// The words of a range of bytes; the second part continues at the beginning of the buffer.
type Parts<'a, M> = (&'a [<M as Machine>::AtomicU64], &'a [<M as Machine>::AtomicU64]);

/// The buffer at its present size.
pub(crate) struct Buffer<'a, M: ConstMachine> {
    area: &'a Area<M>,
    at: u64,
    base: u64,
    mask: u64,
}

impl<'a, M: ConstMachine> Buffer<'a, M> {
    /// Creates the buffer that begins at word `at` of an area, with the byte at `base`.
    pub(crate) fn new(area: &'a Area<M>, at: u64, base: u64, size: Size) -> Self {
        Self { area, at, base, mask: size.bytes() / 8 - 1 }
    }

    /// Returns `count` words from `lsn` on: the words up to the end of the buffer, and the words
    /// that continue at its beginning.
    #[inline]
    pub(crate) fn parts(&self, lsn: u64, count: usize) -> Result<Parts<'a, M>, Error> {
        let (place, count) = (self.place(lsn), count as u64);
        let ahead = self.mask + 1 - place;
        if count <= ahead {
            return Ok((self.area.slice(self.at + place, count)?, &[]));
        }
        let front = self.area.slice(self.at + place, ahead)?;
        Ok((front, self.area.slice(self.at, (count - ahead).min(self.mask + 1))?))
    }

    /// Stores these words from `lsn` on.
    pub(crate) fn store(&self, lsn: u64, words: &[[u8; 8]]) -> Result<(), Error> {
        let (front, rest) = self.parts(lsn, words.len())?;
        let (first, second) = words.split_at(words.len().min(front.len()));
        // Release: see the head of `append.rs`; a reader of old bytes fences (Acquire) after them.
        M::fence(Release);
        // Relaxed, both: the caller publishes them.
        M::store_words(first, front);
        M::store_words(second, rest);
        Ok(())
    }

    /// Returns the word at `lsn`.
    pub(crate) fn word(&self, lsn: u64) -> Result<&'a M::AtomicU64, Error> {
        Ok(self.area.word(self.at + self.place(lsn))?)
    }

    #[inline]
    fn place(&self, lsn: u64) -> u64 {
        (lsn.wrapping_sub(self.base) / 8) & self.mask
    }
}
