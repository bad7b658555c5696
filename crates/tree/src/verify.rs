//! Checks the consistency of a tree, also during changes.
//!
//! Each level is examined from its lowest key on. A page is found from the root by the key at which
//! the page before ended, and compared with that page. The comparison of two pages counts only if
//! both are unchanged since they were read, because they then existed at one moment. If one was
//! changed, both are read again. Pages are pinned, so that an evicted page is not taken for a
//! changed one.

use latchwork_machine::ConstMachine;
use latchwork_pool::{Error as PoolError, PageView, Pin, Snapshot};

use crate::journal::Journal;
use crate::node::Node;
use crate::root::Tree;
use crate::walk::To;
use crate::{Error, Kind};

/// How often two pages that change continuously are compared again.
const TRIES: usize = 64;

/// A page's statements about itself and its neighbours.
struct Seen {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    right: Option<u64>,
}

/// A page as it was read.
struct Looked<'h, 't, M: ConstMachine> {
    page: u64,
    seen: Seen,
    snapshot: Snapshot<'h, M>,
    _pin: Option<Pin<'h, 't, M>>,
}

impl<'t, J: Journal, M: ConstMachine> Tree<'_, 't, J, M> {
    /// Checks every page that the tree leads to, and returns their number. Other threads may change
    /// the tree at the same time.
    ///
    /// Each level must be one chain of pages whose fences meet, and the tree must lead to each of
    /// them. Two pages that change continuously are not compared. O(pages log pages).
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the fault; [`Error::Pool`], [`Error::Level`].
    pub fn verify(&self) -> Result<u64, Error> {
        let mut pages = 0;
        self.verify_each(&mut |_| {
            pages += 1;
            Ok(())
        })?;
        Ok(pages)
    }

    /// [`verify`](Self::verify) that calls `each` with the number of every page; twice for a page
    /// that absorbed its neighbour in between.
    ///
    /// # Errors
    ///
    /// The errors of [`verify`](Self::verify) and of `each`.
    pub fn verify_each(&self, each: &mut dyn FnMut(u64) -> Result<(), Error>) -> Result<(), Error> {
        let level = |view: &PageView<'_, M>| Some(Node::of(view)?.level());
        let top = self.handle.read(self.file, self.root, level)?;
        (0..=top).rev().try_for_each(|level| self.verify_level(level, each))
    }

    fn verify_level(
        &self,
        level: u8,
        each: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut low, mut before) = (Vec::new(), None);
        loop {
            let looked = self.look_behind(before, &low, level)?;
            let (from, to) = (&looked.seen.low, &looked.seen.high);
            if *from > low || to.as_ref().is_some_and(|to| *to <= low) {
                return Err(Error::Malformed("a page that its parent does not lead to"));
            }
            each(looked.page)?;
            let Some(high) = to else { return Ok(()) };
            low.clone_from(high);
            before = Some(looked);
        }
    }

    /// Reads the page to which `low` belongs, and checks that the page before leads to it.
    fn look_behind<'a>(
        &'a self,
        mut before: Option<Looked<'a, 't, M>>,
        low: &[u8],
        level: u8,
    ) -> Result<Looked<'a, 't, M>, Error> {
        let mut looked = self.look(To::Key(low), level)?;
        for _ in 0..TRIES {
            let Some(left) = &before else { break };
            if left.snapshot.validate() && looked.snapshot.validate() {
                left.meets(&looked)?;
                break;
            }
            before = Some(self.look(To::Before(low), level)?);
            looked = self.look(To::Key(low), level)?;
        }
        Ok(looked)
    }

    fn look(&self, to: To<'_>, level: u8) -> Result<Looked<'_, 't, M>, Error> {
        let (met, seen) = self.walk(to, level, |node, _| Some(Seen::of(node)))?;
        // Without a pin it is compared if it is still cached.
        let pin = self.handle.pin(self.file, met.page).ok();
        Ok(Looked { page: met.page, seen: seen?, snapshot: met.seen, _pin: pin })
    }

    /// Returns whether the tree leads to a page.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Level`] for the pages on the way; a fault of the page itself means
    /// that nothing leads to it.
    pub fn leads_to(&self, page: u64) -> Result<bool, Error> {
        if page == self.root {
            return Ok(true);
        }
        let seen = self.handle.read(self.file, page, |view| {
            let seen = Node::of(view).map(|node| Some((node.level(), node.low()?)));
            Some(seen.flatten())
        });
        let (level, low) = match seen {
            Ok(Some(seen)) => seen,
            Ok(None) | Err(PoolError::Freed { .. }) => return Ok(false),
            Err(error) if error.is_unwritten() => return Ok(false),
            Err(PoolError::OutOfRange { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let top = self.handle.read(self.file, self.root, |view| Some(Node::of(view)?.level()))?;
        if level >= top {
            return Ok(false);
        }
        Ok(self.walk(To::Key(&low), level, |_, _| Some(()))?.0.page == page)
    }
}

impl<M: ConstMachine> Looked<'_, '_, M> {
    /// Checks that the page after this one is `next`, both as they were read, or that they are now
    /// one page with the keys of both.
    fn meets(&self, next: &Self) -> Result<(), Error> {
        if self.page == next.page {
            return Ok(());
        }
        if self.seen.high.as_ref() != Some(&next.seen.low) {
            return Err(Error::Malformed("the fences of two siblings do not meet"));
        }
        if self.seen.right != Some(next.page) {
            return Err(Error::Malformed("a page that the one before does not lead to"));
        }
        Ok(())
    }
}

impl Seen {
    fn of<M: ConstMachine>(node: &Node<'_, PageView<'_, M>>) -> Result<Self, Error> {
        let wrong = || Error::Malformed("a page whose fences cannot be read");
        node.verify()?;
        let high = node.high().ok_or_else(wrong)?;
        let right = node.right().ok_or_else(wrong)?;
        if high.is_some() != right.is_some() {
            return Err(Error::Malformed("an upper fence without a sibling, or none with one"));
        }
        if node.kind() == Kind::Inner {
            node.first_child().ok_or_else(wrong)?;
        }
        Ok(Self { low: node.low().ok_or_else(wrong)?, high, right })
    }
}
