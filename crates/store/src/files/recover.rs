//! After a crash of the machine: the log says what the pages do not have.
//!
//! | step | what |
//! |---|---|
//! | look | whether the pages are there, and those of this log: `signature.rs` |
//! | read | the log from the redo point on, once: `analysis.rs` keeps what it says |
//! | redo | each change of a page that the page does not have: `redo.rs` |
//! | signature | the same once more |
//! | again | the slots of transactions without an end, but of some that are undone: `again.rs` |
//! | space | what was in hand is given back |
//! | checkpoint | so that it is not done again |
//! | undo | the transactions that are not prepared, by the first sweep of the open store |
//!
//! A page that cannot be read, because a write of it was torn, is made by the first record that has
//! it whole: there is one, for each page is logged whole when it changes first after a checkpoint.
//!
//! That one may lie before the redo point, if an open transaction or a page in hand keeps that from
//! before the mark. Such a page was written by the checkpoint, but for one that was unlinked or
//! freed before: nobody writes that again, and on disk it is as old as it may be, or was never
//! there. So what is wrong with a page is told at the end only, if no later record has it whole or
//! says that it is nobody's. That is judged by the records' places: pages are redone by several
//! threads, none of which knows how far the others have come.
//!
//! A crash on the way leaves log and pages as any other does. A region whose recovery died is not
//! used again.

use std::sync::Arc;

use latchwork_disk::Open;
use latchwork_machine::ConstMachine;
use latchwork_tree::Tree;

use crate::Error;
use crate::events;
use crate::files::analysis::Analysis;
use crate::files::inner::StoreInner;
use crate::files::meter::{Count, now};
use crate::files::session::StoreSession;
use crate::files::tree_journal::{Part, TreeJournal};
use crate::long::PIECES;
use crate::tables::CATALOG;

impl<M: ConstMachine> StoreInner<M> {
    /// Makes the store what its log says, and says that it can be used. So many threads redo.
    pub(crate) fn recover(self: &Arc<Self>, lanes: usize) -> Result<(), Error> {
        let (_span, from) = (events::recovery(), now::<M>());
        self.has_its_pages()?;
        let mut analysis = Analysis::default();
        let stale = self.redo(lanes, &mut analysis)?;
        analysis.is_sound(&stale, self.file.number())?;
        // One of a sweeper's: the others may be those of prepared transactions.
        let worker = StoreSession::of_sweeper(self.clone(), self.manager.region().sweeper()?)?;
        self.is_signed(&worker)?;
        let low = self.restore_open(&worker, &mut analysis.slots)?;
        for tree in [CATALOG, PIECES] {
            if self.pool.pages(self.file)? <= u64::from(tree) {
                worker.make_tree(tree)?;
            }
        }
        self.recover_space(&worker, &analysis.in_hand)?;
        self.rewrite_last_page()?;
        let end = self.log.end();
        self.shared.recovered(low.unwrap_or(end), end, self.sizes.mode)?;
        // What is not undone yet is not undone for the log that it keeps, either.
        self.make_checkpoint(&worker, u64::MAX)?;
        // A process may have died before it punched them, and a crash may have left half of one.
        worker.count(Count::Punched, self.punch_all(&worker).unwrap_or(0));
        let read = end.0.saturating_sub(self.log.recovered().redo.0);
        events::recovered(read, now::<M>().saturating_sub(from));
        Ok(())
    }

    /// Writes the last page of the file once more, as it is. The next checkpoint signs how long the
    /// file is. If a sync of the file had failed, and the machine ran on, that length may be the
    /// system's alone: room for pages that are not made yet is in no record, so redo writes none of
    /// it. That checkpoint makes it durable: it has the page of its signature to write, or signs
    /// nothing. A page that cannot be read stays as it is.
    fn rewrite_last_page(&self) -> Result<(), Error> {
        let data = self.disk.open(&self.folder.join("data"), Open::WRITE)?;
        let length = data.length()?;
        let mut end = vec![0; length.min(self.file.page_bytes().into()) as usize];
        let at = length - end.len() as u64;
        if data.read(at, &mut end).is_ok() {
            data.write(at, &end)?;
        }
        Ok(())
    }
}

impl<M: ConstMachine> StoreSession<M> {
    /// Makes one of the trees that have no name: its root is the next page.
    fn make_tree(&self, number: u32) -> Result<(), Error> {
        let scribe = TreeJournal::new(self, number, Part::System);
        let tree = Tree::create(&self.handle, self.home.file, &scribe)?;
        scribe.give_back()?;
        match tree.root() == u64::from(number) {
            true => Ok(()),
            false => Err(Error::Options("folder: it has a file `data` that is no store's")),
        }
    }
}
