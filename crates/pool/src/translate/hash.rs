//! A hash table for the pages of all sparse files: as large as the pool, however sparse the page
//! numbers are.
//!
//! A bucket is one line: seven entries, and the number of an overflow line. Half of an entry is a
//! check, a part of the page's hash; the other half is the frame. Pages with equal checks are
//! distinguished by the tags of their frames, which a reader loads anyway. In a table for as many
//! frames as exist, a bucket has at most four entries on average, and one in twenty has a second
//! line.
//!
//! ```text
//!  63          32 31           0
//! ┌──────────────┬──────────────┐
//! │ check        │ frame + 1    │  words 0 to 6; word 7: the next line's number, or zero
//! └──────────────┴──────────────┘
//! ```
//!
//! Invariants: a line stays in its bucket for good. The holder of the bucket's latch (one of 64)
//! changes an entry from zero to a frame, after searching the bucket for the same page; the holder
//! of that frame's latch changes it back to zero and needs no other latch. A frame's tag is the
//! page's before its entry exists and until it is cleared.
//!
//! A secret of the pool enters the hash, so that no choice of pages fills one bucket.
//!
//! Death: each change is one store. A thread that dies while it allocates a line leaves it unused:
//! 64 bytes.

use core::hash::{BuildHasher, Hasher};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::hash_map::RandomState;

use latchwork_latch::Exclusive;
use latchwork_machine::{ConstMachine, Word};

use super::Translation;
use crate::layout::{
    CHUNK, HASH_LATCHES_AT, HASH_LINES, HASH_SECRET, HASH_TABLE, SPARSE_PAGES_MAX, TAG_POISONED,
    tag,
};
use crate::point::point;
use crate::{Error, FileId, Handle, Pool};

/// Words of a line. The last one leads to an overflow line.
const LINE: u64 = 8;
/// A bucket's latch is its number modulo this.
pub(crate) const HASH_LATCHES: u64 = 64;
/// One bucket per so many possible frames, or a little more.
const SHARE: u32 = 4;
/// More lines than a bucket of any pool has; a longer chain is damaged.
const LINES_MAX: u32 = 1 << 20;

const FRAME: u64 = (1 << 32) - 1;

/// The table, for one file.
pub(crate) struct Hash<'p, M: ConstMachine> {
    pool: &'p Pool<M>,
    file: u16,
}

/// The position of a page's entry.
#[derive(Clone, Copy)]
struct Key {
    /// The number of its bucket.
    bucket: u64,
    /// The first word of its bucket.
    at: u64,
    /// The upper half of its entry.
    check: u64,
}

impl<'p, M: ConstMachine> Hash<'p, M> {
    #[inline(always)]
    pub(crate) fn of(pool: &'p Pool<M>, file: FileId) -> Self {
        Self { pool, file: file.number }
    }

    /// None if the table or the page does not exist.
    #[inline(always)]
    fn key(&self, page: u64) -> Option<Key> {
        let head = &self.pool.inner.head;
        // Acquire: synchronizes with the Release in `make_table`: the secret is set.
        let table = head.word(HASH_TABLE).ok()?.load(Acquire);
        if table == 0 || page >= SPARSE_PAGES_MAX {
            return None;
        }
        let hash = mix(tag(self.file, page) ^ head.word(HASH_SECRET).ok()?.load(Relaxed));
        let (first, bits) = (table >> 6, table & 63);
        let bucket = hash & ((1 << bits.min(29)) - 1);
        let at = (first.wrapping_sub(1) & ((1 << 40) - 1)) * CHUNK + bucket * LINE;
        Some(Key { bucket, at, check: hash & !FRAME })
    }

    /// Passes the words of a bucket to `found`, line by line, until it returns a value.
    #[inline(always)]
    fn walk<R>(
        &self,
        key: Key,
        mut found: impl FnMut(&'p M::AtomicU64) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        let mut at = key.at;
        for _ in 0..LINES_MAX {
            let line = self.pool.inner.xlat.slice(at, LINE)?;
            let (entries, next) = (&line[..7], &line[7]);
            if let Some(result) = entries.iter().find_map(&mut found) {
                return Ok(Some(result));
            }
            // Acquire: synchronizes with the Release in `lengthen` for the holder of the latch,
            // which must miss no entry.
            match next.load(Acquire) {
                0 => return Ok(None),
                next => at = ((next - 1) & ((1 << 48) - 1)) * LINE,
            }
        }
        Err(Error::Corrupt("bucket of the translation"))
    }

    /// Returns the entry if it is this page's, which its frame's tag decides, also for a
    /// half-changed page.
    fn entry_of(&self, key: Key, page: u64, entry: u64) -> Option<u64> {
        if entry & !FRAME != key.check || entry & FRAME == 0 {
            return None;
        }
        let desc = self.pool.desc((entry & FRAME) as u32 - 1).ok()?;
        // Acquire: synchronizes with the Release in `Pool::undo`: if the tag is zero or another
        // page's, this page's entry is seen as cleared.
        let found = desc.tag.load(Acquire) & !TAG_POISONED;
        (found == tag(self.file, page)).then_some(entry & FRAME)
    }

    /// Appends a line with this entry to a bucket, whose latch is held.
    fn lengthen(&self, handle: &Handle<'_, M>, key: Key, entry: u64) -> Result<(), Error> {
        let line = {
            let _alone = handle.table()?;
            self.pool.take_line()?
        };
        let xlat = &self.pool.inner.xlat;
        // Relaxed: no other thread knows the line yet.
        xlat.word((line - 1) * LINE)?.store(entry, Relaxed);
        let (mut at, mut steps) = (key.at, 0);
        loop {
            let next = xlat.word(at + 7)?;
            match next.load(Relaxed) {
                0 => {
                    point("hash.line");
                    // Release: the entry before the line.
                    next.store(line, Release);
                    return Ok(());
                }
                _ if steps == LINES_MAX => return Err(Error::Corrupt("bucket of the translation")),
                further => at = ((further - 1) & ((1 << 48) - 1)) * LINE,
            }
            steps += 1;
        }
    }
}

impl<M: ConstMachine> Translation<M> for Hash<'_, M> {
    #[inline(never)]
    fn glimpse(&self, page: u64) -> Option<u64> {
        let key = self.key(page)?;
        let found = self.walk(key, |word| {
            // Relaxed: the frame's tag decides.
            let entry = word.load(Relaxed);
            (entry & !FRAME == key.check && entry & FRAME != 0).then_some(entry & FRAME)
        });
        found.ok()?
    }

    fn entry(&self, page: u64) -> Result<u64, Error> {
        let Some(key) = self.key(page) else { return Ok(0) };
        // Acquire: the tag is at least as new as the entry.
        Ok(self.walk(key, |word| self.entry_of(key, page, word.load(Acquire)))?.unwrap_or(0))
    }

    fn put(&self, handle: &Handle<'_, M>, page: u64, frame: u32) -> Result<bool, Error> {
        let out = Error::OutOfRange { file: self.file, page, pages: SPARSE_PAGES_MAX };
        let key = self.key(page).ok_or(out)?;
        let _alone = handle.bucket(key.bucket)?;
        point("hash.latched");
        let (mut free, mut there) = (None, false);
        self.walk(key, |word| {
            // Acquire: synchronizes with the Release in `take`: the previous owner of the page has
            // released it, and its writes are on disk.
            match word.load(Acquire) {
                0 => free = free.or(Some(word)),
                entry => there |= self.entry_of(key, page, entry).is_some(),
            }
            there.then_some(())
        })?;
        if there {
            return Ok(false);
        }
        let entry = key.check | (u64::from(frame) + 1);
        match free {
            // Release: the tag before the entry.
            Some(word) => word.store(entry, Release),
            None => self.lengthen(handle, key, entry)?,
        }
        Ok(true)
    }

    fn take(&self, page: u64, frame: u32) {
        let Some(key) = self.key(page) else { return };
        let entry = key.check | (u64::from(frame) + 1);
        // Release: synchronizes with the Acquire in `put`.
        let _ = self.walk(key, |word| word.compare_exchange(entry, 0, Release, Relaxed).ok());
    }
}

impl<M: ConstMachine> Pool<M> {
    /// Creates the table, if none exists. The latch of the table of files is held.
    pub(crate) fn make_table(&self) -> Result<(), Error> {
        let (head, frames) = (&self.inner.head, self.inner.config.frames_max);
        let table = head.word(HASH_TABLE)?;
        if table.load(Relaxed) != 0 {
            return Ok(());
        }
        let buckets = u64::from(frames.div_ceil(SHARE)).next_power_of_two().max(CHUNK / LINE);
        let first = self.take_chunks(buckets * LINE / CHUNK)?;
        let secret = head.word(HASH_SECRET)?;
        // A test may have set it.
        if secret.load(Relaxed) == 0 {
            // Relaxed: the Release below publishes it.
            secret.store(RandomState::new().build_hasher().finish(), Relaxed);
        }
        point("hash.made");
        // Release: synchronizes with the Acquire in `key`.
        table.store(first << 6 | u64::from(buckets.trailing_zeros()), Release);
        Ok(())
    }

    /// Allocates a line, whose words are zero; returns its number plus one. The table's latch is
    /// held.
    fn take_line(&self) -> Result<u64, Error> {
        let lines = self.inner.head.word(HASH_LINES)?;
        let mut line = lines.load(Relaxed) & ((1 << 48) - 1);
        if line.is_multiple_of(CHUNK / LINE) {
            line = (self.take_chunks(1)? - 1) * (CHUNK / LINE);
        }
        // Release: before the line is in a bucket for the death of this thread between them.
        lines.store(line + 1, Release);
        Ok(line + 1)
    }
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Takes the latch of a bucket, which one in 64 buckets share. Its holder waits only for the
    /// table's latch.
    fn bucket(&self, bucket: u64) -> Result<Exclusive<'_, Self, M>, Error> {
        self.head_latch(HASH_LATCHES_AT + bucket % HASH_LATCHES * LINE)
    }
}

/// A bijection that spreads neighbouring values (the finalizer of MurmurHash3, Appleby 2011).
#[inline(always)]
const fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}
