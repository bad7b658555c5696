//! Which pages of the file are nobody's.
//!
//! The catalog says it, in records beside those of the tables: of each 512 pages 64 bytes, a bit
//! that is set where a page is free. They are changed by the thread that gives a page back or takes
//! it, not by a transaction, so nothing undoes them; and the log, a backup, a repair treat them as
//! any record. A group of which no page was ever free has no record.
//!
//! The pool has the list from which pages are taken; it is made anew, of the records, when the
//! memory is. The record comes first in each case:
//!
//! | step | what | a thread that dies after it left |
//! |---|---|---|
//! | give 1 | the slot has the page in hand, and nothing leads to it | given back by the sweep |
//! | give 2 | its bit is set | the same |
//! | give 3 | the slot lets go of it | a free page in no list, until the memory is made anew |
//! | give 4 | the pool's list | |
//! | take 1 | the pool's list | as after give 3 |
//! | take 2 | the slot has it in hand | given back by the sweep |
//! | take 3 | its bit is cleared | the same |
//! | take 4 | a page leads to it, and the slot lets go | |
//!
//! A page that follows the last one of the file has no record, and is in hand from take 2 on.
//!
//! A checkpoint punches free pages out of the file, if there are many: the file system has their
//! room again. The pool sets room aside before it hands such a page out (`life/free.rs` there).
//! Which pages are holes is in no record: after a restart each free page counts as one.

use std::collections::{BTreeMap, BTreeSet};

use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;
use latchwork_pool::Error as PoolError;
use latchwork_tree::Tree;

use crate::Error;
use crate::engine::Engine;
use crate::files::inner::StoreInner;
use crate::files::page_intents::{InHand, What};
use crate::files::session::StoreSession;
use crate::files::tree_journal::{Part, TreeJournal};
use crate::long::PIECES;
use crate::tables::{CATALOG, INNER, MAP, root_of};

/// Free pages whose room is not returned at a checkpoint, at least: a store that frees and takes
/// some pages all the time asks the file system for none.
const KEEP_ROOM: u64 = 64;

/// Pages that one record is about.
pub(crate) const GROUP: u64 = 512;

/// The record's key.
fn key_of(page: u64) -> Vec<u8> {
    let mut key = MAP.to_vec();
    key.extend_from_slice(&((page / GROUP) as u32).to_be_bytes());
    key
}

/// The first page that a record is about, by its key.
pub(crate) fn first_of(key: &[u8]) -> Option<u64> {
    let group = key.strip_prefix(MAP)?.first_chunk::<4>()?;
    Some(u64::from(u32::from_be_bytes(*group)) * GROUP)
}

/// The free pages that a record tells of.
pub(crate) fn free_of<'b>(first: u64, bits: &'b [u8]) -> impl Iterator<Item = u64> + 'b {
    let set = move |at: &u64| bits.get((at / 8) as usize).is_some_and(|b| b >> (at % 8) & 1 != 0);
    (0..GROUP).filter(set).map(move |at| first + at)
}

impl<M: ConstMachine> StoreSession<M> {
    /// Says in the catalog that a page is free, or is not. False if it said so before.
    fn mark(&self, page: u64, free: bool) -> Result<bool, Error> {
        let (byte, bit) = ((page % GROUP / 8) as usize, 1 << (page % 8));
        let changed = self.with(CATALOG, Part::System, |tree| {
            tree.alter(&key_of(page), &|bits| {
                let mut bits = bits.map_or_else(Vec::new, <[u8]>::to_vec);
                bits.resize((GROUP / 8) as usize, 0);
                let was = bits[byte] & bit != 0;
                bits[byte] = if free { bits[byte] | bit } else { bits[byte] & !bit };
                (was != free).then_some(bits)
            })
        })?;
        Ok(changed)
    }

    /// Takes a page in hand that nobody uses. It is no root before it is written: what the disk has
    /// of its number may lead to pages that are another tree's by now.
    pub(crate) fn take_page(&self, tree: u32, part: Part) -> Result<u64, Error> {
        let (shared, file, slot) = (&self.home.shared, self.home.file, self.slot());
        // Before a number is taken: nobody else fills the slot's hands.
        if !shared.has_hand(slot)? {
            return Err(Error::Options("as many pages in hand as a thread may have"));
        }
        // The catalog says of a page that it is no longer free. It may have to grow for that first,
        // and must not ask for such a page again.
        let from_list = tree != CATALOG || matches!(part, Part::Root);
        let held = |page| InHand { tree, page, what: What::Page };
        while from_list && let Some(page) = self.handle.take_freed(file)? {
            shared.hold(slot, held(page))?;
            match self.mark(page, false) {
                Ok(true) => return Ok(page),
                // The list is of memory that anybody writes: the catalog decides.
                Ok(false) => shared.let_go(slot, page)?,
                Err(why) => {
                    let _ = self.settle(slot, held(page));
                    return Err(why);
                }
            }
        }
        let page = self.handle.take_next(file)?;
        shared.hold(slot, held(page))?;
        Ok(page)
    }

    /// Makes the root of a tree whose name the slot's transaction is about to write.
    pub(crate) fn make_root(&self) -> Result<u32, Error> {
        let scribe = TreeJournal::new(self, CATALOG, Part::Root);
        let page = Tree::create(&self.handle, self.home.file, &scribe)?.root();
        let root = InHand { tree: CATALOG, page, what: What::Root };
        self.home.shared.hold_as(self.slot(), root)?;
        u32::try_from(page).map_err(|_| Error::Options("2^32 pages"))
    }

    /// Decides about a page in hand: if nothing leads to it, it is given back.
    pub(crate) fn settle(&self, slot: u16, held: InHand) -> Result<(), Error> {
        let (page, shared) = (held.page, &self.home.shared);
        if self.is_linked(held)? {
            return shared.let_go(slot, page);
        }
        // The bit may be set already: it was when the page was taken from the list. What is in a
        // hand is in no list, so nobody else has it before it is put there, once.
        self.mark(page, true)?;
        shared.let_go(slot, page)?;
        match self.handle.free_page(self.home.file, page) {
            Err(PoolError::Freed { .. }) => Ok(()),
            freed => Ok(freed?),
        }
    }

    /// Decides about all pages that a slot has in hand; but for roots whose transaction goes on, if
    /// not `all`.
    pub(crate) fn settle_all(&self, slot: u16, all: bool) -> Result<(), Error> {
        let settled = self.settle_hand(slot, all);
        if all && slot == self.slot() {
            self.roots_left.set(settled.is_err());
        }
        settled
    }

    fn settle_hand(&self, slot: u16, all: bool) -> Result<(), Error> {
        let hand = self.home.shared.hand(slot)?;
        let of = |what| hand.iter().copied().filter(move |held| held.what == what);
        let settle = |held| self.settle(slot, held);
        // They make room for what goes next.
        of(What::Goes).try_for_each(settle)?;
        let mut failed = Vec::new();
        for root in of(What::Root).filter(|_| all) {
            match self.is_linked(root)? {
                true => self.home.shared.let_go(slot, root.page)?,
                false => failed.push(root),
            }
        }
        // Pages of such a tree are asked about when it leads to none any more, and before its root
        // is another's; the others before, for they make room, too.
        let goes = |held: &InHand| failed.iter().any(|root| root.page == u64::from(held.tree));
        of(What::Page).filter(|held| !goes(held)).try_for_each(settle)?;
        failed.iter().try_for_each(|root| self.dismantle(root.page))?;
        of(What::Page).filter(goes).chain(failed.iter().copied()).try_for_each(settle)?;
        self.home.shared.if_empty_handed(slot)
    }

    /// Gives all pages of a tree back that has no name, but for its root.
    fn dismantle(&self, root: u64) -> Result<(), Error> {
        let tree = u32::try_from(root).map_err(|_| Error::Options("2^32 pages"))?;
        self.with(tree, Part::Dismantle, |tree| tree.dismantle())?;
        Ok(())
    }

    /// Whether its tree leads to a page, or the page is a tree.
    fn is_linked(&self, held: InHand) -> Result<bool, Error> {
        if held.what == What::Goes {
            let scribe = TreeJournal::new(self, held.tree, Part::System);
            let root = u64::from(held.tree);
            let of = Tree::open(&self.handle, self.home.file, root, &scribe);
            return Ok(of.is_first(held.page)?);
        }
        if self.leads_to(held.tree, held.page)? {
            return Ok(true);
        }
        // What shared memory says of these two is wrong.
        let mut found = [CATALOG, PIECES].map(u64::from).contains(&held.page);
        // The whole catalog is read for what a dead thread or a failed one leaves, and no more.
        if held.what == What::Root {
            self.each_newest(&mut |key, value| {
                let root = root_of(value).ok().map(u64::from);
                found |= !key.starts_with(INNER) && root == Some(held.page);
            })?;
        }
        Ok(found)
    }

    /// Whether a tree leads to a page.
    pub(crate) fn leads_to(&self, tree: u32, page: u64) -> Result<bool, Error> {
        let scribe = TreeJournal::new(self, tree, Part::System);
        let of = Tree::open(&self.handle, self.home.file, u64::from(tree), &scribe);
        Ok(of.leads_to(page)?)
    }

    /// The newest versions of all records of the catalog.
    pub(crate) fn each_newest(&self, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Error> {
        let (mut batch, mut next) = (latchwork_tree::Batch::default(), Vec::new());
        loop {
            let from = core::ops::Bound::Included(&next[..]);
            self.scan(CATALOG, from, false, usize::MAX, &mut batch)?;
            batch.iter().filter(|row| !row.ghost).for_each(|row| each(row.key, row.value));
            match batch.next() {
                Some(more) => next = more.to_vec(),
                None => return Ok(()),
            }
        }
    }

    /// Whether the catalog says that a page is free.
    pub(crate) fn is_free_page(&self, page: u64) -> Result<bool, Error> {
        let mut bits = Vec::new();
        let there = self.newest(CATALOG, &key_of(page), &mut bits)?.there;
        let first = page / GROUP * GROUP;
        Ok(there && free_of(first, &bits).any(|free| free == page))
    }

    /// All pages that the catalog says are free.
    pub(crate) fn free_pages(&self) -> Result<Vec<u64>, Error> {
        let mut free = Vec::new();
        self.each_newest(&mut |key, bits| {
            free.extend(first_of(key).into_iter().flat_map(|first| free_of(first, bits)));
        })?;
        Ok(free)
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Returns the room of free pages to the file system, but for those that are taken next: an
    /// eighth of the file. Returns how many bytes were returned.
    pub(crate) fn punch_some(&self, worker: &StoreSession<M>) -> Result<u64, Error> {
        let keep = (self.pool.pages(self.file)? / 8).max(KEEP_ROOM);
        self.punch(worker, &self.pool.punchable(self.file, keep)?)
    }

    /// Returns the room of all free pages to the file system.
    pub(crate) fn punch_all(&self, worker: &StoreSession<M>) -> Result<u64, Error> {
        self.punch(worker, &worker.free_pages()?)
    }

    /// The log says that a page is free before the pool does. It is made durable that all of these
    /// are free, or a crash could lead to a page that has no bytes any more. Recovery reads no page
    /// that is free at the log's end, unless it has a record of it as it was before; that record,
    /// too, comes before the one that frees it, so what is wrong with the page is no damage.
    fn punch(&self, worker: &StoreSession<M>, pages: &[u64]) -> Result<u64, Error> {
        let end = || Lsn(self.log.end().0.saturating_sub(1));
        let mut durable = || worker.log.flush(end()).is_ok();
        Ok(worker.handle.punch(self.file, pages, &mut durable)?)
    }

    /// Gives back what was in hand when the machine crashed, of these pages and their trees, and
    /// makes the pool's list.
    pub(crate) fn recover_space(
        &self,
        worker: &StoreSession<M>,
        in_hand: &BTreeMap<u64, u32>,
    ) -> Result<(), Error> {
        let mut trees = BTreeSet::from([CATALOG, PIECES]);
        worker.each_newest(&mut |key, root| {
            trees.extend(root_of(root).ok().filter(|_| !key.starts_with(INNER)));
        })?;
        let is_root = |page: &u64| u32::try_from(*page).is_ok_and(|page| trees.contains(&page));
        // One may lie behind the file's end: it was taken, and nothing was written there.
        for (page, tree) in in_hand.iter().filter(|(page, _)| !is_root(page)) {
            // The pages of a table that was being made go with it.
            if !trees.contains(tree) || !worker.leads_to(*tree, *page)? {
                worker.mark(*page, true)?;
            }
        }
        for page in worker.free_pages()? {
            worker.handle.free_hole(self.file, page)?;
        }
        Ok(())
    }
}
