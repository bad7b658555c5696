//! Recovery after a crash of the machine: the log contains the changes that the pages lack.
//!
//! | step | action |
//! |---|---|
//! | check | the pages exist and belong to this log: `signature.rs` |
//! | read | the log is read once from the redo point on: `analysis.rs` keeps the results |
//! | redo | each change that a page lacks: `redo.rs` |
//! | signature | the check is repeated |
//! | restore | slots of most transactions without an end: `restore_transactions.rs` |
//! | space | pages with intents are freed |
//! | checkpoint | so that recovery is not repeated |
//! | rollback | transactions that are not prepared, by the first sweep of the open store |
//!
//! A page that cannot be read, because a write of it was torn, is rebuilt by the first record that
//! contains it completely. Such a record exists, because each page is logged completely when it
//! first changes after a checkpoint.
//!
//! That record may lie before the redo point, if an open transaction or a page intent keeps the
//! redo point before the mark. The checkpoint wrote such a page, unless it was unlinked or freed
//! before: such a page is not written again, and its contents on the disk are arbitrarily old, or
//! were never written. So a fault of a page is reported only at the end, if no later record
//! contains the page completely or frees it. The positions of the records decide, because several
//! threads redo pages, and none of them knows how far the others have come.
//!
//! A crash during recovery leaves log and pages like any other crash. A region whose recovery died
//! is not used again.

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
use crate::files::tree_journal::{ChangeOrigin, TreeJournal};
use crate::long::PIECES;
use crate::tables::CATALOG;

impl<M: ConstMachine> StoreInner<M> {
    /// Recovers the store from its log, and marks it as usable. This many threads redo.
    pub(crate) fn recover(self: &Arc<Self>, lanes: usize) -> Result<(), Error> {
        let (_span, from) = (events::recovery(), now::<M>());
        self.has_its_pages()?;
        let mut analysis = Analysis::default();
        let stale = self.redo(lanes, &mut analysis)?;
        analysis.is_sound(&stale, self.file.number())?;
        // A sweeper's slot: the other slots may belong to prepared transactions.
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
        // Do not roll back open transactions because of the log that they retain.
        self.make_checkpoint(&worker, u64::MAX)?;
        // A process may have died before it punched them, and a crash may have left half of a page.
        worker.count(Count::Punched, self.punch_all(&worker).unwrap_or(0));
        let read = end.0.saturating_sub(self.log.recovered().redo.0);
        events::recovered(read, now::<M>().saturating_sub(from));
        Ok(())
    }

    /// Rewrites the last page of the file unchanged. The next checkpoint signs the length of the
    /// file. If a sync of the file had failed and the machine ran on, that length may exist only in
    /// the system's cache: space for pages that do not exist yet is in no record, so redo does not
    /// write it. That checkpoint makes it durable: it must write the page of its signature, or
    /// signs nothing. A page that cannot be read is left as it is.
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
    /// Creates one of the trees without a name, whose root is the next page.
    fn make_tree(&self, number: u32) -> Result<(), Error> {
        let journal = TreeJournal::new(self, number, ChangeOrigin::System);
        let tree = Tree::create(&self.handle, self.home.file, &journal)?;
        journal.give_back()?;
        match tree.root() == u64::from(number) {
            true => Ok(()),
            false => Err(Error::Options("folder: it has a file `data` that is no store's")),
        }
    }
}
