//! Changes of a tree as log records.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::SeqCst;

use latchwork_log::{Error as LogError, Flags, Head, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_pool::Cause;
use latchwork_tree::{Change, Error as TreeError, Journal};

use crate::Error;
use crate::engine::WriteOptions;
use crate::files::kinds::CHANGE;
use crate::files::page_intents::{IntentKind, PageIntent};
use crate::files::session::{SMALL, StoreSession};
use crate::tables::CATALOG;

/// Bytes of the record of a whole page, in addition to the page.
pub(crate) const IMAGE: u64 = 256;

/// The role of a change in its transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChangeOrigin {
    /// A write after the record `prev`, possibly the last one of the transaction.
    Write { prev: u64, options: WriteOptions },
    /// The rollback of a write of the transaction of `slot`; `next` is rolled back next.
    Undo { slot: u16, next: u64 },
    /// It belongs to no transaction.
    System,
    /// The first page of a tree whose name a transaction is about to write.
    Root,
    /// It belongs to no transaction: a tree without a name is dismantled.
    Dismantle,
}

/// Appends the log records for one change of a tree.
pub(crate) struct TreeJournal<'w, M: ConstMachine> {
    pub(crate) worker: &'w StoreSession<M>,
    pub(crate) tree: u32,
    pub(crate) origin: ChangeOrigin,
    /// Used reservation of a rollback: for its record, and for a page that is logged completely
    /// before it.
    taken: Cell<(u64, u64)>,
    /// Pages with intents, and whether the tree has requested them.
    pages: RefCell<Vec<(u64, bool)>>,
    /// Whether more credit was requested than the thread may keep.
    much: Cell<bool>,
}

impl<'w, M: ConstMachine> TreeJournal<'w, M> {
    pub(crate) fn new(worker: &'w StoreSession<M>, tree: u32, origin: ChangeOrigin) -> Self {
        let (taken, pages, much) = (Cell::default(), RefCell::default(), Cell::default());
        Self { worker, tree, origin, taken, pages, much }
    }

    /// Uses the reservation of a rollback: at first for the record alone, because few pages must be
    /// logged completely before it, and the reservation for these is shared by all rollbacks.
    /// Returns whether it was sufficient.
    fn take_aside(&self, slot: u32, record: u64, bytes: u64) -> Result<bool, LogError> {
        let (log, whole) = (&self.worker.log, u64::from(self.worker.home.file.page_bytes()));
        let mut image = 0;
        if record != 0 {
            image = bytes.saturating_sub(record).min(whole + IMAGE);
            self.taken.set((0, 0));
            log.put_aside(slot, record, 0)?;
        }
        let record = if record == 0 { bytes } else { record };
        let taken = log.take_aside(slot, record, image)?;
        self.taken.set((record, taken));
        Ok(taken + record == bytes)
    }

    /// Returns the unused part of the reservation; all of it if nothing was rolled back.
    pub(crate) fn undone(&self, done: bool) -> Result<(), Error> {
        let (ChangeOrigin::Undo { slot, .. }, (record, image)) = (self.origin, self.taken.take())
        else {
            return Ok(());
        };
        let record = if done { 0 } else { record };
        if record + image != 0 {
            self.worker.log.put_aside(u32::from(slot), record, image)?;
        }
        Ok(())
    }

    /// Frees the pages that still have intents, because the tree did not need them or failed.
    /// Returns the credit for complete pages that were not logged; otherwise an idle thread would
    /// withhold it from all others.
    #[inline]
    pub(crate) fn give_back(&self) -> Result<(), Error> {
        if self.much.get() {
            let _ = self.worker.log.give_back(self.worker.kept_credit());
        }
        match self.pages.borrow().is_empty() || matches!(self.origin, ChangeOrigin::Root) {
            true => Ok(()),
            false => self.give_back_some(),
        }
    }

    #[cold]
    fn give_back_some(&self) -> Result<(), Error> {
        let settle = |page| self.worker.settle(self.slot(), self.held(page));
        // Each of them, even if an earlier one fails.
        self.pages.take().into_iter().map(|(page, _)| settle(page)).fold(Ok(()), Result::and)
    }

    fn held(&self, page: u64) -> PageIntent {
        PageIntent { tree: self.tree, page, kind: self.kind() }
    }

    fn kind(&self) -> IntentKind {
        match self.origin {
            ChangeOrigin::Dismantle => IntentKind::Dismantled,
            _ => IntentKind::Page,
        }
    }

    /// Returns what a change reserves for its rollback, and the first one of a transaction for its
    /// end.
    fn aside(&self, change: &Change<'_>) -> u64 {
        match (self.origin, change.undo_bytes()) {
            (ChangeOrigin::Write { prev, options: WriteOptions { last: false, .. } }, bytes)
                if bytes != 0 =>
            {
                bytes + if prev == 0 { SMALL } else { 0 }
            }
            _ => 0,
        }
    }

    /// Returns the slot, the flags, and the link of the record.
    fn head(&self, change: &Change<'_>) -> (u32, Head) {
        let own = self.worker.log.slot();
        let mut head =
            Head { kind: CHANGE, flags: Flags::SYSTEM, aux: self.tree, ..Head::default() };
        match (self.origin, change) {
            (
                ChangeOrigin::Write { prev, options },
                Change::Insert { .. }
                | Change::Update { .. }
                | Change::Replace { .. }
                | Change::Delete { .. },
            ) => {
                (head.flags, head.prev) = (Flags(0), Lsn(prev));
                if options.last {
                    head.flags = Flags::LAST;
                    head.older = Lsn(self.worker.last_commit.get());
                }
            }
            (
                ChangeOrigin::Undo { slot, next },
                Change::Ghost { .. } | Change::Revert { .. } | Change::Restore { .. },
            ) => {
                let other = u32::from(slot) != own;
                head.flags = if other { Flags::CLR | Flags::SYSTEM } else { Flags::CLR };
                head.prev = Lsn(next);
                return (u32::from(slot), head);
            }
            _ => {}
        }
        (own, head)
    }
}

/// Wraps an error for the tree.
fn refused(why: impl Into<Error>) -> Cause {
    Cause::new(why.into())
}

impl<M: ConstMachine> Journal for TreeJournal<'_, M> {
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, Cause> {
        let log = &self.worker.log;
        let (slot, mut head) = self.head(change);
        (head.page, head.page_prev) = (page, Lsn(page_prev));
        let mut payload = self.worker.payload.borrow_mut();
        payload.clear();
        change.encode(&mut payload);
        let mut record = self.worker.record.borrow_mut();
        let built = log.rebuild_for(&mut record, slot, &head, &[&payload]);
        let appended = built.and_then(|()| {
            record.set_aside(self.aside(change));
            log.append_since(&mut record, Lsn(since))
        });
        if matches!((change, &appended), (Change::Image { .. }, Ok(Some(_)))) {
            self.taken.set((self.taken.get().0, 0));
        }
        appended.map(|lsn| lsn.map(|lsn| lsn.0)).map_err(refused)
    }

    fn slot(&self) -> u16 {
        self.worker.slot()
    }

    fn since(&self) -> u64 {
        self.worker.log.log().marked().0
    }

    fn logs_whole(&self) -> bool {
        // Recovery reads which pages are free before it has the pages of the catalog
        // (`files/analysis.rs`), and tools that have only the log read the names of tables.
        self.tree == CATALOG
    }

    fn reserve(&self, bytes: u64) -> Result<(), Cause> {
        if let (ChangeOrigin::Undo { slot, .. }, (record, 0)) = (self.origin, self.taken.get())
            && self.take_aside(u32::from(slot), record, bytes).map_err(refused)?
        {
            return Ok(());
        }
        if !self.has(bytes) && bytes > self.worker.kept_credit() {
            self.much.set(true);
        }
        self.worker.log.reserve(bytes).map_err(|why| {
            let why = Error::from(why);
            if why.is_no_space() {
                // Recycling the log itself may free space.
                let _ = self.worker.home.shared.make_due();
            }
            refused(why)
        })
    }

    fn keep_little(&self) {
        let _ = self.worker.log.give_back(self.worker.kept_credit());
    }

    fn has(&self, bytes: u64) -> bool {
        self.worker.log.credit() >= bytes
    }

    fn reserve_pages(&self, count: usize) -> Result<(), TreeError> {
        while !self.has_pages(count) {
            let page = self.worker.take_page(self.tree, self.origin).map_err(|why| match why {
                Error::Pool(why) => TreeError::Pool(why),
                Error::Tree(why) => why,
                why => TreeError::Journal(refused(why)),
            })?;
            self.pages.borrow_mut().push((page, false));
        }
        Ok(())
    }

    fn has_pages(&self, count: usize) -> bool {
        self.pages.borrow().iter().filter(|page| !page.1).count() >= count
    }

    fn page(&self) -> Option<u64> {
        let mut pages = self.pages.borrow_mut();
        let (page, asked) = pages.iter_mut().find(|page| !page.1)?;
        *asked = true;
        Some(*page)
    }

    fn linked(&self, page: u64) {
        // After an error the intent remains until it is resolved.
        if self.worker.home.shared.let_go(self.slot(), page).is_ok() {
            self.pages.borrow_mut().retain(|held| held.0 != page);
        }
    }

    fn unlink(&self, page: u64) -> Result<bool, Cause> {
        let shared = &self.worker.home.shared;
        if shared.is_held(page).map_err(refused)? {
            return Ok(false);
        }
        match shared.hold(self.slot(), self.held(page)).map_err(refused)? {
            // The tree would drop the page, and no slot would have an intent on it.
            false if matches!(self.origin, ChangeOrigin::Dismantle) => {
                Err(refused(Error::Options("as many pages in hand as a thread may have")))
            }
            held => Ok(held),
        }
    }

    fn unlinked(&self, page: u64) -> Result<bool, TreeError> {
        let settled = self.worker.settle(self.slot(), self.held(page));
        settled.map(|()| true).map_err(|why| TreeError::Journal(refused(why)))
    }

    fn forgotten(&self) -> u64 {
        self.worker.home.shared.forgotten().unwrap_or(0)
    }

    fn may_write(&self) -> Result<bool, Cause> {
        if !matches!(
            self.origin,
            ChangeOrigin::Write { options: WriteOptions { cleared: false, .. }, .. }
        ) {
            return Ok(true);
        }
        // SeqCst: the leaf's latch before the claims; the partner is in `Txn::claim`: a scan that
        // made its claim later finds the leaf latched, or its change.
        M::fence(SeqCst);
        self.worker.has_claims(self.tree).map(|any| !any).map_err(refused)
    }

    fn may_replace(&self, key: &[u8], before: &[u8]) -> bool {
        let asks = matches!(
            self.origin,
            ChangeOrigin::Write { options: WriteOptions { over: false, .. }, .. }
        );
        !asks || key.len() + before.len() != self.worker.home.record_max
    }
}
