//! The free pages of the file.
//!
//! The catalog contains a record of 64 bytes for each 512 pages, with a bit for each page that is
//! set if the page is free. The thread that frees or takes a page changes the record, not a
//! transaction, so no rollback affects it. The log, a backup and a repair treat it as any record. A
//! group in which no page was ever free has no record.
//!
//! The pool has the list from which pages are taken; it is rebuilt from the records when the shared
//! memory is created. The record changes first in each case:
//!
//! | step | action | state after a death |
//! |---|---|---|
//! | free 1 | the slot has an intent on the page, and no page links to it | the sweep frees it |
//! | free 2 | its bit is set | the sweep frees it |
//! | free 3 | the slot clears the intent | a free page in no list, until the list is rebuilt |
//! | free 4 | the page is added to the pool's list | |
//! | take 1 | the page is taken from the pool's list | as after free 3 |
//! | take 2 | the slot has an intent on it | the sweep frees it |
//! | take 3 | its bit is cleared | the sweep frees it |
//! | take 4 | a page links to it, and the slot clears the intent | |
//!
//! A page after the last one of the file has no record, and an intent from take 2 on.
//!
//! A checkpoint punches free pages out of the file if there are many, which returns their space to
//! the file system. The pool reserves space again before it hands out such a page (`life/free.rs`
//! there). Which pages are holes is not recorded: after a restart each free page counts as one.

use std::collections::{BTreeMap, BTreeSet};

use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;
use latchwork_pool::Error as PoolError;
use latchwork_tree::Tree;

use crate::Error;
use crate::engine::Engine;
use crate::files::inner::StoreInner;
use crate::files::page_intents::{IntentKind, PageIntent};
use crate::files::session::StoreSession;
use crate::files::tree_journal::{ChangeOrigin, TreeJournal};
use crate::long::PIECES;
use crate::tables::{CATALOG, INNER, MAP, root_of};

/// Minimum number of free pages whose space is kept at a checkpoint, so that a store that frees and
/// takes a few pages all the time causes no calls to the file system.
const KEEP_ROOM: u64 = 64;

/// The number of pages in one record.
pub(crate) const GROUP: u64 = 512;

/// Returns the key of a page's record.
fn key_of(page: u64) -> Vec<u8> {
    let mut key = MAP.to_vec();
    key.extend_from_slice(&((page / GROUP) as u32).to_be_bytes());
    key
}

/// Returns the first page of a record, given its key.
pub(crate) fn first_of(key: &[u8]) -> Option<u64> {
    let group = key.strip_prefix(MAP)?.first_chunk::<4>()?;
    Some(u64::from(u32::from_be_bytes(*group)) * GROUP)
}

/// Returns the free pages of a record.
pub(crate) fn free_of<'b>(first: u64, bits: &'b [u8]) -> impl Iterator<Item = u64> + 'b {
    let set = move |at: &u64| bits.get((at / 8) as usize).is_some_and(|b| b >> (at % 8) & 1 != 0);
    (0..GROUP).filter(set).map(move |at| first + at)
}

impl<M: ConstMachine> StoreSession<M> {
    /// Marks a page in the catalog as free or not. Returns false if it was marked so before.
    fn mark(&self, page: u64, free: bool) -> Result<bool, Error> {
        let (byte, bit) = ((page % GROUP / 8) as usize, 1 << (page % 8));
        let changed = self.with(CATALOG, ChangeOrigin::System, |tree| {
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

    /// Takes a free page and records an intent on it. The page does not count as a root before it
    /// is written, because its old contents on the disk may link to pages that now belong to
    /// another tree.
    pub(crate) fn take_page(&self, tree: u32, origin: ChangeOrigin) -> Result<u64, Error> {
        let (shared, file, slot) = (&self.home.shared, self.home.file, self.slot());
        // Before a page is taken: no other thread fills the slot's intents.
        if !shared.has_hand(slot)? {
            return Err(Error::Options("as many pages in hand as a thread may have"));
        }
        // Taking a page from the list changes the catalog, which may have to grow first, and must
        // not take such a page for that.
        let from_list = tree != CATALOG || matches!(origin, ChangeOrigin::Root);
        let held = |page| PageIntent { tree, page, kind: IntentKind::Page };
        while from_list && let Some(page) = self.handle.take_freed(file)? {
            shared.hold(slot, held(page))?;
            match self.mark(page, false) {
                Ok(true) => return Ok(page),
                // The list is in shared memory, which may be damaged: the catalog decides.
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

    /// Creates the root of a tree whose name the slot's transaction is about to write.
    pub(crate) fn make_root(&self) -> Result<u32, Error> {
        let journal = TreeJournal::new(self, CATALOG, ChangeOrigin::Root);
        let page = Tree::create(&self.handle, self.home.file, &journal)?.root();
        let root = PageIntent { tree: CATALOG, page, kind: IntentKind::Root };
        self.home.shared.hold_as(self.slot(), root)?;
        u32::try_from(page).map_err(|_| Error::Options("2^32 pages"))
    }

    /// Resolves an intent: if nothing links to the page, it is freed.
    pub(crate) fn settle(&self, slot: u16, held: PageIntent) -> Result<(), Error> {
        let (page, shared) = (held.page, &self.home.shared);
        if self.is_linked(held)? {
            return shared.let_go(slot, page);
        }
        // The bit may be set already: it was when the page was taken from the list. A page with an
        // intent is in no list, so no other thread can take it before it is added there, once.
        self.mark(page, true)?;
        shared.let_go(slot, page)?;
        match self.handle.free_page(self.home.file, page) {
            Err(PoolError::Freed { .. }) => Ok(()),
            freed => Ok(freed?),
        }
    }

    /// Resolves all intents of a slot; without `all`, except roots whose transaction continues.
    pub(crate) fn settle_all(&self, slot: u16, all: bool) -> Result<(), Error> {
        let settled = self.settle_hand(slot, all);
        if all && slot == self.slot() {
            self.roots_left.set(settled.is_err());
        }
        settled
    }

    fn settle_hand(&self, slot: u16, all: bool) -> Result<(), Error> {
        let hand = self.home.shared.hand(slot)?;
        let of = |kind| hand.iter().copied().filter(move |held| held.kind == kind);
        let settle = |held| self.settle(slot, held);
        // These make room for the following ones.
        of(IntentKind::Dismantled).try_for_each(settle)?;
        let mut failed = Vec::new();
        for root in of(IntentKind::Root).filter(|_| all) {
            match self.is_linked(root)? {
                true => self.home.shared.let_go(slot, root.page)?,
                false => failed.push(root),
            }
        }
        // Pages of such a tree are checked after the tree has been dismantled, and before its root
        // is reused; the other pages before, because they also make room.
        let goes = |held: &PageIntent| failed.iter().any(|root| root.page == u64::from(held.tree));
        of(IntentKind::Page).filter(|held| !goes(held)).try_for_each(settle)?;
        failed.iter().try_for_each(|root| self.dismantle(root.page))?;
        of(IntentKind::Page).filter(goes).chain(failed.iter().copied()).try_for_each(settle)?;
        self.home.shared.if_empty_handed(slot)
    }

    /// Frees all pages of a tree without a name, except its root.
    fn dismantle(&self, root: u64) -> Result<(), Error> {
        let tree = u32::try_from(root).map_err(|_| Error::Options("2^32 pages"))?;
        self.with(tree, ChangeOrigin::Dismantle, |tree| tree.dismantle())?;
        Ok(())
    }

    /// Returns whether the page's tree links to it, or the page is the root of a tree.
    fn is_linked(&self, held: PageIntent) -> Result<bool, Error> {
        if held.kind == IntentKind::Dismantled {
            let journal = TreeJournal::new(self, held.tree, ChangeOrigin::System);
            let root = u64::from(held.tree);
            let of = Tree::open(&self.handle, self.home.file, root, &journal);
            return Ok(of.is_first(held.page)?);
        }
        if self.leads_to(held.tree, held.page)? {
            return Ok(true);
        }
        // Shared memory that names these two is wrong.
        let mut found = [CATALOG, PIECES].map(u64::from).contains(&held.page);
        // The whole catalog is read only for what a dead or failed thread left.
        if held.kind == IntentKind::Root {
            self.each_newest(&mut |key, value| {
                let root = root_of(value).ok().map(u64::from);
                found |= !key.starts_with(INNER) && root == Some(held.page);
            })?;
        }
        Ok(found)
    }

    /// Returns whether a tree links to a page.
    pub(crate) fn leads_to(&self, tree: u32, page: u64) -> Result<bool, Error> {
        let journal = TreeJournal::new(self, tree, ChangeOrigin::System);
        let of = Tree::open(&self.handle, self.home.file, u64::from(tree), &journal);
        Ok(of.leads_to(page)?)
    }

    /// Calls `each` for the newest versions of all records of the catalog.
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

    /// Returns whether the catalog marks a page as free.
    pub(crate) fn is_free_page(&self, page: u64) -> Result<bool, Error> {
        let mut bits = Vec::new();
        let there = self.newest(CATALOG, &key_of(page), &mut bits)?.there;
        let first = page / GROUP * GROUP;
        Ok(there && free_of(first, &bits).any(|free| free == page))
    }

    /// Returns all pages that the catalog marks as free.
    pub(crate) fn free_pages(&self) -> Result<Vec<u64>, Error> {
        let mut free = Vec::new();
        self.each_newest(&mut |key, bits| {
            free.extend(first_of(key).into_iter().flat_map(|first| free_of(first, bits)));
        })?;
        Ok(free)
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Returns the space of free pages to the file system, except the next ones to be taken: an
    /// eighth of the file. Returns the number of bytes.
    pub(crate) fn punch_some(&self, worker: &StoreSession<M>) -> Result<u64, Error> {
        let keep = (self.pool.pages(self.file)? / 8).max(KEEP_ROOM);
        self.punch(worker, &self.pool.punchable(self.file, keep)?)
    }

    /// Returns the space of all free pages to the file system.
    pub(crate) fn punch_all(&self, worker: &StoreSession<M>) -> Result<u64, Error> {
        self.punch(worker, &worker.free_pages()?)
    }

    /// Returns the space of these pages to the file system.
    ///
    /// The log marks a page as free before the pool does. That must be durable for all of these
    /// pages, or after a crash a link could lead to a page without bytes. Recovery reads no page
    /// that is free at the end of the log, unless a record contains a change of it from before;
    /// that record also precedes the record that frees the page, so a fault of the page does not
    /// count as damage.
    fn punch(&self, worker: &StoreSession<M>, pages: &[u64]) -> Result<u64, Error> {
        let end = || Lsn(self.log.end().0.saturating_sub(1));
        let mut durable = || worker.log.flush(end()).is_ok();
        Ok(worker.handle.punch(self.file, pages, &mut durable)?)
    }

    /// Frees pages that had intents when the machine crashed, given with their trees, and rebuilds
    /// the pool's list.
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
        // A page may lie after the end of the file: it was taken, and never written.
        for (page, tree) in in_hand.iter().filter(|(page, _)| !is_root(page)) {
            // The pages of a table whose creation did not commit are freed with it.
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
