//! Records of one leaf, copied as they were at one moment.
//!
//! The words are copied first, which is fast, and parsed only after they are known to belong to one
//! state. So a scan costs a copy and a few loads per record, and allocates nothing once the batch
//! has grown to the size of a page. A scan that wants a few records copies only those, each to its
//! position on the page. A batch remembers how many records the last scan passed, because the next
//! one will want about as many.
//!
//! A scan that looks at each record once, in order, and keeps none [passes](Batch::pass) records
//! where they are on the copied page: only keys are written.

use core::fmt;
use core::ops::Range;

use latchwork_machine::ConstMachine;
use latchwork_pool::PageView;

use crate::edit::malformed;
use crate::layout::{LEAF_WORDS, LINE_WORDS, SLOTS, Slot, fences};
use crate::node::Node;
use crate::pass::{Each, HEADER, Pass};
use crate::words::{Page, words_of};
use crate::{Error, Header, Kind};

/// A record in a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'b> {
    /// Its key.
    pub key: &'b [u8],
    /// Its value.
    pub value: &'b [u8],
    /// The last writer.
    pub header: Header,
    /// Whether it is deleted.
    pub ghost: bool,
}

/// The position of a record in the bytes of a batch.
#[derive(Clone, Default)]
struct At {
    key: Range<usize>,
    value: Range<usize>,
    header: Header,
    ghost: bool,
}

/// Records of one leaf in the order of the scan, of one state of the leaf. A batch that is reused
/// does not allocate.
#[derive(Clone, Default)]
pub struct Batch {
    /// Possibly a page, and behind it keys and values that were put in.
    bytes: Vec<u8>,
    /// The length of the page in bytes.
    page: usize,
    /// The records of the page that were not requested yet, and their order.
    rest: Range<usize>,
    back: bool,
    /// Requested records that stay on the page, to be passed.
    to_pass: bool,
    left: Range<usize>,
    /// The key of the record that is being passed.
    key: Vec<u8>,
    rows: Vec<At>,
    next: Vec<u8>,
    more: bool,
    /// Whether it has all records from its beginning to the end of the leaf.
    whole: bool,
    /// Whether the page has all of its records.
    all: bool,
    /// The last LSN of its records, and the most bytes of key and value of one record.
    newest: u64,
    longest: usize,
    /// How many records this scan has passed, and the one before; none if unknown.
    passed: usize,
    before: usize,
}

/// How many records a scan wants by default.
const FEW: usize = 16;

/// More records than a leaf usually has.
const MANY: usize = 256;

impl Batch {
    /// Removes its records and their bytes.
    pub fn clear(&mut self) {
        self.forget();
        self.bytes.clear();
        self.page = 0;
    }

    /// Removes its records. The memory of a page is kept, so the next page needs no initialization.
    pub fn forget(&mut self) {
        self.bytes.truncate(self.page);
        self.rows.clear();
        (self.rest, self.left) = (0..0, 0..0);
        (self.more, self.to_pass) = (false, false);
        (self.newest, self.longest) = (0, 0);
        (self.before, self.passed) = (self.passed, 0);
    }

    /// Returns whether the leaf has no record behind these, in the direction of the scan.
    pub fn is_to_the_end(&self) -> bool {
        self.whole
    }

    /// Returns how many records a scan that has passed `passed` should request: those that the last
    /// scan passed and this one has not yet, or twice as many if it continues behind them.
    pub fn wanted(&self, passed: usize) -> usize {
        let before = if self.before == 0 { FEW } else { self.before };
        before.checked_sub(passed).filter(|left| *left > 0).unwrap_or(passed.saturating_mul(2))
    }

    /// Records that a scan has passed `passed` records in total. The next scan is expected to want
    /// as many.
    pub fn set_passed(&mut self, passed: usize) {
        self.passed = passed.min(MANY);
    }

    /// Makes the next scans leave their records to be [passed](Self::pass), as long as they begin
    /// with a record that is no ghost.
    pub fn set_to_pass(&mut self) {
        self.to_pass = true;
    }

    /// Returns whether it has records that must be passed or taken; its other methods do not
    /// include them before.
    #[inline]
    pub fn is_to_pass(&self) -> bool {
        !self.left.is_empty()
    }

    /// Returns the key of the last record that will be passed.
    pub fn last_to_pass(&mut self) -> Option<&[u8]> {
        let node = Node::of(self.bytes.get(..self.page)?)?;
        let last = if self.back { self.left.start } else { self.left.end.checked_sub(1)? };
        self.key.clear();
        node.key_into(last, &mut self.key)?;
        Some(&self.key)
    }

    /// Takes the records that were left to be passed; false if there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`].
    pub fn take_left(&mut self) -> Result<bool, Error> {
        let left = core::mem::take(&mut self.left);
        if left.is_empty() {
            return Ok(false);
        }
        self.take(left, self.back).map(|()| true).ok_or_else(malformed)
    }

    /// Calls `each` for the records that were left to be passed, until it returns `false`, or until
    /// a record is a ghost, was not written before `low`, or has `max` bytes of key and value. Adds
    /// the number of passed records to `passed`. Returns whether `each` would continue.
    ///
    /// # Errors
    ///
    /// The error that `each` returns.
    pub fn pass<E>(
        &mut self,
        (low, max): (u64, usize),
        passed: &mut usize,
        each: &mut Each<'_, E>,
    ) -> Result<bool, E> {
        let (mut key, mut left) = (core::mem::take(&mut self.key), self.left.clone());
        let Some((page, slots, beginning)) = self.slots_left() else { return Ok(true) };
        key.clear();
        key.extend_from_slice(beginning);
        let mut pass = Pass { page, prefix: beginning.len(), low, max, key: &mut key };
        let goes_on = match self.back {
            false => pass.all(slots.iter(), || left.start += 1, each),
            true => pass.all(slots.iter().rev(), || left.end -= 1, each),
        };
        *passed += self.left.len() - left.len();
        (self.key, self.left) = (key, left);
        goes_on
    }

    /// The page, the slots of the records to be passed, and the common beginning of their keys.
    #[allow(clippy::type_complexity, reason = "three parts of one page")]
    fn slots_left(&self) -> Option<(&[u8], &[[u8; 8]], &[u8])> {
        let page = self.bytes.get(..self.page)?;
        let node = Node::of(page)?;
        let slots = page.as_chunks().0.get(SLOTS..)?.get(self.left.clone())?;
        let low = node.low_at()?;
        let beginning = page.get(low..low.checked_add(node.parts.prefix)?)?;
        (node.kind() == Kind::Leaf).then_some((page, slots, beginning))
    }

    /// Returns how many records it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the record at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Row<'_>> {
        self.row(self.rows.get(index)?)
    }

    #[inline(always)]
    fn row(&self, at: &At) -> Option<Row<'_>> {
        let key = self.bytes.get(at.key.clone())?;
        let value = self.bytes.get(at.value.clone())?;
        Some(Row { key, value, header: at.header, ghost: at.ghost })
    }

    /// Returns the last LSN of its records, or a later one.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns the most bytes of key and value of one of its records, or more.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the first record from `index` on for whose header and bytes of key and value `is`
    /// returns true.
    #[inline]
    pub fn position(&self, index: usize, is: impl Fn(Header, usize) -> bool) -> Option<usize> {
        let rows = self.rows.get(index..)?;
        let found = rows.iter().position(|at| is(at.header, at.key.len() + at.value.len()))?;
        Some(index + found)
    }

    /// Returns the bytes of memory that its records take and that a reuse will take again.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns whether the record at `index` is no ghost and has `bytes` bytes of key and value.
    #[inline]
    pub fn is_as_long(&self, index: usize, bytes: usize) -> bool {
        let at = self.rows.get(index);
        at.is_some_and(|at| at.key.len() + at.value.len() == bytes && !at.ghost)
    }

    /// Returns all records.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().filter_map(|at| self.row(at))
    }

    /// Returns where a scan continues: the first key forwards, or the key before which to continue
    /// backwards. None at the end of the tree.
    pub fn next(&self) -> Option<&[u8]> {
        self.more.then_some(&self.next)
    }

    /// Sets where a scan continues.
    pub fn set_next(&mut self, next: Option<&[u8]>) {
        self.more = next.is_some();
        self.rest = 0..0;
        self.next.clear();
        self.next.extend_from_slice(next.unwrap_or_default());
    }

    fn add(&mut self, bytes: &[u8]) -> Range<usize> {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        begin..self.bytes.len()
    }

    /// Appends a record.
    pub fn push(&mut self, row: Row<'_>) {
        self.newest = self.newest.max(row.header.lsn());
        self.longest = self.longest.max(row.key.len() + row.value.len());
        let (key, value) = (self.add(row.key), self.add(row.value));
        self.rows.push(At { key, value, header: row.header, ghost: row.ghost });
    }

    /// Replaces the value of a record, or makes it a ghost.
    pub fn replace(&mut self, index: usize, value: Option<&[u8]>) {
        let range = value.map(|value| self.add(value));
        if let Some(at) = self.rows.get_mut(index) {
            at.ghost = range.is_none();
            at.value = range.unwrap_or_default();
        }
    }

    /// Removes the records from `index` on, and that more records follow.
    pub fn end_at(&mut self, index: usize) {
        self.rows.truncate(index);
        self.rest = 0..0;
        self.more = false;
    }

    /// Removes the records after `index`: a scan continues with them.
    pub fn stop_behind(&mut self, index: usize, back: bool) {
        if index + 1 < self.rows.len() {
            let next = if back { index } else { index + 1 };
            let key = self.get(next).map(|row| row.key.to_vec());
            self.end_at(index + 1);
            self.set_next(key.as_deref());
        }
    }

    /// Copies a page of an optimistic reader, or the part that a scan of `limit` records from
    /// `place` needs. Other bytes may be of an earlier page.
    pub(crate) fn copy<M: ConstMachine>(
        &mut self,
        view: &PageView<'_, M>,
        place: usize,
        limit: usize,
        back: bool,
    ) -> Option<()> {
        let node = Node::of(view)?;
        self.rows.clear();
        (self.page, self.rest, self.left) = (view.len() * 8, 0..0, 0..0);
        self.more = false;
        self.bytes.resize(self.page, 0);
        let wanted = match back {
            // Including the next record, at which the scan continues.
            false => place..place.saturating_add(limit).saturating_add(1).min(node.count()),
            true => place.saturating_sub(limit)..place,
        };
        self.all = 3 * wanted.len() > node.count();
        if self.all {
            let (slots, heap) = (8 * (SLOTS + node.count()), 8 * node.heap()?);
            view.bytes(0, self.bytes.get_mut(..slots)?)?;
            return view.bytes(heap, self.bytes.get_mut(heap..)?);
        }
        self.copy_words(view, 0, SLOTS)?;
        let (low, high) = fences(view)?;
        for fence in [Some(low), high].into_iter().flatten() {
            self.copy_words(view, fence.at, words_of(fence.length))?;
        }
        self.copy_words(view, SLOTS + wanted.start, wanted.len())?;
        // The slots give the positions of all records, which are rarely in the processor's cache.
        // Loading them here lets it fetch the records in parallel.
        for index in wanted.clone() {
            let slot = node.slot(index)?;
            view.prefetch(slot.at);
            view.prefetch(slot.at + LINE_WORDS);
        }
        for index in wanted {
            let slot = node.slot(index)?;
            let (value, _) = node.lengths(slot)?;
            self.copy_words(view, slot.at, LEAF_WORDS + words_of(slot.suffix + value))?;
        }
        Some(())
    }

    #[inline(always)]
    fn copy_words<M: ConstMachine>(
        &mut self,
        view: &PageView<'_, M>,
        at: usize,
        count: usize,
    ) -> Option<()> {
        view.bytes(8 * at, self.bytes.get_mut(8 * at..8 * (at + count))?)
    }

    /// Parses the records of the copied page from `first` on. None if it is malformed.
    pub(crate) fn forwards(&mut self, first: usize, limit: usize) -> Option<()> {
        let node = Node::of(self.bytes.get(..self.page)?)?;
        let count = node.count();
        let last = count.min(first.saturating_add(limit));
        self.next.clear();
        self.whole = last == count;
        self.more = match last < count {
            true => node.key_into(last, &mut self.next).map(|()| true)?,
            false => node.high_into(&mut self.next)?,
        };
        (self.rest, self.back) = (if self.all { last..count } else { 0..0 }, false);
        self.leave_or_take(first..last)
    }

    /// Parses the records before `end`, the last one first.
    pub(crate) fn backwards(&mut self, end: usize, limit: usize) -> Option<()> {
        let node = Node::of(self.bytes.get(..self.page)?)?;
        let begin = end.saturating_sub(limit);
        self.next.clear();
        self.whole = begin == 0;
        match begin > 0 {
            true => node.key_into(begin, &mut self.next)?,
            false => node.low_into(&mut self.next)?,
        }
        self.more = !self.next.is_empty();
        (self.rest, self.back) = (0..if self.all { begin } else { 0 }, true);
        self.leave_or_take(begin..end)
    }

    fn leave_or_take(&mut self, records: Range<usize>) -> Option<()> {
        if self.to_pass && !records.is_empty() {
            let first = if self.back { records.end - 1 } else { records.start };
            if !Node::of(self.bytes.get(..self.page)?)?.slot(first)?.ghost {
                self.left = records;
                return Some(());
            }
        }
        self.take(records, self.back)
    }

    /// Parses the next records of the copied leaf; false if all were taken, or others were taken in
    /// the other order.
    pub fn go_on(&mut self, back: bool, limit: usize) -> bool {
        let Range { start, end } = self.rest;
        if start >= end || back != self.back {
            return false;
        }
        self.rows.clear();
        self.bytes.truncate(self.page);
        let taken = if back { self.backwards(end, limit) } else { self.forwards(start, limit) };
        taken.is_some()
    }

    /// Parses records of the page. A key is assembled in place, before its suffix, over the
    /// record's header, so a record can be taken only once.
    #[inline]
    fn take(&mut self, records: Range<usize>, back: bool) -> Option<()> {
        let node = Node::of(self.bytes.get(..self.page)?)?;
        let (low, prefix, parts) = (node.low_at()?, node.parts.prefix, node.parts);
        let beginning = low..low.checked_add(prefix).filter(|end| *end <= self.page)?;
        // A store of constant size, with the common beginning of all keys at its end.
        let short: [u8; HEADER] = *self.bytes.get(..beginning.end)?.last_chunk()?;
        if parts.kind != Kind::Leaf {
            return None;
        }
        // The slots are followed by the records that they lead to.
        let begin = 8 * (SLOTS + parts.count);
        let (slots, heap) = self.bytes.get_mut(..self.page)?.split_at_mut_checked(begin)?;
        let slots = slots.as_chunks().0.get(SLOTS..)?.get(records)?;
        let mut heap =
            Heap { bytes: heap, begin, prefix, short, newest: 0, longest: 0, is_malformed: false };
        match back {
            false => self.rows.extend(slots.iter().map(|slot| heap.take(slot))),
            true => self.rows.extend(slots.iter().rev().map(|slot| heap.take(slot))),
        }
        if heap.is_malformed {
            return None;
        }
        (self.newest, self.longest) = (heap.newest << 4, heap.longest + prefix);
        if prefix > HEADER { self.join(beginning) } else { Some(()) }
    }

    /// Assembles keys behind the page if their common beginning is longer than the record's header.
    fn join(&mut self, beginning: Range<usize>) -> Option<()> {
        let (prefix, begin) = (beginning.len(), self.bytes.len());
        let suffixes: usize = self.rows.iter().map(|at| at.key.len()).sum();
        // Stores of constant size exceed the end of short data and of the last key.
        self.bytes.resize(begin + self.rows.len() * prefix + suffixes + LONG, 0);
        let (page, keys) = self.bytes.split_at_mut(begin);
        let beginning = page.get(beginning)?;
        let mut long = [0; LONG];
        let is_short = long.get_mut(..prefix).map(|to| to.copy_from_slice(beginning)).is_some();
        let mut end = 0;
        for at in &mut self.rows {
            let (from, length) = (at.key.start, at.key.len());
            let key = keys.get_mut(end..)?;
            match (is_short, key.first_chunk_mut()) {
                (true, Some(to)) => *to = long,
                _ => key.get_mut(..prefix)?.copy_from_slice(beginning),
            }
            let suffix = key.get_mut(prefix..)?;
            match (page.get(from..)?.first_chunk::<HEADER>(), suffix.first_chunk_mut()) {
                (Some(short), Some(to)) if length <= HEADER => *to = *short,
                _ => suffix.get_mut(..length)?.copy_from_slice(page.get(from..from + length)?),
            }
            at.key = begin + end..begin + end + prefix + length;
            end += prefix + length;
        }
        Some(())
    }
}

/// Usual upper bound of the common beginning of a page's keys, in bytes.
const LONG: usize = 48;

/// The records of a page that is being parsed, and their common values.
struct Heap<'b> {
    bytes: &'b mut [u8],
    /// The byte of the page at which they begin.
    begin: usize,
    /// The length of the keys' common beginning, and that beginning, at the end of the array, if it
    /// fits.
    prefix: usize,
    short: [u8; HEADER],
    /// The last position in a record's header, in units of 16 bytes, and the most bytes of suffix
    /// and value.
    newest: u64,
    longest: usize,
    is_malformed: bool,
}

impl Heap<'_> {
    #[inline(always)]
    fn take(&mut self, slot: &[u8; 8]) -> At {
        let at = self.record(Slot::of(u64::from_le_bytes(*slot)));
        self.is_malformed |= at.is_none();
        at.unwrap_or_default()
    }

    #[inline(always)]
    fn record(&mut self, slot: Slot) -> Option<At> {
        let record = self.bytes.get_mut((8 * slot.at).checked_sub(self.begin)?..)?;
        let (head, rest) = record.split_first_chunk_mut::<HEADER>()?;
        let [first, second] = *head.as_chunks::<8>().0 else { return None };
        let header = Header::from_bits(u64::from_le_bytes(first));
        let length = usize::from(u64::from_le_bytes(second) as u16);
        let bytes = slot.suffix + length;
        if bytes > rest.len() {
            return None;
        }
        let in_place = if self.prefix <= HEADER {
            *head = self.short;
            self.prefix
        } else {
            0
        };
        self.newest = self.newest.max(header.lsn() >> 4);
        self.longest = self.longest.max(bytes);
        let suffix = 8 * slot.at + HEADER;
        let value = suffix + slot.suffix;
        let (key, value) = (suffix - in_place..value, value..value + length);
        Some(At { key, value, header, ghost: slot.ghost })
    }
}

/// Words as little-endian bytes.
impl Page for [u8] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u8]>::len(self) / 8
    }
    #[inline(always)]
    fn word(&self, index: usize) -> Option<u64> {
        let bytes = self.get(index * 8..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }
    #[inline(always)]
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        let bytes = self.get(at.checked_mul(8)?..at.checked_add(count)?.checked_mul(8)?)?;
        Some(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("rows", &self.iter().count())
            .field("more", &self.more)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_asks_for_what_the_one_before_passed() {
        let mut batch = Batch::default();
        assert_eq!((batch.wanted(0), batch.wanted(FEW), batch.wanted(60)), (FEW, 2 * FEW, 120));
        batch.set_passed(10);
        assert_eq!(batch.wanted(0), FEW, "this scan does not know its own end");
        batch.forget();
        assert_eq!((batch.wanted(0), batch.wanted(7), batch.wanted(10)), (10, 3, 20));
        // A scan of the whole table must not make the next one request a leaf as if it were one.
        batch.set_passed(1 << 20);
        batch.forget();
        assert_eq!((batch.wanted(0), batch.wanted(usize::MAX)), (MANY, usize::MAX));
        // A scan that passed nothing is not counted.
        batch.forget();
        assert_eq!(batch.wanted(0), FEW);
    }
}
