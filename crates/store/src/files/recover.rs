//! After a crash of the machine: the log says what the pages do not have.
//!
//! | step | what |
//! |---|---|
//! | read | the log from the redo point on, once |
//! | redo | each change of a page that the page does not have; nothing is read but pages |
//! | undo | the transactions that have no commit, as those of the dead |
//! | checkpoint | so that it is not done again |
//!
//! A page that cannot be read, because a write of it was torn, is made by the first record that has
//! it whole: there is one, for each page is logged whole when it changes first after a checkpoint.
//! A crash on the way leaves log and pages as any other does. A region whose recovery died is not
//! used again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use latchwork_log::{Entry, Flags, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_pool::Error as PoolError;
use latchwork_tree::{Change, Role, Tree, redo};

use crate::Error;
use crate::files::home::Home;
use crate::files::kinds::{CHANGE, END};
use crate::files::scribe::{Part, Scribe};
use crate::files::space::{first_of, free_of};
use crate::files::worker::Worker;
use crate::tables::CATALOG;

/// What the log says so far.
#[derive(Default)]
struct Analysis {
    /// The last record of each slot whose transaction has no end.
    open: BTreeMap<u16, Lsn>,
    /// Pages that cannot be read, and that no record had whole so far.
    unreadable: BTreeSet<u64>,
    /// Pages that were made or unlinked, and that no later record leads to, with their trees.
    in_hand: BTreeMap<u64, u32>,
}

impl Analysis {
    fn note(&mut self, entry: &Entry) {
        let flags = entry.head.flags;
        if flags.has(Flags::LAST) || entry.head.kind == END {
            self.open.remove(&entry.slot);
        } else if !flags.has(Flags::SYSTEM) || flags.has(Flags::CLR) {
            self.open.insert(entry.slot, entry.lsn);
        }
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
            Some(Change::Absorb { gone, .. }) => _ = self.in_hand.insert(gone, tree),
            Some(Change::Replace { key, before, value, .. }) if tree == CATALOG => {
                let first = first_of(key).unwrap_or(0);
                let taken = free_of(first, before).filter(|page| {
                    first_of(key).is_some() && !free_of(first, value).any(|free| free == *page)
                });
                taken.for_each(|page| _ = self.in_hand.insert(page, CATALOG));
            }
            _ => {}
        }
    }
}

impl<M: ConstMachine> Home<M> {
    /// Makes the store what its log says, and says that it can be used.
    pub(crate) fn recover(self: &Arc<Self>) -> Result<(), Error> {
        let worker = self.worker()?;
        let mut analysis = Analysis::default();
        for entry in self.log.scan(self.log.recovered().redo) {
            let entry = entry?;
            analysis.note(&entry);
            if entry.head.kind == CHANGE {
                worker.redo(&entry, &mut analysis.unreadable)?;
            }
        }
        if let Some(page) = analysis.unreadable.first() {
            let file = self.file.number();
            return Err(PoolError::Checksum { file, page: *page }.into());
        }
        for (slot, last) in &analysis.open {
            worker.undo_all(*slot, *last, *last)?;
        }
        if self.pool.pages(self.file)? == 0 {
            worker.make_catalog()?;
        }
        self.recover_space(&worker, &analysis.in_hand)?;
        self.shared.recovered(self.log.end(), self.sizes.mode)?;
        self.checkpoint(&worker)?;
        Ok(())
    }
}

impl<M: ConstMachine> Worker<M> {
    /// Makes the tree that has the names of all others: its root is the first page.
    fn make_catalog(&self) -> Result<(), Error> {
        let scribe = Scribe::new(self, 0, Part::System);
        let tree = Tree::create(&self.handle, self.home.file, &scribe)?;
        scribe.give_back()?;
        match tree.root() {
            0 => Ok(()),
            _ => Err(Error::Options("folder: it has a file `data` that is no store's")),
        }
    }

    /// Does a change again, unless its page has it.
    fn redo(&self, entry: &Entry, unreadable: &mut BTreeSet<u64>) -> Result<(), Error> {
        let (file, number) = (self.home.file, entry.head.page);
        let wrong = |what| Error::Damaged { tree: entry.head.aux32, key: Vec::new(), what };
        let change = Change::decode(&entry.payload).ok_or(wrong("a record of an unknown kind"))?;
        let whole = change.before(Role::Own, entry.head.page_prev.0).is_none();
        let page = match self.handle.write(file, number) {
            Ok(page) => page,
            Err(_) if whole => {
                self.handle.discard(file, number)?;
                self.handle.create(file, number)?
            }
            Err(
                PoolError::Checksum { .. }
                | PoolError::Misdirected { .. }
                | PoolError::OutOfRange { .. }
                | PoolError::Disk(latchwork_disk::Error::ShortRead { .. }),
            ) => {
                unreadable.insert(number);
                return Ok(());
            }
            Err(other) => return Err(other.into()),
        };
        if page.lsn() >= entry.lsn.0 {
            return Ok(());
        }
        if !whole && page.lsn() != entry.head.page_prev.0 {
            return Err(wrong("a page is not as the log left it: a write of it was lost"));
        }
        redo(&change, page, entry.slot, entry.lsn.0)?;
        unreadable.remove(&number);
        Ok(())
    }
}
