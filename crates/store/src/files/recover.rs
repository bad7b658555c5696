//! After a crash of the machine: the log says what the pages do not have.
//!
//! | step | what |
//! |---|---|
//! | read | the log from the redo point on, once |
//! | redo | each change of a page that the page does not have; nothing is read but pages |
//! | again | the slots of transactions that are prepared: `again.rs` |
//! | undo | the transactions that have no commit, as those of the dead |
//! | checkpoint | so that it is not done again |
//!
//! A page that cannot be read, because a write of it was torn, is made by the first record that has
//! it whole: there is one, for each page is logged whole when it changes first after a checkpoint.
//!
//! That one may lie before the redo point, if an open transaction or a page in hand keeps that from
//! before the mark. Such a page was written by the checkpoint, but for one that was unlinked or
//! freed before: nobody writes that again, and on disk it is as old as it may be, or was never
//! there. So what is wrong with a page is told at the end only, if no later record has it whole or
//! says that it is nobody's.
//!
//! A crash on the way leaves log and pages as any other does. A region whose recovery died is not
//! used again.

use std::collections::BTreeMap;
use std::sync::Arc;

use latchwork_log::{Entry, Flags, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_pool::Error as PoolError;
use latchwork_tree::{Change, Role, Tree, redo};

use crate::Error;
use crate::files::again::Slots;
use crate::files::home::Home;
use crate::files::kinds::CHANGE;
use crate::files::scribe::{Part, Scribe};
use crate::files::space::{first_of, free_of};
use crate::files::worker::Worker;
use crate::long::PIECES;
use crate::tables::CATALOG;

/// Why a page is not as the log left it.
enum Stale {
    Unreadable,
    /// A write of it was lost: of this tree.
    Older(u32),
}

/// What the log says so far.
#[derive(Default)]
struct Analysis {
    /// The transactions of each slot.
    slots: Slots,
    /// Pages that are not as the log left them, and that no record had whole or set free so far;
    /// and whether they can be read.
    stale: BTreeMap<u64, Stale>,
    /// Pages that were made or unlinked, and that no later record leads to, with their trees.
    in_hand: BTreeMap<u64, u32>,
}

impl Analysis {
    fn note(&mut self, entry: &Entry) {
        let flags = entry.head.flags;
        self.slots.note(entry);
        if entry.head.kind == CHANGE && flags.has(Flags::SYSTEM) {
            self.note_page(entry);
        }
    }

    /// Which pages may have been in hand.
    fn note_page(&mut self, entry: &Entry) {
        let (tree, page) = (entry.head.aux32, entry.head.page);
        match Change::decode(&entry.payload) {
            Some(Change::Image { .. }) if entry.head.page_prev == Lsn(0) => {
                self.in_hand.insert(page, tree);
            }
            Some(Change::Split { right, .. }) => _ = self.in_hand.remove(&right),
            Some(Change::Grow { left, right, .. }) => {
                self.in_hand.remove(&left);
                self.in_hand.remove(&right);
            }
            Some(Change::Absorb { gone, .. }) => {
                self.in_hand.insert(gone, tree);
                self.stale.remove(&gone);
            }
            Some(Change::Insert { key, value, .. }) if tree == CATALOG => {
                self.note_map(key, &[], value);
            }
            Some(Change::Replace { key, before, value, .. }) if tree == CATALOG => {
                self.note_map(key, before, value);
            }
            _ => {}
        }
    }

    /// Which pages were taken, and which became free.
    fn note_map(&mut self, key: &[u8], before: &[u8], value: &[u8]) {
        let Some(first) = first_of(key) else { return };
        // Of those that are free nearly all were before: they are compared in order, and no more
        // is looked at than the record is about.
        let mut free = free_of(first, value).peekable();
        for page in free_of(first, before) {
            while free.next_if(|next| *next < page).is_some() {}
            if free.peek() != Some(&page) {
                self.in_hand.insert(page, CATALOG);
            }
        }
        if !self.stale.is_empty() {
            free_of(first, value).for_each(|page| _ = self.stale.remove(&page));
        }
    }

    /// The first page that is not as the log left it, at its end.
    fn is_sound(&self, file: u16) -> Result<(), Error> {
        match self.stale.first_key_value() {
            None => Ok(()),
            Some((page, Stale::Unreadable)) => {
                Err(PoolError::Checksum { file, page: *page }.into())
            }
            Some((_, Stale::Older(tree))) => {
                Err(wrong(*tree, "a page is not as the log left it: a write of it was lost"))
            }
        }
    }
}

fn wrong(tree: u32, what: &'static str) -> Error {
    Error::Damaged { tree, key: Vec::new(), what }
}

impl<M: ConstMachine> Home<M> {
    /// Makes the store what its log says, and says that it can be used.
    pub(crate) fn recover(self: &Arc<Self>) -> Result<(), Error> {
        // One of a sweeper's: the others may be those of prepared transactions.
        let worker = Worker::of_sweeper(self.clone(), self.manager.region().sweeper()?)?;
        let mut analysis = Analysis::default();
        for entry in self.log.scan(self.log.recovered().redo) {
            let entry = entry?;
            analysis.note(&entry);
            if entry.head.kind == CHANGE {
                worker.redo(&entry, &mut analysis.stale)?;
            }
        }
        analysis.is_sound(self.file.number())?;
        let low = self.restore_prepared(&worker, &mut analysis.slots)?;
        for (slot, open) in &analysis.slots.open {
            worker.undo_all(*slot, open.last, open.last)?;
        }
        for tree in [CATALOG, PIECES] {
            if self.pool.pages(self.file)? <= u64::from(tree) {
                worker.make_tree(tree)?;
            }
        }
        self.recover_space(&worker, &analysis.in_hand)?;
        let end = self.log.end();
        self.shared.recovered(low.unwrap_or(end), end, self.sizes.mode)?;
        self.checkpoint(&worker)?;
        Ok(())
    }
}

impl<M: ConstMachine> Worker<M> {
    /// Makes one of the trees that have no name: its root is the next page.
    fn make_tree(&self, number: u32) -> Result<(), Error> {
        let scribe = Scribe::new(self, number, Part::System);
        let tree = Tree::create(&self.handle, self.home.file, &scribe)?;
        scribe.give_back()?;
        match tree.root() == u64::from(number) {
            true => Ok(()),
            false => Err(Error::Options("folder: it has a file `data` that is no store's")),
        }
    }

    /// Does a change again, unless its page has it.
    fn redo(&self, entry: &Entry, stale: &mut BTreeMap<u64, Stale>) -> Result<(), Error> {
        let (file, number, tree) = (self.home.file, entry.head.page, entry.head.aux32);
        let change =
            Change::decode(&entry.payload).ok_or(wrong(tree, "a record of an unknown kind"))?;
        let whole = change.before(Role::Own, entry.head.page_prev.0).is_none();
        let page = match self.handle.write(file, number) {
            Ok(page) => page,
            Err(_) if whole => {
                self.handle.discard(file, number)?;
                self.handle.create(file, number)?
            }
            Err(why) if why.is_unwritten() || matches!(why, PoolError::OutOfRange { .. }) => {
                stale.insert(number, Stale::Unreadable);
                return Ok(());
            }
            Err(other) => return Err(other.into()),
        };
        if page.lsn() >= entry.lsn.0 {
            return Ok(());
        }
        if !whole && page.lsn() != entry.head.page_prev.0 {
            stale.insert(number, Stale::Older(tree));
            return Ok(());
        }
        redo(&change, page, entry.slot, entry.lsn.0)?;
        stale.remove(&number);
        Ok(())
    }
}
