//! Dividing a page in two.
//!
//! The first of the two steps of a split as Lehman and Yao have it (1981): the right half goes to a
//! new page, and the left one gets it as its right sibling and says that the parent does not know
//! of it yet. A reader that looks for a key of the right half goes there by way of the left. The
//! second step, putting the separator into the parent, is anybody's.

use crate::Error;
use crate::edit::{self, Record, make, malformed, records};
use crate::layout::{FIRST, INCOMPLETE, KIND, Kind};
use crate::node::{Fences, Node};
use crate::words::{PageMut, words_of};

/// Where to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitAt<'k> {
    /// Where both halves have as many bytes.
    Middle,
    /// Behind the last record of a leaf, before this key, which is greater: for keys that come in
    /// ascending order, which fill the left page. The right one has no record then, or the last.
    Before(&'k [u8]),
}

/// What a split did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The lowest key that belongs to the right page.
    pub separator: Vec<u8>,
}

/// The shortest key above `left` that is not above `right`, where `left < right`.
pub fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    let alike = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    &right[..(alike + 1).min(right.len())]
}

/// Moves the upper half of `left` to `right`, a page of the same size with the number
/// `right_number`. Both keep their first two words.
///
/// The left page says then that it is incomplete. If its own right sibling is not in the parent yet
/// either, that is said by the right page, whose sibling it is now.
///
/// # Errors
///
/// [`Error::Unsplittable`] if there are fewer than two records; [`Error::Malformed`].
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
        // The page has no room for an upper fence, which is new.
        Err(Error::Full) => divide(left, right, right_number, records(left)?, (count - 1, None)),
        done => done,
    }
}

/// Moves the records from the index `middle` on; `next` is the key of what comes behind the others,
/// if that is not a record of the page.
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
    // On the side first: an error must leave both as they are.
    let mut made = vec![0; right.len()];
    make(&mut made, parts, higher, sibling, right_first, &upper)?;
    cut(left, &separator, right_number)?;
    for (index, word) in made.iter().enumerate().skip(KIND) {
        right.set(index, *word);
    }
    Ok(Split { separator })
}

/// Makes `separator` the upper fence of a page and `right` its right sibling, without what belongs
/// there: what a split does to the left page, also when it is done again from the log.
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

/// Gives a page the range of its right sibling, which has nothing but one child if it is an inner
/// page: the reverse of [`cut`]. `moved` is where that range began, and the child.
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

/// The index at which the records behind have about as many words as those before: 1 to n - 1.
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

/// Makes a root of level `level + 1` whose only key divides two children.
///
/// The root keeps its number for the life of a tree: what it had goes to the page `left` first.
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
