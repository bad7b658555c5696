//! Splits in two steps, which any thread completes, and a growing root.
//!
//! | step | records | state if it is the last |
//! |---|---|---|
//! | 1 | `Image` of the new page | a page to which no page leads |
//! | 2 | `Split` of the left one | the left one leads to the new page and is `INCOMPLETE` |
//! | 3 | `Attach` to the parent | the left one is marked incomplete, and is not |
//! | 4 | `Complete` of the left one | complete |
//!
//! Each record is of one page, so a death leaves at most one page to be rebuilt. Any thread can do
//! steps 3 and 4: a thread that meets an incomplete page on its way to write does them. A thread
//! holds the page that it splits and the new one, which no other thread knows; for steps 3 and 4 it
//! holds the parent and then the left one. While it holds a parent, no child of it is unlinked
//! (`unlink`), so what it finds below the parent belongs to this tree, whatever happened since it
//! learnt that a page is missing.
//!
//! The root keeps its number: its content moves to two new pages, with an `Image` each, and `Grow`
//! makes it their parent.

use core::cmp::Ordering;

use latchwork_machine::ConstMachine;
use latchwork_pool::PageMut as PoolPage;

use crate::change::Change;
use crate::edit;
use crate::held::{check, copy, image_bytes, log_and_do, log_and_keep};
use crate::journal::Journal;
use crate::node::Node;
use crate::root::{ROUNDS, Tree, new_page};
use crate::split::{SplitAt, split};
use crate::walk::{Missing, To};
use crate::{Error, Kind};

/// The result of an attempt.
enum Attempt {
    Done,
    /// It must be repeated with this many pages available.
    Again(usize),
}

/// How many pages a split of this page needs.
pub(crate) fn pages_to_split<M: ConstMachine>(root: u64, page: &PoolPage<'_, '_, M>) -> usize {
    if page.page() == root { 2 } else { 1 }
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Splits a held page and completes the split.
    pub(crate) fn split(&self, page: PoolPage<'_, '_, M>, at: SplitAt<'_>) -> Result<(), Error> {
        if page.page() == self.root {
            return self.grow(page, at);
        }
        let mut left = copy(&page);
        let mut right = vec![0; left.len()];
        let new = new_page(self.handle, self.file, self.journal)?;
        let number = new.page();
        let separator = split(&mut left, &mut right, number, at)?.separator;
        let level = Node::of(&left).ok_or_else(edit::malformed)?.level();
        self.log_image(new, &right)?;
        let change = Change::Split { right: number, separator: &separator, image: &[] };
        log_and_do(self.journal, &change, page, None)?;
        self.journal.linked(number);
        self.finish(&Missing { separator, right: number, level })
    }

    fn log_image(&self, page: PoolPage<'_, '_, M>, words: &Vec<u64>) -> Result<(), Error> {
        let image = Change::image(words).ok_or_else(edit::malformed)?;
        log_and_do(self.journal, &Change::Image { image: &image }, page, None).map(drop)
    }

    /// Moves the content of the root to two pages below it.
    fn grow(&self, page: PoolPage<'_, '_, M>, at: SplitAt<'_>) -> Result<(), Error> {
        let mut left = copy(&page);
        let mut right = vec![0; left.len()];
        let lower = new_page(self.handle, self.file, self.journal)?;
        let upper = new_page(self.handle, self.file, self.journal)?;
        let (left_number, right_number) = (lower.page(), upper.page());
        let separator = split(&mut left, &mut right, right_number, at)?.separator;
        edit::set_incomplete(&mut left, false)?;
        let level = Node::of(&left).and_then(|node| node.level().checked_add(1));
        let level = level.ok_or(Error::Malformed("a tree of 256 levels"))?;
        // In this order: if the log has the second new page, it also has the first. Otherwise a
        // crash would leave a page that nothing refers to.
        self.log_image(lower, &left)?;
        self.log_image(upper, &right)?;
        let change = Change::Grow {
            level,
            left: left_number,
            right: right_number,
            separator: &separator,
            left_image: &[],
            right_image: &[],
        };
        log_and_do(self.journal, &change, page, None)?;
        [left_number, right_number].into_iter().for_each(|page| self.journal.linked(page));
        Ok(())
    }

    /// Adds a page to the parent in which it was seen to be missing.
    pub(crate) fn finish(&self, missing: &Missing) -> Result<(), Error> {
        let level = missing.level.checked_add(1).ok_or_else(edit::malformed)?;
        let (mut pages, mut rounds) = (0, 0);
        loop {
            // Before the log's room, which a journal may use up to get pages.
            if pages != 0 {
                self.journal.reserve_pages(pages)?;
            }
            self.reserve_for_two()?;
            let (met, ()) = self.walk(To::Key(&missing.separator), level, |_, _| Some(()))?;
            self.finish_before(met.missing.as_ref())?;
            let Some((parent, _)) = self.take(&met)? else { continue };
            match self.attach(parent, missing, level)? {
                Attempt::Done => return Ok(()),
                Attempt::Again(more) => pages = more,
            }
            rounds += 1;
            // Damaged memory may say for ever that the page is another's child.
            if rounds > ROUNDS {
                return Err(Error::Level { page: met.page });
            }
        }
    }

    /// Reserves log room for two changed pages: each may have to be logged whole.
    fn reserve_for_two(&self) -> Result<(), Error> {
        let whole = image_bytes(self.file.page_bytes() as usize / 8);
        self.journal.reserve(5 * whole).map_err(Error::Journal)
    }

    /// First adds a page further up to its parent, which uses some of the room.
    fn finish_before(&self, upper: Option<&Missing>) -> Result<(), Error> {
        let Some(upper) = upper else { return Ok(()) };
        self.finish(upper)?;
        self.reserve_for_two()
    }

    /// Adds a page to its parent, and then marks its left sibling as complete.
    fn attach(
        &self,
        mut parent: PoolPage<'_, '_, M>,
        missing: &Missing,
        level: u8,
    ) -> Result<Attempt, Error> {
        let Missing { separator, right, .. } = missing;
        let view = parent.view();
        let node = Node::of(&view).ok_or_else(edit::no_page)?;
        let here = node.kind() == Kind::Inner && node.level() == level;
        if !here || node.is_beyond(separator).ok_or_else(edit::malformed)? {
            return Ok(Attempt::Again(0));
        }
        let place = node.search(separator).ok_or_else(edit::malformed)?;
        if place.is_err() && node.low().as_ref() == Some(separator) {
            // It is the first child: the parent was split there when it already had it.
            drop(parent);
            return self.complete_before(missing, level);
        }
        let before = Err(place.unwrap_or_else(|index| index));
        let child = node.child_at(before).ok_or_else(edit::malformed)?;
        let known = place.ok().and_then(|index| node.child(index));
        let Some(left) = self.left_of(child, parent.page(), missing)? else {
            return Ok(Attempt::Done);
        };
        if place.is_err() {
            let change = Change::Attach { key: separator, child: *right, left: 0, left_prev: 0 };
            match check(&change, &parent, None) {
                Err(Error::Full) if !self.journal.has(4 * image_bytes(parent.len())) => {
                    return Ok(Attempt::Again(0));
                }
                Err(Error::Full) => {
                    let pages = pages_to_split(self.root, &parent);
                    if self.journal.has_pages(pages) {
                        self.split(parent, SplitAt::Middle)?;
                        return Ok(Attempt::Again(0));
                    }
                    return Ok(Attempt::Again(pages));
                }
                checked => checked?,
            }
            log_and_keep(self.journal, &change, &mut parent, None)?;
        } else if known != Some(*right) {
            return Ok(Attempt::Done);
        }
        self.complete(left, missing)?;
        Ok(Attempt::Done)
    }

    /// The page that refers to `missing`: `child` or a page to the right of it. No page below a
    /// held parent is unlinked.
    fn left_of(&self, child: u64, parent: u64, missing: &Missing) -> Result<Option<u64>, Error> {
        let (mut page, mut steps) = (child, 0);
        loop {
            // Damaged links can lead to these pages, and the thread would wait for itself for ever.
            if page == parent || steps > self.handle.pool().pages(self.file)? {
                return Err(Error::Level { page });
            }
            let seen = self.handle.read(self.file, page, |view| {
                let node = Node::of(view)?;
                let order = node.high_to(&missing.separator)?;
                let says = node.is_incomplete() && node.level() == missing.level;
                Some((order, node.right()?, says))
            })?;
            match seen {
                (Some(Ordering::Less), Some(right), _) => page = right,
                (Some(Ordering::Equal), Some(right), true) if right == missing.right => {
                    return Ok(Some(page));
                }
                _ => return Ok(None),
            }
            steps += 1;
        }
    }

    /// Clears the mark of a page whose right sibling is the first child of its parent, while
    /// holding that parent's left sibling, to which the page belongs.
    fn complete_before(&self, missing: &Missing, level: u8) -> Result<Attempt, Error> {
        let Missing { separator, right, .. } = missing;
        let (met, ()) = self.walk(To::Before(separator), level, |_, _| Some(()))?;
        self.finish_before(met.missing.as_ref())?;
        let Some((parent, _)) = self.take(&met)? else { return Ok(Attempt::Again(0)) };
        let view = parent.view();
        let node = Node::of(&view).ok_or_else(edit::no_page)?;
        let ends = node.high_to(separator) == Some(Some(Ordering::Equal));
        if node.kind() != Kind::Inner || node.level() != level || !ends {
            return Ok(Attempt::Done);
        }
        let next = node.right().flatten().filter(|next| *next != parent.page());
        let next = next.ok_or(Error::Level { page: parent.page() })?;
        let known = self.handle.read(self.file, next, |view| Node::of(view)?.first_child())?;
        let last = node.child_at(Err(node.count())).ok_or_else(edit::malformed)?;
        if known == *right
            && let Some(left) = self.left_of(last, parent.page(), missing)?
        {
            self.complete(left, missing)?;
        }
        Ok(Attempt::Done)
    }

    /// Clears the mark of a page whose right sibling is in the held parent.
    fn complete(&self, left: u64, missing: &Missing) -> Result<(), Error> {
        let page = self.handle.write(self.file, left)?;
        let view = page.view();
        let node = Node::of(&view).ok_or_else(edit::no_page)?;
        // It was split again: the mark is of another sibling.
        let same = node.high_to(&missing.separator) == Some(Some(Ordering::Equal));
        if same && node.is_incomplete() && node.right() == Some(Some(missing.right)) {
            log_and_do(self.journal, &Change::Complete, page, None)?;
        }
        Ok(())
    }
}
