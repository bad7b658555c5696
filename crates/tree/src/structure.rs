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
//! holds the page that it splits and the new one, which nobody else knows; else one page at a time.
//!
//! The root keeps its number: what it has goes to two new pages, `Image` each, and `Grow` makes it
//! their parent.

use latchwork_machine::ConstMachine;
use latchwork_pool::PageMut as PoolPage;

use crate::change::Change;
use crate::edit;
use crate::held::{check, copy, image_bytes, log_and_do};
use crate::journal::Journal;
use crate::node::Node;
use crate::root::Tree;
use crate::split::{SplitAt, split};
use crate::walk::To;
use crate::{Error, Kind};

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Splits a page in hand, and finishes that.
    pub(crate) fn split(&self, page: PoolPage<'_, '_, M>, at: SplitAt) -> Result<(), Error> {
        if page.page() == self.root {
            return self.grow(page, at);
        }
        let mut left = copy(&page);
        let mut right = vec![0; left.len()];
        let new = self.handle.new_page(self.file)?;
        let number = new.page();
        let separator = split(&mut left, &mut right, number, at)?.separator;
        self.log_image(new, &right)?;
        let change = Change::Split { right: number, separator: &separator, image: &[] };
        let left = page.page();
        log_and_do(self.journal, &change, page)?;
        self.finish(left)
    }

    fn log_image(&self, page: PoolPage<'_, '_, M>, words: &Vec<u64>) -> Result<(), Error> {
        let image = Change::image(words).ok_or(edit::MALFORMED)?;
        log_and_do(self.journal, &Change::Image { image: &image }, page).map(drop)
    }

    /// Puts two pages below the root, which have what it has.
    fn grow(&self, page: PoolPage<'_, '_, M>, at: SplitAt) -> Result<(), Error> {
        let mut left = copy(&page);
        let mut right = vec![0; left.len()];
        let lower = self.handle.new_page(self.file)?;
        let upper = self.handle.new_page(self.file)?;
        let (left_number, right_number) = (lower.page(), upper.page());
        let separator = split(&mut left, &mut right, right_number, at)?.separator;
        edit::set_incomplete(&mut left, false)?;
        let level = Node::of(&left).and_then(|node| node.level().checked_add(1));
        let level = level.ok_or(Error::Malformed("a tree of 256 levels"))?;
        self.log_image(upper, &right)?;
        self.log_image(lower, &left)?;
        let change = Change::Grow {
            level,
            left: left_number,
            right: right_number,
            separator: &separator,
            left_image: &[],
            right_image: &[],
        };
        log_and_do(self.journal, &change, page).map(drop)
    }

    /// Puts the right sibling of a page into the parent, if it is missing there.
    pub(crate) fn finish(&self, left: u64) -> Result<(), Error> {
        let whole = image_bytes(self.file.page_bytes() as usize / 8);
        loop {
            // Two pages change, each of which may have to be logged whole.
            self.journal.reserve(5 * whole).map_err(Error::Journal)?;
            let missing = self.handle.read(self.file, left, |view| {
                let node = Node::of(view)?;
                Some(match (node.is_incomplete(), node.high()?, node.right()?) {
                    (true, Some(high), Some(right)) => Some((high, right, node.level())),
                    _ => None,
                })
            })?;
            let Some((separator, right, level)) = missing else { return Ok(()) };
            if self.attach(&separator, right, level.saturating_add(1))? {
                return self.complete(left, right);
            }
        }
    }

    /// Tells the parent of a page; false if that must be tried again.
    fn attach(&self, separator: &[u8], right: u64, level: u8) -> Result<bool, Error> {
        let (met, ()) = self.walk(To::Key(separator), level, |_| Some(()))?;
        if let Some(incomplete) = met.incomplete {
            self.finish(incomplete)?;
        }
        let page = self.handle.write(self.file, met.page)?;
        let view = page.view();
        let node = Node::of(&view).ok_or(Error::Malformed("not a page of a tree"))?;
        let here = node.kind() == Kind::Inner && node.level() == level;
        if !here || node.is_beyond(separator).ok_or(edit::MALFORMED)? {
            return Ok(false);
        }
        let change = Change::Attach { key: separator, child: right, left: 0, left_prev: 0 };
        match check(&change, &page) {
            // Another thread was faster.
            Err(Error::Exists) => Ok(true),
            Err(Error::Full) if !self.journal.has(4 * image_bytes(page.len())) => Ok(false),
            Err(Error::Full) => {
                self.split(page, SplitAt::Middle)?;
                Ok(false)
            }
            checked => {
                checked?;
                log_and_do(self.journal, &change, page)?;
                Ok(true)
            }
        }
    }

    /// Takes the mark off a page whose right sibling is in the parent.
    fn complete(&self, left: u64, right: u64) -> Result<(), Error> {
        let page = self.handle.write(self.file, left)?;
        let view = page.view();
        let node = Node::of(&view).ok_or(Error::Malformed("not a page of a tree"))?;
        // Split again meanwhile: the mark is of another sibling.
        if node.is_incomplete() && node.right() == Some(Some(right)) {
            log_and_do(self.journal, &Change::Complete, page)?;
        }
        Ok(())
    }
}
