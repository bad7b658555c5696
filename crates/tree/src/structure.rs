//! Splits in two steps, which any thread finishes, and a root that grows.
//!
//! | step | records | if it is the last that was done |
//! |---|---|---|
//! | 1 | `Image` of the new page | a page that nothing leads to |
//! | 2 | `Split` of the left one | the left one leads to the new page, and says `INCOMPLETE` |
//! | 3 | `Attach` to the parent | the left one says that it is incomplete, and is not |
//! | 4 | `Complete` of the left one | all is done |
//!
//! Each record is of one page, so a death leaves at most one page to be rebuilt. Steps 3 and 4 are
//! anybody's: a thread that comes by an incomplete page on its way to write does them. A thread
//! holds the page that it splits and the new one, which nobody else knows; for steps 3 and 4 the
//! parent, and then the left one. While it holds a parent, no child of it is unlinked (`unlink`):
//! so what it finds below by way of the parent is of this tree, whatever happened since it learnt
//! that something is missing.
//!
//! The root keeps its number: what it has goes to two new pages, `Image` each, and `Grow` makes it
//! their parent.

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

/// What comes of an attempt.
enum Attempt {
    Done,
    /// It is to be made again, with so many pages at hand.
    Again(usize),
}

/// How many pages a split of this page takes.
pub(crate) fn pages_to_split<M: ConstMachine>(root: u64, page: &PoolPage<'_, '_, M>) -> usize {
    if page.page() == root { 2 } else { 1 }
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Splits a page in hand, and finishes that.
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

    /// Puts two pages below the root, which have what it has.
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
        // In their order: where the log has a page that follows another new one, it has that, too,
        // or a crash would leave a page that nothing tells of.
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

    /// Puts a page into the parent, where it was missing when that was seen.
    pub(crate) fn finish(&self, missing: &Missing) -> Result<(), Error> {
        let level = missing.level.checked_add(1).ok_or_else(edit::malformed)?;
        let (mut pages, mut rounds) = (0, 0);
        loop {
            // Before the log's room, which a journal that gets pages may not have any more.
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

    /// Reserves the log's room for two pages that change: each may have to be logged whole.
    fn reserve_for_two(&self) -> Result<(), Error> {
        let whole = image_bytes(self.file.page_bytes() as usize / 8);
        self.journal.reserve(5 * whole).map_err(Error::Journal)
    }

    /// Puts a page further up into its parent first, which takes of the room.
    fn finish_before(&self, upper: Option<&Missing>) -> Result<(), Error> {
        let Some(upper) = upper else { return Ok(()) };
        self.finish(upper)?;
        self.reserve_for_two()
    }

    /// Tells the parent of a page, and then its left sibling.
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
            // It is the first child: the parent was split there when it was known to that.
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

    /// The page that says that `missing` is: `child` or one to the right of it. Nothing below a
    /// parent in hand is unlinked.
    fn left_of(&self, child: u64, parent: u64, missing: &Missing) -> Result<Option<u64>, Error> {
        let (mut page, mut steps) = (child, 0);
        loop {
            // What damaged links lead to: to wait for itself would be for ever.
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

    /// Takes the mark off a page whose right sibling is the first child of its parent: with that
    /// one's left sibling in hand, to which the page belongs.
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

    /// Takes the mark off a page whose right sibling is in the parent, which is in hand.
    fn complete(&self, left: u64, missing: &Missing) -> Result<(), Error> {
        let page = self.handle.write(self.file, left)?;
        let view = page.view();
        let node = Node::of(&view).ok_or_else(edit::no_page)?;
        // Split again meanwhile: the mark is of another sibling.
        let same = node.high_to(&missing.separator) == Some(Some(Ordering::Equal));
        if same && node.is_incomplete() && node.right() == Some(Some(missing.right)) {
            log_and_do(self.journal, &Change::Complete, page, None)?;
        }
        Ok(())
    }
}
