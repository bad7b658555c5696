//! Dividing a page in two.
//!
//! This is the first of the two steps of a split by Lehman and Yao (1981): the right half moves to
//! a new page, which becomes the right sibling of the left page, and the left page is marked as
//! having a sibling that the parent does not know yet. A reader that searches for a key of the
//! right half gets there by way of the left page. Any thread can do the second step, which adds the
//! separator to the parent.

use crate::Error;
use crate::edit::{self, Record, make, malformed, records};
use crate::layout::{FIRST, INCOMPLETE, KIND, Kind};
use crate::node::{Fences, Node};
use crate::words::{PageMut, words_of};

/// The place of the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitAt<'k> {
    /// Into halves with as many bytes each.
    Middle,
    /// Behind the last record of a leaf, before this greater key, for keys that arrive in ascending
    /// order: they fill the left page. The right page then has no record, or the last one.
    Before(&'k [u8]),
}

/// The result of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The lowest key that belongs to the right page.
    pub separator: Vec<u8>,
}

/// Returns the shortest key above `left` that is not above `right`, where `left < right`.
pub fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    let alike = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    &right[..(alike + 1).min(right.len())]
}

/// Moves the upper half of `left` to `right`, a page of the same size with the number
/// `right_number`. Both keep their first two words.
///
/// The left page is then marked incomplete. If its own right sibling is missing in the parent as
/// well, the right page, whose sibling it now is, is also marked.
///
/// # Errors
///
/// [`Error::Unsplittable`] with fewer than two records; [`Error::Malformed`].
pub fn split<L: PageMut + ?Sized, R: PageMut + ?Sized>(
    left: &mut L,
    right: &mut R,
    right_number: u64,
    at: SplitAt<'_>,
) -> Result<Split, Error> {
    let all = records(left)?;
    if all.len() < 2 || right.len() != left.len() {
        return Err(Error::Unsplittable);
    }
    let SplitAt::Before(key) = at else {
        let middle = middle(&all);
        return divide(left, right, right_number, all, (middle, None));
    };
    if all.last().is_some_and(|last| last.key.as_slice() >= key) {
        return Err(Error::Malformed("a split before a key that is not the last one"));
    }
    let count = all.len();
    match divide(left, right, right_number, all, (count, Some(key))) {
        // The page has no room for the new upper fence.
        Err(Error::Full) => divide(left, right, right_number, records(left)?, (count - 1, None)),
        done => done,
    }
}

/// Moves the records from the index `middle` on; `next` is the key after the others, if it is not a
/// record of the page.
fn divide<L: PageMut + ?Sized, R: PageMut + ?Sized>(
    left: &mut L,
    right: &mut R,
    right_number: u64,
    mut all: Vec<Record>,
    (middle, next): (usize, Option<&[u8]>),
) -> Result<Split, Error> {
    let view = Node::of(left).ok_or_else(malformed)?;
    let (kind, level, flags) = (view.kind(), view.level(), view.parts.flags);
    let sibling = view.right().ok_or_else(malformed)?.unwrap_or(0);
    let high = view.high().ok_or_else(malformed)?;
    let mut upper = all.split_off(middle);
    let parts = (kind, level, flags & INCOMPLETE);
    let (separator, right_first) = match kind {
        Kind::Leaf => {
            let last = all.last().ok_or_else(malformed)?;
            let next = next.or(upper.first().map(|record| &record.key[..]));
            (separator(&last.key, next.ok_or_else(malformed)?).to_vec(), 0)
        }
        // The middle key moves up, and its child is the first of the right page.
        Kind::Inner if upper.is_empty() => return Err(Error::Unsplittable),
        Kind::Inner => {
            let up = upper.remove(0);
            (up.key, up.first)
        }
    };
    let higher = Fences { low: &separator, high: high.as_deref() };
    // In a copy first: an error must leave both unchanged.
    let mut made = vec![0; right.len()];
    make(&mut made, parts, higher, sibling, right_first, &upper)?;
    cut(left, &separator, right_number)?;
    for (index, word) in made.iter().enumerate().skip(KIND) {
        right.set(index, *word);
    }
    Ok(Split { separator })
}

/// Makes `separator` the upper fence of a page and `right` its right sibling, and removes the
/// records that belong there: the effect of a split on the left page, also when it is repeated from
/// the log.
pub(crate) fn cut<P: PageMut + ?Sized>(
    page: &mut P,
    separator: &[u8],
    right: u64,
) -> Result<(), Error> {
    let mut all = records(page)?;
    let view = Node::of(page).ok_or_else(malformed)?;
    let parts = (view.kind(), view.level(), view.parts.flags | INCOMPLETE);
    let low = view.low().ok_or_else(malformed)?;
    let first = page.word(FIRST).ok_or_else(malformed)?;
    all.retain(|record| record.key.as_slice() < separator);
    make(page, parts, Fences { low: &low, high: Some(separator) }, right, first, &all)
}

/// Gives a page the range of its right sibling, which contains at most one child if it is an inner
/// page: the reverse of [`cut`]. `moved` is the start of that range, and the child.
pub(crate) fn absorb<P: PageMut + ?Sized>(
    page: &mut P,
    high: &[u8],
    right: u64,
    (key, child): (&[u8], u64),
) -> Result<(), Error> {
    let mut all = records(page)?;
    let view = Node::of(page).ok_or_else(malformed)?;
    let (kind, low) = (view.kind(), view.low().ok_or_else(malformed)?);
    let parts = (kind, view.level(), view.parts.flags & !INCOMPLETE);
    let first = page.word(FIRST).ok_or_else(malformed)?;
    if (kind == Kind::Inner) != (child != 0) {
        return Err(Error::Malformed("an inner page leads to children, and a leaf does not"));
    }
    if child != 0 {
        let (key, value, capacity) = (key.to_vec(), Vec::new(), 0);
        all.push(Record { key, ghost: false, first: child, value, capacity });
    }
    make(page, parts, Fences { low: &low, high: Some(high) }, right, first, &all)
}

/// The index that divides the records into parts with about as many words: 1 to n - 1.
fn middle(all: &[Record]) -> usize {
    let words = |record: &Record| 3 + words_of(record.key.len() + record.capacity);
    let sum: usize = all.iter().map(words).sum();
    let mut before = 0;
    for (index, record) in all.iter().enumerate() {
        before += words(record);
        if before * 2 >= sum {
            return (index + 1).clamp(1, all.len() - 1);
        }
    }
    all.len() - 1
}

/// Makes a root of level `level + 1` whose only key separates two children.
///
/// The root keeps its number for the life of a tree: its content first moves to the page `left`.
///
/// # Errors
///
/// [`Error::KeyTooLong`], [`Error::Malformed`].
pub fn make_root<P: PageMut + ?Sized>(
    page: &mut P,
    level: u8,
    left: u64,
    separator: &[u8],
    right: u64,
) -> Result<(), Error> {
    edit::format(page, Kind::Inner, level, Fences::ALL, 0)?;
    edit::set_first_child(page, left)?;
    edit::insert_child(page, separator, right)
}
