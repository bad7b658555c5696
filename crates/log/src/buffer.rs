//! The buffer: the log's newest bytes, in memory that all processes share.
//!
//! The byte at `lsn` lies at `(lsn - base)` modulo the buffer's size. A small store takes little
//! memory, so the buffer begins with a part of its size and doubles as the log is written, until it
//! has the size that was asked for.
//!
//! | state | positions | credit | next |
//! |---|---|---|---|
//! | growing | below the size: nothing was written over | half of the size, see below | both |
//! | final | modulo the size | as `append.rs` says | none |
//!
//! While it grows, credit is given only for bytes below `base` + size. It is doubled under the
//! latch, while every byte since `base` is at its distance from `base`: so no byte moves, and a
//! reader that uses the old size finds the same place. Memory is set aside before. Where the system
//! has no more, the size that there is becomes final, and writing goes on: undoing must never fail
//! for want of memory. Half of it is then not credit of threads that may do nothing for long.
//!
//! Size and state are one word. Memory order: `end` passes `base` + size only after the word says
//! so, so a thread that has loaded `end` (Acquire), and then the word, has a size that fits.

use latchwork_machine::{ConstMachine, Machine};
use latchwork_region::Area;

use crate::{Error, Options};

/// In the word that says the buffer's size: it is final.
const FINAL: u64 = 1;

/// The size that the buffer has, and whether it stays so.
#[derive(Clone, Copy)]
pub(crate) struct Size(u64);

impl Size {
    /// Of a new buffer.
    pub(crate) fn first(options: &Options) -> Self {
        match options.buffer <= options.buffer_first {
            true => Self(options.buffer | FINAL),
            false => Self(options.buffer_first),
        }
    }

    /// As the word that says it.
    pub(crate) fn of(word: u64) -> Self {
        Self(word)
    }

    /// The same, and it stays so.
    pub(crate) fn made_final(self) -> Self {
        Self(self.0 | FINAL)
    }

    /// As twice as large a buffer has it, of `most` bytes at most.
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

    /// Whether so many bytes have no room in it, whatever is written out.
    pub(crate) fn can_never_hold(self, bytes: u64) -> bool {
        self.is_final() && bytes > self.bytes() / 4
    }

    /// How many bytes may be given as credit, where the log ends at `end`, `used` bytes are not
    /// written yet and `all` are credit.
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

/// The words of a run of bytes, which may go on at the beginning of the buffer.
type Parts<'a, M> = (&'a [<M as Machine>::AtomicU64], &'a [<M as Machine>::AtomicU64]);

/// The buffer as it is now.
pub(crate) struct Buffer<'a, M: ConstMachine> {
    area: &'a Area<M>,
    at: u64,
    base: u64,
    mask: u64,
}

impl<'a, M: ConstMachine> Buffer<'a, M> {
    /// The buffer that begins at word `at` of an area, with the byte at `base`.
    pub(crate) fn new(area: &'a Area<M>, at: u64, base: u64, size: Size) -> Self {
        Self { area, at, base, mask: size.bytes() / 8 - 1 }
    }

    /// The words from `lsn` on, `count` of them: those up to the end of the buffer, and those that
    /// go on at its beginning.
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

    /// The word at `lsn`.
    pub(crate) fn word(&self, lsn: u64) -> Result<&'a M::AtomicU64, Error> {
        Ok(self.area.word(self.at + self.place(lsn))?)
    }

    #[inline]
    fn place(&self, lsn: u64) -> u64 {
        (lsn.wrapping_sub(self.base) / 8) & self.mask
    }
}
