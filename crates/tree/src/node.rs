//! Reading a page. Every number is checked, because the page may be torn or damaged.

use core::cmp::Ordering;
use core::hint::select_unpredictable;

use crate::Error;
use crate::layout::*;
use crate::words::{Page, compare, copy_out, words_of};

/// The range of keys that belong on a page: from `low` on, and below `high` if it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fences<'k> {
    /// The lowest key.
    pub low: &'k [u8],
    /// The lowest key of the right sibling.
    pub high: Option<&'k [u8]>,
}

impl Fences<'_> {
    /// The fences of a page that is alone on its level.
    pub const ALL: Fences<'static> = Fences { low: &[], high: None };

    /// The length of the common beginning of all keys between them.
    pub(crate) fn prefix(&self) -> usize {
        let Some(high) = self.high else { return 0 };
        self.low.iter().zip(high).take_while(|(a, b)| a == b).count()
    }
}

/// A page to be read. All its methods return none if the page is torn or malformed.
#[derive(Debug)]
pub struct Node<'p, P: Page + ?Sized> {
    pub(crate) page: &'p P,
    pub(crate) parts: Word2,
}

impl<P: Page + ?Sized> Clone for Node<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Page + ?Sized> Copy for Node<'_, P> {}

impl<'p, P: Page + ?Sized> Node<'p, P> {
    /// Creates a view of `page`, if it is a page of a tree.
    #[inline]
    pub fn of(page: &'p P) -> Option<Self> {
        let parts = Word2::of(page.word(KIND)?)?;
        let fits = SLOTS + parts.count <= page.len() && page.len() <= LARGEST;
        fits.then_some(Self { page, parts })
    }

    /// Returns the kind of the page.
    pub fn kind(&self) -> Kind {
        self.parts.kind
    }

    /// Returns its height above the leaves.
    pub fn level(&self) -> u8 {
        self.parts.level
    }

    /// Returns how many records it has, including ghosts.
    pub fn count(&self) -> usize {
        self.parts.count
    }

    /// Returns whether its right sibling is missing in the parent. The next writer adds it.
    pub fn is_incomplete(&self) -> bool {
        self.parts.flags & INCOMPLETE != 0
    }

    /// Returns the number of the right sibling; none if it is the last page of its level.
    pub fn right(&self) -> Option<Option<u64>> {
        let right = self.page.word(RIGHT)? & (PAGE_NUMBERS - 1);
        Some((right != 0).then_some(right))
    }

    #[inline(always)]
    pub(crate) fn slot(&self, index: usize) -> Option<Slot> {
        if index >= self.parts.count {
            return None;
        }
        Some(Slot::of(self.page.word(SLOTS + index)?))
    }

    /// The position and length of a record's suffix.
    #[inline(always)]
    pub(crate) fn suffix(&self, slot: Slot) -> (usize, usize) {
        (slot.at + self.parts.kind.record_words(), slot.suffix)
    }

    /// Returns the place of `key`, or where it would be.
    ///
    /// O(log n) steps, most of which load one word.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Option<Result<usize, usize>> {
        let prefix = self.parts.prefix;
        let suffix = if prefix == 0 {
            key
        } else {
            let (low, _) = fences(self.page)?;
            let length = prefix.min(low.length);
            let front = &key[..prefix.min(key.len())];
            match compare(self.page, low.at, length, front)? {
                Ordering::Equal => &key[prefix.min(key.len())..],
                Ordering::Less => return Some(Err(self.parts.count)),
                Ordering::Greater => return Some(Err(0)),
            }
        };
        self.search_suffix(suffix)
    }

    /// Returns the place of `key`, or where it would be, if it is known to belong on this page: its
    /// beginning need not be compared.
    #[inline(always)]
    pub(crate) fn search_inside(&self, key: &[u8]) -> Option<Result<usize, usize>> {
        self.search_suffix(key.get(self.parts.prefix..)?)
    }

    /// Returns the place of the key with this suffix, or where it would be.
    #[inline]
    fn search_suffix(&self, suffix: &[u8]) -> Option<Result<usize, usize>> {
        let skip = self.skip()?;
        if skip > 0 && self.parts.count > 0 {
            let (at, length) = self.suffix(self.slot(0)?);
            let front = &suffix[..skip.min(suffix.len())];
            match compare(self.page, at, length.min(skip), front)? {
                Ordering::Equal => {}
                Ordering::Less => return Some(Err(self.parts.count)),
                Ordering::Greater => return Some(Err(0)),
            }
        }
        let wanted = head(suffix.get(skip..).unwrap_or_default());
        // Compares only heads at first. The direction is computed without a branch: a mispredicted
        // branch costs more than a step, and every second one would be.
        let (mut low, mut left) = (0, self.parts.count);
        while left > 1 {
            let half = left / 2;
            let less = self.head(low + half - 1)? < wanted;
            low = select_unpredictable(less, low + half, low);
            left -= half;
        }
        if left == 1 && self.head(low)? < wanted {
            low += 1;
        }
        if low == self.parts.count || self.head(low)? != wanted {
            return Some(Err(low));
        }
        self.search_alike(suffix, wanted, low)
    }

    /// The minimum length of the common beginning of all suffixes: the bytes behind it are in the
    /// slots.
    #[inline(always)]
    pub(crate) fn skip(&self) -> Option<usize> {
        Some((self.page.word(SKIP)? & 0xffff) as usize)
    }

    /// The part of the suffix in the slot at `index`, which is less than `count`.
    #[inline(always)]
    fn head(&self, index: usize) -> Option<u32> {
        Some((self.page.word(SLOTS + index)? >> 32) as u32)
    }

    /// Returns the place of the suffix, or where it would be, among those from `low` on that have
    /// its head.
    fn search_alike(&self, suffix: &[u8], wanted: u32, low: usize) -> Option<Result<usize, usize>> {
        // There are usually few, so the end is searched in doubling steps.
        let (mut low, mut step) = (low, 1);
        while low + step < self.parts.count && self.order(low + step, suffix, wanted)?.is_le() {
            low += step;
            step *= 2;
        }
        let mut high = self.parts.count.min(low + step);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.order(middle, suffix, wanted)? {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Some(Ok(middle)),
            }
        }
        Some(Err(low))
    }

    /// Compares the suffix at `index` to `suffix`, which has the head `wanted`.
    #[inline(always)]
    fn order(&self, index: usize, suffix: &[u8], wanted: u32) -> Option<Ordering> {
        let slot = Slot::of(self.page.word(SLOTS + index)?);
        match slot.head.cmp(&wanted) {
            Ordering::Equal => {
                let (at, length) = self.suffix(slot);
                compare(self.page, at, length, suffix)
            }
            unequal => Some(unequal),
        }
    }

    /// Returns whether `key` belongs to the right of this page, on its right sibling.
    #[inline]
    pub fn is_beyond(&self, key: &[u8]) -> Option<bool> {
        Some(self.high_to(key)?.is_some_and(Ordering::is_le))
    }

    /// Returns whether `key` is greater than the lowest key of this page, or the page is the first
    /// one.
    #[inline]
    pub(crate) fn is_above(&self, key: &[u8]) -> Option<bool> {
        let (low, _) = fences(self.page)?;
        Some(low.length == 0 || compare(self.page, low.at, low.length, key)?.is_lt())
    }

    /// Compares the upper fence, if it exists, to `key`.
    #[inline]
    pub(crate) fn high_to(&self, key: &[u8]) -> Option<Option<Ordering>> {
        match fences(self.page)?.1 {
            None => Some(None),
            Some(high) => compare(self.page, high.at, high.length, key).map(Some),
        }
    }

    /// Returns whether `key` belongs on this page.
    pub fn covers(&self, key: &[u8]) -> Option<bool> {
        let (low, _) = fences(self.page)?;
        let begun = compare(self.page, low.at, low.length, key)? != Ordering::Greater;
        Some(begun && !self.is_beyond(key)?)
    }

    /// Appends the lowest key that belongs on this page to `to`.
    pub(crate) fn low_into(&self, to: &mut Vec<u8>) -> Option<()> {
        let (low, _) = fences(self.page)?;
        copy_out(self.page, low.at, 0, low.length, to)
    }

    /// Appends the lowest key of the right sibling to `to`; returns whether it exists.
    pub(crate) fn high_into(&self, to: &mut Vec<u8>) -> Option<bool> {
        match fences(self.page)?.1 {
            None => Some(false),
            Some(high) => copy_out(self.page, high.at, 0, high.length, to).map(|()| true),
        }
    }

    /// The byte at which the lower fence begins, and with it the common beginning of all keys.
    pub(crate) fn low_at(&self) -> Option<usize> {
        let (low, _) = fences(self.page)?;
        (self.parts.prefix <= low.length).then_some(low.at * 8)
    }

    /// Returns the lowest key that belongs on this page.
    pub fn low(&self) -> Option<Vec<u8>> {
        let (low, _) = fences(self.page)?;
        self.bytes(low.at, 0, low.length)
    }

    /// Returns the lowest key of the right sibling, if it exists.
    pub fn high(&self) -> Option<Option<Vec<u8>>> {
        match fences(self.page)?.1 {
            None => Some(None),
            Some(high) => self.bytes(high.at, 0, high.length).map(Some),
        }
    }

    fn bytes(&self, at: usize, skip: usize, length: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        copy_out(self.page, at, skip, length, &mut bytes)?;
        Some(bytes)
    }

    /// Returns the key at `index`.
    pub fn key(&self, index: usize) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        self.key_into(index, &mut key)?;
        Some(key)
    }

    /// Appends the key at `index` to `to`.
    pub fn key_into(&self, index: usize, to: &mut Vec<u8>) -> Option<()> {
        let (low, _) = fences(self.page)?;
        if self.parts.prefix > low.length {
            return None;
        }
        copy_out(self.page, low.at, 0, self.parts.prefix, to)?;
        let (at, length) = self.suffix(self.slot(index)?);
        copy_out(self.page, at, 0, length, to)
    }

    /// Returns whether the record at `index` is deleted.
    pub fn is_ghost(&self, index: usize) -> Option<bool> {
        Some(self.slot(index)?.ghost)
    }

    /// Returns the last writer of the record at `index` of a leaf.
    pub fn header(&self, index: usize) -> Option<Header> {
        self.leaf()?;
        self.page.word(self.slot(index)?.at).map(Header::from_bits)
    }

    /// Returns the value at `index` of a leaf; for a ghost its last value.
    pub fn value(&self, index: usize) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.value_into(index, &mut value)?;
        Some(value)
    }

    /// Appends the value at `index` of a leaf to `to`.
    pub fn value_into(&self, index: usize, to: &mut Vec<u8>) -> Option<()> {
        let slot = self.slot(index)?;
        let (length, _) = self.lengths(slot)?;
        copy_out(self.page, slot.at + LEAF_WORDS, slot.suffix, length, to)
    }

    /// Appends the value at `index` of a leaf to `to`; returns its last writer, and whether it is
    /// deleted.
    #[inline(always)]
    pub(crate) fn record_into(&self, index: usize, to: &mut Vec<u8>) -> Option<(Header, bool)> {
        let slot = self.slot(index)?;
        let (length, _) = self.lengths(slot)?;
        copy_out(self.page, slot.at + LEAF_WORDS, slot.suffix, length, to)?;
        Some((Header::from_bits(self.page.word(slot.at)?), slot.ghost))
    }

    /// Length and capacity of a value in bytes.
    pub(crate) fn lengths(&self, slot: Slot) -> Option<(usize, usize)> {
        self.leaf()?;
        let word = self.page.word(slot.at + 1)?;
        let (length, capacity) = ((word & 0xffff) as usize, (word >> 16 & 0xffff) as usize);
        (length <= capacity).then_some((length, capacity))
    }

    fn leaf(&self) -> Option<()> {
        (self.parts.kind == Kind::Leaf).then_some(())
    }

    /// Returns the child to the right of the key at `index` of an inner page.
    pub fn child(&self, index: usize) -> Option<u64> {
        if self.parts.kind != Kind::Inner {
            return None;
        }
        Some(self.page.word(self.slot(index)?.at)? & (PAGE_NUMBERS - 1))
    }

    /// Returns the child to the left of all keys of an inner page.
    pub fn first_child(&self) -> Option<u64> {
        if self.parts.kind != Kind::Inner {
            return None;
        }
        Some(self.page.word(FIRST)? & (PAGE_NUMBERS - 1))
    }

    /// Returns the child of an inner page to which `key` belongs.
    #[inline]
    pub fn child_of(&self, key: &[u8]) -> Option<u64> {
        self.child_at(self.search(key)?)
    }

    /// Returns the child of an inner page for a key that was searched with this result.
    #[inline(always)]
    pub(crate) fn child_at(&self, place: Result<usize, usize>) -> Option<u64> {
        match place {
            Ok(index) => self.child(index),
            Err(0) => self.first_child(),
            Err(index) => self.child(index - 1),
        }
    }

    /// Words of the record in a slot.
    pub(crate) fn record_words(&self, slot: Slot) -> Option<usize> {
        Some(match self.parts.kind {
            Kind::Leaf => LEAF_WORDS + words_of(slot.suffix + self.lengths(slot)?.1),
            Kind::Inner => INNER_WORDS + words_of(slot.suffix),
        })
    }

    /// The first word of the heap.
    pub(crate) fn heap(&self) -> Option<usize> {
        let heap = (self.page.word(RIGHT)? >> 48) as usize;
        (SLOTS + self.parts.count <= heap && heap <= self.page.len()).then_some(heap)
    }

    /// Words of the heap that are unused.
    pub(crate) fn dead(&self) -> Option<usize> {
        Some((self.page.word(DEAD)? & 0xffff) as usize)
    }

    /// Returns the bytes that new records and their slots may take, after a compaction.
    pub fn room(&self) -> Option<usize> {
        Some((self.heap()? - SLOTS - self.parts.count + self.dead()?) * 8)
    }

    /// Checks the whole page.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] names the first fault.
    pub fn verify(&self) -> Result<(), Error> {
        let wrong = |what| move || Error::Malformed(what);
        if self.page.len() < SMALLEST || self.page.len() > LARGEST {
            return Err(Error::Malformed("the size of the page"));
        }
        if (self.kind() == Kind::Leaf) != (self.level() == 0) {
            return Err(Error::Malformed("a leaf is of level 0, and only a leaf is"));
        }
        let heap = self.heap().ok_or_else(wrong("the heap begins among the slots"))?;
        let (low, high) = fences(self.page).ok_or_else(wrong("the fences"))?;
        let mut used = Vec::new();
        for fence in [Some(low), high].into_iter().flatten() {
            used.push((fence.at, words_of(fence.length)));
        }
        let low = self.low().ok_or_else(wrong("the lower fence"))?;
        let high = self.high().ok_or_else(wrong("the upper fence"))?;
        let between = Fences { low: &low, high: high.as_deref() };
        if between.high.is_some_and(|high| high <= &low[..]) {
            return Err(Error::Malformed("the fences are not in order"));
        }
        if self.parts.prefix != between.prefix() {
            return Err(Error::Malformed("the prefix is not what the fences have in common"));
        }
        let skip = self.skip().ok_or_else(wrong("the skip"))?;
        let (mut before, mut alike): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        for index in 0..self.count() {
            let slot = self.slot(index).ok_or_else(wrong("a slot"))?;
            let words = self.record_words(slot).ok_or_else(wrong("a record"))?;
            used.push((slot.at, words));
            let key = self.key(index).ok_or_else(wrong("a key"))?;
            let (skipped, rest) = key[self.parts.prefix..]
                .split_at_checked(skip)
                .ok_or(Error::Malformed("a key is shorter than what all begin with"))?;
            if alike.get_or_insert_with(|| skipped.to_vec()) != skipped {
                return Err(Error::Malformed("a key does not begin as all do"));
            }
            if head(rest) != slot.head {
                return Err(Error::Malformed("a slot's head is not its key's"));
            }
            if before.is_some_and(|before| before >= key) || key < low {
                return Err(Error::Malformed("the keys are not in order"));
            }
            if high.as_ref().is_some_and(|high| &key >= high) {
                return Err(Error::Malformed("a key lies beyond the upper fence"));
            }
            before = Some(key);
        }
        used.retain(|(_, words)| *words != 0);
        used.sort_unstable();
        let mut end = heap;
        let mut sum = 0;
        for (at, words) in used {
            if at < end {
                return Err(Error::Malformed("records overlap"));
            }
            end = at + words;
            sum += words;
        }
        let dead = self.dead().ok_or_else(wrong("the dead words"))?;
        if end > self.page.len() || sum + dead != self.page.len() - heap {
            return Err(Error::Malformed("the heap's words do not add up"));
        }
        Ok(())
    }
}
