//! Some records of one leaf, copied as they were at one moment.
//!
//! The used words of the page are copied first, which is quick, and taken apart only when they are
//! known to be of one state: so a scan costs a copy of each leaf and a few loads for each record,
//! and no allocation once the batch has grown to the size of a page.

use core::fmt;
use core::ops::Range;

use latchwork_machine::ConstMachine;
use latchwork_pool::PageView;

use crate::layout::{LEAF_WORDS, SLOTS, Slot};
use crate::node::Node;
use crate::words::Page;
use crate::{Header, Kind};

/// A record, as a [`Batch`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'b> {
    /// Its key.
    pub key: &'b [u8],
    /// Its value.
    pub value: &'b [u8],
    /// Who wrote it.
    pub header: Header,
    /// Whether it is deleted.
    pub ghost: bool,
}

/// Where a record lies among the bytes of a batch.
#[derive(Clone)]
struct At {
    key: Range<usize>,
    value: Range<usize>,
    header: Header,
    ghost: bool,
}

/// Some records of one leaf, in the order of the scan, of one state of it. To be used again for the
/// next: then it allocates nothing.
#[derive(Clone, Default)]
pub struct Batch {
    /// A page perhaps, and behind it keys, and values that were put in.
    bytes: Vec<u8>,
    /// The bytes that are the page.
    page: usize,
    /// The records of the page that were not taken yet, and the order in which they are.
    rest: Range<usize>,
    back: bool,
    rows: Vec<At>,
    next: Vec<u8>,
    more: bool,
    /// Whether it has all records from where it begins to the end of the leaf.
    whole: bool,
}

impl Batch {
    /// Forgets its records, and their bytes.
    pub fn clear(&mut self) {
        self.forget();
        self.bytes.clear();
        self.page = 0;
    }

    /// Forgets its records. The memory of a page stays one, so it need not be made one again.
    pub fn forget(&mut self) {
        self.bytes.truncate(self.page);
        self.rows.clear();
        self.rest = 0..0;
        self.more = false;
    }

    /// Whether the leaf has no record behind these, in the direction of the scan.
    pub fn is_to_the_end(&self) -> bool {
        self.whole
    }

    /// How many records it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The record at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Row<'_>> {
        let at = self.rows.get(index)?;
        Some(Row {
            key: self.slice(&at.key)?,
            value: self.slice(&at.value)?,
            header: at.header,
            ghost: at.ghost,
        })
    }

    /// The header of the record at `index`.
    #[inline]
    pub fn header(&self, index: usize) -> Option<Header> {
        Some(self.rows.get(index)?.header)
    }

    /// How many bytes of memory its records take, and may take again.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether the record at `index` is no ghost, and key and value have so many bytes together.
    #[inline]
    pub fn is_as_long(&self, index: usize, bytes: usize) -> bool {
        let at = self.rows.get(index);
        at.is_some_and(|at| at.key.len() + at.value.len() == bytes && !at.ghost)
    }

    #[inline(always)]
    fn slice(&self, range: &Range<usize>) -> Option<&[u8]> {
        self.bytes.get(range.clone())
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Where to go on: the first key forwards, the key before which to look backwards. None at the
    /// end of the tree.
    pub fn next(&self) -> Option<&[u8]> {
        self.more.then_some(&self.next)
    }

    /// Says where to go on.
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

    /// Adds a record behind the others.
    pub fn push(&mut self, row: Row<'_>) {
        let (key, value) = (self.add(row.key), self.add(row.value));
        self.rows.push(At { key, value, header: row.header, ghost: row.ghost });
    }

    /// Gives a record another value, or none.
    pub fn replace(&mut self, index: usize, value: Option<&[u8]>) {
        let range = value.map(|value| self.add(value));
        if let Some(at) = self.rows.get_mut(index) {
            at.ghost = range.is_none();
            at.value = range.unwrap_or_default();
        }
    }

    /// Forgets the records from `index` on, and that there are more.
    pub fn end_at(&mut self, index: usize) {
        self.rows.truncate(index);
        self.rest = 0..0;
        self.more = false;
    }

    /// Copies a page of an optimistic reader; what lies where nothing is used may be of an earlier
    /// page.
    pub(crate) fn copy<M: ConstMachine>(&mut self, view: &PageView<'_, M>) -> Option<()> {
        let node = Node::of(view)?;
        let (slots, heap) = (8 * (SLOTS + node.count()), 8 * node.heap()?);
        self.rows.clear();
        (self.page, self.rest, self.more) = (view.len() * 8, 0..0, false);
        self.bytes.resize(self.page, 0);
        view.bytes(0, self.bytes.get_mut(..slots)?)?;
        view.bytes(heap, self.bytes.get_mut(heap..)?)
    }

    /// Takes the records of the copied page apart from `first` on. None if it is malformed.
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
        (self.rest, self.back) = (last..count, false);
        self.take(first..last, false)
    }

    /// The same before `end`, the last one first.
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
        (self.rest, self.back) = (0..begin, true);
        self.take(begin..end, true)
    }

    /// The next records of the leaf, as it was when it was copied, not as it is now; false if
    /// all were taken, or the others were taken in the other order.
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

    /// Takes records of the page apart. A key's parts are put together in place, before its suffix,
    /// where the record's header was: a record is taken once.
    #[inline]
    fn take(&mut self, records: Range<usize>, back: bool) -> Option<()> {
        const HEADER: usize = 8 * LEAF_WORDS;
        let node = Node::of(self.bytes.get(..self.page)?)?;
        let (low, prefix, parts) = (node.low_at()?, node.parts.prefix, node.parts);
        let beginning = low..low.checked_add(prefix).filter(|end| *end <= self.page)?;
        // A store of one size, of what all keys begin with at its end.
        let short: [u8; HEADER] = *self.bytes.get(..beginning.end)?.last_chunk()?;
        if parts.kind != Kind::Leaf {
            return None;
        }
        self.rows.reserve(records.len());
        for step in 0..records.len() {
            let index = if back { records.end - 1 - step } else { records.start + step };
            let page = self.bytes.get(..self.page)?;
            let slot = Slot::of(page.word(SLOTS + index)?);
            let [header, lengths] = [page.word(slot.at)?, page.word(slot.at + 1)?];
            let (suffix, header) = (8 * slot.at + HEADER, Header::from_bits(header));
            let value = suffix + slot.suffix;
            let value = value..value + (lengths & 0xffff) as usize;
            if value.end > self.page {
                return None;
            }
            let key = if prefix <= HEADER {
                *self.bytes.get_mut(..suffix)?.last_chunk_mut()? = short;
                suffix - prefix..value.start
            } else {
                let key = self.bytes.len();
                self.bytes.extend_from_within(beginning.clone());
                self.bytes.extend_from_within(suffix..value.start);
                key..self.bytes.len()
            };
            self.rows.push(At { key, value, header, ghost: slot.ghost });
        }
        Some(())
    }
}

/// Words as bytes, as on a little-endian machine.
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
