//! Changing a page that one thread holds exclusively.
//!
//! All reasons for which an intact page may refuse a change are found before a record is changed.
//! After such an error the page has its content, possibly compacted. Damage may be found in the
//! middle of a change, so a thread tries a change before it is logged (`held`), and a half-changed
//! page is poisoned. Optimistic readers may see any words of a change; they validate afterwards.
//!
//! | operation | words written | can find the page full |
//! |---|---|---|
//! | [`insert`] | the record, the slots behind it, two words of the header | yes |
//! | [`replace`], value within its capacity | the record | no |
//! | [`replace`], longer | as a removal and an insert | yes |
//! | [`update`] | the differing part of a value; as [`replace`] if the length changes | yes |
//! | [`set_ghost`] | a slot and the record's header | no |
//! | [`remove`] | the slots behind it, two words of the header | no |
//! | [`clear`], [`compact`] | all | no |

use crate::Error;
use crate::difference::Difference;
use crate::layout::*;
use crate::node::{Fences, Node};
use crate::words::{Page, PageMut, copy_in, copy_out, has, words_of};

/// A record outside its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) ghost: bool,
    /// The header of a leaf's record, or the child of an inner page's.
    pub(crate) first: u64,
    /// The value of a leaf's record.
    pub(crate) value: Vec<u8>,
    pub(crate) capacity: usize,
}

/// Created where it is needed: an error created in advance would be dropped by every call.
#[cold]
pub(crate) fn malformed() -> Error {
    Error::Malformed("a number leads out of the page")
}

#[cold]
pub(crate) fn no_page() -> Error {
    Error::Malformed("not a page of a tree")
}

fn node<P: PageMut + ?Sized>(page: &P, kind: Kind) -> Result<Node<'_, P>, Error> {
    let node = Node::of(page).ok_or_else(no_page)?;
    if node.kind() == kind { Ok(node) } else { Err(Error::Malformed("a page of another kind")) }
}

/// Formats the words as an empty page, except the first two, which belong to the pool.
///
/// # Errors
///
/// [`Error::Malformed`] if the page size is invalid; [`Error::KeyTooLong`] for a fence.
pub fn format<P: PageMut + ?Sized>(
    page: &mut P,
    kind: Kind,
    level: u8,
    fences: Fences<'_>,
    right: u64,
) -> Result<(), Error> {
    let words = page.len();
    if !(SMALLEST..=LARGEST).contains(&words) || (kind == Kind::Leaf) != (level == 0) {
        return Err(Error::Malformed("the size or the level of the page"));
    }
    let limit = Limits::of(words).key;
    for fence in [Some(fences.low), fences.high].into_iter().flatten() {
        if fence.len() > limit {
            return Err(Error::KeyTooLong { length: fence.len(), limit });
        }
    }
    let mut heap = words;
    let mut place = |bytes: &[u8], page: &mut P| {
        heap -= words_of(bytes.len());
        copy_in(page, heap, 0, bytes);
        heap
    };
    let low = place(fences.low, page);
    let high = fences.high.map(|high| (place(high, page), high.len()));
    let (high, high_bytes) = high.unwrap_or((0, NO_FENCE));
    let ends = [low, fences.low.len(), high, high_bytes];
    let ends = ends.iter().enumerate().fold(0, |word, (at, end)| word | (*end as u64) << (16 * at));
    let parts = Word2 { kind, level, flags: 0, count: 0, prefix: fences.prefix() };
    page.set(KIND, parts.word());
    page.set(RIGHT, right & (PAGE_NUMBERS - 1) | (heap as u64) << 48);
    page.set(FENCES, ends);
    (DEAD..SLOTS).for_each(|at| page.set(at, 0));
    Ok(())
}

fn set_parts<P: PageMut + ?Sized>(page: &mut P, parts: Word2) {
    page.set(KIND, parts.word());
}

fn set_heap<P: PageMut + ?Sized>(page: &mut P, heap: usize) {
    let right = page.word(RIGHT).unwrap_or(0) & (PAGE_NUMBERS - 1);
    page.set(RIGHT, right | (heap as u64) << 48);
}

fn add_dead<P: PageMut + ?Sized>(page: &mut P, words: usize) {
    // Larger values occur only in damaged memory; they must not reach the changes.
    let word = page.word(DEAD).unwrap_or(0);
    page.set(DEAD, word & !0xffff | ((word & 0xffff) + words as u64).min(0xffff));
}

/// Sets how often the page has changed since it was logged whole.
pub(crate) fn set_changes<P: PageMut + ?Sized>(page: &mut P, changes: u64) {
    let dead = page.word(DEAD).unwrap_or(0) & 0xffff;
    page.set(DEAD, dead | changes.min(0xffff) << 16);
}

/// Sets the number of the right sibling, zero for none.
pub fn set_right<P: PageMut + ?Sized>(page: &mut P, right: u64) -> Result<(), Error> {
    let heap = Node::of(page).and_then(|node| node.heap()).ok_or_else(malformed)?;
    page.set(RIGHT, right & (PAGE_NUMBERS - 1) | (heap as u64) << 48);
    Ok(())
}

/// Sets whether the right sibling is missing in the parent.
pub fn set_incomplete<P: PageMut + ?Sized>(page: &mut P, incomplete: bool) -> Result<(), Error> {
    let mut parts = Node::of(page).ok_or_else(malformed)?.parts;
    parts.flags = parts.flags & !INCOMPLETE | if incomplete { INCOMPLETE } else { 0 };
    set_parts(page, parts);
    Ok(())
}

/// Sets the child to the left of all keys of an inner page.
pub fn set_first_child<P: PageMut + ?Sized>(page: &mut P, child: u64) -> Result<(), Error> {
    node(page, Kind::Inner)?;
    page.set(FIRST, child & (PAGE_NUMBERS - 1));
    Ok(())
}

/// Inserts a record into a leaf. A ghost of this key becomes the record.
///
/// # Errors
///
/// [`Error::Exists`] if the key exists and is no ghost, [`Error::Full`], [`Error::OutOfRange`] if
/// the key belongs on another page, [`Error::KeyTooLong`], [`Error::RecordTooLong`],
/// [`Error::Malformed`].
pub fn insert<P: PageMut + ?Sized>(
    page: &mut P,
    key: &[u8],
    value: &[u8],
    header: Header,
) -> Result<(), Error> {
    let view = node(page, Kind::Leaf)?;
    check_key(&view, key)?;
    let place = view.search(key).ok_or_else(malformed)?;
    insert_at(page, place, key, value, header)
}

/// [`insert`] at the place where the key was searched.
pub(crate) fn insert_at<P: PageMut + ?Sized>(
    page: &mut P,
    place: Result<usize, usize>,
    key: &[u8],
    value: &[u8],
    header: Header,
) -> Result<(), Error> {
    let view = node(page, Kind::Leaf)?;
    match place {
        Ok(index) if view.is_ghost(index) == Some(true) => replace_at(page, index, value, header),
        Ok(_) => Err(Error::Exists),
        Err(index) => {
            let capacity = value.len();
            let value = value.to_vec();
            let first = header.to_bits();
            put(page, index, &Record { key: key.to_vec(), ghost: false, first, value, capacity })
        }
    }
}

/// Whether a record can be inserted, or get a value, by moving nothing but slots.
pub(crate) fn fits<P: PageMut + ?Sized>(
    page: &P,
    place: Result<usize, usize>,
    key: &[u8],
    value: &[u8],
) -> Option<bool> {
    let view = Node::of(page)?;
    // Damaged memory may say so of a leaf.
    if view.kind() != Kind::Leaf {
        return None;
    }
    Some(match place {
        Ok(index) => value.len() <= view.lengths(view.slot(index)?)?.1,
        Err(_) => {
            let suffix = key.len().checked_sub(view.parts.prefix)?;
            let need = LEAF_WORDS + words_of(suffix + value.len()) + 1;
            let room = view.heap()? - SLOTS - view.count();
            let limits = Limits::of(page.len());
            let short = key.len() <= limits.key && key.len() + value.len() <= limits.record;
            short && need <= room && view.covers(key)?
        }
    })
}

/// Inserts a child into an inner page. `key` is the lowest key that belongs to it.
///
/// # Errors
///
/// The errors of [`insert`].
pub fn insert_child<P: PageMut + ?Sized>(
    page: &mut P,
    key: &[u8],
    child: u64,
) -> Result<(), Error> {
    let view = node(page, Kind::Inner)?;
    check_key(&view, key)?;
    let Err(index) = view.search(key).ok_or_else(malformed)? else { return Err(Error::Exists) };
    let (key, value) = (key.to_vec(), Vec::new());
    put(page, index, &Record { key, ghost: false, first: child, value, capacity: 0 })
}

fn check_key<P: PageMut + ?Sized>(node: &Node<'_, P>, key: &[u8]) -> Result<(), Error> {
    let limit = Limits::of(node.page.len()).key;
    if key.len() > limit {
        return Err(Error::KeyTooLong { length: key.len(), limit });
    }
    if node.covers(key).ok_or_else(malformed)? { Ok(()) } else { Err(Error::OutOfRange) }
}

/// Puts a record at `index` and moves the following slots.
pub(crate) fn put<P: PageMut + ?Sized>(
    page: &mut P,
    index: usize,
    record: &Record,
) -> Result<(), Error> {
    let view = Node::of(page).ok_or_else(malformed)?;
    let limit = Limits::of(page.len()).record;
    let length = record.key.len() + record.capacity;
    if length > limit {
        return Err(Error::RecordTooLong { length, limit });
    }
    let (kind, count, prefix) = (view.kind(), view.count(), view.parts.prefix);
    let suffix = record.key.get(prefix..).ok_or(Error::OutOfRange)?;
    if index > count {
        return Err(malformed());
    }
    let need = kind.record_words() + words_of(suffix.len() + record.capacity);
    let mut heap = view.heap().ok_or_else(malformed)?;
    if heap - SLOTS - count < need + 1 {
        if view.room().ok_or_else(malformed)? < (need + 1) * 8 {
            return Err(Error::Full);
        }
        compact(page)?;
        heap = Node::of(page).and_then(|view| view.heap()).ok_or_else(malformed)?;
        if heap - SLOTS - count < need + 1 {
            return Err(Error::Full);
        }
    }
    let skip = narrow(page, suffix)?;
    let at = heap - need;
    write_record(page, at, kind, suffix, record);
    for slot in (index..count).rev() {
        let word = page.word(SLOTS + slot).unwrap_or(0);
        page.set(SLOTS + slot + 1, word);
    }
    let slot = Slot { at, suffix: suffix.len(), ghost: record.ghost, head: head(&suffix[skip..]) };
    page.set(SLOTS + index, slot.word());
    set_heap(page, at);
    let mut parts = Node::of(page).ok_or_else(malformed)?.parts;
    parts.count += 1;
    set_parts(page, parts);
    Ok(())
}

/// Shortens the skip to the common beginning of `suffix`, which will be inserted, and the other
/// suffixes, and updates all heads. Returns the skip, which is at most as long as the suffix.
fn narrow<P: PageMut + ?Sized>(page: &mut P, suffix: &[u8]) -> Result<usize, Error> {
    let view = Node::of(page).ok_or_else(malformed)?;
    let (count, old) = (view.count(), view.skip().ok_or_else(malformed)?);
    if count == 0 {
        page.set(SKIP, suffix.len() as u64);
        return Ok(suffix.len());
    }
    let mut bytes = Vec::new();
    let mut piece = |page: &P, index: usize, from: usize, length: usize| {
        let view = Node::of(page)?;
        let (at, end) = view.suffix(view.slot(index)?);
        bytes.clear();
        copy_out(page, at, from, length.min(end.checked_sub(from)?), &mut bytes)?;
        Some(bytes.clone())
    };
    let first = piece(page, 0, 0, old).ok_or_else(malformed)?;
    let skip = first.iter().zip(suffix).take_while(|(a, b)| a == b).count();
    if skip == old {
        return Ok(skip);
    }
    let heads = (0..count).map(|index| piece(page, index, skip, 4).map(|bytes| head(&bytes)));
    let heads = heads.collect::<Option<Vec<_>>>().ok_or_else(malformed)?;
    for (index, head) in heads.into_iter().enumerate() {
        let slot = Slot::of(page.word(SLOTS + index).ok_or_else(malformed)?);
        page.set(SLOTS + index, Slot { head, ..slot }.word());
    }
    page.set(SKIP, skip as u64);
    Ok(skip)
}

fn write_record<P: PageMut + ?Sized>(
    page: &mut P,
    at: usize,
    kind: Kind,
    suffix: &[u8],
    record: &Record,
) {
    page.set(at, record.first);
    let bytes = at + kind.record_words();
    if kind == Kind::Leaf {
        page.set(at + 1, record.value.len() as u64 | (record.capacity as u64) << 16);
    }
    copy_in(page, bytes, 0, suffix);
    copy_in(page, bytes, suffix.len(), &record.value);
}

/// Replaces the value of a key. A ghost becomes a record.
///
/// # Errors
///
/// [`Error::Missing`], [`Error::Full`] if the value exceeds the capacity, [`Error::RecordTooLong`],
/// [`Error::Malformed`].
pub fn replace<P: PageMut + ?Sized>(
    page: &mut P,
    key: &[u8],
    value: &[u8],
    header: Header,
) -> Result<(), Error> {
    let found = node(page, Kind::Leaf)?.search(key).ok_or_else(malformed)?;
    replace_at(page, found.map_err(|_| Error::Missing)?, value, header)
}

/// [`replace`] at the place where the key was found.
pub(crate) fn replace_at<P: PageMut + ?Sized>(
    page: &mut P,
    index: usize,
    value: &[u8],
    header: Header,
) -> Result<(), Error> {
    let view = node(page, Kind::Leaf)?;
    let slot = view.slot(index).ok_or_else(malformed)?;
    let (_, capacity) = view.lengths(slot).ok_or_else(malformed)?;
    let words = view.record_words(slot).ok_or_else(malformed)?;
    if slot.at < SLOTS + view.count() || slot.at + words > page.len() {
        return Err(malformed());
    }
    if value.len() <= capacity {
        page.set(slot.at, header.to_bits());
        page.set(slot.at + 1, value.len() as u64 | (capacity as u64) << 16);
        copy_in(page, slot.at + LEAF_WORDS, slot.suffix, value);
        page.set(SLOTS + index, Slot { ghost: false, ..slot }.word());
        return Ok(());
    }
    let key = view.key(index).ok_or_else(malformed)?;
    let limit = Limits::of(page.len()).record;
    if key.len() + value.len() > limit {
        return Err(Error::RecordTooLong { length: key.len() + value.len(), limit });
    }
    let need = LEAF_WORDS + words_of(slot.suffix + value.len());
    if view.room().ok_or_else(malformed)? / 8 + words < need {
        return Err(Error::Full);
    }
    take_out(page, index, words)?;
    let (first, value, capacity) = (header.to_bits(), value.to_vec(), value.len());
    put(page, index, &Record { key, ghost: false, first, value, capacity })
}

/// Replaces a part of the value of a key. A ghost becomes a record.
///
/// # Errors
///
/// [`Error::Missing`]; [`Error::Malformed`] if the value has another part; the others of
/// [`replace`].
pub fn update<P: PageMut + ?Sized>(
    page: &mut P,
    key: &[u8],
    difference: Difference<'_>,
    header: Header,
) -> Result<(), Error> {
    let found = node(page, Kind::Leaf)?.search(key).ok_or_else(malformed)?;
    update_at(page, found.map_err(|_| Error::Missing)?, difference, header)
}

/// [`update`] at the place where the key was found.
pub(crate) fn update_at<P: PageMut + ?Sized>(
    page: &mut P,
    index: usize,
    difference: Difference<'_>,
    header: Header,
) -> Result<(), Error> {
    let view = node(page, Kind::Leaf)?;
    let slot = view.slot(index).ok_or_else(malformed)?;
    let (length, _) = view.lengths(slot).ok_or_else(malformed)?;
    let words = view.record_words(slot).ok_or_else(malformed)?;
    if slot.at < SLOTS + view.count() || slot.at + words > page.len() {
        return Err(malformed());
    }
    let updated = difference.length(length).ok_or_else(other_value)?;
    let (at, skip) = (slot.at + LEAF_WORDS, slot.suffix + difference.at);
    if has(page, at, skip, difference.before) != Some(true) {
        return Err(other_value());
    }
    if updated != length {
        let mut value = view.value(index).ok_or_else(malformed)?;
        difference.apply(&mut value).ok_or_else(other_value)?;
        return replace_at(page, index, &value, header);
    }
    page.set(slot.at, header.to_bits());
    copy_in(page, at, skip, difference.after);
    page.set(SLOTS + index, Slot { ghost: false, ..slot }.word());
    Ok(())
}

#[cold]
fn other_value() -> Error {
    Error::Malformed("a change of a part of another value")
}

/// Whether a value can be updated by moving nothing but slots.
pub(crate) fn fits_updated<P: Page + ?Sized>(
    page: &P,
    index: usize,
    difference: Difference<'_>,
) -> Option<bool> {
    let view = Node::of(page)?;
    let (length, capacity) = view.lengths(view.slot(index)?)?;
    Some(difference.length(length)? <= capacity)
}

/// Turns the record of a key into a ghost, or back. Its value stays.
///
/// # Errors
///
/// [`Error::Missing`], [`Error::Malformed`].
pub fn set_ghost<P: PageMut + ?Sized>(
    page: &mut P,
    key: &[u8],
    ghost: bool,
    header: Header,
) -> Result<(), Error> {
    let found = node(page, Kind::Leaf)?.search(key).ok_or_else(malformed)?;
    set_ghost_at(page, found.map_err(|_| Error::Missing)?, ghost, header)
}

/// [`set_ghost`] at the place where the key was found.
pub(crate) fn set_ghost_at<P: PageMut + ?Sized>(
    page: &mut P,
    index: usize,
    ghost: bool,
    header: Header,
) -> Result<(), Error> {
    let view = node(page, Kind::Leaf)?;
    let slot = view.slot(index).ok_or_else(malformed)?;
    if slot.at < SLOTS + view.count() {
        return Err(malformed());
    }
    page.set(SLOTS + index, Slot { ghost, ..slot }.word());
    page.set(slot.at, header.to_bits());
    Ok(())
}

/// Removes the record of a key, ghost or not.
///
/// # Errors
///
/// [`Error::Missing`], [`Error::Malformed`].
pub fn remove<P: PageMut + ?Sized>(page: &mut P, key: &[u8]) -> Result<(), Error> {
    let view = Node::of(page).ok_or_else(malformed)?;
    let index = view.search(key).ok_or_else(malformed)?.map_err(|_| Error::Missing)?;
    let words = view.slot(index).and_then(|slot| view.record_words(slot)).ok_or_else(malformed)?;
    take_out(page, index, words)
}

/// Returns how many words of a leaf belong to ghosts that were written before an LSN, and to unused
/// capacity.
pub(crate) fn cleared<P: Page + ?Sized>(node: &Node<'_, P>, before: u64) -> Option<usize> {
    let mut words = 0;
    for index in 0..node.count() {
        if node.header(index)?.lsn() >= before {
            continue;
        }
        let slot = node.slot(index)?;
        words += if slot.ghost {
            1 + node.record_words(slot)?
        } else {
            let (length, capacity) = node.lengths(slot)?;
            words_of(slot.suffix + capacity) - words_of(slot.suffix + length)
        };
    }
    Some(words)
}

/// Removes all ghosts of a leaf that were written before an LSN and compacts the rest. `trims` also
/// removes the unused capacity of records written before it, because only undoing a later change
/// restores a longer value.
///
/// # Errors
///
/// [`Error::Malformed`].
pub fn clear<P: PageMut + ?Sized>(page: &mut P, before: u64, trims: bool) -> Result<(), Error> {
    node(page, Kind::Leaf)?;
    let mut all = records(page)?;
    let is_old = |record: &Record| Header::from_bits(record.first).lsn() < before;
    all.retain(|record| !record.ghost || !is_old(record));
    for record in all.iter_mut().filter(|record| trims && is_old(record)) {
        record.capacity = record.value.len();
    }
    remake(page, &all)
}

/// Removes the slot at `index`, and counts its record's words as dead.
fn take_out<P: PageMut + ?Sized>(page: &mut P, index: usize, words: usize) -> Result<(), Error> {
    let mut parts = Node::of(page).ok_or_else(malformed)?.parts;
    for slot in index + 1..parts.count {
        let word = page.word(SLOTS + slot).ok_or_else(malformed)?;
        page.set(SLOTS + slot - 1, word);
    }
    parts.count -= 1;
    set_parts(page, parts);
    add_dead(page, words);
    Ok(())
}

/// Returns all records of a page.
pub(crate) fn records<P: PageMut + ?Sized>(page: &P) -> Result<Vec<Record>, Error> {
    let view = Node::of(page).ok_or_else(malformed)?;
    let mut all = Vec::with_capacity(view.count());
    for index in 0..view.count() {
        let slot = view.slot(index).ok_or_else(malformed)?;
        let (mut value, mut capacity) = (Vec::new(), 0);
        if view.kind() == Kind::Leaf {
            capacity = view.lengths(slot).ok_or_else(malformed)?.1;
            view.value_into(index, &mut value).ok_or_else(malformed)?;
        }
        let key = view.key(index).ok_or_else(malformed)?;
        let first = page.word(slot.at).ok_or_else(malformed)?;
        all.push(Record { key, ghost: slot.ghost, first, value, capacity });
    }
    Ok(all)
}

/// Rebuilds a page with other fences, another sibling, and these records.
///
/// Writes nothing if they do not fit.
pub(crate) fn make<P: PageMut + ?Sized>(
    page: &mut P,
    parts: (Kind, u8, u64),
    fences: Fences<'_>,
    right: u64,
    first_child: u64,
    records: &[Record],
) -> Result<(), Error> {
    let (kind, level, flags) = parts;
    let mut made = vec![0u64; page.len()];
    format(&mut made, kind, level, fences, right)?;
    made[FIRST] = first_child;
    for record in records {
        let index = Node::of(&made).map_or(0, |view| view.count());
        put(&mut made, index, record)?;
    }
    let mut parts = Node::of(&made).ok_or_else(malformed)?.parts;
    parts.flags = flags;
    set_parts(&mut made, parts);
    for (index, word) in made.iter().enumerate().skip(KIND) {
        if page.word(index) != Some(*word) {
            page.set(index, *word);
        }
    }
    Ok(())
}

/// Packs the records, so that all unused words are free.
///
/// # Errors
///
/// [`Error::Malformed`].
pub fn compact<P: PageMut + ?Sized>(page: &mut P) -> Result<(), Error> {
    let all = records(page)?;
    remake(page, &all)
}

/// Rebuilds a page with these records.
fn remake<P: PageMut + ?Sized>(page: &mut P, all: &[Record]) -> Result<(), Error> {
    let view = Node::of(page).ok_or_else(malformed)?;
    let parts = (view.kind(), view.level(), view.parts.flags);
    let right = view.right().ok_or_else(malformed)?.unwrap_or(0);
    let (low, high) = (view.low().ok_or_else(malformed)?, view.high().ok_or_else(malformed)?);
    let first = page.word(FIRST).ok_or_else(malformed)?;
    let fences = Fences { low: &low, high: high.as_deref() };
    make(page, parts, fences, right, first, all)
}
